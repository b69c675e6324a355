"""Maps of several scales from one map of a plain backbone."""

from collections.abc import Sequence

from mmengine.model import BaseModule
from torch import Tensor, nn

from ..registry import MODELS


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of ``(N, C, H, W)``."""

    # What mmcv calls it in a ConvModule: the name in public weights.
    _abbr_ = 'norm_layer'

    def __init__(self, num_channels: int, eps: float = 1e-6) -> None:
        super().__init__(num_channels, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each pixel."""
        # Not movedim, whose negative axis an export cannot write.
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


@MODELS.register_module()
class SimpleFeaturePyramid(BaseModule):
    """Pyramid of the strides 4, 8, 16, 32 and 64 from a map of stride 16.

    Finer maps come of nearest upsampling and convolutions of 3 x 3, coarser
    ones of max pooling, the last one of a convolution of stride 2 as well.
    Each ends in convolutions of 1 x 1 and 3 x 3 with a norm, and no
    activation. Names in the state dict are those of ``SFP`` of
    Sense-X/Co-DETR, which ViTDet's neck (transposed convolutions) is not.

    Args:
        in_channels: C of the map, or a list of one number, as other necks
            take it; a multiple of 4.
        out_channels: Of each map that is given.
        num_outs: 4 from stride 8, or 5 from stride 4.
        init_cfg: Of the weights; by default Xavier's uniform one for
            convolutions.

    Raises:
        ValueError: If an argument is out of range, or a neck for several
            maps is asked for.

    Source:
        ``mmdet/models/necks/sfp.py`` of Sense-X/Co-DETR; the idea is that of
        ViTDet, arXiv 2203.16527.

    Examples:
        >>> import torch
        >>> neck = SimpleFeaturePyramid(8, 4)
        >>> [out.shape[-1] for out in neck([torch.zeros(1, 8, 4, 4)])]
        [16, 8, 4, 2, 1]
    """

    def __init__(
        self,
        in_channels: int | Sequence[int],
        out_channels: int,
        num_outs: int = 5,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(
            init_cfg
            or {'type': 'Xavier', 'layer': 'Conv2d', 'distribution': 'uniform'}
        )
        channels = in_channels
        if not isinstance(channels, int):
            if len(channels) != 1:
                raise ValueError(
                    'in_channels must be of one map, got '
                    f'{list(channels)}; use ChannelMapper or FPN for several'
                )
            channels = channels[0]
        if channels < 4 or channels % 4:
            raise ValueError(
                f'in_channels must be a multiple of 4, got {channels}'
            )
        if num_outs not in (4, 5):
            raise ValueError(f'num_outs must be 4 or 5, got {num_outs}')

        def layers(*before: nn.Module, channels: int) -> nn.Sequential:
            return nn.Sequential(
                *before,
                *_conv(channels, out_channels, 1),
                nn.GELU(),
                *_conv(out_channels, out_channels, 3),
            )

        half, quarter = channels // 2, channels // 4
        if num_outs == 5:
            self.p2 = layers(
                *_finer(channels, half),
                *_finer(half, quarter),
                channels=quarter,
            )
        self.p3 = layers(*_finer(channels, half), channels=half)
        self.p4 = layers(channels=channels)
        self.p5 = layers(nn.MaxPool2d(3, 2, 1), channels=channels)
        self.p6 = layers(
            nn.MaxPool2d(3, 2, 1),
            *_conv(channels, channels, 3, stride=2),
            nn.GELU(),
            channels=channels,
        )
        self.num_outs = num_outs

    def forward(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Maps of the last one of ``inputs``, ``(N, C, H, W)``.

        Returns:
            ``num_outs`` maps ``(N, out_channels, h, w)``, the finest first;
            coarser ones are rounded up.
        """
        outs = (self.p3, self.p4, self.p5, self.p6)
        if self.num_outs == 5:
            outs = (self.p2, *outs)
        return tuple(layer(inputs[-1]) for layer in outs)


def _conv(
    in_channels: int, out_channels: int, size: int, stride: int = 1
) -> tuple[nn.Module, nn.Module]:
    """Convolution without a bias, and its norm."""
    conv = nn.Conv2d(
        in_channels, out_channels, size, stride, size // 2, bias=False
    )
    return conv, ChannelNorm(out_channels)


def _finer(in_channels: int, out_channels: int) -> tuple[nn.Module, ...]:
    """A map of twice the size."""
    conv = _conv(in_channels, out_channels, 3)
    return nn.Upsample(scale_factor=2), *conv, nn.GELU()

"""MMSegmentation's decode heads with losses from low-resolution logits."""

import logging
from typing import Any

import torch
from mmengine.logging import print_log
from mmseg.models import decode_heads
from torch import Tensor, nn

from ...registry import MODELS
from ..losses.label_range import valid_labels
from ..losses.resized_logits import ResizedLogits

_REPLACED = ('CrossEntropyLoss', 'OhemCrossEntropy')
_EPS = torch.finfo(torch.float32).eps


def accuracy_of(
    num_correct: Tensor, label: Tensor, num_classes: int, ignore: int | None
) -> Tensor:
    """Accuracy as MMSegmentation's heads give it.

    ``num_correct``: Scalar, pixels whose most probable class is the label;
    ``label``: ``(N, H, W)``, any integer dtype. Returns ``(1,)`` float32,
    percent of the pixels in range and not ignored.
    """
    total = torch.count_nonzero(valid_labels(label, num_classes, ignore))
    return ((num_correct + _EPS) * (100 / (total + _EPS))).reshape(1)


def warn_once(head: nn.Module, reason: str) -> None:
    """Warn once per head that it uses full-resolution logits."""
    if not getattr(head, '_fallback_reported', False):
        head._fallback_reported = True
        print_log(
            f'{type(head).__name__}: losses are computed from full-resolution '
            f'logits, which takes more memory: {reason}',
            'current',
            logging.WARNING,
        )


class ResizedLossMixin:
    """Gives a decode head of MMSegmentation the losses of mmext.

    The head's logits are not resized to the label map: losses and accuracy
    come from the low-resolution logits, with the same values and gradients,
    in a fraction of the memory. For a head of your own::

        @MODELS.register_module()
        class MyHead(ResizedLossMixin, MyHeadOfMMSegmentation):
            '''My head.'''

    Where a loss needs full-resolution logits (any but
    :class:`mmext.CheckedCrossEntropyLoss` with softmax and
    :class:`mmext.CheckedOhemCrossEntropy`), or a pixel sampler does, the
    head computes its losses as MMSegmentation's does, with one warning.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        hosts = cls.__mro__[cls.__mro__.index(ResizedLossMixin) + 1 :]
        owner = next(
            (host for host in hosts if 'loss_by_feat' in vars(host)), None
        )
        if owner is not decode_heads.decode_head.BaseDecodeHead:
            what = 'no head' if owner is None else owner.__name__
            raise TypeError(
                f'{cls.__name__}: ResizedLossMixin must stand before a head '
                'that has the loss_by_feat of BaseDecodeHead, got that of '
                f'{what}; write a loss_by_feat with ResizedLogits for it'
            )

    def loss_by_feat(
        self, seg_logits: Tensor, batch_data_samples: list
    ) -> dict:
        """Losses and accuracy.

        ``seg_logits``: ``(N, C, h, w)``; ``batch_data_samples``: With label
        maps ``(1, H, W)``. Returns name to loss, and ``acc_seg``, percent,
        ``(1,)``.
        """
        if not isinstance(seg_logits, Tensor):
            raise TypeError(
                f'{type(self).__name__} must return one tensor of logits '
                f'for ResizedLossMixin, got a {type(seg_logits).__name__}; '
                'write a loss_by_feat with ResizedLogits for it'
            )
        reason = self._needs_full_resolution()
        if reason:
            warn_once(self, reason)
            return super().loss_by_feat(seg_logits, batch_data_samples)
        label = self._stack_batch_gt(batch_data_samples).squeeze(1)
        resized = ResizedLogits(
            seg_logits, label.shape[1:], self.align_corners
        )
        losses: dict[str, Any] = {}
        for module in self._losses():
            value = module(resized, label, ignore_index=self.ignore_index)
            name = module.loss_name
            losses[name] = losses[name] + value if name in losses else value
        classes, ignore = self.out_channels, self.ignore_index
        if resized.num_correct is None:
            # No loss went through them: a loss of the user's may not.
            with torch.no_grad():
                resized.nll(label, valid_labels(label, classes, ignore))
        losses['acc_seg'] = accuracy_of(
            resized.num_correct, label, classes, ignore
        )
        return losses

    def _losses(self) -> list[nn.Module]:
        if isinstance(self.loss_decode, nn.ModuleList):
            return list(self.loss_decode)
        return [self.loss_decode]

    def _needs_full_resolution(self) -> str:
        """The reason, if the logits have to be resized first."""
        if self.sampler is not None:
            return f'sampler {type(self.sampler).__name__} chooses pixels'
        for module in self._losses():
            if not getattr(module, 'can_resize', False):
                kind = type(module).__name__
                hint = f', mmext.Checked{kind} does not'
                return f'{called(module)} needs them' + (
                    hint if kind in _REPLACED else ''
                )
        return ''


def called(module: nn.Module) -> str:
    """Name a loss as the user knows it."""
    options = [
        f'{name}={getattr(module, name)!r}'
        for name in ('loss_name', 'use_sigmoid', 'use_mask', 'reduction')
        if getattr(module, name, None) not in (None, False, 'mean')
    ]
    return f'{type(module).__name__}({", ".join(options)})'


@MODELS.register_module()
class FCNHead(ResizedLossMixin, decode_heads.FCNHead):
    """Head of FCN, and auxiliary head; arguments of ``mmseg.FCNHead``."""


@MODELS.register_module()
class PSPHead(ResizedLossMixin, decode_heads.PSPHead):
    """Pyramid pooling head of PSPNet; arguments of ``mmseg.PSPHead``."""


@MODELS.register_module()
class ASPPHead(ResizedLossMixin, decode_heads.ASPPHead):
    """Head of DeepLabV3; arguments of ``mmseg.ASPPHead``."""


@MODELS.register_module()
class DepthwiseSeparableASPPHead(
    ResizedLossMixin, decode_heads.DepthwiseSeparableASPPHead
):
    """Head of DeepLabV3+; arguments of the head of that name in mmseg."""


@MODELS.register_module()
class UPerHead(ResizedLossMixin, decode_heads.UPerHead):
    """Head of UPerNet; arguments of ``mmseg.UPerHead``."""


@MODELS.register_module()
class SegformerHead(ResizedLossMixin, decode_heads.SegformerHead):
    """Head of SegFormer; arguments of ``mmseg.SegformerHead``."""

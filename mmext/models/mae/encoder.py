"""The encoder of an MAE, which is a plain backbone as well.

Shape letters: N pictures, L patches, K of them that stay, T class tokens,
C channels.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ...registry import MODELS
from ..checkpointing.checkpoint import checkpoint_modules
from .layers import (
    Block,
    PatchEmbed,
    PatchMask,
    PlainViT,
    fit_positions,
    init_parameters,
    patch_grid,
    resize_positions,
    sincos_positions,
    take_patches,
    to_pair,
)

_KEYS = ('embed_dims', 'num_layers', 'num_heads', 'feedforward_channels')
_TABLE = {
    ('mini',): (96, 6, 3, 384),
    ('t', 'tiny', 'deit-tiny'): (192, 12, 3, 768),
    ('s', 'small', 'deit-small'): (384, 12, 6, 1536),
    ('b', 'base', 'deit-base'): (768, 12, 12, 3072),
    ('l', 'large'): (1024, 24, 16, 4096),
    ('h', 'huge'): (1280, 32, 16, 5120),
}
# Name -> its numbers.
ARCHITECTURES: dict[str, dict[str, int]] = {
    name: dict(zip(_KEYS, numbers))
    for names, numbers in _TABLE.items()
    for name in names
}
_OUT_TYPES = ('raw', 'cls_token', 'featmap', 'avg_featmap')


@MODELS.register_module()
class MAEViT(PlainViT):
    """Vision Transformer that sees only the patches that a mask leaves.

    Without a mask it is an ordinary backbone. It has no unused parts: no
    classification head, no mask token, no layer after the last one in
    ``out_indices``, no norm without a reader. Position embeddings are a buffer
    of sines and cosines. So every parameter gets a gradient in every step.

    Keys of the state dict are those of mmpretrain's ``MAEViT``, so that its
    checkpoints load; position embeddings are interpolated when the grid
    differs. :mod:`mmext.models.mae.convert` has those of others.

    Args:
        arch: ``'mini'``, ``'tiny'``, ``'small'``, ``'base'``, ``'large'``,
            ``'huge'``, first letters of the last five, or a dict with
            ``embed_dims``, ``num_layers``, ``num_heads`` and
            ``feedforward_channels``.
            ``'small'`` is DeiT's, not mmpretrain's of 768 channels.
        img_size: Pixels of a side, or (height, width). Without a mask other
            sizes are fine.
        patch_size: The same of a patch; divides ``img_size``.
        in_channels: Of the pictures.
        num_cls_tokens: T; 0 for a backbone without, 8 in Pixio.
        out_indices: Layers whose outputs are given, negative from the end.
            Layers behind the last one are not made.
        out_type: What is given for each of them: ``'raw'`` ``(N, T + L, C)``,
            ``'cls_token'`` ``(N, C)``, the first one; ``'featmap'``
            ``(N, C, rows, columns)``; ``'avg_featmap'`` ``(N, C)``, the
            mean of the patches, normalised by ``ln2``.
        final_norm: Apply ``ln1`` after the very last layer.
        drop_path_rate: Chance that a picture skips a branch of the last
            layer, in [0, 1), growing from 0 at the first one.
        with_cp: Number of leading layers whose activations are computed
            again in the backward pass; True for all. Never reentrant.
        frozen_stages: Number of leading layers that get no gradients, as
            does what is before them; if all layers are frozen, the final
            norm is, too. 0 freezes only what is before the layers, -1
            nothing.
        init_cfg: ``dict(type='Pretrained', checkpoint=..., prefix=
            'backbone.')`` loads weights.

    Raises:
        ValueError: If an argument is out of range.

    Source:
        MAE, arXiv 2111.06377; ViT, arXiv 2010.11929. Compatible with
        mmpretrain's ``MAEViT``.
    """

    def __init__(
        self,
        arch: str | Mapping[str, int] = 'base',
        img_size: int | Sequence[int] = 224,
        patch_size: int | Sequence[int] = 16,
        in_channels: int = 3,
        num_cls_tokens: int = 1,
        out_indices: int | Sequence[int] = -1,
        out_type: str = 'raw',
        final_norm: bool = True,
        drop_path_rate: float = 0.0,
        with_cp: bool | int = False,
        frozen_stages: int = -1,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(init_cfg)
        sizes = _architecture(arch)
        self.embed_dims = channels = sizes['embed_dims']
        self.patch_size = to_pair(patch_size, 'patch_size')
        self.grid = patch_grid(to_pair(img_size, 'img_size'), self.patch_size)
        self.num_cls_tokens = num_cls_tokens
        if out_type not in _OUT_TYPES:
            raise ValueError(
                f'out_type must be one of {_OUT_TYPES}, got {out_type!r}'
            )
        if num_cls_tokens < (out_type == 'cls_token'):
            raise ValueError(
                f'num_cls_tokens must not be {num_cls_tokens} with out_type '
                f'{out_type!r}'
            )
        self.out_type = out_type
        depth = sizes['num_layers']
        self.out_indices = _indices(out_indices, depth)
        self.frozen_stages = frozen_stages

        self.patch_embed = PatchEmbed(in_channels, channels, self.patch_size)
        if num_cls_tokens:
            self.cls_token = nn.Parameter(
                torch.empty(1, num_cls_tokens, channels)
            )
        self.register_buffer(
            'pos_embed', sincos_positions(self.grid, channels, num_cls_tokens)
        )
        rates = torch.linspace(0, drop_path_rate, depth, device='cpu')
        self.layers = nn.ModuleList(
            Block(
                channels,
                sizes['num_heads'],
                sizes['feedforward_channels'],
                rate,
            )
            for rate in rates.tolist()[: self.out_indices[-1] + 1]
        )
        self.final_norm = final_norm and len(self.layers) == depth
        if self.final_norm:
            self.ln1 = nn.LayerNorm(channels, eps=1e-6)
        if out_type == 'avg_featmap':
            self.ln2 = nn.LayerNorm(channels, eps=1e-6)
        init_parameters(self)
        checkpoint_modules(self.layers, with_cp, 'MAEViT')
        if frozen_stages > len(self.layers):
            raise ValueError(
                f'frozen_stages must be at most {len(self.layers)}, got '
                f'{frozen_stages}'
            )
        for module in self._frozen_modules():
            module.requires_grad_(False)
        if frozen_stages >= 0 and num_cls_tokens:
            self.cls_token.requires_grad_(False)
        self._register_load_state_dict_pre_hook(self._fit_positions)

    def _fit_positions(
        self, state_dict: dict, prefix: str, *_: object
    ) -> None:
        key = f'{prefix}pos_embed'
        if key in state_dict:
            state_dict[key] = fit_positions(
                state_dict[key], self.grid, self.num_cls_tokens, key
            )

    def _frozen_modules(self) -> list[nn.Module]:
        if self.frozen_stages < 0:
            return []
        frozen = [self.patch_embed, *self.layers[: self.frozen_stages]]
        if self.frozen_stages >= len(self.layers) and self.final_norm:
            frozen.append(self.ln1)
        return frozen

    def forward(
        self, images: Tensor, mask: PatchMask | bool | None = None
    ) -> tuple[Tensor, ...] | Tensor:
        """Encode pictures, whole or masked.

        Args:
            images: ``(N, in_channels, H, W)``; sides are multiples of those
                of a patch, with a mask those of ``img_size``.
            mask: None or False for whole pictures.

        Returns:
            Without a mask a tuple with what ``out_type`` says for each of
            ``out_indices``. With one the tokens ``(N, T + K, C)`` after the
            last layer and norm, patches in the order of ``mask.keep``.

        Raises:
            TypeError: If ``mask`` is True: the mask itself is needed.
            ValueError: If the sides of the pictures do not fit.
        """
        if mask is True:
            raise TypeError(
                'mask must be a PatchMask, False or None, got True; let '
                'MAE.draw_mask draw one'
            )
        grid = patch_grid(images.shape[-2:], self.patch_size, 'images')
        if mask is None or mask is False:
            positions = resize_positions(
                self.pos_embed, self.grid, grid, self.num_cls_tokens
            )
            return self._encode(self.patch_embed(images), positions, grid)
        if grid != self.grid:
            raise ValueError(
                f'images must have {self.grid} rows and columns of patches '
                f'to be masked, got {grid}; set img_size, or resize them'
            )
        extra, positions = self.pos_embed.tensor_split(
            [self.num_cls_tokens], 1
        )
        tokens = self.patch_embed(images, mask.keep)
        positions = take_patches(positions, mask.keep)
        tokens = self._with_class(tokens + positions, extra)
        for layer in self.layers:
            tokens = layer(tokens)
        return self.ln1(tokens) if self.final_norm else tokens

    def _with_class(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Put the class tokens, with their positions, in front."""
        if not self.num_cls_tokens:
            return tokens
        first = (self.cls_token + positions).expand(tokens.shape[0], -1, -1)
        return torch.cat((first.to(tokens.dtype), tokens), 1)

    def _encode(
        self, tokens: Tensor, positions: Tensor, grid: tuple[int, int]
    ) -> tuple[Tensor, ...]:
        extra, positions = positions.tensor_split([self.num_cls_tokens], 1)
        tokens = self._with_class(tokens + positions, extra)
        outputs = []
        for index, layer in enumerate(self.layers):
            tokens = layer(tokens)
            if self.final_norm and index == len(self.layers) - 1:
                tokens = self.ln1(tokens)
            if index in self.out_indices:
                outputs.append(self._output(tokens, grid))
        return tuple(outputs)

    def _output(self, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
        if self.out_type == 'raw':
            return tokens
        if self.out_type == 'cls_token':
            return tokens[:, 0]
        patches = tokens[:, self.num_cls_tokens :]
        if self.out_type == 'avg_featmap':
            return self.ln2(patches.mean(1))
        return patches.transpose(1, 2).unflatten(2, grid).contiguous()


def _architecture(arch: str | Mapping[str, int]) -> Mapping[str, int]:
    """The four numbers of an architecture."""
    if isinstance(arch, str) and arch in ARCHITECTURES:
        return ARCHITECTURES[arch]
    if isinstance(arch, Mapping) and set(_KEYS) <= set(arch):
        return arch
    raise ValueError(
        f'arch must be one of {tuple(ARCHITECTURES)} or a dict with '
        f'{_KEYS}, got {arch!r}'
    )


def _indices(indices: int | Sequence[int], depth: int) -> tuple[int, ...]:
    """Indices of layers from 0, in rising order."""
    given = (indices,) if isinstance(indices, int) else tuple(indices)
    rising = tuple(sorted(i + depth if i < 0 else i for i in given))
    if not rising or not 0 <= rising[0] <= rising[-1] < depth:
        raise ValueError(
            f'out_indices must be in [{-depth}, {depth}), got {indices!r}'
        )
    return rising

"""EVA-02's Vision Transformer as the backbone of a detector.

Shape letters: N pictures, H and W rows and columns of patches, L tokens of an
attention, C channels, D channels of a head.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from mmcv.cnn.bricks import DropPath
from mmengine.runner import CheckpointLoader
from torch import Tensor, nn
from torch.nn import functional as F

from ..registry import MODELS
from ..utils.tensors import recomputed
from .checkpointing.checkpoint import checkpoint_modules
from .mae.layers import PlainViT, fit_positions, resize_positions

_KEYS = ('embed_dims', 'num_layers', 'num_heads')
_ARCHITECTURES = {
    'tiny': (192, 12, 3),
    'small': (384, 12, 6),
    'base': (768, 12, 12),
    'large': (1024, 24, 16),
}
_EPS = 1e-6
_PATCH = 16
# Pictures of EVA-02's pre-training have so many patches on a side: positions
# of other grids are scaled to this range.
_ROTARY_SIDE = 16
_THETA = 10000.0
# Where files of EVA-02 and of detectors have their weights.
_WRAPPERS = ('model_ema', 'state_dict', 'model', 'module')
# Buffers of the public module, which are computed here.
_ROTARY_BUFFERS = ('freqs_cos', 'freqs_sin')


def rotary_table(
    grid: tuple[int, int],
    window: tuple[int, int],
    channels: int,
    device: torch.device | None = None,
) -> tuple[Tensor, Tensor]:
    """Cosines and sines that rotate the channels of a head by its position.

    The first half of the channels is rotated by the row, the second by the
    column. Channels ``2 i`` and ``2 i + 1`` are a pair; its angle is the index
    of the row or column in the window, scaled to ``[0, 16)``, times
    ``10000 ** (-4 i / channels)``. Sines of the first of a pair are negated.

    Args:
        grid: H and W.
        window: Rows and columns of a window; those of the grid for one window.
        channels: D, a multiple of 4.
        device: Where to make them.

    Returns:
        Two float32 tensors ``(H, W, 1, D)``.

    Source:
        EVA-02, arXiv 2303.11331; RoFormer, arXiv 2104.09864.
    """
    half = channels // 2
    steps = torch.arange(0, half, 2, device=device, dtype=torch.float32)
    frequency = 1.0 / _THETA ** (steps / half)
    row, column = (
        (torch.arange(count, device=device) % side / side * _ROTARY_SIDE)[
            :, None
        ]
        * frequency
        for count, side in zip(grid, window)
    )
    angles = torch.cat(
        (
            row[:, None].expand(-1, grid[1], -1),
            column[None].expand(grid[0], -1, -1),
        ),
        -1,
    )[:, :, None]
    sines = angles.sin()
    return (
        angles.cos().repeat_interleave(2, 3),
        torch.stack((-sines, sines), -1).flatten(-2),
    )


def _rotate(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate ``(N, H, W, heads, D)`` in the type of the table."""
    cos, sin = table
    swapped = x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    return torch.addcmul(x * cos, swapped, sin)


class RotaryAttention(nn.Module):
    """Self-attention in windows with rotary positions.

    In the public module zeros fill the windows at the right and at the bottom,
    and take part in the attention. As the key has no bias, theirs is zero, and
    their value is the bias: here they are one token for all of a window, whose
    weight is their number, and nothing else is computed of them.
    """

    def __init__(self, embed_dims: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(embed_dims, embed_dims, bias=False)
        self.k_proj = nn.Linear(embed_dims, embed_dims, bias=False)
        self.v_proj = nn.Linear(embed_dims, embed_dims, bias=False)
        self.q_bias = nn.Parameter(torch.zeros(embed_dims))
        self.v_bias = nn.Parameter(torch.zeros(embed_dims))
        self.proj = nn.Linear(embed_dims, embed_dims)

    def forward(
        self,
        x: Tensor,
        window: tuple[int, int],
        table: tuple[Tensor, Tensor],
    ) -> Tensor:
        """``(N, H, W, C)`` to the same."""
        qkv = self.project(x, table)
        # Whole windows, and what is left at the right and at the bottom.
        heights, widths = (
            [size for size in (n // side * side, n % side) if size]
            for n, side in zip(x.shape[1:3], window)
        )
        parts = zip(*(t.split(heights, 1) for t in qkv))
        parts = [zip(*(t.split(widths, 2) for t in part)) for part in parts]
        rows = []
        for part in parts:
            row = []
            for query, key, value in part:
                cut = tuple(map(min, query.shape[1:3], window))
                num_zeros = math.prod(window) - math.prod(cut)
                row.append(self.attend(query, key, value, cut, num_zeros))
            rows.append(torch.cat(row, 2))
        return self.proj(torch.cat(rows, 1).flatten(3))

    def project(
        self, x: Tensor, table: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """``(N, H, W, C)`` to three of ``(N, H, W, heads, D)``."""
        query, key, value = (
            F.linear(x, layer.weight, bias).unflatten(-1, (self.num_heads, -1))
            for layer, bias in (
                (self.q_proj, self.q_bias),
                (self.k_proj, None),
                (self.v_proj, self.v_bias),
            )
        )
        query, key = (_rotate(t, table).type_as(value) for t in (query, key))
        return query, key, value

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        window: tuple[int, int],
        num_zeros: int = 0,
    ) -> Tensor:
        """Attention in whole windows that lack so many zeros; shapes stay."""
        height, width = window
        query, key, value = (
            t.unflatten(2, (-1, width))
            .unflatten(1, (-1, height))
            .permute(0, 1, 3, 5, 2, 4, 6)
            for t in (query, key, value)
        )
        lead = query.shape[:3]
        query, key, value = (
            t.flatten(0, 2).flatten(2, 3) for t in (query, key, value)
        )
        mask = None
        if num_zeros:
            bias = self.v_bias.view(self.num_heads, 1, -1).type_as(value)
            bias = bias.expand(len(value), -1, -1, -1)
            key = torch.cat((key, torch.zeros_like(bias)), 2)
            value = torch.cat((value, bias), 2)
            mask = query.new_zeros(height * width)
            mask = F.pad(mask, (0, 1), value=math.log(num_zeros))
            mask = mask.expand(height * width, -1)
        x = F.scaled_dot_product_attention(query, key, value, mask)
        x = x.transpose(1, 2).unflatten(1, (height, width)).unflatten(0, lead)
        return x.transpose(2, 3).flatten(3, 4).flatten(1, 2)


class _SwiGLU(nn.Module):
    """Gated feed-forward network with a norm before its last layer."""

    def __init__(self, embed_dims: int) -> None:
        super().__init__()
        width = int(embed_dims * 4 * 2 / 3)
        self.w1 = nn.Linear(embed_dims, width)
        self.w2 = nn.Linear(embed_dims, width)
        self.ffn_ln = nn.LayerNorm(width, eps=_EPS)
        self.w3 = nn.Linear(width, embed_dims)

    def _gate(self, gate: Tensor, x: Tensor) -> Tensor:
        return self.ffn_ln(F.silu(gate) * x)

    def forward(self, x: Tensor) -> Tensor:
        args = self.w1(x), self.w2(x)
        if not args[0].requires_grad:
            return self.w3(self._gate(*args))
        # Its two results are not kept: they are quickly computed again.
        return self.w3(recomputed(self._gate, *args))


class _Block(nn.Module):
    """Pre-norm transformer layer on a map, in windows or on the whole."""

    # Marks what can be checkpointed, as in the blocks of the hosts.
    with_cp = False

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        window_size: int,
        drop_path_rate: float,
    ) -> None:
        super().__init__()
        # 0 for the whole map.
        self.window_size = window_size
        self.norm1 = nn.LayerNorm(embed_dims, eps=_EPS)
        self.attn = RotaryAttention(embed_dims, num_heads)
        self.drop_path = DropPath(drop_path_rate)
        self.norm2 = nn.LayerNorm(embed_dims, eps=_EPS)
        self.mlp = _SwiGLU(embed_dims)

    def forward(
        self,
        x: Tensor,
        window: tuple[int, int],
        table: tuple[Tensor, Tensor],
    ) -> Tensor:
        """``(N, H, W, C)`` to the same."""
        x = x + self.drop_path(self.attn(self.norm1(x), window, table))
        return x + self.drop_path(self.mlp(self.norm2(x)))


@MODELS.register_module()
class EVA02ViT(PlainViT):
    """Vision Transformer of EVA-02, with windows and global blocks.

    Most blocks look at windows of the map, some at all of it. Positions are
    rotary embeddings of the windows and of the whole map, which are computed
    for any size, and learned ones, which are interpolated. Sides of pictures
    need not be multiples of those of a window: zeros fill it up.

    Names in the state dict are those of ``ViT`` of Sense-X/Co-DETR. Its
    tables of rotary embeddings (``rope_win``, ``rope_glb``, ``attn.rope``) are
    no part of the state dict here, and are left out of one that is loaded.
    Position embeddings of another grid, and patches of another size, are
    interpolated when they are loaded.

    Args:
        arch: ``'tiny'``, ``'small'``, ``'base'``, ``'large'``, or a dict with
            ``embed_dims``, ``num_layers`` and ``num_heads``.
        window_size: Patches on a side of a window, from 1.
        global_indices: Blocks that look at the whole map, from 0; by default
            every fourth one. The last one is among them in all published
            models.
        pretrain_img_size: Pixels on a side of the square pictures of the
            position embeddings.
        in_channels: Of the pictures.
        drop_path_rate: Chance, in [0, 1), that a picture skips a branch of
            the last block, growing from 0 at the first one.
        with_cp: Number of leading blocks whose activations are computed again
            in the backward pass; True for all. Never reentrant.
        frozen_stages: Number of leading blocks that get no gradients, as does
            what is before them; if all are frozen, the last norm is, too. 0
            freezes only what is before the blocks, -1 nothing.
        init_cfg: ``dict(type='Pretrained', checkpoint=...)`` loads weights of
            EVA-02, or of the backbone of a detector.

    Raises:
        ValueError: If an argument is out of range.

    Source:
        EVA-02, arXiv 2303.11331; ViTDet, arXiv 2203.16527. Compatible with
        ``mmdet/models/backbones/vit.py`` of Sense-X/Co-DETR.

    Examples:
        >>> arch = dict(embed_dims=32, num_layers=2, num_heads=2)
        >>> model = EVA02ViT(arch, window_size=3, global_indices=[1])
        >>> [output.shape for output in model(torch.zeros(1, 3, 64, 112))]
        [torch.Size([1, 32, 4, 7])]
    """

    layers_name = 'blocks'

    def __init__(
        self,
        arch: str | Mapping[str, int] = 'large',
        window_size: int = 24,
        global_indices: Sequence[int] | None = None,
        pretrain_img_size: int = 512,
        in_channels: int = 3,
        drop_path_rate: float = 0.0,
        with_cp: bool | int = False,
        frozen_stages: int = -1,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(init_cfg)
        channels, depth, heads = _architecture(arch)
        if window_size < 1:
            raise ValueError(
                f'window_size must be at least 1, got {window_size}'
            )
        if global_indices is None:
            global_indices = range(3, depth, 4)
        if not set(global_indices) <= set(range(depth)):
            raise ValueError(
                f'global_indices must be in [0, {depth}), got '
                f'{list(global_indices)}'
            )
        if pretrain_img_size < _PATCH or pretrain_img_size % _PATCH:
            raise ValueError(
                f'pretrain_img_size must be a multiple of {_PATCH}, got '
                f'{pretrain_img_size}'
            )
        if not -1 <= frozen_stages <= depth:
            raise ValueError(
                f'frozen_stages must be in [-1, {depth}], got {frozen_stages}'
            )
        self.embed_dims, self.frozen_stages = channels, frozen_stages
        self.window_size, self._head_dims = window_size, channels // heads
        self.grid = (pretrain_img_size // _PATCH,) * 2

        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Conv2d(
            in_channels, channels, _PATCH, stride=_PATCH
        )
        # The first one was that of a class token.
        self.pos_embed = nn.Parameter(
            torch.zeros(1, 1 + self.grid[0] ** 2, channels)
        )
        rates = torch.linspace(0, drop_path_rate, depth, device='cpu')
        self.blocks = nn.ModuleList(
            _Block(
                channels,
                heads,
                0 if index in global_indices else window_size,
                rate,
            )
            for index, rate in enumerate(rates.tolist())
        )
        self.out_norm = nn.LayerNorm(channels)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        checkpoint_modules(self.blocks, with_cp, 'EVA02ViT')
        for module in self._frozen_modules():
            module.requires_grad_(False)
        self.pos_embed.requires_grad_(frozen_stages < 0)
        self._register_load_state_dict_pre_hook(self._fit_state_dict)

    def _fit_state_dict(
        self, state_dict: dict, prefix: str, *_: object
    ) -> None:
        for key in [k for k in state_dict if k.startswith(prefix)]:
            if key.endswith(_ROTARY_BUFFERS):
                del state_dict[key]
        key = f'{prefix}pos_embed'
        if key in state_dict:
            state_dict[key] = fit_positions(state_dict[key], self.grid, 1, key)
        key = f'{prefix}patch_embed.proj.weight'
        weight = state_dict.get(key)
        if weight is not None and weight.shape[-2:] != (_PATCH, _PATCH):
            state_dict[key] = F.interpolate(
                weight.float(), (_PATCH, _PATCH), mode='bicubic'
            ).type_as(weight)

    def init_weights(self) -> None:
        """Load what ``init_cfg`` names; else weights stay as constructed.

        Raises:
            ValueError: If the file holds no tensor of this backbone.
        """
        cfg = self.init_cfg
        if not isinstance(cfg, Mapping) or cfg.get('type') != 'Pretrained':
            super().init_weights()
            return
        content = CheckpointLoader.load_checkpoint(
            cfg['checkpoint'], map_location='cpu', logger='current'
        )
        name = next((n for n in _WRAPPERS if n in content), None)
        state = content if name is None else content[name]
        for prefix in ('module.', 'backbone.'):
            if any(key.startswith(prefix) for key in state):
                state = {
                    key.removeprefix(prefix): value
                    for key, value in state.items()
                    if key.startswith(prefix)
                }
        if not set(state) & set(self.state_dict()):
            raise ValueError(
                f'checkpoint of init_cfg must hold tensors of EVA02ViT, got '
                f'{list(state)[:3]} in {cfg["checkpoint"]}'
            )
        self.load_state_dict(state, strict=False)
        self._is_init = True

    def _frozen_modules(self) -> list[nn.Module]:
        if self.frozen_stages < 0:
            return []
        frozen = [self.patch_embed, *self.blocks[: self.frozen_stages]]
        if self.frozen_stages == len(self.blocks):
            frozen.append(self.out_norm)
        return frozen

    def forward(self, images: Tensor) -> tuple[Tensor]:
        """Encode pictures.

        Args:
            images: ``(N, in_channels, height, width)``, from 16 pixels on;
                pixels behind the last whole patch are not seen.

        Returns:
            The map of the last block, ``(N, C, H, W)``, of stride 16.
        """
        x = self.patch_embed.proj(images).permute(0, 2, 3, 1)
        grid = tuple(x.shape[1:3])
        positions = resize_positions(self.pos_embed, self.grid, grid)
        x = x + positions[:, 1:].unflatten(1, grid)
        windows = {0: grid, self.window_size: (self.window_size,) * 2}
        tables = {
            size: rotary_table(grid, windows[size], self._head_dims, x.device)
            for size in {block.window_size for block in self.blocks}
        }
        for block in self.blocks:
            size = block.window_size
            x = block(x, windows[size], tables[size])
        return (self.out_norm(x).permute(0, 3, 1, 2).contiguous(),)


def _architecture(arch: str | Mapping[str, int]) -> tuple[int, int, int]:
    """Channels, number of blocks and of heads."""
    if isinstance(arch, str) and arch in _ARCHITECTURES:
        return _ARCHITECTURES[arch]
    if not isinstance(arch, Mapping) or not set(_KEYS) <= set(arch):
        raise ValueError(
            f'arch must be one of {tuple(_ARCHITECTURES)} or a dict with '
            f'{_KEYS}, got {arch!r}'
        )
    channels, depth, heads = (arch[key] for key in _KEYS)
    if channels % heads or channels // heads % 4:
        raise ValueError(
            'embed_dims of arch must be num_heads times a multiple of 4, got '
            f'{channels} and {heads}'
        )
    return channels, depth, heads

"""Patches, layers and position embeddings of encoder and decoder.

Names of parameters are those of mmpretrain.

Shape letters: N pictures, L tokens or patches, K patches that stay, M = L - K
that are masked, C channels.
"""

import math
from typing import Any, NamedTuple

import torch
from mmcv.cnn.bricks import DropPath
from mmcv.cnn.bricks.transformer import FFN
from mmengine.model import BaseModule
from torch import Tensor, nn
from torch.nn import functional as F

_EPS = 1e-6


class PatchMask(NamedTuple):
    """Patches of each picture that stay, and those that are masked.

    Attributes:
        keep: ``(N, K)``, int64, indices of patches, rows first.
        masked: ``(N, M)``, int64; with ``keep`` each patch once.
    """

    keep: Tensor
    masked: Tensor

    @property
    def restore(self) -> Tensor:
        """``(N, L)``, int64: where each patch is in keep, then masked."""
        return torch.cat((self.keep, self.masked), 1).argsort(1)

    @property
    def mask(self) -> Tensor:
        """``(N, L)``, float32: 1 for a patch that is masked, else 0."""
        zeros = self.keep.new_zeros(self.keep.shape, dtype=torch.float32)
        ones = self.masked.new_ones(self.masked.shape, dtype=torch.float32)
        return torch.cat((zeros, ones), 1).gather(1, self.restore)

    def to(self, device: torch.device) -> 'PatchMask':
        """The same on a device."""
        return PatchMask(self.keep.to(device), self.masked.to(device))


def take_patches(patches: Tensor, indices: Tensor) -> Tensor:
    """Some patches of each picture.

    ``patches`` is ``(N, L, C)``, or ``(1, L, C)`` for all pictures alike,
    and ``indices`` ``(N, K)``; gives ``(N, K, C)``.
    """
    if len(patches) == 1 and len(indices) > 1:
        return patches[0][indices]
    index = indices[..., None].expand(-1, -1, math.prod(patches.shape[2:]))
    return patches.gather(1, index)


def to_pair(value: Any, name: str) -> tuple[int, int]:
    """Height and width; ``value`` is one number or two, from 1."""
    pair = (value, value) if isinstance(value, int) else tuple(value)
    if len(pair) != 2 or not all(
        isinstance(side, int) and side > 0 for side in pair
    ):
        raise ValueError(
            f'{name} must be a positive int or (height, width), got {value!r}'
        )
    return pair


def patch_grid(
    size: tuple[int, int], patch_size: tuple[int, int], name: str = 'img_size'
) -> tuple[int, int]:
    """Rows and columns of patches; ValueError if some are not whole."""
    if any(side % patch for side, patch in zip(size, patch_size)):
        raise ValueError(
            f'{name} must be a multiple of patch_size {patch_size}, got '
            f'{tuple(size)}; resize the pictures, or pad them '
            '(pad_size_divisor of the data preprocessor)'
        )
    return size[0] // patch_size[0], size[1] // patch_size[1]


def split_patches(images: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """Cut ``(N, C, H, W)`` into ``(N, rows, columns, C, height, width)``."""
    rows, columns = patch_grid(images.shape[-2:], patch_size, 'images')
    height, width = patch_size
    split = images.reshape(len(images), -1, rows, height, columns, width)
    return split.permute(0, 2, 4, 1, 3, 5)


class PatchEmbed(nn.Module):
    """Tokens of patches that do not overlap.

    Of a masked picture only the patches that stay are computed.
    """

    def __init__(
        self, in_channels: int, embed_dims: int, patch_size: tuple[int, int]
    ) -> None:
        super().__init__()
        self.projection = nn.Conv2d(
            in_channels, embed_dims, patch_size, stride=patch_size
        )

    def forward(self, images: Tensor, keep: Tensor | None = None) -> Tensor:
        """``(N, L, C)``, rows first, or ``(N, K, C)`` of the patches kept."""
        projection = self.projection
        if keep is None:
            return projection(images).flatten(2).transpose(1, 2)
        patches = split_patches(images, projection.kernel_size)
        patches = take_patches(patches.flatten(3).flatten(1, 2), keep)
        weight = projection.weight.flatten(1)
        return F.linear(patches, weight, projection.bias)


class Attention(nn.Module):
    """Self-attention by PyTorch's ``scaled_dot_product_attention``."""

    def __init__(self, embed_dims: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(embed_dims, 3 * embed_dims)
        self.proj = nn.Linear(embed_dims, embed_dims)

    def forward(self, x: Tensor, num_out: int | None = None) -> Tensor:
        """``(N, L, C)`` to the same, or of the last ``num_out`` tokens."""
        count, length, channels = x.shape
        qkv = self.qkv(x).reshape(count, length, 3, self.num_heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        if num_out is not None:
            query, length = query[:, :, -num_out:], num_out
        x = F.scaled_dot_product_attention(query, key, value)
        return self.proj(x.transpose(1, 2).reshape(count, length, channels))


class Block(nn.Module):
    """Pre-norm transformer layer with LayerNorm of epsilon 1e-6 and GELU.

    Args:
        embed_dims: C, a multiple of ``num_heads``.
        num_heads: Heads of the attention.
        feedforward_channels: Width inside of the feed-forward network.
        drop_path_rate: Chance, in [0, 1), that a picture skips a branch.

    Raises:
        ValueError: If the heads do not divide the channels.
    """

    # Marks what can be checkpointed, as in the blocks of the hosts.
    with_cp = False

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        feedforward_channels: int,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        if embed_dims % num_heads:
            raise ValueError(
                f'num_heads must divide {embed_dims} channels, got {num_heads}'
            )
        self.ln1 = nn.LayerNorm(embed_dims, eps=_EPS)
        self.attn = Attention(embed_dims, num_heads)
        self.drop_path = DropPath(drop_path_rate)
        self.ln2 = nn.LayerNorm(embed_dims, eps=_EPS)
        self.ffn = FFN(
            embed_dims=embed_dims,
            feedforward_channels=feedforward_channels,
            act_cfg={'type': 'GELU'},
            dropout_layer={'type': 'DropPath', 'drop_prob': drop_path_rate},
        )

    def forward(self, x: Tensor, num_out: int | None = None) -> Tensor:
        """``(N, L, C)`` to the same.

        With ``num_out`` only the last so many tokens are computed: they look
        at all, and nobody looks at the others any more.
        """
        attended = self.drop_path(self.attn(self.ln1(x), num_out))
        x = (x if num_out is None else x[:, -num_out:]) + attended
        return self.ffn(self.ln2(x), identity=x)


class PlainViT(BaseModule):
    """What Vision Transformers share: frozen layers, and depths of parameters.

    A subclass says which of its modules are frozen.
    """

    # Its list of transformer layers.
    layers_name = 'layers'

    def _frozen_modules(self) -> list[nn.Module]:
        raise NotImplementedError

    def train(self, mode: bool = True) -> 'PlainViT':
        """Set the mode; what is frozen stays in evaluation."""
        super().train(mode)
        for module in self._frozen_modules():
            module.eval()
        return self

    def get_layer_depth(
        self, param_name: str, prefix: str = ''
    ) -> tuple[int, int]:
        """Depth of a parameter, for rates that decay from layer to layer.

        Args:
            param_name: Name in the model.
            prefix: Of the backbone in it, such as ``'backbone.'``.

        Returns:
            0 for what is before the layers, ``index + 1`` for a layer, the
            last for all else; and how many depths there are.
        """
        depths = len(getattr(self, self.layers_name)) + 2
        name = param_name.removeprefix(prefix)
        if not param_name.startswith(prefix):
            return depths - 1, depths
        if name.startswith(('cls_token', 'pos_embed', 'patch_embed')):
            return 0, depths
        if name.startswith(f'{self.layers_name}.'):
            return int(name.split('.')[1]) + 1, depths
        return depths - 1, depths


@torch.no_grad()
def init_parameters(module: nn.Module) -> None:
    """Xavier for linear layers and patches, zero biases, as in MAE."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv2d):
            nn.init.xavier_uniform_(part.weight.flatten(1))
            nn.init.zeros_(part.bias)
    for name in ('cls_token', 'mask_token'):
        token = getattr(module, name, None)
        if token is not None:
            nn.init.normal_(token, std=0.02)


_TEMPERATURE = 10000.0


def sincos_positions(
    grid: tuple[int, int], channels: int, num_cls_tokens: int = 1
) -> Tensor:
    """Fixed sine-cosine embedding of a grid, as mmpretrain's MAE has it.

    The first half of the channels is that of the row, the second that of the
    column; each is the sines, then the cosines, of the index times
    ``10000 ** (-4 i / channels)``. Facebook's MAE has column and row the
    other way round.

    Args:
        grid: Rows and columns of patches.
        channels: A multiple of 4.
        num_cls_tokens: So many zeros come first.

    Returns:
        ``(1, num_cls_tokens + rows * columns, channels)``, float32, rows
        first.

    Raises:
        ValueError: If ``channels`` is no multiple of 4.

    Source:
        MAE, arXiv 2111.06377.
    """
    if channels % 4:
        raise ValueError(
            f'channels must be a multiple of 4, got {channels}; choose '
            'another width'
        )
    rows, columns = grid
    steps = torch.arange(channels // 4, dtype=torch.float32) / (channels // 4)
    frequency = _TEMPERATURE**-steps
    angles = [
        torch.arange(size, dtype=torch.float32)[:, None] * frequency
        for size in grid
    ]
    row, column = (torch.cat((a.sin(), a.cos()), 1) for a in angles)
    positions = torch.cat(
        (row.repeat_interleave(columns, 0), column.repeat(rows, 1)), 1
    )
    extra = positions.new_zeros(num_cls_tokens, channels)
    return torch.cat((extra, positions))[None]


def resize_positions(
    positions: Tensor,
    source: tuple[int, int],
    target: tuple[int, int],
    num_cls_tokens: int = 1,
) -> Tensor:
    """Bicubic interpolation of position embeddings to another grid.

    Args:
        positions: ``(1, num_cls_tokens + L, C)``, of any float type.
        source: Rows and columns of the ``L`` patches.
        target: Rows and columns to make.
        num_cls_tokens: The first so many stay as they are.

    Returns:
        The same tensor if the grids are equal, else a new one of the same
        type; computed in float32, without aligned corners, as the hosts do.
    """
    if tuple(source) == tuple(target):
        return positions
    extra, patches = positions.tensor_split([num_cls_tokens], 1)
    maps = patches.float().reshape(1, *source, -1).permute(0, 3, 1, 2)
    maps = F.interpolate(
        maps, size=tuple(target), mode='bicubic', align_corners=False
    )
    patches = maps.flatten(2).transpose(1, 2).to(positions.dtype)
    return torch.cat((extra, patches), 1)


def fit_positions(
    positions: Tensor,
    grid: tuple[int, int],
    num_cls_tokens: int = 1,
    name: str = 'pos_embed',
) -> Tensor:
    """Position embeddings of a checkpoint, for this grid of patches.

    A checkpoint of another length is taken for a square grid, with as many
    class tokens as here, else with one, else with none. Those of the class
    tokens are dropped where here there are none.

    Args:
        positions: ``(1, length, C)``.
        grid: Rows and columns of patches here.
        num_cls_tokens: Class tokens here.
        name: What the error calls it.

    Returns:
        ``(1, num_cls_tokens + rows * columns, C)``.

    Raises:
        ValueError: If the length is that of no square grid, or class tokens
            are lacking.
    """
    length = positions.shape[1]
    if length == num_cls_tokens + math.prod(grid):
        return positions
    for extra in dict.fromkeys((num_cls_tokens, 1, 0)):
        side = math.isqrt(max(length - extra, 0))
        same = length - extra == math.prod(grid)
        if not same and (side == 0 or side * side != length - extra):
            continue
        if num_cls_tokens not in (0, extra):
            break
        source = tuple(grid) if same else (side, side)
        resized = resize_positions(positions, source, grid, extra)
        return resized[:, extra - num_cls_tokens :]
    raise ValueError(
        f'{name} must hold {num_cls_tokens} class tokens and the patches of '
        f'a square grid, or of {grid[0]} x {grid[1]}, got shape '
        f'{tuple(positions.shape)}; build the model with the img_size, '
        'patch_size and num_cls_tokens of the checkpoint'
    )

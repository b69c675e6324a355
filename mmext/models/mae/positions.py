"""Position embeddings of a grid of patches, and their change of size."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

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

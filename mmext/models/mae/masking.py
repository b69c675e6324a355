"""Which patches are hidden: drawn anew in each step, the same after a resume.

Shape letters: N pictures, L patches, K that stay, M = L - K that are masked.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


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


def draw_noise(num_images: int, length: int, key: Sequence[int]) -> Tensor:
    """Uniform numbers in [0, 1) that depend on nothing but the arguments.

    Drawn on the CPU, so that they are the same on each device, and from a
    generator of their own, so that others draw what they would draw without.

    Args:
        num_images: N.
        length: Numbers for each picture.
        key: Integers from 0, such as seed, rank and iteration.

    Returns:
        ``(num_images, length)``, float32.
    """
    words = np.random.SeedSequence(tuple(key)).generate_state(1, np.uint64)
    # A generator takes a signed number.
    generator = torch.Generator().manual_seed(int(words[0] >> np.uint64(1)))
    return torch.rand(num_images, length, generator=generator)


def make_mask(
    noise: Tensor, grid: tuple[int, int], ratio: float = 0.75, block: int = 1
) -> PatchMask:
    """Keep the patches, or blocks of them, with the smallest noise.

    ``int(blocks * (1 - ratio))`` blocks of each picture stay.

    Args:
        noise: ``(N, blocks)``, one number for each block, rows first, where
            ``blocks`` is ``rows * columns / block ** 2``.
        grid: Rows and columns of patches; multiples of ``block``.
        ratio: Share of patches to mask, in (0, 1).
        block: Side of a block, in patches.

    Raises:
        ValueError: If the grid cannot be cut into such blocks, or no block
            would stay, or none be masked.

    Source:
        MAE, arXiv 2111.06377; blocks: Pixio, arXiv 2512.15715.
    """
    rows, columns = grid
    if block < 1 or rows % block or columns % block:
        raise ValueError(
            'mask_block must divide the rows and columns of the patches, got '
            f'{block} for {rows} x {columns}; choose 1, or another img_size'
        )
    count = rows * columns // block**2
    num_keep = int(count * (1 - ratio))
    if not 0 < num_keep < count:
        raise ValueError(
            'mask_ratio must leave some patches and mask some, got '
            f'{ratio} for {count} blocks of {block} x {block} patches, of '
            f'which {num_keep} would stay; choose another ratio or block'
        )
    order = noise.argsort(dim=1, stable=True)
    if block > 1:
        patches = torch.arange(rows * columns, device=noise.device)
        patches = patches.reshape(
            rows // block, block, columns // block, block
        ).transpose(1, 2)
        order = patches.reshape(count, -1)[order].flatten(1)
        num_keep *= block**2
    return PatchMask(order[:, :num_keep], order[:, num_keep:])


def take_patches(patches: Tensor, indices: Tensor) -> Tensor:
    """Some patches of each picture.

    ``patches`` is ``(N, L, C)``, or ``(1, L, C)`` for all pictures alike,
    and ``indices`` ``(N, K)``; gives ``(N, K, C)``.
    """
    if len(patches) == 1 and len(indices) > 1:
        return patches[0][indices]
    index = indices[..., None].expand(-1, -1, math.prod(patches.shape[2:]))
    return patches.gather(1, index)

"""Small data sets of label maps on a disk."""

from pathlib import Path

import numpy as np
from PIL import Image


def write_pairs(
    folder: Path, number: int = 6, classes: int = 3, ignore: int = 255
) -> Path:
    """Images of noise and label maps that go with them.

    Args:
        folder: Gets ``images`` and ``masks``.
        number: Of pairs.
        classes: Each mask has all of them.
        ignore: Value of the first row.
    """
    random = np.random.default_rng(0)
    for name in ('images', 'masks'):
        (folder / name).mkdir(parents=True)
    for index in range(number):
        image = random.integers(0, 256, (24, 32, 3), dtype=np.uint8)
        Image.fromarray(image).save(folder / 'images' / f'{index}.png')
        mask = random.integers(0, classes, (24, 32), dtype=np.uint8)
        mask[0] = ignore
        Image.fromarray(mask).save(folder / 'masks' / f'{index}.png')
    return folder

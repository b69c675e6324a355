"""Files of the public pre-processed NYUv2, and of sets in its layout.

Below the folder of a split there are four folders with a file ``{i}.npy`` for
each sample:

========== ================ ==================================================
folder     shape            values
========== ================ ==================================================
``image``  ``(H, W, 3)``    red, green, blue in [0, 1]
``label``  ``(H, W)``       class from 0, -1 for none; often stored as float
``depth``  ``(H, W, 1)``    metres, 0 for invalid
``normal`` ``(H, W, 3)``    unit vectors, (0, 0, 0) for invalid
========== ================ ==================================================
"""

import json
import os
from pathlib import Path

from .scenes_generator import SCENES_MARKER

LAYOUT_FOLDERS = ('image', 'label', 'depth', 'normal')
NYUV2_CLASSES = (
    'bed',
    'books',
    'ceiling',
    'chair',
    'floor',
    'furniture',
    'objects',
    'picture',
    'sofa',
    'table',
    'tv',
    'wall',
    'window',
)


def is_layout(root: str | os.PathLike) -> bool:
    """Whether a folder holds a split in this layout."""
    return any(
        split.is_dir()
        for name in LAYOUT_FOLDERS
        for split in Path(root).glob(f'*/{name}')
    )


def classes_of_layout(root: str | os.PathLike) -> tuple[str, ...]:
    """Classes of a generated set as it notes them, else those of NYUv2."""
    marker = Path(root) / SCENES_MARKER
    if marker.is_file():
        return tuple(json.loads(marker.read_text('utf-8'))['classes'])
    return NYUV2_CLASSES


def layout_files(split: str | os.PathLike) -> list[dict[str, str]]:
    """Path of each file of each sample, by folder, in numerical order.

    A sample is a name that occurs in any of the four folders; paths of files
    that are not there are given all the same.

    Args:
        split: Folder of a split.

    Raises:
        FileNotFoundError: If one of the four folders is missing.
    """
    folders = {name: os.path.join(split, name) for name in LAYOUT_FOLDERS}
    missing = [
        name for name, folder in folders.items() if not os.path.isdir(folder)
    ]
    if missing:
        raise FileNotFoundError(
            f'the split must have the folders {", ".join(LAYOUT_FOLDERS)}, '
            f'got {str(split)!r} without {", ".join(missing)}; see '
            'data_root and data_prefix, whose split is usually train or val'
        )
    names = {
        name
        for folder in folders.values()
        for name in os.listdir(folder)
        if name.endswith('.npy')
    }
    return [
        {key: os.path.join(folder, name) for key, folder in folders.items()}
        for name in sorted(names, key=_number)
    ]


def _number(name: str) -> tuple[int, str]:
    """Files go by their number, and others come first."""
    stem = name.removesuffix('.npy')
    return (int(stem) if stem.isdecimal() else -1), stem

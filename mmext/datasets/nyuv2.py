"""Data sets with class, depth and normal of each pixel."""

import os
from pathlib import Path
from typing import Any

from mmengine.dataset import BaseDataset

from ..registry import DATASETS
from .nyuv2_layout import NYUV2_CLASSES, layout_files
from .scenes_generator import SCENE_CLASSES

_KEYS = {
    'image': 'img_path',
    'label': 'seg_map_path',
    'depth': 'depth_path',
    'normal': 'normal_path',
}
_MAX_LISTED = 5


@DATASETS.register_module()
class NYUv2MultiTaskDataset(BaseDataset):
    """The public pre-processed NYUv2: 13 classes, depth, surface normals.

    Files are ``{data_root}/{split}/{image,label,depth,normal}/{i}.npy``; see
    :mod:`mmext.datasets.nyuv2_layout` for what is in them. The public set has
    795 samples in ``train`` and 654 in ``val``, of 288 x 384 pixels. Samples
    come in the order of their numbers; each gives the four paths to the
    pipeline, as ``img_path``, ``seg_map_path``, ``depth_path`` and
    ``normal_path``, and ``sample_idx``.

    Args:
        data_root: Folder with the splits.
        data_prefix: ``split``: folder of the split below ``data_root``.
        **kwargs: Of ``mmengine.dataset.BaseDataset``.

    Raises:
        FileNotFoundError: When it is loaded, if a folder of the split, or a
            file of a sample that the other folders have, is missing.
        ValueError: If ``data_prefix`` has no ``split``, or there is no
            sample.
    """

    METAINFO = {
        'classes': NYUV2_CLASSES,
        'palette': [
            (31, 119, 180),
            (255, 187, 120),
            (225, 225, 235),
            (44, 160, 44),
            (140, 86, 75),
            (148, 103, 189),
            (227, 119, 194),
            (255, 127, 14),
            (214, 39, 40),
            (188, 189, 34),
            (20, 20, 20),
            (174, 199, 232),
            (23, 190, 207),
        ],
    }

    def __init__(
        self,
        data_root: str | os.PathLike = '',
        data_prefix: dict[str, str] | None = None,
        **kwargs: Any,
    ):
        data_prefix = dict(data_prefix or {'split': 'train'})
        if 'split' not in data_prefix:
            raise ValueError(
                "data_prefix must have the key 'split', the folder of the "
                f'split below data_root, got {data_prefix}'
            )
        super().__init__(
            data_root=str(data_root), data_prefix=data_prefix, **kwargs
        )

    def load_data_list(self) -> list[dict]:
        """Paths of the files of each sample."""
        split = self.data_prefix['split']
        samples = layout_files(split)
        if not samples:
            raise ValueError(f'the split must have samples, got {split!r}')
        missing = [
            path
            for sample in samples
            for path in sample.values()
            if not Path(path).is_file()
        ]
        if missing:
            rest = len(missing) - _MAX_LISTED
            more = f'\n  and {rest} more' if rest > 0 else ''
            raise FileNotFoundError(
                f'each sample of {split!r} must have four files, got '
                f'{len(missing)} missing:\n  '
                + '\n  '.join(missing[:_MAX_LISTED])
                + more
            )
        return [
            {_KEYS[key]: path for key, path in sample.items()}
            for sample in samples
        ]


@DATASETS.register_module()
class ScenesMultiTaskDataset(NYUv2MultiTaskDataset):
    """Data set written by ``tools/make_scenes_dataset.py``.

    As :class:`NYUv2MultiTaskDataset`, with the six classes of
    ``mmext.datasets.SCENE_CLASSES``.
    """

    GENERATED_BY = 'make_scenes_dataset.py'
    METAINFO = {
        'classes': SCENE_CLASSES,
        'palette': [
            (140, 86, 75),
            (174, 199, 232),
            (225, 225, 235),
            (214, 39, 40),
            (31, 119, 180),
            (44, 160, 44),
        ],
    }

"""Pictures without labels."""

import copy
import os
from typing import Any

from mmengine.dataset import BaseDataset
from mmengine.fileio import exists, list_dir_or_file, list_from_file
from mmengine.registry import DATASETS as ALL_DATASETS

from ..checks.config import inner_datasets, walk_datasets, walk_dicts
from ..registry import DATASETS
from .yolo_labels import PICTURE_SUFFIXES


@DATASETS.register_module()
class UnlabelledImages(BaseDataset):
    """Pictures of a folder, of a list, or of another data set.

    Each sample has ``img_path`` and nothing else; the same path comes once.

    Args:
        ann_file: Text file with the path of a picture in each line, below
            ``data_prefix['img_path']``; empty for all pictures of that
            folder and the folders in it, in the order of names.
        data_root: What ``ann_file`` and ``data_prefix`` are relative to.
        data_prefix: ``dict(img_path=folder)``.
        dataset: Config of a data set of mmdet, mmseg or mmext, wrappers
            included, whose pictures are taken without their labels, and
            without leaving out what has none. Not with ``ann_file``.
        **kwargs: As of mmengine's ``BaseDataset``.

    Raises:
        ValueError: If there is no picture, or both ``dataset`` and
            ``ann_file`` are given.
        FileNotFoundError: If there is no such folder.

    Examples:
        >>> import pathlib, tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> pathlib.Path(folder.name, 'a.jpg').touch()
        >>> UnlabelledImages(data_root=folder.name)[0]['img_path'][-6:]
        '/a.jpg'
        >>> folder.cleanup()
    """

    def __init__(
        self,
        ann_file: str = '',
        data_root: str = '',
        data_prefix: dict | None = None,
        dataset: dict | None = None,
        backend_args: dict | None = None,
        **kwargs: Any,
    ) -> None:
        if dataset is not None and ann_file:
            raise ValueError(
                'dataset and ann_file must not be given both, got '
                f'{ann_file!r}; wrap two data sets by ConcatDataset'
            )
        self._source = dataset
        self.backend_args = backend_args
        super().__init__(
            ann_file=ann_file,
            data_root=data_root,
            data_prefix=data_prefix or {'img_path': ''},
            **kwargs,
        )

    def load_data_list(self) -> list[dict]:
        """The paths of all pictures; see the class for errors."""
        if self._source is not None:
            paths, where = _paths_of(self._source), 'dataset'
        else:
            paths = self._listed()
            where = self.ann_file or self.data_prefix['img_path']
        paths = list(dict.fromkeys(paths))
        if not paths:
            raise ValueError(
                f'data set must have pictures, got none from {where}; '
                f'suffixes are {PICTURE_SUFFIXES}'
            )
        return [{'img_path': path} for path in paths]

    def _listed(self) -> list[str]:
        """Paths of a list or of a folder."""
        folder = self.data_prefix['img_path']
        if self.ann_file:
            lines = list_from_file(
                self.ann_file, backend_args=self.backend_args
            )
            names = [line.strip() for line in lines if line.strip()]
        elif not exists(folder, backend_args=self.backend_args):
            raise FileNotFoundError(
                'data_root and data_prefix must lead to a folder, got '
                f'{folder!r}'
            )
        else:
            names = sorted(
                name
                for name in list_dir_or_file(
                    folder,
                    list_dir=False,
                    recursive=True,
                    backend_args=self.backend_args,
                )
                if name.lower().endswith(PICTURE_SUFFIXES)
            )
        return [os.path.join(folder, name) for name in names]


def _paths_of(config: dict) -> list[str]:
    """Pictures of the data sets in a config, without their pipelines."""
    # Of a ConfigDict, too: the config stays as it is.
    config = copy.deepcopy(config)
    for _, node in walk_dicts(config):
        if 'pipeline' in node:
            node['pipeline'] = []
        # What has no objects is a picture all the same.
        node.pop('filter_cfg', None)
    paths = []
    for dataset in walk_datasets(ALL_DATASETS.build(config)):
        if inner_datasets(dataset):
            continue
        if hasattr(dataset, 'full_init'):
            dataset.full_init()
        for index in range(len(dataset)):
            paths.append(str(dataset.get_data_info(index)['img_path']))
    return paths

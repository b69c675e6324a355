"""The splits of a config, built as its training would build them."""

import os.path
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mmengine.config import Config
from mmengine.fileio import exists, list_dir_or_file, list_from_file

from ..expectations import Expectations, HeadFacts
from ..facts import BoxFacts, Orphan, Sample
from .coco_split import split_of_coco
from .config_datasets import (
    build_leaves,
    classes_of,
    loaders,
    reads_coco,
    reads_voc,
)
from .config_walk import read_heads, read_ignore_places
from .split_source import SplitSource
from .voc_split import split_of_pairs

__all__ = ['splits_of_config']

_DEFAULT_IGNORE = 255


def splits_of_config(
    cfg: Config, splits: Sequence[str] = ('train', 'val')
) -> list[SplitSource]:
    """What a config trains and evaluates on.

    Data sets are built from the config as they are, but for their pipelines,
    so that annotation files, prefixes, label maps, classes and file backends
    are those of the training. A wrapper such as ``ConcatDataset`` gives one
    source for each data set inside.

    Args:
        cfg: A config of MMDetection, MMSegmentation or mmext.
        splits: Of ``'train'``, ``'val'``, ``'test'``; those that the config
            lacks are left out.

    Returns:
        One for each data set.

    Raises:
        ValueError: If the config has none of the splits.
    """
    found: list[SplitSource] = []
    plain = cfg.to_dict()
    heads = read_heads(plain.get('model') or {})
    for split in splits:
        loader = plain.get(f'{split}_dataloader') or {}
        if 'dataset' not in loader:
            continue
        leaves = build_leaves(loader['dataset'], cfg)
        for number, dataset in enumerate(leaves):
            name = split if len(leaves) == 1 else f'{split}[{number}]'
            found.append(_source(dataset, name, plain, split, heads))
    if not found:
        raise ValueError(
            f'the config must have a data set for one of {tuple(splits)}, '
            f'got the keys {sorted(plain)}'
        )
    return found


def _task(dataset: Any) -> str:
    if reads_coco(dataset) or reads_voc(dataset):
        return 'detection'
    if not len(dataset):
        return 'semantic' if hasattr(dataset, 'label_map') else 'detection'
    info = dataset.get_data_info(0)
    if 'segments_info' in info:
        return 'panoptic'
    if 'instances' not in info:
        return 'semantic'
    with_mask = any('mask' in each for each in info['instances'])
    return 'instance' if with_mask else 'detection'


def _num_classes(
    heads: Sequence[HeadFacts], task: str, classes: Sequence[str]
) -> int:
    """Of the head that the labels are for, else of the data set."""
    words = ('decode_head',) if task == 'semantic' else ('bbox_head', 'head')
    for word in words:
        for head in heads:
            if head.place.rpartition('.')[2].startswith(word):
                return head.num_classes
    return len(classes)


def _source(
    dataset: Any,
    name: str,
    plain: Mapping,
    split: str,
    heads: tuple[HeadFacts, ...],
) -> SplitSource:
    task = _task(dataset)
    classes = classes_of(dataset)
    loader = next(loaders(plain, split), {})
    reduce = loader.get('reduce_zero_label')
    if reduce is None:
        reduce = getattr(dataset, 'reduce_zero_label', False)
    label_map = getattr(dataset, 'label_map', None) or {}
    preprocessor = (plain.get('model') or {}).get('data_preprocessor') or {}
    expected = Expectations(
        split=name,
        task=task,
        num_classes=_num_classes(heads, task, classes),
        classes=classes,
        ignore_index=next(
            (
                head.ignore_index
                for head in heads
                if head.ignore_index is not None
            ),
            getattr(dataset, 'ignore_index', _DEFAULT_IGNORE),
        ),
        reduce_zero_label=bool(reduce),
        label_map=tuple(
            (int(old), int(new)) for old, new in label_map.items()
        ),
        seg_pad_val=preprocessor.get('seg_pad_val'),
        ignore_places=read_ignore_places(plain),
        heads=heads,
        loader_backend=loader.get('imdecode_backend')
        or ('pillow' if task == 'semantic' else 'cv2'),
    )
    return _of_files(dataset, expected)


def _of_files(dataset: Any, expected: Expectations) -> SplitSource:
    """A source that looks at the files themselves, where that can be done."""
    args = getattr(dataset, 'backend_args', None)
    if reads_coco(dataset):
        return split_of_coco(
            dataset.ann_file,
            dataset.data_prefix.get('img') or '',
            expected,
            seg_maps=dataset.data_prefix.get('seg') or '',
            seg_map_suffix=dataset.seg_map_suffix,
            backend_args=args,
        )
    if reads_voc(dataset):
        names = list_from_file(dataset.ann_file, backend_args=args)
        return split_of_pairs(
            _voc_pairs(dataset, names),
            expected,
            list_file=dataset.ann_file,
            backend_args=args,
        )
    return SplitSource(
        expected,
        lambda: _samples(dataset, expected.classes),
        orphans=lambda: _orphans(dataset, expected.split),
        list_file=_list_file(dataset),
        backend_args=args,
    )


def _list_file(dataset: Any) -> str:
    """The list that mmseg's data sets read; a folder or JSON is none."""
    path = str(getattr(dataset, 'ann_file', '') or '')
    return path if path.endswith('.txt') else ''


def _voc_pairs(dataset: Any, names: Sequence[str]) -> list[tuple[str, str]]:
    """Paths as XMLDataset makes them."""
    root, join = dataset.sub_data_root, os.path.join
    return [
        (
            join(root, dataset.img_subdir, f'{name}.jpg'),
            join(root, dataset.ann_subdir, f'{name}.xml'),
        )
        for name in names
    ]


def _orphans(dataset: Any, split: str) -> Iterator[Orphan]:
    """Label maps whose image is not there.

    Only of a data set that takes all images of a folder: beside those that a
    list names there may be those of other splits.
    """
    prefix = getattr(dataset, 'data_prefix', {})
    masks, images = prefix.get('seg_map_path'), prefix.get('img_path')
    ends = (
        getattr(dataset, 'seg_map_suffix', ''),
        getattr(dataset, 'img_suffix', ''),
    )
    if not (masks and images and all(ends)):
        return
    if dataset.ann_file and not os.path.isdir(dataset.ann_file):
        return
    args = dataset.backend_args
    names = list_dir_or_file(
        masks,
        list_dir=False,
        suffix=ends[0],
        recursive=True,
        backend_args=args,
    )
    for name in sorted(names):
        image = os.path.join(images, name[: -len(ends[0])] + ends[1])
        if not exists(image, backend_args=args):
            path = os.path.join(masks, name)
            yield Orphan(split=split, path=path, kind='mask')


def _samples(dataset: Any, classes: Sequence[str]) -> Iterator[Sample]:
    for index in range(len(dataset)):
        info = dataset.get_data_info(index)
        yield Sample(
            index=index,
            image=str(info.get('img_path') or ''),
            mask=str(info.get('seg_map_path') or ''),
            annotation=str(
                info.get('xml_path') or getattr(dataset, 'ann_file', '') or ''
            ),
            boxes=tuple(
                _box(number, each, classes)
                for number, each in enumerate(info.get('instances') or ())
            ),
            width=int(info.get('width') or 0),
            height=int(info.get('height') or 0),
        )


def _box(number: int, each: Mapping, classes: Sequence[str]) -> BoxFacts:
    label = int(each.get('bbox_label', -1))
    known = 0 <= label < len(classes)
    return BoxFacts(
        box=tuple(float(value) for value in each['bbox']),
        label=label,
        class_name=classes[label] if known else str(label),
        place=f'instance {number}',
        ignored=bool(each.get('ignore_flag')),
    )

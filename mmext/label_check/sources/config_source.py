"""The splits of a config, built as its training would build them."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mmengine.config import Config
from mmengine.registry import DATASETS, DefaultScope

from ...datasets.dataset_walk import inner_datasets, walk_datasets
from ..expectations import Expectations, HeadFacts
from ..facts import BoxFacts, Sample
from .config_walk import read_heads, read_ignore_places, walk
from .split_source import SplitSource

__all__ = ['splits_of_config']

_LOADER = 'LoadAnnotations'
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
        leaves = [
            each
            for each in walk_datasets(_build(loader['dataset'], cfg))
            if not inner_datasets(each)
        ]
        for number, dataset in enumerate(leaves):
            name = split if len(leaves) == 1 else f'{split}[{number}]'
            found.append(_source(dataset, name, plain, split, heads))
    if not found:
        raise ValueError(
            f'the config must have a data set for one of {tuple(splits)}, '
            f'got the keys {sorted(plain)}'
        )
    return found


def _build(dataset: Mapping, cfg: Config) -> Any:
    """The data set, without the steps of its pipelines."""
    dataset = copy.deepcopy(dataset)
    for _, node in walk(dataset, 'dataset'):
        if 'pipeline' in node:
            node['pipeline'] = []
    scope = cfg.get('default_scope', 'mmengine')
    with DefaultScope.overwrite_default_scope(scope):
        return DATASETS.build(dataset)


def _loaders(plain: Mapping, split: str) -> Iterator[Mapping]:
    """Steps of the split's pipelines that load labels."""
    dataset = (plain.get(f'{split}_dataloader') or {}).get('dataset')
    for _, node in walk(dataset, 'dataset'):
        if str(node.get('type')).rpartition('.')[2] == _LOADER:
            yield node


def _task(dataset: Any) -> str:
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
    meta = dataset.metainfo
    task = _task(dataset)
    classes = tuple(str(each) for each in meta.get('classes') or ())
    loader = next(_loaders(plain, split), {})
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
    return SplitSource(
        expected,
        lambda: _samples(dataset, classes),
        backend_args=getattr(dataset, 'backend_args', None),
    )


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
        class_name=classes[label] if known else '',
        place=f'instance {number}',
        ignored=bool(each.get('ignore_flag')),
    )

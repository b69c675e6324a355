"""The splits of a config, built as its training would build them."""

import copy
import inspect
import os.path
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mmengine.config import Config
from mmengine.fileio import exists, list_dir_or_file, list_from_file
from mmengine.registry import DATASETS, DefaultScope

from ...config import (
    inner_datasets,
    join_key,
    walk_datasets,
    walk_dicts,
)
from ...registry import DATASETS as OWN_DATASETS
from ...utils.contain import Contained
from ..expectations import Expectations, HeadFacts
from ..facts import BoxFacts, Orphan, Sample
from .coco import split_of_coco
from .nyuv2 import split_of_layout
from .split_source import SplitSource
from .voc import split_of_pairs

__all__ = [
    'NothingToCheckError',
    'build_leaves',
    'classes_of',
    'loaders',
    'read_heads',
    'read_ignore_places',
    'reads_coco',
    'reads_layout',
    'reads_voc',
    'splits_of_config',
]

_DEFAULT_IGNORE = 255
# Sections besides the model that components are built from.
_READ_SUFFIXES = ('_dataloader', '_evaluator')
# Keys that hold a value of pixels which are to be ignored, or to be filled.
_IGNORE_KEYS = ('ignore_index', 'ignore_label', 'seg_pad_val')
_READERS = ('load_data_list', 'parse_data_info')


class NothingToCheckError(ValueError):
    """A data set of a kind whose files are not known."""


_NO_CHECK = (FileNotFoundError, NotADirectoryError, NothingToCheckError)


def build_leaves(dataset: Mapping, cfg: Config) -> list[Any]:
    """The data sets inside of all wrappers, without their pipelines.

    Data sets whose files can be looked at as they stand (:func:`reads_coco`,
    :func:`reads_voc`, :func:`reads_layout`) have not loaded them: a loader
    may fail at a file, or drop what is wrong in it.
    """
    dataset = copy.deepcopy(dataset)
    scope = cfg.get('default_scope', 'mmengine')
    with (
        DefaultScope.overwrite_default_scope(scope),
        DATASETS.switch_scope_and_registry(scope) as registry,
    ):
        for _, node in walk_dicts(dataset):
            if 'pipeline' in node:
                node['pipeline'] = []
            kind = node.get('type')
            if isinstance(kind, str):
                kind = registry.get(kind)
            if _takes(kind, 'lazy_init'):
                node['lazy_init'] = True
            # MMEngine cannot serialize a data set without a sample.
            if _takes(kind, 'serialize_data'):
                node['serialize_data'] = False
        built = DATASETS.build(dataset)
    leaves = [
        dataset
        for dataset in walk_datasets(built)
        if not inner_datasets(dataset)
    ]
    for leaf in leaves:
        as_they_stand = reads_coco(leaf) or reads_voc(leaf)
        if not (as_they_stand or reads_layout(leaf)) and hasattr(
            leaf, 'full_init'
        ):
            leaf.full_init()
    return leaves


def _takes(kind: Any, name: str) -> bool:
    """Whether a data set, or a wrapper of some, has such an argument."""
    # Loaded late, as it loads torch, which reading labels does not need.
    from mmengine.dataset import (
        BaseDataset,
        ClassBalancedDataset,
        ConcatDataset,
        RepeatDataset,
    )

    wrappers = (ConcatDataset, RepeatDataset, ClassBalancedDataset)
    if not inspect.isclass(kind):
        return False
    names = inspect.signature(kind).parameters
    if name in names:
        return issubclass(kind, (BaseDataset, *wrappers))
    return issubclass(kind, BaseDataset) and any(
        parameter.kind is inspect.Parameter.VAR_KEYWORD
        for parameter in names.values()
    )


def _reads_as(dataset: Any, base: type) -> bool:
    return isinstance(dataset, base) and all(
        getattr(type(dataset), name) is getattr(base, name)
        for name in _READERS
    )


def reads_coco(dataset: Any) -> bool:
    """Whether a data set reads COCO's format in MMDetection's way."""
    from mmdet.datasets import CocoDataset, CocoPanopticDataset

    return _reads_as(dataset, CocoDataset) and not isinstance(
        dataset, CocoPanopticDataset
    )


def reads_voc(dataset: Any) -> bool:
    """Whether a data set reads XML files in MMDetection's way."""
    from mmdet.datasets import XMLDataset

    return _reads_as(dataset, XMLDataset)


def reads_layout(dataset: Any) -> bool:
    """Whether a data set reads NYUv2's layout in mmext's way."""
    return _reads_as(dataset, OWN_DATASETS.get('mmext.NYUv2MultiTaskDataset'))


def loaders(plain: Mapping, split: str) -> Iterator[Mapping]:
    """Steps of a split's pipelines that load labels."""
    dataset = (plain.get(f'{split}_dataloader') or {}).get('dataset')
    for _, node in walk_dicts(dataset):
        if str(node.get('type')).rpartition('.')[2] == 'LoadAnnotations':
            yield node


def classes_of(dataset: Any) -> tuple[str, ...]:
    """Names of the classes of a data set; empty if it does not say."""
    names: Sequence | None = dataset.metainfo.get('classes')
    return tuple(map(str, names or ()))


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
        Exception: What building the data sets raises, if none of the splits
            can be built. A split that cannot be built beside others that can
            raises it when its samples are listed.
    """
    sources: list[SplitSource] = []
    errors: list[Exception] = []
    plain = cfg.to_dict()
    heads = read_heads(plain.get('model') or {})
    for split in splits:
        loader = plain.get(f'{split}_dataloader') or {}
        if 'dataset' not in loader:
            continue
        before, failed = len(sources), []
        with Contained(failed.append):
            leaves = build_leaves(loader['dataset'], cfg)
            for number, dataset in enumerate(leaves):
                name = split if len(leaves) == 1 else f'{split}[{number}]'
                sources.append(_source(dataset, name, plain, split, heads))
        for error in failed:
            # Where data are elsewhere, and where there is nothing to look at.
            if isinstance(error, _NO_CHECK):
                raise error
        errors += failed
        if failed:
            # Its check fails in the same way, and those of the others go on.
            sources[before:] = [_broken_source(split, failed[0])]
    if errors and len(errors) == len(sources):
        raise errors[0]
    if not sources:
        raise NothingToCheckError(
            f'the config must have a data set for one of {tuple(splits)}, '
            f'got the keys {sorted(plain)}'
        )
    return sources


def _broken_source(split: str, error: Exception) -> SplitSource:
    """A split whose data sets cannot be built."""

    def samples() -> Iterator[Sample]:
        raise error

    return SplitSource(Expectations(split=split), samples)


def _task(dataset: Any) -> str:
    if reads_coco(dataset) or reads_voc(dataset):
        return 'detection'
    if reads_layout(dataset):
        return 'semantic'
    if not hasattr(dataset, 'get_data_info'):
        raise NothingToCheckError(
            'the data set must list its files by get_data_info, as those of '
            f'MMEngine do, got {type(dataset).__name__}: there is nothing to '
            'check'
        )
    if not len(dataset):
        return 'semantic' if hasattr(dataset, 'label_map') else 'detection'
    info = dataset.get_data_info(0)
    # By name: the class is in a module that loads torch.
    if 'UnlabelledImages' in [kind.__name__ for kind in type(dataset).__mro__]:
        return 'unlabelled'
    if 'segments_info' in info:
        return 'panoptic'
    if 'instances' not in info:
        return 'semantic'
    with_mask = any('mask' in instance for instance in info['instances'])
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
    if reads_layout(dataset):
        return split_of_layout(dataset.data_prefix['split'], expected)
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
                _box(number, instance, classes)
                for number, instance in enumerate(info.get('instances') or ())
            ),
            width=int(info.get('width') or 0),
            height=int(info.get('height') or 0),
        )


def _box(number: int, instance: Mapping, classes: Sequence[str]) -> BoxFacts:
    label = int(instance.get('bbox_label', -1))
    known = 0 <= label < len(classes)
    return BoxFacts(
        box=tuple(float(value) for value in instance['bbox']),
        label=label,
        class_name=classes[label] if known else str(label),
        place=f'instance {number}',
        ignored=bool(instance.get('ignore_flag')),
    )


def _losses(head: Mapping, path: tuple) -> Iterator[tuple[str, Mapping]]:
    """Losses of a head, not those of a head inside of it."""
    for key, value in head.items():
        if not str(key).startswith('loss'):
            continue
        for where, node in walk_dicts(value, (*path, key)):
            if 'type' in node:
                yield join_key(where), node


def read_heads(model: Any) -> tuple[HeadFacts, ...]:
    """The heads of a model's config: dicts with ``num_classes`` and a loss."""
    heads = []
    for path, node in walk_dicts(model, ('model',)):
        losses = list(_losses(node, path))
        if not isinstance(node.get('num_classes'), int) or not losses:
            continue
        # Only MMSegmentation's heads have an ignored value by default.
        semantic = any('loss_decode' in where for where, _ in losses)
        weights = ((where, loss.get('class_weight')) for where, loss in losses)
        heads.append(
            HeadFacts(
                place=join_key(path),
                num_classes=node['num_classes'],
                ignore_index=node.get(
                    'ignore_index', _DEFAULT_IGNORE if semantic else None
                ),
                class_weights=tuple(
                    (where, len(weight))
                    for where, weight in weights
                    if isinstance(weight, Sequence)
                    and not isinstance(weight, str)
                ),
                losses=tuple(
                    (where, str(loss['type'])) for where, loss in losses
                ),
            )
        )
    return tuple(heads)


def read_ignore_places(cfg: Mapping) -> tuple[tuple[str, int], ...]:
    """Places of a config that hold a value to ignore or to fill with.

    Only sections that something is built from count: a variable such as
    ``train_pipeline`` is in the config, too, but nobody reads it.
    """
    places = []
    for section in cfg:
        if section != 'model' and not section.endswith(_READ_SUFFIXES):
            continue
        for path, node in walk_dicts(cfg[section], (section,)):
            for key in _IGNORE_KEYS:
                value = node.get(key)
                if isinstance(value, int) and not isinstance(value, bool):
                    places.append((join_key((*path, key)), value))
    return tuple(places)

"""The splits of a config, built as its training would build them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from mmengine.config import Config
from mmengine.fileio import list_from_file

from ....utils.label_spec import HeadSpec
from ...config import (
    ignored_value,
    join_key,
    read_heads,
    read_ignore_places,
    walk_dicts,
)
from ...findings import ErrorCatcher
from ..expectations import Expectations, SplitSource
from ..facts import Sample
from .coco import seg_maps_of_coco, split_of_coco, split_of_panoptic
from .leaves import (
    NothingToCheckError,
    build_leaves,
    form_of,
    leaf_orphans,
    leaf_samples,
    load_step,
    task_of,
    unread_form,
    voc_pairs,
)
from .pairs import split_of_layout, split_of_pairs

_DEFAULT_IGNORE = 255
_NO_CHECK = (FileNotFoundError, NotADirectoryError, NothingToCheckError)
# Heads that the labels of a task are for.
_HEADS_OF = {
    'semantic': ('decode_head', 'semantic_head'),
    'detection': ('bbox_head', 'head'),
    'instance': ('bbox_head', 'head'),
}


def splits_of_config(
    cfg: Config, splits: Sequence[str] = ('train', 'val')
) -> list[SplitSource]:
    """What a config trains and evaluates on.

    Data sets are built from the config as they are, but for their pipelines,
    so that annotation files, prefixes, label maps, classes and file backends
    are those of the training. A wrapper such as ``ConcatDataset`` gives one
    source for each data set inside.

    Splits that the config lacks are left out.

    Raises:
        ValueError: If the config has none of the splits.
        Exception: What building the data sets raises, if none of the splits
            can be built. A split that cannot be built beside others that can
            raises it when its samples are listed.
    """
    sources: list[SplitSource] = []
    errors: list[Exception] = []
    plain = cfg.to_dict()
    scope = cfg.get('default_scope') or 'mmengine'
    heads = read_heads(plain.get('model') or {}, scope)
    for split in splits:
        loader = plain.get(f'{split}_dataloader') or {}
        if 'dataset' not in loader:
            continue
        before, failed = len(sources), []
        with ErrorCatcher(failed.append):
            leaves = build_leaves(loader['dataset'], cfg)
            for number, dataset in enumerate(leaves):
                name = split if len(leaves) == 1 else f'{split}[{number}]'
                sources += _sources(dataset, name, plain, split, heads)
        for error in failed:
            # Where data are elsewhere, and where there is nothing to look at.
            if isinstance(error, _NO_CHECK):
                raise error
            # Its check fails in the same way, and those of the others go on.
            sources[before:] = [_broken_source(split, error)]
        errors += failed
    if errors and len(errors) == len(sources):
        raise errors[0]
    if not sources:
        raise NothingToCheckError(
            f'the config must have a data set for one of {tuple(splits)}, '
            f'got the keys {sorted(plain)}'
        )
    return sources


def _broken_source(split: str, error: Exception) -> SplitSource:
    def samples() -> Iterator[Sample]:
        raise error

    return SplitSource(Expectations(split=split), samples)


def _num_classes(
    heads: Sequence[HeadSpec], task: str, classes: Sequence[str]
) -> int:
    """Of the head that the labels are for, else of the data set."""
    for word in _HEADS_OF.get(task, ()):
        for head in heads:
            if head.place.rpartition('.')[2].startswith(word):
                return head.num_classes
    return len(classes)


def _sources(
    dataset: Any,
    name: str,
    plain: Mapping,
    split: str,
    heads: tuple[HeadSpec, ...],
) -> Iterator[SplitSource]:
    """One for the labels of a data set, one for label maps beside boxes."""
    task = task_of(dataset, split)
    # Heads of a detector that are for label maps, as HTC's.
    of_maps = tuple(
        head
        for head in heads
        if any('.loss_seg' in place for place, _ in head.losses)
    )
    if task == 'semantic':
        heads = of_maps or heads
    elif task == 'unlabelled':
        heads = ()
    else:
        heads = tuple(head for head in heads if head not in of_maps)
    expected = _expected(dataset, name, plain, split, task, heads)
    source = _of_files(dataset, expected)
    yield source
    loader, _ = load_step(dataset)
    folder = getattr(dataset, 'data_prefix', {}).get('seg')
    if loader.get('with_seg') and folder and form_of(dataset) == 'coco':
        expected = _expected(
            dataset, f'{name}[maps]', plain, split, 'semantic', of_maps
        )
        # Classes that have names are those of boxes.
        expected = msgspec.structs.replace(
            expected,
            classes=(),
            num_classes=of_maps[0].num_classes if of_maps else 0,
            with_images=False,
        )
        yield seg_maps_of_coco(
            source, expected, folder, dataset.seg_map_suffix
        )


def _expected(
    dataset: Any,
    name: str,
    plain: Mapping,
    split: str,
    task: str,
    heads: tuple[HeadSpec, ...],
) -> Expectations:
    """What the labels of a data set will be read as."""
    classes = () if task == 'unlabelled' else dataset.metainfo.get('classes')
    classes = tuple(map(str, classes or ()))
    loader, package = load_step(dataset)
    # Of label maps alone, a default matters.
    places = read_ignore_places(plain, defaults=task == 'semantic')
    own = getattr(dataset, 'reduce_zero_label', None)
    reduce = loader.get('reduce_zero_label')
    label_map = getattr(dataset, 'label_map', None) or {}
    unread = unread_form(dataset)
    reads_as = 'semantic' if package != 'mmdet' else ''
    return Expectations(
        split=name,
        task=task,
        num_classes=_num_classes(heads, task, classes),
        classes=classes,
        thing_classes=tuple(dataset.metainfo.get('thing_classes') or ()),
        classes_are_texts='language_model' in (plain.get('model') or {}),
        ignore_index=ignored_value(
            heads, places, getattr(dataset, 'ignore_index', _DEFAULT_IGNORE)
        ),
        reduce_zero_label=bool(own if reduce is None else reduce),
        dataset_reduces=own if compares_reduction(type(dataset)) else None,
        label_map=tuple(
            (int(old), int(new)) for old, new in label_map.items()
        ),
        ignore_places=places,
        heads=heads,
        filter_cfg=_filter_cfg(dataset),
        coco_metric=_coco_metric(plain, split),
        loads_masks=bool(loader.get('with_mask')),
        loader_backend=loader.get('imdecode_backend')
        or ('pillow' if task == reads_as else 'cv2'),
        casts_to_bytes=package != 'mmdet',
        with_images=not unread,
        unread=unread,
        kpt_shape=dataset.kpt_shape if form_of(dataset) == 'yolo' else (),
    )


def compares_reduction(kind: Any) -> bool:
    """Whether LoadAnnotations looks at reduce_zero_label of a data set, too.

    MMSegmentation's does, which reads data sets of its own; MMDetection's
    goes by what it is told itself.
    """
    return isinstance(kind, type) and any(
        base.__module__.startswith('mmseg.') for base in kind.__mro__
    )


def _filter_cfg(dataset: Any) -> dict[str, int]:
    """What MMDetection's own ``filter_data`` will go by."""
    form = form_of(dataset)
    if form not in ('coco', 'voc') or dataset.test_mode:
        return {}
    from mmdet.datasets import CocoDataset, XMLDataset

    base = CocoDataset if form == 'coco' else XMLDataset
    if type(dataset).filter_data is not base.filter_data:
        return {}
    given = dataset.filter_cfg or {}
    names = ['filter_empty_gt', 'min_size']
    if form == 'voc':
        names.append('bbox_min_size')
    return {name: given[name] for name in names if given.get(name)}


def _coco_metric(plain: Mapping, split: str) -> str:
    """Place of the metric that has pycocotools read an annotation file."""
    section = f'{split}_evaluator'
    for path, node in walk_dicts(plain.get(section), (section,)):
        kind = getattr(node.get('type'), '__name__', str(node.get('type')))
        if kind.endswith('CocoMetric') and node.get('ann_file'):
            return join_key(path)
    return ''


def _of_files(dataset: Any, expected: Expectations) -> SplitSource:
    """A source that looks at the files themselves, where that can be done."""
    form = form_of(dataset)
    args = getattr(dataset, 'backend_args', None)
    path = str(getattr(dataset, 'ann_file', '') or '')
    prefix = getattr(dataset, 'data_prefix', {})
    images, maps = prefix.get('img') or '', prefix.get('seg') or ''
    # The list that mmseg's data sets read; a folder or JSON is none.
    listed = path if path.endswith('.txt') else ''
    if form == 'coco':
        return split_of_coco(path, images, expected, backend_args=args)
    if form == 'panoptic':
        return split_of_panoptic(
            path, images, maps, expected, backend_args=args
        )
    if form == 'voc':
        pairs = voc_pairs(dataset, list_from_file(path, backend_args=args))
        return split_of_pairs(
            pairs, expected, list_file=path, backend_args=args
        )
    if form == 'yolo':
        return split_of_pairs(
            dataset.list_files(),
            expected,
            kind='yolo',
            list_file=listed,
            backend_args=args,
        )
    if form == 'nyuv2':
        return split_of_layout(dataset.data_prefix['split'], expected)
    return SplitSource(
        expected,
        lambda: leaf_samples(dataset, expected.classes, expected.unread),
        orphans=lambda: leaf_orphans(dataset, expected.split),
        list_file=listed,
        backend_args=args,
    )

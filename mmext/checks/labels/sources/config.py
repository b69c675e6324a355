"""The splits of a config, built as its training would build them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from mmengine.config import Config
from mmengine.fileio import list_from_file

from ....utils.contain import Contained
from ...config import (
    SECTIONS,
    ConfigNode,
    find_component,
    join_key,
    takes,
    walk_dicts,
    walk_nodes,
)
from ..expectations import Expectations, HeadFacts
from ..facts import Sample
from .coco import seg_maps_of_coco, split_of_coco
from .ignore_places import default_of, ignored_value, read_ignore_places
from .leaves import (
    NothingToCheckError,
    build_leaves,
    classes_of,
    image_name_of,
    leaf_orphans,
    leaf_samples,
    load_step,
    reads_coco,
    reads_layout,
    reads_panoptic,
    reads_voc,
    reads_yolo,
    task_of,
    unread_form,
    voc_pairs,
)
from .nyuv2 import split_of_layout
from .panoptic import split_of_panoptic
from .split_source import SplitSource
from .voc import split_of_pairs

_DEFAULT_IGNORE = 255
_NO_CHECK = (FileNotFoundError, NotADirectoryError, NothingToCheckError)
# Heads of proposals and of identities, whose classes are not the data's.
_OTHER_HEADS = frozenset(('rpn_head', 'reid'))
# Heads that have one weight more, for masks of no class.
_MASK_HEADS = ('MaskFormerHead', 'Mask2FormerHead', 'SideAdapterCLIPHead')


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
    scope = cfg.get('default_scope') or 'mmengine'
    heads = read_heads(plain.get('model') or {}, scope)
    for split in splits:
        loader = plain.get(f'{split}_dataloader') or {}
        if 'dataset' not in loader:
            continue
        before, failed = len(sources), []
        with Contained(failed.append):
            leaves = build_leaves(loader['dataset'], cfg)
            for number, dataset in enumerate(leaves):
                name = split if len(leaves) == 1 else f'{split}[{number}]'
                sources += _sources(dataset, name, plain, split, heads)
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


def _num_classes(
    heads: Sequence[HeadFacts], task: str, classes: Sequence[str]
) -> int:
    """Of the head that the labels are for, else of the data set."""
    words = {
        'semantic': ('decode_head', 'semantic_head'),
        'detection': ('bbox_head', 'head'),
        'instance': ('bbox_head', 'head'),
    }
    for word in words.get(task, ()):
        for head in heads:
            if head.place.rpartition('.')[2].startswith(word):
                return head.num_classes
    return len(classes)


def _reads_maps(head: HeadFacts) -> bool:
    """Whether a head of a detector is for label maps, as HTC's is."""
    return any(
        place.rpartition('.')[2].partition('[')[0] == 'loss_seg'
        for place, _ in head.losses
    )


def _sources(
    dataset: Any,
    name: str,
    plain: Mapping,
    split: str,
    heads: tuple[HeadFacts, ...],
) -> Iterator[SplitSource]:
    """One for the labels of a data set, one for label maps beside boxes."""
    task = task_of(dataset, split)
    of_maps = tuple(head for head in heads if _reads_maps(head))
    if task == 'semantic':
        own = of_maps or heads
    elif task == 'unlabelled':
        own = ()
    else:
        own = tuple(head for head in heads if head not in of_maps)
    expected = _expected(dataset, name, plain, split, task, own)
    source = _of_files(dataset, expected)
    yield source
    loader, _ = load_step(dataset)
    folder = getattr(dataset, 'data_prefix', {}).get('seg')
    if loader.get('with_seg') and reads_coco(dataset) and folder:
        name = f'{name}[maps]'
        expected = _expected(dataset, name, plain, split, 'semantic', of_maps)
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
    heads: tuple[HeadFacts, ...],
) -> Expectations:
    """What the labels of a data set will be read as."""
    classes = classes_of(dataset) if task != 'unlabelled' else ()
    loader, package = load_step(dataset)
    # Of label maps alone, a default matters.
    places = read_ignore_places(plain, defaults=task == 'semantic')
    own = getattr(dataset, 'reduce_zero_label', None)
    reduce = loader.get('reduce_zero_label')
    if reduce is None:
        reduce = own
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
        reduce_zero_label=bool(reduce),
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
    if not (reads_coco(dataset) or reads_voc(dataset)) or dataset.test_mode:
        return {}
    from mmdet.datasets import CocoDataset, XMLDataset

    base = CocoDataset if reads_coco(dataset) else XMLDataset
    if type(dataset).filter_data is not base.filter_data:
        return {}
    given = dataset.filter_cfg or {}
    names = ['filter_empty_gt', 'min_size']
    if base is XMLDataset:
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
    args = getattr(dataset, 'backend_args', None)
    if reads_coco(dataset):
        return split_of_coco(
            dataset.ann_file,
            dataset.data_prefix.get('img') or '',
            expected,
            name_of=image_name_of(dataset),
            backend_args=args,
        )
    if reads_panoptic(dataset):
        return split_of_panoptic(
            dataset.ann_file,
            dataset.data_prefix.get('img') or '',
            dataset.data_prefix.get('seg') or '',
            expected,
            backend_args=args,
        )
    if reads_voc(dataset):
        names = list_from_file(dataset.ann_file, backend_args=args)
        return split_of_pairs(
            voc_pairs(dataset, names),
            expected,
            list_file=dataset.ann_file,
            backend_args=args,
        )
    if reads_yolo(dataset):
        return split_of_pairs(
            dataset.list_files(),
            expected,
            kind='yolo',
            list_file=_list_file(dataset),
            backend_args=args,
        )
    if reads_layout(dataset):
        return split_of_layout(dataset.data_prefix['split'], expected)
    return SplitSource(
        expected,
        lambda: leaf_samples(dataset, expected.classes, expected.unread),
        orphans=lambda: leaf_orphans(dataset, expected.split),
        list_file=_list_file(dataset),
        backend_args=args,
    )


def _list_file(dataset: Any) -> str:
    """The list that mmseg's data sets read; a folder or JSON is none."""
    path = str(getattr(dataset, 'ann_file', '') or '')
    return path if path.endswith('.txt') else ''


def _losses(head: Mapping, path: tuple) -> Iterator[tuple[str, Mapping]]:
    """Losses of a head, not those of a head inside of it."""
    for key, value in head.items():
        if not str(key).startswith('loss'):
            continue
        for where, node in walk_dicts(value, (*path, key)):
            if 'type' in node:
                yield join_key(where), node


def _class_count(node: ConfigNode, scope: str) -> Any:
    """``num_classes`` of a head, or the default of its class."""
    if 'num_classes' in node.cfg or not scope:
        return node.cfg.get('num_classes')
    kind = find_component(
        node.cfg.get('type'), SECTIONS['model'], node.scope or scope
    )
    known = kind is not None and takes(kind, 'num_classes')
    return default_of(kind, 'num_classes') if known else None


def read_heads(model: Any, scope: str = '') -> tuple[HeadFacts, ...]:
    """The heads of a model's config: dicts with ``num_classes`` and a loss.

    With the ``default_scope`` of the config, those too whose class has a
    default for ``num_classes``, as 80 of MMDetection's RoI heads.

    Left out are those whose classes are not the ones of the data: of
    proposals, of edges, of identities, and of texts, whose length it is.
    """
    heads = []
    if isinstance(model.get('num_classes'), int):
        scope = ''  # It is passed on to the heads.
    for section in walk_nodes(model, ('model',), scope):
        path, node = section.path, section.cfg
        losses = list(_losses(node, path))
        if not losses or _OTHER_HEADS & set(path):
            continue
        if 'boundary_threshold' in node:
            continue
        if 'language_model' in model and 'loss_cls' in node:
            continue
        count = _class_count(section, scope)
        if not isinstance(count, int):
            continue
        # Only MMSegmentation's heads have an ignored value by default.
        ignored = _DEFAULT_IGNORE
        if not any('loss_decode' in where for where, _ in losses):
            ignored = next(
                (loss.get('ignore_index') for _, loss in losses), None
            )
        weights = [(where, loss.get('class_weight')) for where, loss in losses]
        heads.append(
            HeadFacts(
                place=join_key(path),
                num_classes=count,
                ignore_index=node.get('ignore_index', ignored),
                class_weights=tuple(
                    (where, tuple(weight))
                    for where, weight in weights
                    if isinstance(weight, Sequence)
                    and not isinstance(weight, str)
                ),
                weight_files=tuple(
                    (where, weight)
                    for where, weight in weights
                    if isinstance(weight, str)
                ),
                losses=tuple(
                    (where, str(loss['type'])) for where, loss in losses
                ),
                of_masks=str(node.get('type')).endswith(_MASK_HEADS),
            )
        )
    return tuple(heads)

"""The splits of a config, built as its training would build them."""

import copy
import inspect
import os.path
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import Any

import msgspec
from mmengine.config import Config
from mmengine.fileio import exists, list_dir_or_file
from mmengine.registry import DATASETS, TRANSFORMS, DefaultScope, Registry

from ....registry import DATASETS as OWN_DATASETS
from ....utils.label_spec import HeadSpec
from ....utils.quiet_hosts import deferred_names
from ...config import (
    ignored_value,
    inner_datasets,
    join_key,
    read_heads,
    read_ignore_locations,
    walk_datasets,
    walk_dicts,
)
from ...findings import ErrorCatcher, code_location
from ..expectations import Expectations, SplitSource
from ..facts import BoxFacts, Orphan, Sample
from ..readers.coco import read_coco
from .coco import (
    read_bytes,
    seg_maps_of_coco,
    split_of_coco,
    split_of_panoptic,
)
from .folders import (
    IMAGE_SUFFIXES,
    names_below,
    read_voc_list,
    split_of_layout,
    split_of_pairs,
)


class NothingToCheckError(ValueError):
    """A data set of a kind whose files are not known, or none at all."""


_DEFAULT_IGNORE = 255
_NO_CHECK = (FileNotFoundError, NotADirectoryError, NothingToCheckError)
# Heads that the labels of a task are for.
_HEADS_OF = {
    'semantic': ('decode_head', 'semantic_head'),
    'detection': ('bbox_head', 'head'),
    'instance': ('bbox_head', 'head'),
}
# Volumes, bands and other numbers, which pipelines have loaders of their own
# for.
_OTHER_FORMS = ('.npy', '.npz', '.nii', '.nii.gz', '.mat', '.h5', '.hdr')
_READERS = ('load_data_list', 'parse_data_info')


def splits_of_config(
    cfg: Config, splits: Sequence[str] = ('train', 'val')
) -> list[SplitSource]:
    """What a config trains and evaluates on.

    Data sets are built from the config as they are, but for their pipelines,
    so that annotation files, prefixes, label maps, classes and file backends
    are those of the training. A wrapper such as ``ConcatDataset`` gives one
    source for each data set inside.

    Splits that the config lacks are left out; ValueError if it has none of
    them. What building a data set raises is raised if no split can be built,
    else when the samples of that split are listed.
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
            if head.location.rpartition('.')[2].startswith(word):
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
        if any('.loss_seg' in location for location, _ in head.losses)
    )
    if task == 'semantic':
        heads = of_maps or heads
    elif task == 'unlabelled':
        heads = ()
    else:
        heads = tuple(head for head in heads if head not in of_maps)
    expected = _expected(dataset, name, plain, split, task, heads)
    source = _of_files(dataset, expected)
    metric, file, _ = _coco_metric(dataset, plain, split)
    if file and source.coco is not None:
        evaluated = read_coco(read_bytes(file, None), name, file)
        source = replace(source, evaluated=evaluated, metric=metric)
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
    locations = read_ignore_locations(plain, defaults=task == 'semantic')
    own = getattr(dataset, 'reduce_zero_label', None)
    reduce = loader.get('reduce_zero_label')
    label_map = getattr(dataset, 'label_map', None) or {}
    unread = unread_form(dataset)
    metric, _, fills_iscrowd = _coco_metric(dataset, plain, split)
    reads_as = 'semantic' if package != 'mmdet' else ''
    return Expectations(
        split=name,
        task=task,
        num_classes=_num_classes(heads, task, classes),
        classes=classes,
        thing_classes=tuple(dataset.metainfo.get('thing_classes') or ()),
        classes_are_texts='language_model' in (plain.get('model') or {}),
        ignore_index=ignored_value(
            heads, locations, getattr(dataset, 'ignore_index', _DEFAULT_IGNORE)
        ),
        reduce_zero_label=bool(own if reduce is None else reduce),
        dataset_reduces=own if compares_reduction(type(dataset)) else None,
        label_map=tuple(
            (int(old), int(new)) for old, new in label_map.items()
        ),
        ignore_locations=locations,
        heads=heads,
        filter_cfg=_filter_cfg(dataset),
        coco_metric=metric,
        fills_iscrowd=fills_iscrowd,
        loads_masks=bool(loader.get('with_mask')),
        loader_backend=loader.get('imdecode_backend')
        or ('pillow' if task == reads_as else 'cv2'),
        casts_to_bytes=package != 'mmdet',
        with_images=not unread,
        unread=unread,
        **_image_loading(dataset, plain),
        kpt_shape=dataset.kpt_shape if form_of(dataset) == 'yolo' else (),
    )


def _image_loading(dataset: Any, plain: Mapping) -> dict[str, Any]:
    """What is kept of images: fields of Expectations."""
    steps, scope = _steps(dataset)
    loaders = [step for step in steps if _name(step).startswith('LoadImage')]
    if len(loaders) != 1 or _name(loaders[0]) != 'LoadImageFromFile':
        return {}
    color = str(loaders[0].get('color_type', 'color'))
    backend = loaders[0].get('imdecode_backend', 'cv2')
    if backend not in ('cv2', 'pillow'):
        return {}
    if color != 'unchanged':
        return {'keeps_bytes': f'color_type={color!r}, {backend}'}
    model = plain.get('model') or {}
    batch = model.get('data_preprocessor') or plain.get('data_preprocessor')
    mean = (batch or {}).get('mean')
    values = len(mean) if isinstance(mean, list | tuple) else 0
    wanted = (model.get('backbone') or {}).get('in_channels')
    # Steps of one's own may change it.
    hosts = ('mmcv.', 'mmdet.', 'mmseg.')
    if any(
        not _module_of(step['type'], scope).startswith(hosts)
        or _name(step) == 'RGB2Gray'
        for step in steps
    ):
        return {}
    if values == 3:
        # MMSegmentation takes them off one channel, too.
        seg = _name(batch) == 'SegDataPreProcessor'
        return {'channels': (1, 3) if seg else (3,)}
    return {'channels': (wanted,)} if isinstance(wanted, int) else {}


def compares_reduction(kind: Any) -> bool:
    """Whether LoadAnnotations looks at reduce_zero_label of a data set, too.

    MMSegmentation's does, which reads data sets of its own; MMDetection's
    goes by what it is told itself.
    """
    return isinstance(kind, type) and any(
        base.__module__.startswith('mmseg.') for base in kind.__mro__
    )


def _filter_cfg(dataset: Any) -> dict[str, int]:
    """What MMDetection's own ``filter_data`` will go by, or that of YOLO."""
    form = form_of(dataset)
    if form not in ('coco', 'voc', 'yolo') or dataset.test_mode:
        return {}
    from mmdet.datasets.coco import CocoDataset
    from mmdet.datasets.xml_style import XMLDataset

    base = {'coco': CocoDataset, 'voc': XMLDataset}.get(
        form, OWN_DATASETS.get('mmext.YOLODataset')
    )
    if type(dataset).filter_data is not base.filter_data:
        return {}
    given = dataset.filter_cfg or {}
    names = ['filter_empty_gt', 'min_size']
    if form == 'voc':
        names.append('bbox_min_size')
    return {name: given[name] for name in names if given.get(name)}


def _coco_metric(
    dataset: Any, plain: Mapping, split: str
) -> tuple[str, str, bool]:
    """Location of the metric that has pycocotools read a file, if any.

    Its file, if it is another one than that of the data set, and whether the
    metric is mmext's, which sets a missing ``iscrowd`` to 0.
    """
    section = f'{split}_evaluator'
    own = os.path.abspath(getattr(dataset, 'ann_file', '') or '')
    for path, node in walk_dicts(plain.get(section), (section,)):
        file = str(node.get('ann_file') or '')
        if file and 'type' in node and _name(node).endswith('CocoMetric'):
            other = '' if os.path.abspath(file) == own else file
            return join_key(path), other, 'mmext.' in str(node['type'])
    return '', '', False


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
        pairs = voc_pairs(dataset, read_voc_list(path, args))
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


class _Steps:
    """Stands in a pipeline for its steps, which are not built."""

    def __init__(self, steps: Sequence, scope: str):
        self.steps = steps
        self.scope = scope

    def __call__(self, results: dict) -> dict:
        return results


def build_leaves(dataset: Mapping, cfg: Config) -> list[Any]:
    """The data sets inside of all wrappers, without their pipelines.

    Data sets whose files can be looked at as they stand (:func:`form_of`)
    have not loaded them: a loader may fail at a file, or drop what is wrong
    in it.
    """
    import mmengine.dataset  # noqa: F401  (it registers wrappers)

    name, dataset = dataset.get('type'), copy.deepcopy(dataset)
    scope = cfg.get('default_scope', 'mmengine')
    nodes = [node for _, node in walk_dicts(dataset)]
    scopes = {node['_scope_'] for node in nodes if '_scope_' in node}
    try:
        with DefaultScope.overwrite_default_scope(scope):
            for _, node in walk_dicts(dataset):
                kind = node.get('type')
                if isinstance(kind, str):
                    kind = _find(DATASETS, kind, scope, 'datasets')
                if isinstance(kind, str):
                    import_module(kind)
                    kind = _find(DATASETS, node['type'], scope, 'datasets')
                # So that no registry is asked for it again.
                if inspect.isclass(kind) and scopes <= {scope}:
                    node['type'] = kind
                if 'pipeline' in node:
                    steps = _Steps(node['pipeline'], scope)
                    node['pipeline'] = [steps] if _is_leaf(kind) else []
                if _takes(kind, 'lazy_init'):
                    node['lazy_init'] = True
                # MMEngine cannot serialize a data set without a sample.
                if _takes(kind, 'serialize_data'):
                    node['serialize_data'] = False
            built = list(walk_datasets(DATASETS.build(dataset)))
        leaves = [item for item in built if not inner_datasets(item)]
        for leaf in leaves:
            if hasattr(leaf, 'full_init') and not form_of(leaf):
                with _naming_deep_file(leaf):
                    leaf.full_init()
    except (OSError, ValueError):
        raise
    except Exception as error:
        raise ValueError(
            f'the data set {name} raises '
            f'{type(error).__name__}: {error} ({code_location(error)}); '
            'correct its code, or its arguments in the config'
        ) from error
    return leaves


@contextmanager
def _naming_deep_file(dataset: Any) -> Iterator[None]:
    """Name the annotation file where reading or copying recurses too deep."""
    try:
        yield
    except RecursionError as error:
        raise ValueError(
            f'{dataset.ann_file!r} must have fewer levels of nesting ({error})'
        ) from error


def _find(root: Registry, name: str, scope: str, package: str) -> Any:
    """A registered class, or the module where a deferred host lists it."""
    own, _, short = name.rpartition('.')
    listed = deferred_names(f'{own or scope}.{package}')
    if listed:
        known = root.children[own or scope].module_dict
        if short in known or short in listed:
            return known.get(short) or listed[short]
        if not own and short in root.module_dict:
            return root.module_dict[short]
    if own == 'mmext':
        # Not by way of the host's registry, which would load all of it.
        return root.children[own].get(short)
    with root.switch_scope_and_registry(scope) as registry:
        return registry.get(name)


def _module_of(kind: Any, scope: str) -> str:
    """Where a transform is defined; one that a host lists is not loaded."""
    import mmcv.transforms  # noqa: F401  (it registers what all hosts have)

    if isinstance(kind, str):
        kind = _find(TRANSFORMS, kind, scope, 'datasets.transforms')
    return kind if isinstance(kind, str) else getattr(kind, '__module__', '')


def _is_leaf(kind: Any) -> bool:
    # Loaded late, as it loads torch, which reading labels does not need.
    from mmengine.dataset import BaseDataset

    return inspect.isclass(kind) and issubclass(kind, BaseDataset)


def _takes(kind: Any, name: str) -> bool:
    """Whether a data set, or a wrapper of some, has such an argument."""
    from mmengine.dataset import (
        ClassBalancedDataset,
        ConcatDataset,
        RepeatDataset,
    )

    if not inspect.isclass(kind):
        return False
    names = inspect.signature(kind).parameters
    if name in names:
        wrappers = ConcatDataset, RepeatDataset, ClassBalancedDataset
        return _is_leaf(kind) or issubclass(kind, wrappers)
    return _is_leaf(kind) and any(
        parameter.kind is inspect.Parameter.VAR_KEYWORD
        for parameter in names.values()
    )


def form_of(dataset: Any) -> str:
    """Form of the files of a data set that reads them as its host does.

    ``'coco'``, ``'panoptic'``, ``'voc'``, ``'yolo'`` or ``'nyuv2'``: these
    files can be looked at as they stand. Empty for another form, or a class
    that reads them in a way of its own.
    """
    from mmdet.datasets.coco import CocoDataset
    from mmdet.datasets.coco_panoptic import CocoPanopticDataset
    from mmdet.datasets.lvis import LVISV1Dataset
    from mmdet.datasets.xml_style import XMLDataset

    yolo = OWN_DATASETS.get('mmext.YOLODataset')
    nyuv2 = OWN_DATASETS.get('mmext.NYUv2MultiTaskDataset')
    lvis = OWN_DATASETS.get('mmext.LVISV1Dataset')
    for form, base, readers in (
        ('panoptic', CocoPanopticDataset, _READERS),
        ('coco', CocoDataset, _READERS),
        # It differs in where names of images are, which the reader knows.
        ('coco', LVISV1Dataset, _READERS),
        ('coco', lvis, _READERS),
        ('voc', XMLDataset, _READERS),
        ('yolo', yolo, ('load_data_list', 'list_files')),
        ('nyuv2', nyuv2, _READERS),
    ):
        if isinstance(dataset, base) and all(
            getattr(type(dataset), name) is getattr(base, name)
            for name in readers
        ):
            return form
    return ''


def _steps(dataset: Any) -> tuple[list[Mapping], str]:
    """Steps of the pipeline, those in others too, and the scope of types."""
    pipeline = getattr(dataset, 'pipeline', None)
    for step in getattr(pipeline, 'transforms', ()):
        if isinstance(step, _Steps):
            nodes = (node for _, node in walk_dicts(step.steps))
            return [node for node in nodes if 'type' in node], step.scope
    return [], ''


def _name(step: Mapping) -> str:
    kind = step['type']
    return getattr(kind, '__name__', str(kind)).rpartition('.')[2]


def load_step(dataset: Any) -> tuple[Mapping, str]:
    """The step that loads labels, and the package that it is from.

    ``({}, '')`` if there is none, or none that is known by its name.
    """
    steps, scope = _steps(dataset)
    for step in steps:
        if _name(step) == 'LoadAnnotations':
            return step, _module_of(step['type'], scope).partition('.')[0]
    return {}, ''


def task_of(dataset: Any, split: str) -> str:
    """What the labels of a data set are, as in ``Expectations``."""
    steps, _ = _steps(dataset)
    names = set(map(_name, steps))
    loaders = {name for name in names if re.match('Load.*Annotations$', name)}
    if loaders == {'LoadEmptyAnnotations'}:
        return 'unlabelled'
    form = form_of(dataset)
    if form:
        tasks = {'panoptic': 'panoptic', 'nyuv2': 'semantic'}
        return tasks.get(form, 'detection')
    if not hasattr(dataset, 'get_data_info'):
        raise NothingToCheckError(
            'the data set must list its files by get_data_info, as those of '
            f'MMEngine do, got {type(dataset).__name__}: there is nothing to '
            'check'
        )
    infos = next(iter(_infos(dataset)), None)
    if infos is None:
        return 'semantic' if hasattr(dataset, 'label_map') else 'detection'
    # Maps of a test split may be kept by those who made it.
    withheld = split == 'test' and bool(steps) and not loaders
    if 'instances' in infos:
        with_mask = any('mask' in instance for instance in infos['instances'])
        return 'instance' if with_mask else 'detection'
    has_maps = 'seg_map_path' in infos or (
        hasattr(dataset, 'label_map') and 'depth_map_path' not in infos
    )
    return 'semantic' if has_maps and not withheld else 'unlabelled'


def _infos(dataset: Any) -> Iterator[Mapping]:
    """What a data set says of each sample, of videos of each frame."""
    for index in range(len(dataset)):
        with _naming_deep_file(dataset):
            info = dataset.get_data_info(index)
        yield from info['images'] if 'video_length' in info else (info,)


def unread_form(dataset: Any) -> str:
    """End of the names of images that no reader of pictures reads, or ''."""
    if form_of(dataset):
        return ''
    info = next(_infos(dataset), {})
    name = str(info.get('img_path') or '').lower()
    return next((end for end in _OTHER_FORMS if name.endswith(end)), '')


def leaf_samples(
    dataset: Any, classes: Sequence[str], unread: str
) -> Iterator[Sample]:
    """Samples as a data set has loaded them; not images that end so."""
    for index, info in enumerate(_infos(dataset)):
        image = str(info.get('img_path') or '')
        yield Sample(
            index=index,
            image='' if unread else image,
            mask=str(info.get('seg_map_path') or ''),
            annotation=str(
                info.get('xml_path') or getattr(dataset, 'ann_file', '') or ''
            ),
            boxes=tuple(
                _box(number, instance, classes)
                for number, instance in enumerate(info.get('instances') or ())
                if 'bbox' in instance
            ),
            width=int(info.get('width') or 0),
            height=int(info.get('height') or 0),
        )


def _box(number: int, instance: Mapping, classes: Sequence[str]) -> BoxFacts:
    label = int(instance.get('bbox_label', -1))
    ignored = bool(instance.get('ignore_flag'))
    # What is to be ignored needs no class.
    name = '' if ignored else str(label)
    if 0 <= label < len(classes):
        name = classes[label]
    return BoxFacts(
        box=tuple(float(value) for value in instance['bbox']),
        label=label,
        class_name=name,
        location=f'instance {number}',
        ignored=ignored,
    )


def voc_pairs(dataset: Any, names: Sequence[str]) -> list[tuple[str, str]]:
    """Paths of images, .jpg where there is one, and of annotation files."""
    root, join = dataset.sub_data_root, os.path.join
    folder = join(root, dataset.img_subdir)
    images = names_below(folder, IMAGE_SUFFIXES)
    return [
        (
            images.get(name, join(folder, f'{name}.jpg')),
            join(root, dataset.ann_subdir, f'{name}.xml'),
        )
        for name in names
    ]


def leaf_orphans(dataset: Any, split: str) -> Iterator[Orphan]:
    """Label maps whose image is not there.

    Only of a data set that takes all images of a folder: beside those that a
    list names there may be those of other splits.
    """
    prefix = getattr(dataset, 'data_prefix', {})
    masks, images = prefix.get('seg_map_path'), prefix.get('img_path')
    suffix = getattr(dataset, 'seg_map_suffix', '')
    image_suffix = getattr(dataset, 'img_suffix', '')
    if not (masks and images and suffix and image_suffix):
        return
    if dataset.ann_file and not os.path.isdir(dataset.ann_file):
        return
    args = dataset.backend_args
    names = list_dir_or_file(
        masks,
        list_dir=False,
        suffix=suffix,
        recursive=True,
        backend_args=args,
    )
    for name in sorted(names):
        image = os.path.join(images, name.removesuffix(suffix) + image_suffix)
        if not exists(image, backend_args=args):
            path = os.path.join(masks, name)
            yield Orphan(split=split, path=path, kind='mask')

"""The data sets of a config, without what wraps them, and their samples."""

import copy
import inspect
import os.path
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mmengine.config import Config
from mmengine.fileio import exists, list_dir_or_file
from mmengine.registry import DATASETS, TRANSFORMS, DefaultScope

from ....registry import DATASETS as OWN_DATASETS
from ...config import inner_datasets, walk_datasets, walk_dicts
from ...findings import code_location
from ..facts import BoxFacts, Orphan, Sample
from .folder import IMAGE_SUFFIXES
from .pairs import names_below


class NothingToCheckError(ValueError):
    """A data set of a kind whose files are not known, or none at all."""


# Volumes, bands and other numbers, which pipelines have loaders of their own
# for.
_OTHER_FORMS = ('.npy', '.npz', '.nii', '.nii.gz', '.mat', '.h5', '.hdr')
_READERS = ('load_data_list', 'parse_data_info')


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
    dataset = copy.deepcopy(dataset)
    scope = cfg.get('default_scope', 'mmengine')
    try:
        with (
            DefaultScope.overwrite_default_scope(scope),
            DATASETS.switch_scope_and_registry(scope) as registry,
        ):
            for _, node in walk_dicts(dataset):
                kind = node.get('type')
                if isinstance(kind, str):
                    kind = registry.get(kind)
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
                leaf.full_init()
    except (OSError, ValueError):
        raise
    except Exception as error:
        raise ValueError(
            f'the data set {dataset.get("type")} raises '
            f'{type(error).__name__}: {error} ({code_location(error)}); '
            'correct its code, or its arguments in the config'
        ) from error
    return leaves


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
    from mmdet.datasets import (
        CocoDataset,
        CocoPanopticDataset,
        LVISV1Dataset,
        XMLDataset,
    )

    yolo = OWN_DATASETS.get('mmext.YOLODataset')
    nyuv2 = OWN_DATASETS.get('mmext.NYUv2MultiTaskDataset')
    for form, base, readers in (
        ('panoptic', CocoPanopticDataset, _READERS),
        ('coco', CocoDataset, _READERS),
        # It differs in where names of images are, which the reader knows.
        ('coco', LVISV1Dataset, _READERS),
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
            with TRANSFORMS.switch_scope_and_registry(scope) as registry:
                kind = step['type']
                kind = registry.get(kind) if isinstance(kind, str) else kind
            return step, getattr(kind, '__module__', '').partition('.')[0]
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
        place=f'instance {number}',
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

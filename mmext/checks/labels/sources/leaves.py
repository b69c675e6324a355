"""The data sets of a config, without what wraps them, and their samples."""

import copy
import inspect
import os.path
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from mmengine.config import Config
from mmengine.fileio import exists, list_dir_or_file
from mmengine.registry import DATASETS, TRANSFORMS, DefaultScope

from ....registry import DATASETS as OWN_DATASETS
from ....utils.contain import code_place
from ...config import inner_datasets, walk_datasets, walk_dicts
from ..facts import BoxFacts, Orphan, Sample
from .folder import IMAGE_SUFFIXES
from .voc import names_below


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

    Data sets whose files can be looked at as they stand (:func:`reads_coco`,
    :func:`reads_panoptic`, :func:`reads_voc`, :func:`reads_yolo`,
    :func:`reads_layout`) have not loaded them: a loader may fail at a file,
    or drop what is wrong in it.
    """
    dataset = copy.deepcopy(dataset)
    scope = cfg.get('default_scope', 'mmengine')
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
        built = _own_code(partial(DATASETS.build, dataset), dataset)
    leaves = [
        dataset
        for dataset in walk_datasets(built)
        if not inner_datasets(dataset)
    ]
    for leaf in leaves:
        if hasattr(leaf, 'full_init') and not _reads_files(leaf):
            _own_code(leaf.full_init, dataset)
    return leaves


def _own_code(run: Callable[[], Any], dataset: Mapping) -> Any:
    """Run the code of a data set; what it raises names the data set."""
    try:
        return run()
    except (OSError, ValueError):
        raise
    except Exception as error:
        raise ValueError(
            f'the data set {dataset.get("type")} raises '
            f'{type(error).__name__}: {error} ({code_place(error)}); correct '
            'its code, or its arguments in the config'
        ) from error


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


def _reads_as(
    dataset: Any, base: type, names: Sequence[str] = _READERS
) -> bool:
    return isinstance(dataset, base) and all(
        getattr(type(dataset), name) is getattr(base, name) for name in names
    )


def reads_coco(dataset: Any) -> bool:
    """Whether a data set reads COCO's format in MMDetection's way."""
    from mmdet.datasets import (
        CocoDataset,
        CocoPanopticDataset,
        LVISV05Dataset,
        LVISV1Dataset,
    )

    if isinstance(dataset, CocoPanopticDataset):
        return False
    # LVIS's differ in where names of images are, which the reader knows.
    own = CocoDataset, LVISV05Dataset, LVISV1Dataset
    return any(_reads_as(dataset, base) for base in own)


def image_name_of(dataset: Any) -> Callable[[str], str] | None:
    """What a data set makes of names of images; None if nothing."""
    from mmdet.datasets import LVISV05Dataset, LVISV1Dataset

    if isinstance(dataset, LVISV1Dataset):
        return None
    return _name_of_2017 if isinstance(dataset, LVISV05Dataset) else None


def _name_of_2017(name: str) -> str:
    """COCO's name of 2014 without its first word, as LVIS 0.5 reads it."""
    return name[-16:] if name.startswith('COCO') else name


def reads_panoptic(dataset: Any) -> bool:
    """Whether a data set reads COCO's panoptic format as MMDetection does."""
    from mmdet.datasets import CocoPanopticDataset

    return _reads_as(dataset, CocoPanopticDataset)


def reads_voc(dataset: Any) -> bool:
    """Whether a data set reads XML files in MMDetection's way."""
    from mmdet.datasets import XMLDataset

    return _reads_as(dataset, XMLDataset)


def reads_layout(dataset: Any) -> bool:
    """Whether a data set reads NYUv2's layout in mmext's way."""
    return _reads_as(dataset, OWN_DATASETS.get('mmext.NYUv2MultiTaskDataset'))


def reads_yolo(dataset: Any) -> bool:
    """Whether a data set reads YOLO's label files in mmext's way."""
    return _reads_as(
        dataset,
        OWN_DATASETS.get('mmext.YOLODataset'),
        ('load_data_list', 'list_files'),
    )


def _reads_files(dataset: Any) -> bool:
    """Whether the files themselves can be looked at, as they stand."""
    return any(
        reads(dataset)
        for reads in (
            *(reads_coco, reads_panoptic, reads_voc),
            *(reads_yolo, reads_layout),
        )
    )


def classes_of(dataset: Any) -> tuple[str, ...]:
    """Names of the classes of a data set; empty if it does not say."""
    names: Sequence | None = dataset.metainfo.get('classes')
    return tuple(map(str, names or ()))


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
        if _name(step) != 'LoadAnnotations':
            continue
        kind = step['type']
        if isinstance(kind, str):
            with TRANSFORMS.switch_scope_and_registry(scope) as registry:
                kind = registry.get(kind)
        return step, getattr(kind, '__module__', '').partition('.')[0]
    return {}, ''


def task_of(dataset: Any, split: str) -> str:
    """What the labels of a data set are, as in ``Expectations``."""
    steps, _ = _steps(dataset)
    loaders = {
        name
        for name in map(_name, steps)
        if name.startswith('Load') and name.endswith('Annotations')
    }
    if loaders == {'LoadEmptyAnnotations'}:
        return 'unlabelled'
    if reads_panoptic(dataset):
        return 'panoptic'
    if reads_coco(dataset) or reads_voc(dataset) or reads_yolo(dataset):
        return 'detection'
    if reads_layout(dataset):
        return 'semantic'
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
        with_mask = any('mask' in each for each in infos['instances'])
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
    if _reads_files(dataset):
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
    known = 0 <= label < len(classes)
    ignored = bool(instance.get('ignore_flag'))
    # What is to be ignored needs no class.
    name = '' if ignored else str(label)
    return BoxFacts(
        box=tuple(float(value) for value in instance['bbox']),
        label=label,
        class_name=classes[label] if known else name,
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

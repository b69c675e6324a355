"""How the batches of a config are made up, found out once."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from .pipelines import (
    Fields,
    find_pipelines,
    pipeline_fields,
    shortened_pipeline,
    step_name,
    steps_of,
    task_of,
)
from .sizes import (
    LONGEST,
    declared_size,
    fit_model,
    fixed_size,
    query_area,
    reduced_size,
)

__all__ = [
    'Recipe',
    'Sizes',
    'class_counts',
    'fit_to_pictures',
    'make_recipe',
]

# In pixels. Its maps are finer than those of a detector, and take longer.
_LONGEST_QUERIES = 128
_LONGEST_SEMANTIC = 192
# What is read where the pipeline crops by itself.
_PICTURE = (256, 256)
# Where a model keeps its number of classes, the surest place first.
_HEADS = (
    'panoptic_head',
    'query_head',
    'bbox_head',
    'roi_head.bbox_head',
    'roi_head.mask_head',
    'mask_head',
    'decode_head',
    'head',
    'seg_head',
)
_INNER = ('', 'detector', 'student', 'segmentor')
_NAMES = ('num_classes', 'num_things_classes')
_STUFF = ('panoptic_head', 'semantic_head', 'panoptic_fusion_head')


class Sizes(NamedTuple):
    """Heights and widths of pictures, in pixels.

    Attributes:
        made: Of those that are made up.
        declared: Of those that a training sees.
    """

    made: tuple[int, int]
    declared: tuple[int, int]


@dataclass(frozen=True)
class Recipe:
    """What a made-up sample holds and how it is packed.

    Attributes:
        task: One of :data:`~mmext.preflight.batches.kinds.TASKS`.
        size: Height and width of a picture, in pixels.
        declared_size: The same of the pictures that a training sees.
        pipelines: Shortened pipeline of each data set.
        fields: What each of these data sets gives.
        num_classes: Classes of objects, of pictures, or of pixels.
        num_stuff: Classes of pixels besides those of objects.
        ignore_index: Label of a pixel to ignore.
        channels: Of a picture.
        collate: Config of what makes a batch of samples.
        classes: Names of the classes, for models that read them.
        drops_empty: Whether each data set leaves pictures without objects
            out (``filter_cfg.filter_empty_gt``), so that a sample is empty
            only if a step of the pipeline makes it so.
    """

    task: str
    size: tuple[int, int]
    pipelines: tuple[list, ...]
    fields: tuple[Fields, ...]
    num_classes: int
    declared_size: tuple[int, int] = (512, 512)
    num_stuff: int = 0
    ignore_index: int = 255
    channels: int = 3
    collate: Any = None
    classes: tuple[str, ...] = ()
    drops_empty: bool = False


def make_recipe(cfg: Mapping, model: nn.Module, sizes: Sizes) -> Recipe:
    """Find out how to make up the batches of a config.

    Args:
        cfg: The config. Its default scope has to be in force.
        model: The model built of it.
        sizes: Of :func:`fit_to_pictures`.

    Returns:
        The recipe.
    """
    loader = cfg.get('train_dataloader') or {}
    dataset = loader.get('dataset')
    whole = find_pipelines(dataset) or [_default_pipeline(cfg)]
    text = any(part.get('return_classes') for part in _datasets(dataset))
    fields = tuple(pipeline_fields(each, text=text) for each in whole)
    task = task_of(whole[0], fields[0], model)
    things, stuff = class_counts(model)
    classes = _class_names(dataset)
    return Recipe(
        task=task,
        size=sizes.made,
        declared_size=sizes.declared,
        pipelines=tuple(shortened_pipeline(each) for each in whole),
        fields=fields,
        num_classes=things or len(classes) or 1,
        num_stuff=stuff,
        ignore_index=_ignore_index(model),
        channels=_channels(cfg['model']),
        collate=loader.get('collate_fn'),
        classes=classes,
        drops_empty=_drops_empty(dataset),
    )


def fit_to_pictures(
    cfg: Mapping, size: tuple[int, int] | str | None = None
) -> tuple[Sizes, list[str]]:
    """Decide on the size of made-up pictures and make the model for it.

    Args:
        cfg: The config. Its model may be edited.
        size: Height and width in pixels, or ``'declared'`` for those of
            the training; by default small ones that suit.

    Returns:
        The sizes, and what was changed, in words. Where the pipeline can
        run as it is (classification, pre-training), it crops to what the
        model wants, and nothing is changed.
    """
    dataset = (cfg.get('train_dataloader') or {}).get('dataset')
    pipelines = find_pipelines(dataset) or [_default_pipeline(cfg)]
    names = {step_name(each) for each in steps_of(pipelines)}
    if 'PackInputs' in names:
        return Sizes(_PICTURE, _PICTURE), []
    declared = declared_size(pipelines, cfg['model'])
    if size == 'declared':
        size = declared
    elif size is None and 'PackSegInputs' in names:
        size = reduced_size(declared, longest=_LONGEST_SEMANTIC)
    elif size is None:
        area = query_area(cfg['model'])
        # Models with queries are slow, and need no more than these.
        longest = _LONGEST_QUERIES if area else LONGEST
        size = fixed_size(cfg['model']) or reduced_size(
            declared, longest=longest, area=area
        )
    return Sizes(size, declared), fit_model(cfg['model'], declared, size)


def _datasets(dataset: Any) -> list[Mapping]:
    if isinstance(dataset, (list, tuple)):
        return [each for item in dataset for each in _datasets(item)]
    if not isinstance(dataset, Mapping):
        return []
    inner = [dataset[k] for k in ('dataset', 'datasets') if k in dataset]
    return [dataset, *_datasets(inner)]


def _drops_empty(dataset: Any) -> bool:
    """Whether all data sets that read files leave out what has no objects."""
    read = [part for part in _datasets(dataset) if _is_read(part)]
    drops = [
        (part.get('filter_cfg') or {}).get('filter_empty_gt') for part in read
    ]
    return bool(drops) and all(drops)


def _is_read(part: Mapping) -> bool:
    """Whether it reads samples, which a wrapper of others does not."""
    return not part.keys() & {'dataset', 'datasets'}


def _class_names(dataset: Any) -> tuple[str, ...]:
    """Classes that the config names; empty if the data set knows them."""
    for part in _datasets(dataset):
        names = (part.get('metainfo') or {}).get('classes')
        if names and not isinstance(names, str):
            return tuple(str(name) for name in names)
    return ()


def _default_pipeline(cfg: Mapping) -> list[dict]:
    """Steps for a config without training data, by its host."""
    scope = cfg.get('default_scope') or 'mmdet'
    if scope == 'mmseg':
        return [
            {'type': 'mmseg.LoadAnnotations'},
            {'type': 'mmseg.PackSegInputs'},
        ]
    if scope == 'mmpretrain':
        return [{'type': 'mmpretrain.PackInputs'}]
    masks = 'mask_head' in str(cfg['model'])
    return [
        {
            'type': 'mmdet.LoadAnnotations',
            'with_bbox': True,
            'with_mask': masks,
        },
        {'type': 'mmdet.PackDetInputs'},
    ]


def class_counts(model: nn.Module) -> tuple[int, int]:
    """Numbers of classes that the heads of a model predict.

    Args:
        model: The model.

    Returns:
        Of objects (or pictures, or pixels if there is nothing else), and of
        pixels besides. 0 where no head tells.
    """
    things = stuff = 0
    for inner in _INNER:
        for head in _HEADS:
            part = _part(model, f'{inner}.{head}'.strip('.'))
            for name in _NAMES:
                count = getattr(part, name, None)
                if isinstance(count, int) and count > 0 and not things:
                    things = getattr(part, 'num_things_classes', count)
        for head in (*_STUFF, 'roi_head.semantic_head'):
            part = _part(model, f'{inner}.{head}'.strip('.'))
            for name in ('num_stuff_classes', 'num_classes'):
                count = getattr(part, name, None)
                if isinstance(count, int) and not stuff:
                    stuff = count
                    break
    return int(things), int(stuff)


def _part(model: nn.Module, path: str) -> Any:
    """A part of a model by its path; of a list the first; None if absent."""
    part: Any = model
    for name in path.split('.'):
        part = getattr(part, name, None)
        if isinstance(part, (nn.ModuleList, list, tuple)):
            part = part[0] if len(part) else None
    return part


def _ignore_index(model: nn.Module) -> int:
    head = _part(model, 'decode_head')
    value = getattr(head, 'ignore_index', 255)
    return value if isinstance(value, int) else 255


def _channels(model: Mapping) -> int:
    """Channels of a picture, by the means to take off."""
    batch = model.get('data_preprocessor') or {}
    mean = batch.get('mean') if isinstance(batch, Mapping) else None
    if isinstance(mean, (list, tuple)) and mean:
        return len(mean)
    backbone = model.get('backbone') or {}
    channels = backbone.get('in_channels')
    return channels if isinstance(channels, int) and channels < 64 else 3

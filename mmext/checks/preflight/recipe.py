"""How the batches of a config are made up.

A batch is made up the way a training makes it: the pipeline's own steps pack
it. Steps that read a file are replaced by made-up pictures and labels, and
steps that only move or recolour pixels are left out, so that a picture keeps
the size and the objects that it was given.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmengine.model import BaseModel
from mmengine.registry import TRANSFORMS, DefaultScope
from torch import nn

from ..config import dataset_configs, inner_dataset_configs, walk_dicts
from .sandbox import plain_name

# Steps of the hosts that add to a sample, or pack it; all the others of
# theirs read a file, or change nothing but pixels and places.
_KEPT = {
    'Compose',
    'ConcatCDInput',
    'GenerateEdge',
    'ImageToTensor',
    'LoadEmptyAnnotations',
    'PackDetInputs',
    'PackReIDInputs',
    'PackSegInputs',
    'PackTrackInputs',
    'RandomSamplingNegPos',
    'SegRescale',
    'ToTensor',
    'Transpose',
}
_LABEL_LOADERS = {
    'LoadAnnotations',
    'LoadTrackAnnotations',
    'LoadPanopticAnnotations',
}
_MULTI_TASK_LOADER = 'LoadMultiTaskAnnotations'
_HOSTS = ('mmcv.', 'mmdet.', 'mmseg.')
# Classification and pre-training name no locations in a picture: all steps of
# these pipelines can run as they are, but the one that reads the file.
_READERS = {'LoadImageFromFile', 'LoadImageFromNDArray'}
# What packs such pictures: mmpretrain's step, and that of mmext.
PICTURE_PACKERS = {'PackInputs', 'PackImages'}
# Steps that pack, or load labels, in a way that is known.
_KNOWN = {
    'LoadDepthAnnotation',
    'LoadProposals',
    'PackDetInputs',
    'PackMultiTaskInputs',
    'PackReIDInputs',
    'PackSegInputs',
    'PackTrackInputs',
    _MULTI_TASK_LOADER,
    *_LABEL_LOADERS,
    *PICTURE_PACKERS,
}


@dataclass(frozen=True)
class Fields:
    """What the loading steps of a pipeline add to a sample.

    Attributes:
        boxes: With boxes.
        labels: With labels of the boxes.
        masks: With masks of the objects.
        polygons: Masks are polygons, else bitmaps.
        semantic: With a label for each pixel.
        panoptic: Labels of the pixels agree with the objects.
        depth: With a depth for each pixel.
        multi_task: With a label, a depth and a normal for each pixel, as
            ``mmext.LoadMultiTaskAnnotations`` gives them.
        proposals: With this many proposed boxes; 0 for none.
        box_type: Kind of boxes, as mmdet registers them; None for arrays.
        frames: Pictures in a sample; 0 if it is not a sequence.
        alone: A sample is a batch of its own: its pictures are the batch.
        text: With the names of the classes as text.
    """

    boxes: bool = False
    labels: bool = False
    masks: bool = False
    polygons: bool = False
    semantic: bool = False
    panoptic: bool = False
    depth: bool = False
    multi_task: bool = False
    proposals: int = 0
    box_type: str | None = 'hbox'
    frames: int = 0
    alone: bool = False
    text: bool = False


def step_name(step: Any) -> str:
    """Name of a step without scope or module; empty if it has none."""
    return plain_name(step.get('type') if isinstance(step, Mapping) else step)


def steps_of(pipeline: Any) -> Iterator[Mapping]:
    """Configs of all steps, those inside of others included."""
    for _, part in walk_dicts(pipeline):
        if 'type' in part:
            yield part


def find_pipelines(dataset: Any) -> list[list]:
    """Pipelines in the config of a data set, each once."""
    pipelines: list[list] = []
    if isinstance(dataset, Mapping):
        own = list(dataset.get('pipeline') or [])
        for _, inner in inner_dataset_configs(dataset):
            pipelines += [steps + own for steps in find_pipelines(inner)]
        if not pipelines and own:
            pipelines = [own]
    elif isinstance(dataset, list | tuple):
        for part in dataset:
            pipelines += find_pipelines(part)
    return [
        steps
        for index, steps in enumerate(pipelines)
        if steps not in pipelines[:index]
    ]


def pipeline_fields(pipeline: Sequence, *, text: bool = False) -> Fields:
    """What the loading steps of a pipeline, not shortened, add to a sample."""
    fields: dict[str, Any] = {'text': text}
    for step in steps_of(pipeline):
        name = step_name(step)
        if name in _LABEL_LOADERS:
            panoptic = name == 'LoadPanopticAnnotations'
            # That of mmseg reads label maps.
            segment = _origin(step).startswith('mmseg.')
            fields.update(
                boxes=step.get('with_bbox', not segment),
                labels=step.get('with_label', not segment),
                masks=step.get('with_mask', panoptic),
                polygons=not (panoptic or step.get('poly2mask', True)),
                semantic=step.get('with_seg', panoptic or segment),
                panoptic=panoptic,
                box_type=(
                    None
                    if name == 'LoadTrackAnnotations'
                    else step.get('box_type', 'hbox')
                ),
            )
        elif name == _MULTI_TASK_LOADER:
            fields.update(semantic=True, multi_task=True)
        elif name == 'LoadDepthAnnotation':
            fields['depth'] = True
        elif name == 'LoadProposals':
            fields['proposals'] = step.get('num_max_proposals') or 100
        elif name == 'PackTrackInputs':
            fields['frames'] = 2
        elif name == 'PackReIDInputs':
            # Two pictures of each of two identities, to be distinguished.
            fields.update(frames=4, alone=True)
    return Fields(**fields)


def _origin(step: Any) -> str:
    """Module of the class of a step; empty if there is no such class."""
    kind = step.get('type') if isinstance(step, Mapping) else None
    if isinstance(kind, str):
        scope = step.get('_scope_')
        with TRANSFORMS.switch_scope_and_registry(scope) as registry:
            kind = registry.get(kind)
    return getattr(kind, '__module__', '')


def shortened_pipeline(pipeline: Any) -> list:
    """Copies of the steps of a pipeline that add to a sample or pack it.

    Steps that no host knows are kept: they may add what the model needs.
    """
    names = {step_name(step) for step in steps_of(pipeline)}
    whole = bool(names & PICTURE_PACKERS)
    short = []
    for step in pipeline:
        if not isinstance(step, Mapping):
            short.append(step)
        elif whole:
            if step_name(step) not in _READERS:
                short.append(copy.deepcopy(step))
        elif step_name(step) == _MULTI_TASK_LOADER:
            continue
        elif step_name(step) == 'TransformBroadcaster':
            inner = shortened_pipeline(step['transforms'])
            if inner:
                short.append({**copy.deepcopy(step), 'transforms': inner})
        elif step_name(step) == 'MultiBranch':
            step = copy.deepcopy(step)
            short.append(step)
            for key, value in step.items():
                if isinstance(value, Mapping):
                    step[key] = shortened_pipeline([value])
                elif key != 'branch_field' and isinstance(value, list | tuple):
                    step[key] = shortened_pipeline(value)
        elif step_name(step) in _KEPT or not _origin(step).startswith(_HOSTS):
            short.append(copy.deepcopy(step))
    return short


def task_of(pipeline: Sequence, fields: Fields, model: Any = None) -> str:
    """What a training with this pipeline learns, see :class:`Recipe`."""
    names = {step_name(step) for step in steps_of(pipeline)}
    if fields.depth:
        return 'depth'
    if fields.multi_task:
        return 'multi-task'
    if names & {'PackTrackInputs', 'PackReIDInputs'}:
        return 'tracking'
    if 'PackImages' in names:
        return 'pretraining'
    if 'PackInputs' in names:
        parents, kinds = (
            [kind.__name__ for kind in type(part).__mro__]
            for part in (model, getattr(model, 'head', None))
        )
        if 'BaseSelfSupervisor' in parents:
            return 'pretraining'
        several = any('MultiLabel' in kind for kind in kinds)
        return 'multi-label' if several else 'classification'
    if fields.panoptic:
        return 'panoptic'
    if fields.masks:
        return 'instance'
    if fields.boxes or 'PackDetInputs' in names:
        return 'detection'
    return 'semantic'


Size = tuple[int, int]

# Longer side in pixels: every level of a pyramid up to stride 128 exists,
# and a step of a usual model takes seconds on a CPU.
_LONGEST = 256
_MULTIPLE = 32
_SCALED = {'Resize', 'RandomResize', 'RandomChoiceResize', 'FixScaleResize'}


def declared_size(pipelines: Sequence[Sequence], model: Mapping) -> Size:
    """Height and width in pixels of the pictures that a training sees.

    512 by 512 if nothing says a size. The padding of the model comes last.
    """
    size = (512, 512)
    for step in steps_of(pipelines[0] if pipelines else ()):
        size = _size_after(step, size)
    for part in _paddings(model):
        size = _pair(part['size'])
    return size


def _size_after(step: Mapping, size: Size) -> Size:
    """Height and width after a step."""
    name = step_name(step)
    if name in _SCALED:
        scale = step.get('scale') or step.get('scales')
        several = isinstance(scale, (list, tuple)) and (
            name == 'RandomChoiceResize'
            or any(isinstance(item, list | tuple) for item in scale)
        )
        if several and scale:
            scale = scale[-1]
        if _has_numbers(scale):
            width, height = _pair(scale)
            return height, width
    elif name in ('RandomCrop', 'RandomCenterCropPad'):
        crop = step.get('crop_size')
        absolute = step.get('crop_type', 'absolute') == 'absolute'
        if absolute and _has_numbers(crop):
            return _pair(crop)
    elif name == 'Pad' and _has_numbers(step.get('size')):
        width, height = _pair(step['size'])
        return height, width
    return size


def _has_numbers(value: Any) -> bool:
    """Whether a value is a size; building its step says what is wrong."""
    values = value if isinstance(value, list | tuple) else [value]
    return bool(values) and all(isinstance(v, int | float) for v in values)


def _pair(value: Any) -> Size:
    """Two numbers of one, or of the first two."""
    if isinstance(value, (list, tuple)):
        return int(value[0]), int(value[-1])
    return int(value), int(value)


def _parts(model: Any) -> list[Mapping]:
    """All dicts of a config of a model, but those of its tests."""
    parts = walk_dicts(model, skip=('test_cfg', 'train_cfg'))
    return [part for _, part in parts]


def _paddings(model: Mapping) -> list[Mapping]:
    """What pads a batch to one size."""
    return [
        padding
        for part in _parts(model)
        if isinstance(part.get('data_preprocessor'), Mapping)
        for padding in _parts(part['data_preprocessor'])
        if padding.get('size') is not None
    ]


def fixed_size(model: Mapping) -> Size | None:
    """Height and width that a model's tensors are made for; None for any."""
    for part in _parts(model):
        for key in ('input_size', 'img_size'):
            value = part.get(key)
            if value and isinstance(value, (int, list, tuple)):
                return _pair(value)
    return None


def query_area(model: Mapping) -> int:
    """Pixels that a picture needs for the queries of a model; 0 without any.

    A model of two stages takes its queries from the places of its maps, and
    fails if there are fewer. The finest map has a stride of 4 where the first
    stage of the backbone is used, and usually of 8.
    """
    counts = [
        part['num_queries']
        for part in _parts(model)
        if isinstance(part.get('num_queries'), int)
    ]
    backbone = model.get('backbone') or {}
    finest = 4 if 0 in (backbone.get('out_indices') or ()) else 8
    return finest**2 * max(counts, default=0)


def reduced_size(
    size: Size, *, longest: int = _LONGEST, area: int = 0
) -> Size:
    """A smaller size of about that shape, in multiples of 32.

    Its longer side is ``longest``, and grows by steps of 64 until it has
    ``area`` pixels. A size that is not larger stays as it is.

    Examples:
        >>> reduced_size((800, 1333))
        (160, 256)
    """
    while longest < max(size):
        scale = longest / max(size) / _MULTIPLE
        height, width = (
            max(1, round(side * scale)) * _MULTIPLE for side in size
        )
        if height * width >= area:
            return height, width
        longest += 64
    return size


def fit_model(model: Any, declared: Size, size: Size) -> list[str]:
    """Make a model for smaller pictures than its training sees.

    What pads or resizes its batches does so to the smaller size, and the parts
    whose tensors are as large as a picture are made for it. Returns the
    changes.
    """
    notes = []
    for part in _paddings(model):
        if _pair(part['size']) != size:
            notes.append(
                f'batches are padded to {size}, not to {part["size"]}'
            )
            part['size'] = size
    for part in _parts(model):
        name = step_name(part)
        if name == 'BatchSyncRandomResize':
            was, now = part['random_size_range'], (min(size), max(size))
            notes.append(f'batches are resized to {now}, not to {was}')
            part['random_size_range'] = now
        elif name == 'BatchResize':
            was, part['scale'] = part['scale'], size
            notes.append(f'batches are resized to {size}, not to {was}')
        was = part.get('img_size')
        if was and size != declared and _pair(was) == declared:
            notes.append(f'{name}.img_size is {size}, not {was}')
            part['img_size'] = size
    return notes


# In pixels. Its maps are finer than those of a detector, and take longer.
_LONGEST_QUERIES = 128
_LONGEST_SEMANTIC = 192
# What is read where the pipeline crops by itself.
_PICTURE = (256, 256)
# Packages whose samples are known.
_PACKAGES = ('mmdet', 'mmext', 'mmpretrain', 'mmseg')
# Where a model keeps its number of classes, the surest location first.
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


@dataclass(frozen=True)
class Recipe:
    """What a made-up sample holds and how it is packed."""

    # 'detection', 'instance', 'panoptic', 'tracking', 'semantic', 'depth',
    # 'multi-task', 'classification', 'multi-label', 'pretraining' or 'data
    # set', whose samples are its own.
    task: str
    # Height and width of a picture, in pixels.
    size: Size
    # Shortened pipeline of each data set, and what each of these gives.
    pipelines: tuple[list, ...]
    fields: tuple[Fields, ...]
    # Of objects, of pictures, or of pixels.
    num_classes: int
    # Of the pictures that a training sees.
    declared_size: Size = (512, 512)
    # Classes of pixels besides those of objects.
    num_stuff: int = 0
    ignore_index: int = 255
    channels: int = 3
    # Config of what makes a batch of samples.
    collate: Any = None
    # Names of the classes, for models that read them.
    classes: tuple[str, ...] = ()


def make_recipe(
    cfg: Mapping, model: nn.Module, size: Size, declared: Size
) -> Recipe:
    """How to make up the batches of a config, in its default scope.

    The sizes are those of :func:`fit_to_pictures`.
    """
    loader = cfg.get('train_dataloader') or {}
    dataset = loader.get('dataset')
    own = find_pipelines(dataset)
    whole = own or [_default_pipeline(cfg)]
    datasets = [part for _, part in dataset_configs(dataset)]
    text = any(part.get('return_classes') for part in datasets)
    fields = tuple(pipeline_fields(steps, text=text) for steps in whole)
    task = task_of(whole[0], fields[0], model)
    # Samples of a pipeline without such a step cannot be made up.
    known = own and all(
        not _KNOWN.isdisjoint(map(step_name, steps_of(steps))) for steps in own
    )
    packages = {
        kind.__module__.partition('.')[0] for kind in type(model).__mro__
    }
    of_a_host = not packages.isdisjoint(_PACKAGES)
    plain = isinstance(model, BaseModel) and not of_a_host
    if not known and (dataset or plain):
        task = 'data set'
    things, stuff = class_counts(model)
    named = [
        part['metainfo'].get('classes')
        for part in datasets
        if isinstance(part.get('metainfo'), Mapping)
    ]
    # Others are known to the data set.
    named = [names for names in named if names and not isinstance(names, str)]
    classes = tuple(map(str, named[0])) if named else ()
    ignored = getattr(_part(model, 'decode_head'), 'ignore_index', 255)
    return Recipe(
        task=task,
        size=size,
        declared_size=declared,
        pipelines=tuple(shortened_pipeline(steps) for steps in whole),
        fields=fields,
        num_classes=things or len(classes) or 1,
        num_stuff=stuff,
        ignore_index=ignored if isinstance(ignored, int) else 255,
        channels=_channels(cfg['model']),
        collate=loader.get('collate_fn'),
        classes=classes,
    )


def fit_to_pictures(
    cfg: Mapping, size: tuple[int, int] | str | None = None
) -> tuple[Size, Size, list[str]]:
    """Decide on the size of made-up pictures and make the model for it.

    ``size`` as of :func:`~mmext.checks.preflight.build.build_for_preflight`.
    Returns the size, that of the pictures that a training sees, and what was
    changed. Where the pipeline can run as it is (classification,
    pre-training), it crops to what the model wants.
    """
    dataset = (cfg.get('train_dataloader') or {}).get('dataset')
    pipelines = find_pipelines(dataset) or [_default_pipeline(cfg)]
    names = {step_name(step) for step in steps_of(pipelines)}
    if names & PICTURE_PACKERS:
        return _PICTURE, _PICTURE, []
    declared = declared_size(pipelines, cfg['model'])
    if size == 'declared':
        size = declared
    elif size is None and names & {'PackSegInputs', 'PackMultiTaskInputs'}:
        size = reduced_size(declared, longest=_LONGEST_SEMANTIC)
    elif size is None:
        area = query_area(cfg['model'])
        # Models with queries are slow, and need no more than these.
        longest = _LONGEST_QUERIES if area else _LONGEST
        size = fixed_size(cfg['model']) or reduced_size(
            declared, longest=longest, area=area
        )
    return size, declared, fit_model(cfg['model'], declared, size)


def _default_pipeline(cfg: Mapping) -> list[dict]:
    """Steps for a config without training data, by its default scope."""
    scope = DefaultScope.get_current_instance().scope_name
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
    """Numbers of classes that the heads of a model predict, 0 if unknown.

    Of objects (or pictures, or pixels if there is nothing else), and of pixels
    besides.
    """
    things = stuff = 0
    for inner in _INNER:
        for head in _HEADS:
            part = _part(model, f'{inner}.{head}'.strip('.'))
            for name in _NAMES:
                count = getattr(part, name, None)
                if isinstance(count, int) and count > 0 and not things:
                    # mmseg's heads inherit 80 things, and do not use them.
                    things = min(
                        getattr(part, 'num_things_classes', count), count
                    )
        for head in (*_STUFF, 'roi_head.semantic_head'):
            part = _part(model, f'{inner}.{head}'.strip('.'))
            for name in ('num_stuff_classes', 'num_classes'):
                count = getattr(part, name, None)
                if isinstance(count, int) and not stuff:
                    stuff = count
                    break
    heads = getattr(model, 'heads', None)
    if isinstance(heads, nn.ModuleDict):
        # Of a multi-task model.
        counts = [getattr(head, 'num_classes', 0) for head in heads.values()]
        things = things or next(filter(None, counts), 0)
    return int(things), int(stuff)


def _part(model: nn.Module, path: str) -> Any:
    """A part of a model by its path; of a list the first; None if absent."""
    part: Any = model
    for name in path.split('.'):
        part = getattr(part, name, None)
        if isinstance(part, (nn.ModuleList, list, tuple)):
            part = part[0] if len(part) else None
    return part


def _channels(model: Mapping) -> int:
    """Channels of a picture, by the means to take off."""
    batch = model.get('data_preprocessor') or {}
    mean = batch.get('mean') if isinstance(batch, Mapping) else None
    # One value is taken off any number of channels.
    if isinstance(mean, (list, tuple)) and len(mean) > 1:
        return len(mean)
    backbone = model.get('backbone') or {}
    channels = backbone.get('in_channels')
    return channels if isinstance(channels, int) and channels < 64 else 3

"""What the training pipeline of a config hands to the model.

A batch is made up the way a training makes it: the pipeline's own steps pack
it. Steps that read a file are replaced by made-up pictures and labels, and
steps that only move or recolour pixels are left out, so that a picture keeps
the size and the objects that it was given.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmengine.registry import TRANSFORMS

from ...config import inner_dataset_configs, walk_dicts
from ..blame import plain_name

# Steps of the hosts that add to a sample, or pack it; all the others of
# theirs read a file, or change nothing but pixels and places.
_KEPT = {
    'Compose',
    'ConcatCDInput',
    'GenerateEdge',
    'ImageToTensor',
    'LoadEmptyAnnotations',
    'MultiBranch',
    'PackDetInputs',
    'PackReIDInputs',
    'PackSegInputs',
    'PackTrackInputs',
    'RandomSamplingNegPos',
    'SegRescale',
    'ToTensor',
    'TransformBroadcaster',
    'Transpose',
}
_LABEL_LOADERS = {
    'LoadAnnotations',
    'LoadTrackAnnotations',
    'LoadPanopticAnnotations',
}
_MULTI_TASK_LOADER = 'LoadMultiTaskAnnotations'
_HOSTS = ('mmcv.', 'mmdet.', 'mmseg.')
# Steps that make the samples of models that the hosts have.
_PACKERS = {
    'PackDetInputs',
    'PackMultiTaskInputs',
    'PackReIDInputs',
    'PackSegInputs',
    'PackTrackInputs',
}
# Classification and pre-training name no places in a picture: all steps of
# these pipelines can run as they are, but the one that reads the file.
_READERS = {'LoadImageFromFile', 'LoadImageFromNDArray'}
# What packs such pictures: mmpretrain's step, and that of mmext.
PICTURE_PACKERS = frozenset({'PackInputs', 'PackImages'})


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
            segment = step_is_semantic(step)
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


def step_is_semantic(step: Mapping) -> bool:
    """Whether a loading step is that of mmseg, which reads label maps."""
    return _origin(step).startswith('mmseg.')


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
        elif step_name(step) in _KEPT:
            short.append(_shortened_step(step))
        elif not _origin(step).startswith(_HOSTS):
            short.append(copy.deepcopy(step))
    return [step for step in short if step is not None]


def _shortened_step(step: Mapping) -> Mapping | None:
    step = copy.deepcopy(step)
    name = step_name(step)
    if name == 'TransformBroadcaster':
        step['transforms'] = shortened_pipeline(step['transforms'])
        return step if step['transforms'] else None
    if name == 'MultiBranch':
        for key, value in step.items():
            if isinstance(value, Mapping):
                step[key] = shortened_pipeline([value])
            elif isinstance(value, (list, tuple)) and key != 'branch_field':
                step[key] = shortened_pipeline(value)
    return step


def is_known(pipeline: Sequence) -> bool:
    """Whether a pipeline packs, or loads labels, in a way that is known.

    Samples of another one cannot be made up.
    """
    names = {step_name(step) for step in steps_of(pipeline)}
    known = _PACKERS | PICTURE_PACKERS | _LABEL_LOADERS | {_MULTI_TASK_LOADER}
    return bool(names & (known | {'LoadDepthAnnotation', 'LoadProposals'}))


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
        return _task_of_pictures(model)
    if fields.panoptic:
        return 'panoptic'
    if fields.masks:
        return 'instance'
    if fields.boxes or 'PackDetInputs' in names:
        return 'detection'
    return 'semantic'


def _task_of_pictures(model: Any) -> str:
    if 'BaseSelfSupervisor' in _parents(model):
        return 'pretraining'
    kinds = _parents(getattr(model, 'head', None))
    several = any('MultiLabel' in kind for kind in kinds)
    return 'multi-label' if several else 'classification'


def _parents(value: Any) -> list[str]:
    return [kind.__name__ for kind in type(value).__mro__]

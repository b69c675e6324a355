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

__all__ = [
    'Fields',
    'find_pipelines',
    'pipeline_fields',
    'shortened_pipeline',
    'step_name',
    'steps_of',
    'task_of',
]

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
_HOSTS = ('mmcv.', 'mmdet.', 'mmseg.')
# Classification and pre-training name no places in a picture: all steps of
# these pipelines can run as they are, but the one that reads the file.
_READERS = {'LoadImageFromFile', 'LoadImageFromNDArray'}


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
    proposals: int = 0
    box_type: str | None = 'hbox'
    frames: int = 0
    alone: bool = False
    text: bool = False


def step_name(step: Any) -> str:
    """Name of a step without scope or module; empty if it has none.

    Examples:
        >>> step_name({'type': 'mmdet.Resize'})
        'Resize'
    """
    kind = step.get('type') if isinstance(step, Mapping) else step
    if isinstance(kind, str):
        return kind.rpartition('.')[2]
    return getattr(kind, '__name__', '')


def steps_of(pipeline: Any) -> Iterator[Mapping]:
    """All steps, also those inside of others, in the order of the text.

    Args:
        pipeline: Steps, or one step.

    Yields:
        Configs of steps.
    """
    if isinstance(pipeline, Mapping):
        if 'type' in pipeline:
            yield pipeline
        for value in pipeline.values():
            if isinstance(value, (Mapping, list, tuple)):
                yield from steps_of(value)
    elif isinstance(pipeline, (list, tuple)):
        for item in pipeline:
            yield from steps_of(item)


def find_pipelines(dataset: Any) -> list[list]:
    """Pipelines of the data sets in a config of a data set.

    Args:
        dataset: With its wrappers. What a wrapper adds comes last.

    Returns:
        One for each data set that differs from those before it.
    """
    if isinstance(dataset, (list, tuple)):
        found = [each for item in dataset for each in find_pipelines(item)]
    elif isinstance(dataset, Mapping):
        inner = [dataset[k] for k in ('dataset', 'datasets') if k in dataset]
        own = list(dataset.get('pipeline') or [])
        found = [each + own for each in find_pipelines(inner)] if inner else []
        if not found and own:
            found = [own]
    else:
        found = []
    unlike: list[list] = []
    for each in found:
        if each not in unlike:
            unlike.append(each)
    return unlike


def pipeline_fields(pipeline: Sequence, *, text: bool = False) -> Fields:
    """What the loading steps of a pipeline add to a sample.

    Args:
        pipeline: Configs of the steps, not shortened.
        text: Whether the data set adds the names of its classes.

    Returns:
        All that is added.
    """
    found: dict[str, Any] = {'text': text}
    for step in steps_of(pipeline):
        name = step_name(step)
        if name in _LABEL_LOADERS:
            panoptic = name == 'LoadPanopticAnnotations'
            segment = step_is_semantic(step)
            found.update(
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
        elif name == 'LoadDepthAnnotation':
            found['depth'] = True
        elif name == 'LoadProposals':
            found['proposals'] = step.get('num_max_proposals') or 100
        elif name == 'PackTrackInputs':
            found['frames'] = 2
        elif name == 'PackReIDInputs':
            # Two pictures of each of two identities, to be told apart.
            found.update(frames=4, alone=True)
    return Fields(**found)


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
    """The steps of a pipeline that add to a sample or pack it.

    Steps that no host knows are kept: they may add what the model needs.

    Args:
        pipeline: Configs of the steps. Not edited.

    Returns:
        Configs of the steps left, with these inside shortened likewise.
    """
    whole = any(step_name(step) == 'PackInputs' for step in steps_of(pipeline))
    short = []
    for step in pipeline:
        if not isinstance(step, Mapping):
            short.append(step)
        elif whole:
            if step_name(step) not in _READERS:
                short.append(copy.deepcopy(step))
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


def task_of(pipeline: Sequence, fields: Fields, model: Any = None) -> str:
    """What a training with this pipeline learns.

    Args:
        pipeline: Configs of the steps.
        fields: Of :func:`pipeline_fields`.
        model: The model, to tell classification from pre-training.

    Returns:
        One of :data:`~mmext.preflight.batches.kinds.TASKS`.
    """
    names = {step_name(step) for step in steps_of(pipeline)}
    if fields.depth:
        return 'depth'
    if names & {'PackTrackInputs', 'PackReIDInputs'}:
        return 'tracking'
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
    return [each.__name__ for each in type(value).__mro__]

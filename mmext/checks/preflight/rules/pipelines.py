"""Pipelines that lack what the model reads."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from mmengine.dataset import BaseDataset

from ...config import inner_dataset_configs, join_key
from ...findings import Finding, Severity
from .registry import PIPE, new_finding
from .subject import (
    SPLITS,
    Subject,
    as_mapping,
    base_names,
    change,
    kind_of,
    names_key,
    package_of,
    sources,
    steps_of,
)

# Heads that read gt_edge_map, by the name of the class or of one it inherits.
_EDGE_HEADS = {'PIDHead'}
_EDGE = 'GenerateEdge'
# Steps that change the size or the position of label maps, but not of edges.
_MOVING = (
    *('Resize', 'RandomResize', 'RandomChoiceResize', 'ResizeToMultiple'),
    *('ResizeShortestEdge', 'RandomCrop', 'RandomFlip', 'RandomRotate'),
    *('RandomRotFlip', 'Rotate', 'Pad', 'RandomCutOut'),
)
_PAPER_WIDTH = 4
_DATASETS = {(f'{split}_dataloader', 'dataset') for split in SPLITS}
_IGNORED = 255


def _edge_head(subject: Subject) -> tuple[tuple, Mapping] | None:
    for section in subject.below('model'):
        if _EDGE_HEADS & base_names(subject.component(section)):
            return section.path, section.cfg
    return None


def training_pipelines(
    subject: Subject,
) -> Iterator[tuple[tuple, list, list[str]]]:
    """Outermost pipelines of the training: path, steps and their names."""
    outer: tuple | None = None
    for section in subject.below('train_dataloader', 'dataset'):
        steps = section.cfg.get('pipeline')
        inside = outer is not None and section.path[: len(outer)] == outer
        if isinstance(steps, list) and not inside:
            outer = section.path
            names = [kind_of(step) for step in steps]
            yield (*section.path, 'pipeline'), steps, names


@PIPE.rule(
    'PIPE001',
    symptoms=("object has no attribute 'gt_edge_map'",),
    title='the head needs edges, and the pipeline makes none',
    severity=Severity.ERROR,
    remedy="add dict(type='GenerateEdge', edge_width=4) before the step that "
    'packs, after those that change the size',
    fix='add the step that makes edges',
)
def no_edges(subject: Subject) -> Iterator[Finding]:
    """PIDNet's head reads ``gt_edge_map``."""
    edge_head = _edge_head(subject)
    for path, steps, names in training_pipelines(subject) if edge_head else ():
        if _EDGE in names or not any(n.startswith('Pack') for n in names):
            continue
        if any(
            # A step of one's own, whose code has the name.
            names_key(kind, 'gt_edge_map')
            and not kind_of(section.cfg).startswith('Pack')
            for section in subject.below(*path)
            if (kind := subject.component(section)) is not None
        ):
            continue
        head_path, head = edge_head
        at = next(i for i, n in enumerate(names) if n.startswith('Pack'))
        step: dict[str, Any] = {'type': _EDGE, 'edge_width': _PAPER_WIDTH}
        ignored = head.get('ignore_index', _IGNORED)
        if ignored != _IGNORED:
            step['ignore_index'] = ignored
        pipeline = [*steps[:at], step, *steps[at:]]
        yield new_finding(
            f'{kind_of(head)} at {join_key(head_path)} '
            f'reads gt_edge_map, and no step {_EDGE} makes it',
            path=path,
            names=(_EDGE,),
            options=change(path, pipeline),
        )


@PIPE.rule(
    'PIPE002',
    title='edges do not fit the label maps',
    severity=Severity.ERROR,
    remedy='put GenerateEdge after all steps that change the size, with the '
    'ignore_index of the head',
)
def wrong_edges(subject: Subject) -> Iterator[Finding]:
    """Made too early, or with another value to ignore."""
    edge_head = _edge_head(subject)
    for path, steps, names in training_pipelines(subject) if edge_head else ():
        if _EDGE not in names:
            continue
        at = names.index(_EDGE)
        after = [name for name in names[at + 1 :] if name in _MOVING]
        if after:
            yield new_finding(
                f'{", ".join(after)} after {_EDGE} changes the label map '
                'and not its edges',
                path=(*path, at),
                names=tuple(after),
            )
        own = as_mapping(steps[at]).get('ignore_index', _IGNORED)
        wanted = edge_head[1].get('ignore_index', _IGNORED)
        if own != wanted:
            yield new_finding(
                f'{_EDGE} ignores {own}, the head {wanted}: pixels to '
                'ignore get edges',
                path=(*path, at),
                severity=Severity.WARNING,
            )


@PIPE.rule(
    'PIPE003',
    symptoms=(
        "'InstanceData' object has no attribute 'masks'",
        "KeyError: 'mask'",
    ),
    title='the model learns masks or boxes, and none are loaded',
    severity=Severity.ERROR,
    remedy='set with_mask=True, or with_bbox=True, of LoadAnnotations, and '
    'use a data set that reads outlines',
)
def not_loaded(subject: Subject) -> Iterator[Finding]:
    """A head of MMDetection without ``with_mask`` or ``with_bbox``.

    And masks of a data set that reads boxes alone.
    """
    model = as_mapping(subject.top.get('model'))
    # One-stage models may learn masks from boxes; CO-DETR's do not.
    masks = as_mapping(model.get('roi_head')).get('mask_head')
    masks = masks or kind_of(model.get('mask_head')) == 'QueryMaskHead'
    boxes = model.get('bbox_head') or model.get('rpn_head')
    maskless = dict(_steps_without_masks(subject))
    for path, kind in maskless.items():
        loads = subject.at(path).get('with_mask')
        if loads or (masks and path[0].startswith('train')):
            does = "with_mask=True fails with KeyError: 'mask'"
            yield new_finding(
                f'{kind.__name__} reads boxes and no outlines: '
                f'{does if loads else "the mask_head has nothing to learn"}',
                path=path,
                remedy='read a file in the format of COCO that has a '
                'segmentation of each object, with a CocoDataset; or train '
                'on boxes alone, with with_mask=False'
                + (
                    ', and mask_head=None and mask_roi_extractor=None of '
                    'the roi_head'
                    if masks
                    else ''
                ),
            )
    if not masks and not boxes:
        return
    for path, steps, names in training_pipelines(subject):
        if not names or not names[-1].startswith('PackDet'):
            continue
        if names.count('LoadAnnotations') != 1:
            continue
        at = names.index('LoadAnnotations')
        step = as_mapping(steps[at])
        masks = masks and (*path, at) not in maskless
        for head, key, default in (
            (masks and 'mask_head', 'with_mask', False),
            (boxes and 'head for boxes', 'with_bbox', True),
        ):
            if head and not step.get(key, default):
                yield new_finding(
                    f'the model has a {head}, and LoadAnnotations has not '
                    f'{key}=True',
                    path=(*path, at),
                    remedy=f'set {key}=True of LoadAnnotations',
                )


def _steps_without_masks(subject: Subject) -> Iterator[tuple[tuple, type]]:
    """``LoadAnnotations`` of data sets whose code gives no mask, and these."""
    for split in SPLITS:
        for section in subject.below(f'{split}_dataloader', 'dataset'):
            kind = subject.component(section)
            bases = inspect.getmro(kind) if inspect.isclass(kind) else ()
            if (
                'BaseDetDataset' not in {base.__name__ for base in bases}
                # MMEngine's own reader gives what its file has.
                or kind.load_data_list is BaseDataset.load_data_list
            ):
                continue
            code = set(sources(kind) or ['mask']) - set(sources(BaseDataset))
            if any('mask' in text for text in code):
                continue
            path, steps = (
                (*section.path, 'pipeline'),
                section.cfg.get('pipeline'),
            )
            for node in steps_of(path, steps, section.scope):
                step = subject.component(node)
                if package_of(step) not in ('mmcv', 'mmdet'):
                    break  # It may make masks.
                if step.__name__ == 'LoadAnnotations':
                    yield node.path, kind


@PIPE.rule(
    'PIPE004',
    symptoms=('mix_results',),
    title='a step mixes several images, and gets one',
    severity=Severity.ERROR,
    remedy='put it into the pipeline of a MultiImageMixDataset, whose inner '
    'data set loads images and annotations',
)
def mixes_alone(subject: Subject) -> Iterator[Finding]:
    """Mosaic, MixUp and the like outside of the wrapper that gives them."""
    for section in subject.sections:
        steps = section.cfg.get('pipeline')
        kind = subject.component(section)
        loader = section.path[:2] in _DATASETS
        if not loader or not isinstance(steps, list) or kind is None:
            continue
        if names_key(kind, 'mix_results'):
            continue
        path = (*section.path, 'pipeline')
        for node in steps_of(path, steps, section.scope):
            mixer = subject.component(node)
            if inspect.isclass(mixer) and _waits_for_images(mixer):
                yield new_finding(
                    f'{mixer.__name__} reads mix_results, which only a '
                    f'MultiImageMixDataset gives, in a pipeline of '
                    f'{kind.__name__}',
                    path=node.path,
                )


@PIPE.rule(
    'PIPE009',
    symptoms=("KeyError: 'inputs'",),
    title='no step of a pipeline loads the picture',
    severity=Severity.ERROR,
    remedy="begin the pipeline with dict(type='LoadImageFromFile')",
)
def no_picture(subject: Subject) -> Iterator[Finding]:
    """Pipelines of the hosts' own steps, of data sets that hold no others."""
    for split in SPLITS:
        for path, dataset in subject.datasets(split):
            path, steps = (*path, 'pipeline'), dataset.get('pipeline')
            if (
                not isinstance(steps, list)
                or inner_dataset_configs(dataset)
                or not are_of_hosts(subject, path, steps)
            ):
                continue
            names = [kind_of(step) for step in steps]
            if names[-1] in ('PackDetInputs', 'PackSegInputs') and not any(
                'Image' in name or name == 'InferencerLoader' for name in names
            ):
                yield new_finding(
                    f'{split}_dataloader: {names[-1]} packs a picture that no '
                    'step loads',
                    path=path,
                )


def are_of_hosts(subject: Subject, path: tuple, steps: list) -> bool:
    """Whether all steps are the hosts' own, of which it is known what they do.

    Steps that hold others are not.
    """
    nodes = steps_of(path, steps, subject.scope)
    return bool(nodes) and all(
        package_of(subject.component(node)) in ('mmcv', 'mmdet', 'mmseg')
        and 'transforms' not in node.cfg
        for node in nodes
    )


def _waits_for_images(kind: type) -> bool:
    """Whether a step asks its data set for indices of other images.

    Steps with a cache of their own ask that.
    """
    if package_of(kind) not in ('mmdet', 'mmseg'):
        return False
    for base in kind.__mro__:
        for name in ('get_indexes', 'get_indices'):
            if name in vars(base):
                # It may be an object that has to be bound.
                method = getattr(vars(base)[name], 'func', vars(base)[name])
                asked = inspect.signature(method).parameters
                return 'dataset' in asked and names_key(kind, 'mix_results')
    return False

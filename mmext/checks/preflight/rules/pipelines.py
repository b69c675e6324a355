"""Pipelines that lack what the model reads; sizes and values of pictures."""

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


# Widths of the range of a channel that no weights are made for: 255 is none,
# 1 is pictures in [0, 1], and about 4.5 those with a deviation of 1.
_NARROW, _WIDE = 0.5, 300
_WHITE = 255
_PREPROCESSORS = ('DetDataPreprocessor', 'SegDataPreProcessor')
_HOSTS = ('mmcv', 'mmdet', 'mmseg', 'mmext')
# Steps of theirs that change the number of channels.
_OTHER_CHANNELS = ('RGB2Gray', 'ConcatCDInput', 'Lambda')
# Steps that change the size of pictures, but RandomCrop.
_RESIZING = (
    *('Resize', 'RandomResize', 'RandomChoiceResize', 'ResizeToMultiple'),
    *('ResizeShortestEdge', 'RandomRotate', 'Rotate', 'Pad', 'RandomMosaic'),
)


@PIPE.rule(
    'PIPE005',
    symptoms=('channels instead',),
    title='pictures are loaded with other channels than the model takes',
    severity=Severity.ERROR,
    remedy="set color_type='unchanged' of LoadImageFromFile for pictures of "
    "other channels than 3, 'grayscale' for 1; and in_channels of the "
    'backbone, mean and std to as many (mean and std may have one value, or '
    'be None)',
)
def other_channels(subject: Subject) -> Iterator[Finding]:
    """What ``color_type`` makes of any file, and what the backbone takes."""
    backbone = next(subject.below('model', 'backbone'), None)
    if backbone is None or backbone.path != ('model', 'backbone'):
        return
    wanted = subject.setting(backbone, 'in_channels')
    at, batch = preprocessor_of(subject)
    mean = batch.get('mean')
    values = len(mean) if isinstance(mean, list | tuple) else 0
    for section in subject.below('train_dataloader', 'dataset'):
        path, steps = (*section.path, 'pipeline'), section.cfg.get('pipeline')
        nodes = steps_of(path, steps, section.scope)
        if (
            not isinstance(wanted, int)
            or not nodes
            or kind_of(nodes[0].cfg) != 'LoadImageFromFile'
            or any(
                package_of(subject.component(node)) not in _HOSTS
                or kind_of(node.cfg) in _OTHER_CHANNELS
                for node in nodes
            )
        ):
            continue
        loader = nodes[0].cfg
        color = str(loader.get('color_type', 'color'))
        given = {'color': 3, 'grayscale': 1}.get(color.partition('_')[0])
        if given is None or loader.get('imdecode_backend') == 'tifffile':
            continue
        # MMSegmentation takes a mean of three values off one channel.
        three = given == 1 and values == 3 and kind_of(batch)[:3] == 'Seg'
        told = f', {join_key((*at, "mean"))} has {values} values'
        if (3 if three else given) != wanted or (
            values > 1 and values != given and not three
        ):
            yield new_finding(
                f'LoadImageFromFile gives {given} '
                f'{"channels" if given > 1 else "channel"} of any file '
                f'(color_type={color!r}), and the backbone takes {wanted}'
                + (told if values else ''),
                path=nodes[0].path,
            )


def preprocessor_of(subject: Subject) -> tuple[tuple, Mapping]:
    """That of the model, or what the runner gives to it."""
    model = as_mapping(subject.top.get('model'))
    for path, where in (
        (('model', 'data_preprocessor'), model),
        (('data_preprocessor',), subject.top),
    ):
        if where.get('data_preprocessor') is not None:
            return path, as_mapping(where['data_preprocessor'])
    return (), {}


@PIPE.rule(
    'PIPE006',
    title='crop_size and the size of batches differ',
    severity=Severity.WARNING,
    remedy='set size of the data preprocessor to crop_size of RandomCrop',
    fix='set size to crop_size, where it is the smaller one',
)
def other_crop(subject: Subject) -> Iterator[Finding]:
    """MMSegmentation pads pictures to ``size``, and cuts none."""
    path, batch = preprocessor_of(subject)
    size = _two(batch.get('size'))
    if kind_of(batch) != 'SegDataPreProcessor' or size is None:
        return
    for at, steps, names in training_pipelines(subject):
        index = max(
            (i for i, n in enumerate(names) if n == 'RandomCrop'), default=-1
        )
        step = as_mapping(steps[index]) if index >= 0 else {}
        crop = _two(step.get('crop_size'))
        if crop is None or any(n in _RESIZING for n in names[index + 1 :]):
            continue
        where = f'{join_key((*at, index))}.crop_size={crop}'
        key = (*path, 'size')
        if any(side < cut for side, cut in zip(size, crop)):
            yield new_finding(
                f'{join_key(key)}={size} is less than {where}: a picture '
                'that is smaller than the crop when it comes there is not '
                'padded to it, and cannot be stacked with the others of its '
                'batch',
                path=key,
                options=change(
                    key, tuple(max(pair) for pair in zip(size, crop))
                ),
            )
        elif size != crop:
            part = 1 - crop[0] * crop[1] / (size[0] * size[1])
            yield new_finding(
                f'{join_key(key)}={size} is more than {where}: at least '
                f'{part:.0%} of each picture is padding',
                path=key,
            )


def _two(value: Any) -> tuple[int, int] | None:
    """Height and width; None if they are something else."""
    if isinstance(value, int):
        return value, value
    if isinstance(value, list | tuple) and len(value) == 2:
        height, width = value
        if isinstance(height, int) and isinstance(width, int):
            return height, width
    return None


@PIPE.rule(
    'PIPE008',
    symptoms=('= 0.000',),
    title='pictures are brought to values that no weights are made for',
    severity=Severity.ERROR,
    remedy='normalize once, with mean and std of the range that pictures '
    'have: 0 to 255, as they are read',
    fix='remove Normalize from pipelines, or multiply mean and std by 255',
)
def other_values(subject: Subject) -> Iterator[Finding]:
    """Normalized twice, or by mean and std of pictures in [0, 1]."""
    at, cfg = preprocessor_of(subject)
    own = _of_channels(cfg)
    if (
        own is None
        or kind_of(cfg) not in _PREPROCESSORS
        or not _reads_bytes(subject)
    ):
        return
    pipelines = dict(_normalizing(subject, 'train'))
    for path, normalize in pipelines.items() or [((), ([0], [1]))]:
        # The first channel of each stands for all.
        low, high = (
            ((value - normalize[0][0]) / normalize[1][0] - own[0][0])
            / own[1][0]
            for value in (0, _WHITE)
        )
        if _NARROW <= high - low <= _WIDE:
            continue
        text, remedy, options = '', '', {}
        if path:
            text = 'Normalize and the data preprocessor bring'
            remedy = 'remove Normalize from the pipelines'
            plain = _WHITE / own[1][0]
            if _NARROW <= plain <= _WIDE:
                options = _without_normalize(subject)
        else:
            text = 'the data preprocessor brings'
            if max(own[0]) <= 1 and max(own[1]) <= 1:
                remedy = 'multiply mean and std by 255'
                for key, numbers in zip(('mean', 'std'), own):
                    options[join_key((*at, key))] = [
                        round(_WHITE * number, 4) for number in numbers
                    ]
        loads = any(
            kind_of(section.cfg) == 'Pretrained'
            or section.cfg.get('pretrained')
            for section in subject.below('model')
        )
        yield new_finding(
            f'{text} pictures of 0 to 255 to {low:.4g} to {high:.4g} '
            f'(mean={own[0]}, std={own[1]})',
            path=path or (*at, 'mean'),
            severity=Severity.ERROR
            if loads or subject.top.get('load_from')
            else Severity.WARNING,
            remedy=remedy,
            options=options,
        )


def _of_channels(cfg: Any) -> tuple[list[float], list[float]] | None:
    """Mean and std of channels, as far as they are numbers."""
    values = [as_mapping(cfg).get(key) for key in ('mean', 'std')]
    if not all(
        isinstance(value, list | tuple)
        and value
        and all(isinstance(number, int | float) for number in value)
        for value in values
    ):
        return None
    mean, std = map(list, values)
    return (mean, std) if all(number > 0 for number in std) else None


def _reads_bytes(subject: Subject) -> bool:
    """Whether all pictures of a training are read as 0 to 255, and stay so."""
    loaders = 0
    for section in subject.below('train_dataloader', 'dataset'):
        if 'type' not in section.cfg:
            continue
        package = package_of(subject.component(section))
        name = kind_of(section.cfg)
        if package not in ('mmcv', 'mmdet', 'mmseg') or 'Albu' in name:
            return False
        if name == 'LoadImageFromFile':
            loaders += 1
            colour = section.cfg.get('color_type', 'color')
            if colour not in ('color', 'grayscale'):
                return False
        elif name.startswith('Load') and 'Annotations' not in name:
            return False
    return loaders > 0


def _normalizing(
    subject: Subject, split: str
) -> Iterator[tuple[tuple, tuple[list[float], list[float]]]]:
    """Steps of MMCV that normalize, in the pipelines of a split."""
    for section in subject.below(f'{split}_dataloader', 'dataset'):
        values = _of_channels(section.cfg)
        if kind_of(section.cfg) == 'Normalize' and values is not None:
            yield section.path, values


def _without_normalize(subject: Subject) -> dict[str, Any]:
    """Options that take the step out of all pipelines."""
    options: dict[str, Any] = {}
    for split in SPLITS:
        paths = {path[:-1] for path, _ in _normalizing(subject, split)}
        for path in paths:
            if path[-1] != 'pipeline':
                return {}
            steps = subject.at(path)
            options |= change(
                path, [s for s in steps if kind_of(s) != 'Normalize']
            )
    return options

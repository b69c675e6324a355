"""Sizes that pipelines resize images to, against the model and each other."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ...config import ConfigNode, Steps
from ...findings import Finding, Severity
from .pipelines import preprocessor_of, training_pipelines
from .registry import PIPE, new_finding
from .subject import (
    SPLITS,
    Subject,
    as_mapping,
    base_names,
    kind_of,
    package_of,
    steps_of,
)

# Models that take so many queries from the places of their maps.
_TWO_STAGES = tuple(
    f'{name}.pre_decoder'
    for name in ('DeformableDETR', 'DINO', 'GroundingDINO')
)
# Backbones whose stage i has a stride of 4 * 2 ** i, if nothing is said.
_PYRAMIDS = {'ResNet', 'SwinTransformer'}
_STRIDES = ('strides', 'dilations', 'patch_size')
# Steps that leave the size of a picture as it is.
_SAME_SIZE = (
    *('FilterAnnotations', 'PhotoMetricDistortion', 'RandomFlip'),
    *('YOLOXHSVRandomAug', 'Normalize', 'RandomSamplingNegPos'),
    'ValidateLabels',
)
# Width and height of images of common shapes.
_SHAPES = ((1, 1), (4, 3), (16, 9), (2, 1))
_RESIZE = ('Resize', 'RandomResize', 'RandomChoiceResize')
_PACKAGES = ('mmcv', 'mmdet', 'mmseg', 'mmext')
# Ratio of scales at which objects look like those of another data set.
_FAR = 2.0


@PIPE.rule(
    'PIPE007',
    symptoms=('selected index k out of range',),
    title='pictures are too small for the queries of the model',
    severity=Severity.ERROR,
    remedy='set larger scales, or a smaller num_queries: so many are chosen '
    'among the places of the maps',
)
def too_many_queries(subject: Subject) -> Iterator[Finding]:
    """``topk`` of DINO and the like: selected index k out of range.

    By the size that no picture exceeds; the training in small meets those
    that are smaller in a data set.
    """
    _, batch = preprocessor_of(subject)
    divisor = batch.get('pad_size_divisor', 1)
    if (
        batch.get('batch_augments')
        or kind_of(batch) not in ('', 'DetDataPreprocessor')
        or not isinstance(divisor, int)
    ):
        return
    for section in subject.below('model'):
        method = getattr(subject.component(section), 'pre_decoder', None)
        queries = section.cfg.get('num_queries')
        if (
            getattr(method, '__qualname__', '') not in _TWO_STAGES
            or not isinstance(queries, int)
            or (
                method.__qualname__.startswith('Deformable')
                and not section.cfg.get('as_two_stage')
            )
        ):
            continue
        levels = _levels(subject, section)
        for split in SPLITS if levels else ():
            for path, dataset in subject.datasets(split):
                path = (*path, 'pipeline')
                size = _largest_size(subject, path, dataset.get('pipeline'))
                if size is None:
                    continue
                # A batch of high and of wide ones is padded to a square.
                most, square = (
                    sum(
                        math.prod(
                            -(-math.ceil(side / divisor) * divisor // stride)
                            for side in sides
                        )
                        for stride in levels
                    )
                    for sides in (size, (size[0], size[0]))
                )
                if most < queries:
                    yield new_finding(
                        f'topk takes num_queries={queries} places of the '
                        f'maps, and a picture of {size[0]:g}x{size[1]:g} of '
                        f'{split}_dataloader has {most:.0f} in those of the '
                        f'strides {", ".join(map(str, levels))}',
                        path=path,
                        severity=Severity.ERROR
                        if square < queries
                        else Severity.WARNING,
                        remedy='set larger scales, or '
                        f'num_queries={most:.0f} at most',
                    )


def _levels(subject: Subject, section: ConfigNode) -> list[int]:
    """Strides of the maps of a detector; empty if they are not known."""
    parts = {
        key: ConfigNode(
            (*section.path, key),
            as_mapping(section.cfg.get(key)),
            section.cfg.get('_scope_', section.scope),
        )
        for key in ('backbone', 'neck')
    }
    backbone, neck = parts['backbone'], parts['neck']
    stages = subject.setting(backbone, 'out_indices')
    if (
        not base_names(subject.component(backbone)) & _PYRAMIDS
        or any(key in backbone.cfg for key in _STRIDES)
        or not isinstance(stages, list | tuple)
        or not all(isinstance(stage, int) for stage in stages)
        or kind_of(neck.cfg) not in ('', 'ChannelMapper')
    ):
        return []
    levels = [4 * 2**stage for stage in stages]
    number = neck.cfg.get('num_outs') or len(levels)
    while isinstance(number, int) and 0 < len(levels) < number:
        levels.append(2 * levels[-1])
    return levels


def _largest_size(
    subject: Subject, path: Steps, steps: Any
) -> tuple[float, float] | None:
    """Sides that no picture exceeds, the longer first; None for unknown."""
    size = None
    for node in steps_of(path, steps, subject.scope):
        cfg, name = node.cfg, kind_of(node.cfg)
        if package_of(subject.component(node)) not in ('mmcv', 'mmdet'):
            return None
        if name in _RESIZE:
            scales = _scales_of(cfg)
            if not scales:
                return None
            ratio = max(cfg.get('ratio_range') or (1.0,))
            size = tuple(ratio * max(map(side, scales)) for side in (max, min))
        elif name == 'RandomCrop' and _is_pair(cfg.get('crop_size')) and size:
            crop, kind = cfg['crop_size'], cfg.get('crop_type', 'absolute')
            if kind == 'absolute':
                size = min(size[0], max(crop)), min(size[1], min(crop))
            elif kind == 'absolute_range':
                size = tuple(min(side, max(crop)) for side in size)
        elif not name.startswith(('Load', 'Pack')) and name not in _SAME_SIZE:
            return None
    return size


@PIPE.rule(
    'PIPE010',
    title='scale of an evaluation is far from the scales of the training',
    severity=Severity.WARNING,
    remedy='set a scale within those of the training pipeline; objects that '
    'are twice as large or small as any in the training are found badly',
)
def far_scale(subject: Subject) -> Iterator[Finding]:
    """Sizes to which images of the same shape are resized."""
    _, batch = preprocessor_of(subject)
    if any(
        'Resize' in kind_of(step) for step in batch.get('batch_augments') or ()
    ):
        return
    trained = [
        _scales(subject, path, steps)
        for path, steps, _ in training_pipelines(subject)
    ]
    if not trained or None in trained:
        return
    known = _union(trained)
    for split in ('val', 'test'):
        for path, dataset in subject.datasets(split):
            path = (*path, 'pipeline')
            own = _scales(subject, path, dataset.get('pipeline'))
            if own is None:
                continue
            pairs = list(zip(own, known))
            larger = min(low / most for (low, _), (_, most) in pairs)
            smaller = min(least / high for (_, high), (least, _) in pairs)
            times = max(larger, smaller)
            if times > _FAR:
                text = 'larger' if larger > smaller else 'smaller'
                yield new_finding(
                    f'{split}_dataloader resizes images to at least '
                    f'{times:.3g} times {text} sizes than any in the training',
                    path=path,
                )


def _scales(
    subject: Subject,
    path: Steps,
    steps: Any,
    scales: list[tuple[float, float]] | None = None,
) -> list[tuple[float, float]] | None:
    """Least and greatest scale of images of each shape; None for unknown.

    The shapes have an area of 1, so that the scale is the root of the area.
    ``scales`` are those that the images come with.
    """
    cropped = False
    for node in steps_of(path, steps, subject.scope):
        cfg, name = node.cfg, kind_of(node.cfg)
        if package_of(subject.component(node)) not in _PACKAGES:
            return None
        if name in _RESIZE:
            scales = _resized(cfg)
            if scales is not None and cropped:
                # The smaller the part that is left, the larger its scale.
                scales = [(low, math.inf) for low, _ in scales]
        elif name == 'RandomChoice':
            choices = [
                _scales(subject, (*node.path, 'transforms', i), choice, scales)
                for i, choice in enumerate(cfg.get('transforms', ()))
            ]
            cropped = True
            scales = None
            if choices and None not in choices:
                scales = _union(choices)
        elif name == 'RandomCrop':
            cropped = True
        elif not name.startswith(('Load', 'Pack')) and name not in (
            *_SAME_SIZE,
            'Pad',
        ):
            return None
        if scales is None and name in (*_RESIZE, 'RandomChoice'):
            return None
    return scales


def _resized(cfg: Mapping) -> list[tuple[float, float]] | None:
    """Scales that a step resizes images of each shape to."""
    sizes = _scales_of(cfg)
    kind = str(cfg.get('resize_type', 'Resize')).rpartition('.')[2]
    if kind != 'Resize' or not sizes:
        return None
    ratios, scales = cfg.get('ratio_range') or (1.0,), []
    for shape in _SHAPES:
        own = [
            min(max(size) / max(shape), min(size) / min(shape))
            * math.sqrt(math.prod(shape))
            if cfg.get('keep_ratio')
            else math.sqrt(math.prod(size))
            for size in sizes
        ]
        scales.append((min(ratios) * min(own), max(ratios) * max(own)))
    return scales


def _union(
    choices: list[list[tuple[float, float]]],
) -> list[tuple[float, float]]:
    """Range of each shape over several pipelines."""
    return [
        (min(low for low, _ in ranges), max(high for _, high in ranges))
        for ranges in zip(*choices)
    ]


def _scales_of(cfg: Mapping) -> list[tuple[float, float]]:
    """Scales of a step that resizes; empty if they are not all pairs."""
    scales = cfg.get('scales', cfg.get('scale'))
    if _is_pair(scales):
        return [scales]
    several = isinstance(scales, list | tuple) and all(map(_is_pair, scales))
    return list(scales) if several else []


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == 2
        and all(isinstance(side, int | float) for side in value)
    )

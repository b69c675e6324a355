"""Sizes, channels and values of pictures, and what the model takes."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ...config import ConfigNode, Steps, join_key
from ...findings import Finding, Severity
from .pipelines import training_pipelines
from .registry import PIPE, new_finding
from .subject import (
    SPLITS,
    Subject,
    as_mapping,
    base_names,
    change,
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
)
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
    at, batch = _preprocessor(subject)
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


def _preprocessor(subject: Subject) -> tuple[tuple, Mapping]:
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
    path, batch = _preprocessor(subject)
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
    title='pictures are brought to values that no weights are made for',
    severity=Severity.ERROR,
    remedy='normalize once, with mean and std of the range that pictures '
    'have: 0 to 255, as they are read',
    fix='remove Normalize from pipelines, or multiply mean and std by 255',
)
def other_values(subject: Subject) -> Iterator[Finding]:
    """Normalized twice, or by mean and std of pictures in [0, 1]."""
    at, cfg = _preprocessor(subject)
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
        _is_list(value)
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
    _, batch = _preprocessor(subject)
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
        if name in ('Resize', 'RandomResize', 'RandomChoiceResize'):
            scales = cfg.get('scales', cfg.get('scale'))
            if not _is_list(scales) or not _is_list(scales[0]):
                scales = [scales]
            if not all(map(_is_pair, scales)):
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


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value)


def _is_pair(value: Any) -> bool:
    return (
        _is_list(value)
        and len(value) == 2
        and all(isinstance(side, int | float) for side in value)
    )

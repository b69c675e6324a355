"""Sizes, channels and values of pictures, and what the model takes."""

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...config import (
    ConfigNode,
    default_of,
    join_key,
)
from ...findings import Finding, Severity
from .pipelines import training_pipelines
from .registry import PIPE, new_finding
from .subject import (
    SPLITS,
    Subject,
    as_mapping,
    change,
    kind_of,
)

# Models that take so many queries from the places of their maps.
_TWO_STAGES = tuple(
    f'{name}.pre_decoder'
    for name in ('DeformableDETR', 'DINO', 'GroundingDINO')
)
# Backbones whose stage i has a stride of 4 * 2 ** i, if nothing is said.
_PYRAMIDS = {'ResNet', 'SwinTransformer'}
_STRIDES = ('strides', 'dilations', 'patch_size')
# Shapes of pictures that are not there, the longer side to the shorter.
_SHAPES = (1.0, 4 / 3, 16 / 9)
_LARGE = 4000
_LONGEST_SHAPE = 20
# Steps that leave the size of a picture as it is.
_SAME_SIZE = (
    *('FilterAnnotations', 'PhotoMetricDistortion', 'RandomFlip'),
    *('YOLOXHSVRandomAug', 'Normalize', 'RandomSamplingNegPos'),
)
_KEPT_SIZES = 512
# Widths of the range of a channel that no weights are made for: 255 is none,
# 1 is pictures in [0, 1], and about 4.5 those with a deviation of 1.
_NARROW, _WIDE = 0.5, 300
_WHITE = 255
_PREPROCESSORS = ('DetDataPreprocessor', 'SegDataPreProcessor')
_HOSTS = ('mmcv.', 'mmdet.', 'mmseg.', 'mmext.')
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
    wanted = backbone.cfg.get('in_channels')
    if wanted is None:
        wanted = default_of(subject.component(backbone), 'in_channels')
    path, batch = _preprocessor(subject)
    mean = batch.get('mean')
    values = len(mean) if isinstance(mean, list | tuple) else 0
    for section in subject.below('train_dataloader', 'dataset'):
        steps = section.cfg.get('pipeline')
        if not isinstance(steps, list) or not isinstance(wanted, int):
            continue
        nodes = [
            ConfigNode(
                (*section.path, 'pipeline', index),
                as_mapping(step),
                section.scope,
            )
            for index, step in enumerate(steps)
        ]
        if kind_of(steps[0] if steps else None) != 'LoadImageFromFile' or any(
            not str(
                getattr(subject.component(node), '__module__', '')
            ).startswith(_HOSTS)
            or kind_of(node.cfg) in _OTHER_CHANNELS
            for node in nodes
        ):
            continue
        loader = nodes[0].cfg
        color = str(loader.get('color_type', 'color'))
        given = {'color': 3, 'grayscale': 1}.get(color.partition('_')[0])
        if given is None or loader.get('imdecode_backend') == 'tifffile':
            continue
        # MMSegmentation takes a mean of three values off one channel.
        three = given == 1 and values == 3 and kind_of(batch)[:3] == 'Seg'
        told = f', {join_key((*path, "mean"))} has {values} values'
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
        kind = subject.component(section)
        package = getattr(kind, '__module__', '').partition('.')[0]
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


Sizes = set[tuple[float, float]]


@PIPE.rule(
    'PIPE007',
    symptoms=('selected index k out of range',),
    title='pictures are too small for the queries of the model',
    severity=Severity.ERROR,
    remedy='set larger scales, or a smaller num_queries: so many are chosen '
    'among the places of the maps',
)
def too_many_queries(subject: Subject) -> Iterator[Finding]:
    """``topk`` of DINO and the like: selected index k out of range."""
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
                yield from _small_pictures(
                    subject, split, path, dataset, queries, levels
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
    kind = subject.component(backbone)
    names = {base.__name__ for base in getattr(kind, '__mro__', ())}
    stages = backbone.cfg.get('out_indices', default_of(kind, 'out_indices'))
    if (
        not names & _PYRAMIDS
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


def _small_pictures(
    subject: Subject,
    split: str,
    path: tuple,
    dataset: Mapping,
    queries: int,
    levels: list[int],
) -> Iterator[Finding]:
    """Findings for the pipeline of a data set that holds files."""
    steps = dataset.get('pipeline')
    if not isinstance(steps, list) or not steps:
        return
    padding = _padding(subject, split)
    path = (*path, 'pipeline')

    def after(sizes: Sizes) -> list[list[tuple[float, float]]]:
        """What becomes of each picture, the fewest places first."""
        results = []
        for size in sorted(sizes):
            outcomes = _sizes_after(subject, path, steps, {size})
            if not outcomes or not padding:
                return []
            padded = {
                tuple(-(-side // padding) * padding for side in outcome)
                for outcome in outcomes
            }
            results.append(sorted(padded, key=places))
        return results

    def places(size: tuple[float, float]) -> float:
        """In all maps, each of which is rounded up."""
        return sum(-(-size[0] // n) * -(-size[1] // n) for n in levels)

    def of_shapes(*shapes: float) -> Sizes:
        wide = {(_LARGE, _LARGE // shape) for shape in shapes}
        return wide | {(height, width) for width, height in wide}

    def too_few(sizes: Sizes) -> list[list[tuple[float, float]]]:
        return [some for some in after(sizes) if places(some[0]) < queries]

    # Files are read only where there can be such pictures.
    if not too_few(of_shapes(*_SHAPES, _LONGEST_SHAPE)):
        return
    listed = _listed_sizes(dataset)
    sizes = listed or of_shapes(*_SHAPES)
    small = too_few(sizes)
    if not small:
        return
    width, height = min((some[0] for some in small), key=places)
    most = places((width, height))
    loader = as_mapping(subject.top.get(f'{split}_dataloader'))
    every = len(small) == len(sizes) and all(
        places(some[-1]) < queries for some in small
    )
    certain = every or (listed and loader.get('batch_size') == 1)
    yield new_finding(
        f'topk takes num_queries={queries} places of the maps, and a picture '
        f'of {width:.0f}x{height:.0f} of {split}_dataloader has '
        f'{most:.0f} in those of the strides {", ".join(map(str, levels))}'
        + ('' if certain else ': a batch of such pictures ends the training'),
        path=path,
        severity=Severity.ERROR if certain else Severity.WARNING,
        remedy=f'set larger scales, or num_queries={most:.0f} at most',
    )


def _padding(subject: Subject, split: str) -> int:
    """What width and height are filled up to a multiple of; 0 if unknown."""
    model = as_mapping(subject.top.get('model'))
    cfg = as_mapping(model.get('data_preprocessor'))
    divisor = cfg.get('pad_size_divisor', 1)
    if (
        (split == 'train' and cfg.get('batch_augments'))
        or kind_of(cfg) not in ('', 'DetDataPreprocessor')
        or not isinstance(divisor, int)
    ):
        return 0
    return divisor


def _listed_sizes(dataset: Mapping) -> Sizes:
    """Sizes of the pictures in a file of COCO's format; empty if none."""
    names = [dataset.get(key) or '' for key in ('data_root', 'ann_file')]
    if not all(isinstance(name, str) for name in names) or not names[1]:
        return set()
    file = Path(*names)
    if file.suffix != '.json' or not file.is_file():
        return set()
    try:
        images = as_mapping(json.loads(file.read_bytes())).get('images')
        sizes = {(image['width'], image['height']) for image in images}
    except (KeyError, TypeError, ValueError):
        # What is wrong with it, the check of the labels says.
        return set()
    # The smallest, and those that are narrow.
    by_area = sorted(sizes, key=lambda size: size[0] * size[1])
    by_shape = sorted(sizes, key=lambda size: min(size) / max(size))
    return {*by_area[:_KEPT_SIZES], *by_shape[:_KEPT_SIZES]}


def _sizes_after(
    subject: Subject, path: tuple, steps: Any, sizes: Sizes
) -> Sizes:
    """What pictures may be after some steps; empty if that is not known."""
    for index, step in enumerate(steps if isinstance(steps, list) else ()):
        cfg = as_mapping(step)
        node = ConfigNode((*path, index), cfg, subject.scope)
        kind = subject.component(node)
        package = getattr(kind, '__module__', '').partition('.')[0]
        if package not in ('mmcv', 'mmdet'):
            return set()
        name = kind.__name__
        inner, at = cfg.get('transforms'), (*path, index, 'transforms')
        if name == 'RandomApply':
            sizes = sizes | _sizes_after(subject, at, inner, sizes)
        elif name == 'RandomChoice':
            results = [
                _sizes_after(subject, (*at, i), branch, sizes)
                for i, branch in enumerate(inner or ())
            ]
            sizes = set().union(*results) if all(results) else set()
        elif not name.startswith(('Load', 'Pack')) and name not in _SAME_SIZE:
            sizes = _sizes_after_step(name, cfg, sizes)
        if not sizes:
            return set()
    return sizes


def _sizes_after_step(name: str, cfg: Mapping, sizes: Sizes) -> Sizes:
    """The same for one step that changes sizes."""
    keep = cfg.get('keep_ratio', False)
    scales, ratios = cfg.get('scale'), (1.0,)
    if name == 'RandomChoiceResize':
        scales = cfg.get('scales')
    elif name == 'RandomResize':
        ratios = cfg.get('ratio_range') or (1.0,)
    if name in ('Resize', 'RandomChoiceResize', 'RandomResize'):
        if cfg.get('resize_type', 'Resize') != 'Resize':
            return set()
        pairs = (
            scales if _is_list(scales) and _is_list(scales[0]) else [scales]
        )
        if not all(_is_pair(pair) for pair in pairs) or not _is_list(ratios):
            return set()
        return {
            _resized(size, [side * ratio for side in pair], keep)
            for size in sizes
            for pair in pairs
            for ratio in ratios
        }
    crop = cfg.get('crop_size')
    kind = cfg.get('crop_type', 'absolute')
    if name == 'RandomCrop' and _is_pair(crop):
        results = set()
        for width, height in sizes:
            # Width and height, but for ranges.
            if kind == 'absolute':
                ends = [(crop[1],), (crop[0],)]
            elif kind == 'absolute_range':
                ends = [crop, crop]
            elif kind == 'relative':
                ends = [(height * crop[1],), (width * crop[0],)]
            else:
                ends = [(height * crop[0], height), (width * crop[1], width)]
            results |= {
                (min(w, width), min(h, height))
                for h, w in itertools.product(*ends)
            }
        return results
    if name == 'Pad' and _is_pair(cfg.get('size')):
        least = cfg['size']
        return {(max(w, least[0]), max(h, least[1])) for w, h in sizes}
    if name == 'Pad' and isinstance(n := cfg.get('size_divisor'), int):
        return {(-(-w // n) * n, -(-h // n) * n) for w, h in sizes}
    return set()


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value)


def _is_pair(value: Any) -> bool:
    return (
        _is_list(value)
        and len(value) == 2
        and all(isinstance(side, int | float) for side in value)
    )


def _resized(
    size: tuple[float, float], scale: list[float], keep: bool
) -> tuple[float, float]:
    """As MMCV does: the largest that fits the long and the short side."""
    if not keep:
        return int(scale[0]), int(scale[1])
    long, short = max(scale), min(scale)
    factor = min(long / max(size), short / min(size))
    return tuple(int(side * factor + 0.5) for side in size)

"""The range of labels in a config: its heads, and what is to be ignored.

The values that are ignored, or that label maps are filled with, are in many
locations, set or not: a component whose config lacks such a key has a
default, mostly 255, and what it does with it is the same.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.fileio import load
from yaml import YAMLError

from ...utils.label_spec import HeadSpec, IgnoreLocation
from .sections import SECTIONS, ConfigNode, find_component, takes, walk_nodes
from .walk import Steps, join_key, walk_dicts

_DEFAULT_IGNORE = 255
# Heads of proposals and of identities, whose classes are not the data's.
_OTHER_HEADS = frozenset(('rpn_head', 'reid'))
# Heads that have one weight more, for masks of no class.
_MASK_HEADS = ('MaskFormerHead', 'Mask2FormerHead', 'SideAdapterCLIPHead')

# Key that holds the value -> what is done with it, see IgnoreLocation.
_ROLES = {
    'ignore_index': '',
    'ignore_label': '',
    'seg_pad_val': 'fill',
    'seg_fill_in': 'fill',
    'seg_ignore_label': 'fill',
    'pad_val': 'pad',
}
_DATALOADERS = '_dataloader'
_EVALUATORS = '_evaluator'
# Losses that take a class out by ignore_index, and are not harmed by labels
# out of range.
_TAKES_CLASS_OUT = 'DiceLoss'
# Transforms that leave the size of a picture.
_NEUTRAL = (
    *('LoadImageFromFile', 'LoadAnnotations', 'ValidateLabels'),
    *('RandomFlip', 'RandomRotate', 'RandomCutOut', 'GenerateEdge', 'Albu'),
    *('PhotoMetricDistortion', 'CLAHE', 'Rerange', 'RGB2Gray'),
    *('AdjustGamma', 'PackSegInputs'),
)


def read_heads(model: Any, scope: str = '') -> tuple[HeadSpec, ...]:
    """The heads of a model's config: dicts with ``num_classes`` and a loss.

    With the ``default_scope`` of the config, those too whose class has a
    default for ``num_classes``, as 80 of MMDetection's RoI heads.

    Left out are those whose classes are not the ones of the data: of
    proposals, of edges, of identities, and of texts, whose length it is.
    """
    heads = []
    if isinstance(model.get('num_classes'), int):
        scope = ''  # It is passed on to the heads.
    for section in walk_nodes(model, ('model',), scope):
        node = section.cfg
        losses = list(_losses(node, section.path))
        if (
            not losses
            or _OTHER_HEADS & set(section.path)
            or 'boundary_threshold' in node
            or ('language_model' in model and 'loss_cls' in node)
        ):
            continue
        count = _class_count(section, scope)
        if not isinstance(count, int):
            continue
        # Only MMSegmentation's heads have an ignored value by default.
        ignored = _DEFAULT_IGNORE
        if not any('loss_decode' in where for where, _ in losses):
            ignored = losses[0][1].get('ignore_index')
        weights = [
            (where, _read_weights(loss.get('class_weight')))
            for where, loss in losses
        ]
        heads.append(
            HeadSpec(
                location=join_key(section.path),
                num_classes=count,
                ignore_index=node.get('ignore_index', ignored),
                class_weights=tuple(
                    (where, tuple(weight))
                    for where, weight in weights
                    if isinstance(weight, Sequence)
                    and not isinstance(weight, str)
                ),
                weight_files=tuple(
                    (where, weight)
                    for where, weight in weights
                    if isinstance(weight, str)
                ),
                losses=tuple(
                    (where, str(loss['type'])) for where, loss in losses
                ),
                of_masks=str(node.get('type')).endswith(_MASK_HEADS),
            )
        )
    return tuple(heads)


def _losses(head: Mapping, path: Steps) -> Iterator[tuple[str, Mapping]]:
    """Losses of a head, not those of a head inside of it."""
    for key, value in head.items():
        if str(key).startswith('loss'):
            for where, node in walk_dicts(value, (*path, key)):
                if 'type' in node:
                    yield join_key(where), node


def _read_weights(weights: Any) -> Any:
    """Weights of a loss, read as MMSegmentation does; a pickle is not."""
    if not isinstance(weights, str) or not Path(weights).is_file():
        return weights
    try:
        if weights.endswith('.npy'):
            return np.load(weights, allow_pickle=False).tolist()
        if weights.endswith(('.json', '.yaml', '.yml')):
            return load(weights)
    except (RecursionError, ValueError, YAMLError) as error:
        raise ValueError(
            f'class_weight must name a file of numbers, {weights!r} cannot be '
            f'read: {error}'
        ) from error
    return weights


def _class_count(node: ConfigNode, scope: str) -> Any:
    """``num_classes`` of a head, or the default of its class."""
    if 'num_classes' in node.cfg or not scope:
        return node.cfg.get('num_classes')
    kind = find_component(
        node.cfg.get('type'), SECTIONS['model'], node.scope or scope
    )
    known = kind is not None and takes(kind, 'num_classes')
    return default_of(kind, 'num_classes') if known else None


def read_ignore_locations(
    cfg: Mapping, *, defaults: bool = True
) -> tuple[IgnoreLocation, ...]:
    """Locations in a config that hold a value to ignore or to fill with.

    Only sections that something is built from count: a variable such as
    ``train_pipeline`` is in the config, too, but nobody reads it. Components
    are looked up where they are registered, to know their defaults; one that
    is not found there counts with what the config says of it. Without
    ``defaults`` none is looked up, which imports the models of all hosts;
    ``pad_val``, whose meaning depends on the class, is then left out.
    """
    scope = cfg.get('default_scope') or 'mmengine'
    locations: list[IgnoreLocation] = []
    for section in cfg:
        if section != 'model' and not section.endswith(
            (_DATALOADERS, _EVALUATORS)
        ):
            continue
        for node in walk_nodes(cfg[section], (section,), scope):
            component = None
            if defaults:
                component = find_component(
                    node.cfg.get('type'), SECTIONS.get(section, ()), node.scope
                )
            locations += _locations_of(node, component, cfg)
    return tuple(locations)


def ignored_value(
    heads: Sequence[HeadSpec],
    locations: Sequence[IgnoreLocation],
    default: int | None,
) -> int | None:
    """The value that the loss of the first head ignores.

    That of the head, which gives it to its losses; or that of its losses, if
    the config sets it of each of them and not of the head.
    """
    said = {
        location.location: location.value
        for location in locations
        if location.said
    }
    for head in heads:
        if head.ignore_index is None:
            continue
        own = {
            said.get(f'{loss}.ignore_index', said.get(f'{loss}.ignore_label'))
            for loss, _ in head.losses
        }
        if f'{head.location}.ignore_index' in said or len(own) != 1:
            return head.ignore_index
        value = own.pop()
        return head.ignore_index if value is None else value
    return default


def default_of(component: Callable | None, key: str) -> Any:
    """Default of an argument, of the class or the first base that has it.

    None if there is no such argument, or it is not known.
    """
    if not inspect.isclass(component):
        return None
    for base in component.__mro__:
        init = base.__dict__.get('__init__')
        if init is None or base is object:
            continue
        try:
            parameter = inspect.signature(init).parameters.get(key)
        except ValueError:
            return None  # Written in C.
        if parameter is not None:
            empty = parameter.default is parameter.empty
            return None if empty else parameter.default
    return None


def _locations_of(
    node: ConfigNode, component: Callable | None, cfg: Mapping
) -> Iterator[IgnoreLocation]:
    kind = getattr(component, '__name__', str(node.cfg.get('type')))
    kind = kind.rpartition('.')[2]
    of_preprocessor = node.name == 'data_preprocessor'
    for key, role in _ROLES.items():
        said = key in node.cfg
        value = node.cfg[key] if said else default_of(component, key)
        if key == 'pad_val':
            value = _of_maps(value, node, component)
            said = said and isinstance(node.cfg[key], Mapping)
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        role = role or _role_of_ignored(node, kind)
        if key == 'seg_pad_val' and (of_preprocessor or kind.endswith('Pad')):
            role = 'pad'
        if not said and not _default_counts(node, role, kind):
            continue
        if role == 'fill' and node.cfg.get('prob') == 0:
            continue
        pads, size = _pads(node, cfg) if role == 'pad' else ('', ())
        if pads != 'never':
            yield IgnoreLocation(
                location=join_key((*node.path, key)),
                value=value,
                role=role,
                said=said,
                kind=kind,
                pads=pads,
                size=size,
            )


def _of_maps(value: Any, node: ConfigNode, component: Any) -> Any:
    """What ``pad_val`` of MMCV's Pad is for label maps; None of others."""
    from mmcv.transforms import CenterCrop, Pad

    if not inspect.isclass(component):
        return None
    is_crop = issubclass(component, CenterCrop)
    if is_crop and not node.cfg.get('auto_pad'):
        return None
    if not (is_crop or issubclass(component, Pad)):
        return None
    if node.cfg.get('padding_mode', 'constant') != 'constant':
        return None
    return value.get('seg', 255) if isinstance(value, Mapping) else 255


def _role_of_ignored(node: ConfigNode, kind: str) -> str:
    section = node.path[0]
    if section.endswith(_EVALUATORS):
        return 'metric'
    if section == 'model' and not kind.endswith(_TAKES_CLASS_OUT):
        return 'loss'
    return 'loss' if kind == 'ValidateLabels' else 'look'


def _default_counts(node: ConfigNode, role: str, kind: str) -> bool:
    """Whether a value that the config does not say does something."""
    if role == 'loss' and node.path[0] == 'model':
        return any(str(step).startswith('loss') for step in node.path)
    if role == 'look':
        if node.path[0] == 'model' or 'pipeline' not in node.path:
            return False
        return kind != 'RandomCrop' or node.cfg.get('cat_max_ratio', 1) < 1
    return True


def _pads(node: ConfigNode, cfg: Mapping) -> tuple[str, tuple]:
    """As ``pads`` and ``size`` of IgnoreLocation; or ``'never'``."""
    size, steps = node.cfg.get('size'), None
    if node.name == 'data_preprocessor':
        steps = cfg
        for key in ('train_dataloader', 'dataset', 'pipeline'):
            steps = steps.get(key) if isinstance(steps, Mapping) else None
    else:
        # MMCV's transform has width and height.
        size = size[::-1] if isinstance(size, Sequence) else None
        *_, key, index = node.path
        pipeline = node.parent.cfg.get(key) if node.parent else None
        if isinstance(index, int) and isinstance(pipeline, Sequence):
            steps = pipeline[:index]
    if not isinstance(size, Sequence) or len(size) != 2:
        return 'perhaps', ()
    known, worst = _smallest(steps if isinstance(steps, Sequence) else [None])
    if known == 'stored':
        return 'stored', tuple(size)
    if known == 'all':
        return ('never' if tuple(worst) == tuple(size) else 'always'), ()
    # Pictures of either orientation: only the shorter side, or the longer
    # one, is certain to be too small.
    if known and (min(worst) < min(size) or max(worst) < max(size)):
        return 'always', ()
    return 'perhaps', ()


def _smallest(steps: Sequence) -> tuple[str, Sequence[float]]:
    """Height and width of the smallest picture after these steps.

    With ``'all'`` if all pictures have that size, ``'some'`` if some have no
    larger one, be it turned; or ``'stored'`` and nothing, if they have that
    of their file, and empty and nothing if it is not known.
    """
    known, worst = 'stored', ()
    for step in steps:
        step = step if isinstance(step, Mapping) else {}
        kind = str(step.get('type')).rpartition('.')[2]
        key = {'RandomCrop': 'crop_size', 'Pad': 'size'}.get(kind, 'scale')
        size = step.get(key)
        pair = isinstance(size, Sequence) and all(
            isinstance(side, int) for side in size
        )
        ratios = step.get('ratio_range')
        ranged = isinstance(ratios, Sequence) and len(ratios) > 0
        if kind == 'Resize' and pair:
            known = 'some' if step.get('keep_ratio') else 'all'
            worst = size[::-1]
        elif kind == 'RandomResize' and pair and ranged:
            known, worst = 'some', [ratios[0] * side for side in size[::-1]]
        elif kind == 'RandomCrop' and pair and worst:
            worst = min(*worst, *size), min(max(worst), max(size))
            known = 'some'
        elif kind == 'Pad' and pair:
            known, worst = 'all', size[::-1]
        elif kind not in _NEUTRAL and not (kind == 'RandomCrop' and pair):
            known, worst = '', ()
    return known, worst

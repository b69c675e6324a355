"""Find, in a config, what reads labels: heads, losses, values to ignore."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...utils.config_nodes import place, walk_dicts
from ..expectations import HeadFacts

__all__ = ['read_heads', 'read_ignore_places']

_DEFAULT_IGNORE = 255
# Keys that hold a value of pixels which are to be ignored, or to be filled.
# Sections besides the model that components are built from.
_READ_SUFFIXES = ('_dataloader', '_evaluator')
_IGNORE_KEYS = ('ignore_index', 'ignore_label', 'seg_pad_val')


def _losses(head: Mapping, path: tuple) -> Iterator[tuple[str, Mapping]]:
    """Losses of a head, not those of a head inside of it."""
    for key, value in head.items():
        if not str(key).startswith('loss'):
            continue
        for where, each in walk_dicts(value, (*path, key)):
            if 'type' in each:
                yield place(where), each


def read_heads(model: Any) -> tuple[HeadFacts, ...]:
    """The heads of a model that have a number of classes.

    Args:
        model: The ``model`` section of a config.

    Returns:
        One for each dict with ``num_classes`` and a loss.
    """
    heads = []
    for path, node in walk_dicts(model, ('model',)):
        losses = list(_losses(node, path))
        if not isinstance(node.get('num_classes'), int) or not losses:
            continue
        # Only MMSegmentation's heads have an ignored value by default.
        semantic = any('loss_decode' in where for where, _ in losses)
        weights = ((where, loss.get('class_weight')) for where, loss in losses)
        heads.append(
            HeadFacts(
                place=place(path),
                num_classes=node['num_classes'],
                ignore_index=node.get(
                    'ignore_index', _DEFAULT_IGNORE if semantic else None
                ),
                class_weights=tuple(
                    (where, len(weight))
                    for where, weight in weights
                    if isinstance(weight, Sequence)
                    and not isinstance(weight, str)
                ),
                losses=tuple(
                    (where, str(loss['type'])) for where, loss in losses
                ),
            )
        )
    return tuple(heads)


def read_ignore_places(cfg: Mapping) -> tuple[tuple[str, int], ...]:
    """Places of a config that hold a value to ignore or to fill with.

    Only sections that something is built from count: a variable such as
    ``train_pipeline`` is in the config, too, but nobody reads it.

    Args:
        cfg: A whole config, as a dict.

    Returns:
        Place and value, in the order of the config.

    Examples:
        >>> read_ignore_places({'model': {'head': {'ignore_index': 11}}})
        (('model.head.ignore_index', 11),)
    """
    found = []
    for section in cfg:
        if section != 'model' and not section.endswith(_READ_SUFFIXES):
            continue
        for path, node in walk_dicts(cfg[section], (section,)):
            for key in _IGNORE_KEYS:
                value = node.get(key)
                if isinstance(value, int) and not isinstance(value, bool):
                    found.append((place((*path, key)), value))
    return tuple(found)

"""One number of classes for all heads of a detector."""

from collections.abc import Mapping, Sequence

__all__ = ['share_num_classes']


def share_num_classes(
    num_classes: int | None, heads: Mapping[str, dict | Sequence[dict]]
) -> tuple[int, dict[str, dict | list[dict]]]:
    """Give every head the same number of classes, and refuse another one.

    Args:
        num_classes: The number, at least 1; None to take the one that the
            heads give.
        heads: Config, or list of configs, per kind of head. ``num_classes``
            is looked for in a config and in its ``bbox_head`` and
            ``mask_head``, where a two-stage head keeps it. Not edited.

    Returns:
        The number, and copies of the configs that all give it.

    Raises:
        ValueError: If a head gives another number, if nobody gives one, or if
            it is less than 1.

    Examples:
        >>> share_num_classes(3, {'query_head': {'type': 'Head'}})
        (3, {'query_head': {'type': 'Head', 'num_classes': 3}})
    """
    given = dict(_given(heads))
    if num_classes is None:
        if not given:
            raise ValueError(
                'num_classes must be given, got None; set model.num_classes'
            )
        num_classes = next(iter(given.values()))
    if num_classes < 1:
        raise ValueError(f'num_classes must be at least 1, got {num_classes}')
    wrong = {
        name: value for name, value in given.items() if value != num_classes
    }
    if wrong:
        raise ValueError(
            f'num_classes must be the same in all heads, got {num_classes} '
            f'and {wrong}; set model.num_classes only'
        )
    return num_classes, {
        name: [_filled(item, num_classes) for item in cfg]
        if isinstance(cfg, list | tuple)
        else _filled(cfg, num_classes)
        for name, cfg in heads.items()
    }


def _parts(cfg: dict) -> list[tuple[str, dict]]:
    """The configs inside a head's config that hold a number of classes."""
    inner = [
        (f'.{key}', cfg[key])
        for key in ('bbox_head', 'mask_head')
        if isinstance(cfg.get(key), Mapping)
    ]
    return inner or [('', cfg)]


def _given(heads: Mapping[str, dict | Sequence[dict]]):
    """Pairs of place and number, where a head gives one."""
    for name, cfg in heads.items():
        items = cfg if isinstance(cfg, list | tuple) else [cfg]
        for i, item in enumerate(items):
            place = f'{name}[{i}]' if len(items) > 1 else name
            for suffix, part in _parts(item):
                if part.get('num_classes') is not None:
                    yield f'{place}{suffix}', part['num_classes']


def _filled(cfg: dict, num_classes: int) -> dict:
    """A copy of a head's config with the number of classes in place."""
    filled = dict(cfg)
    for suffix, part in _parts(cfg):
        if suffix:
            filled[suffix[1:]] = {**part, 'num_classes': num_classes}
        else:
            filled['num_classes'] = num_classes
    return filled

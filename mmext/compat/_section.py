"""Read a foreign config dict so that no key is lost on the way.

A translation takes every key out of a :class:`Section` and closes it; what
was not taken is an error. The values are plain copies, so the translation can
keep them without touching the caller's dict.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mmdet.registry import MODELS as MMDET_MODELS
from mmdet.registry import TASK_UTILS as MMDET_TASK_UTILS

__all__ = [
    'Section',
    'agree',
    'component',
    'same',
    'to_plain',
    'with_host_prefix',
]

_MISSING = object()


def to_plain(value: Any) -> Any:
    """Copy nested config containers into plain dicts, lists and tuples.

    Args:
        value: A config value; a ``Mapping`` such as mmengine's
            ``ConfigDict`` becomes a dict, anything that is not a container
            is returned as it is.

    Returns:
        The copy.

    Examples:
        >>> from mmengine import ConfigDict
        >>> type(to_plain(ConfigDict(a=[dict(b=1)]))['a'][0])
        <class 'dict'>
    """
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(to_plain(item) for item in value)
    return value


def same(first: Any, second: Any) -> bool:
    """Whether two config values are equal, a tuple being as good as a list.

    Examples:
        >>> same({'size': (7, 7)}, {'size': [7, 7]})
        True
    """
    return _lists(first) == _lists(second)


def _lists(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _lists(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_lists(item) for item in value]
    return value


def agree(what: str, values: Mapping[str, Any]) -> Any:
    """The one value that all places give.

    Args:
        what: Name of the quantity, for the message.
        values: ``{place: value}``, not empty.

    Returns:
        The value.

    Raises:
        ValueError: If two places differ. The message lists all of them.

    Examples:
        >>> agree('num_classes', {'a.num_classes': 7, 'b.num_classes': 7})
        7
    """
    first = next(iter(values.values()))
    if all(same(first, value) for value in values.values()):
        return first
    listed = ', '.join(f'{place}={value!r}' for place, value in values.items())
    raise ValueError(
        f'{what} must be the same everywhere, got {listed}; '
        'give all places one value'
    )


def with_host_prefix(value: Any) -> Any:
    """Copy of a config value in which mmdet's types carry ``mmdet.``.

    A type that has a prefix already, or that mmdet does not register itself
    (``'GN'``, ``'RoIAlign'``, ``'nms'``), is left as it is.

    Args:
        value: A config value of any kind.

    Returns:
        The copy.

    Examples:
        >>> with_host_prefix({'type': 'L1Loss', 'norm': {'type': 'GN'}})
        {'type': 'mmdet.L1Loss', 'norm': {'type': 'GN'}}
    """
    if isinstance(value, Mapping):
        plain = {key: with_host_prefix(item) for key, item in value.items()}
        if _is_mmdet_name(plain.get('type')):
            plain['type'] = f'mmdet.{plain["type"]}'
        return plain
    if isinstance(value, list | tuple):
        return type(value)(with_host_prefix(item) for item in value)
    return value


def _is_mmdet_name(name: Any) -> bool:
    if not isinstance(name, str) or '.' in name:
        return False
    for registry in (MMDET_MODELS, MMDET_TASK_UTILS):
        registry.import_from_location()
        if name in registry.module_dict:
            return True
    return False


def component(cfg: Any, place: str) -> dict:
    """Copy of a component's config, its type checked and prefixed.

    Args:
        cfg: The config of a backbone, a neck, a loss or the like.
        place: Where it stands, for the message.

    Returns:
        The copy, as :func:`with_host_prefix` makes it.

    Raises:
        TypeError: If ``cfg`` is not a dict.
        ValueError: If it has no type, or one that no registry knows.

    Examples:
        >>> component({'type': 'ResNet', 'depth': 18}, 'model.backbone')
        {'type': 'mmdet.ResNet', 'depth': 18}
    """
    section = Section(cfg, place)
    name = section.take('type')
    plain = with_host_prefix(to_plain(cfg))
    if isinstance(name, str) and MMDET_MODELS.get(plain['type']) is None:
        raise ValueError(
            f'{place}.type must name a registered model, got {name!r}; import '
            'the module that registers it first, or use one of mmdet'
        )
    return plain


class Section:
    """One dict of a foreign config, read key by key.

    Args:
        cfg: The dict. Not edited.
        place: Where it stands, such as ``'model.query_head'``; every message
            starts with it.

    Raises:
        TypeError: If ``cfg`` is not a dict.

    Examples:
        >>> section = Section({'num_query': 900}, 'model.query_head')
        >>> section.take('num_query')
        900
        >>> section.close()
    """

    def __init__(self, cfg: Any, place: str) -> None:
        if not isinstance(cfg, Mapping):
            raise TypeError(f'{place} must be a dict, got {cfg!r}')
        self.place = place
        self._left = to_plain(cfg)

    def take(self, key: str, default: Any = _MISSING) -> Any:
        """Remove a key and return its value.

        Args:
            key: Name of the key.
            default: Returned if there is no such key.

        Raises:
            ValueError: If the key is missing and there is no default.
        """
        value = self._left.pop(key, default)
        if value is _MISSING:
            raise ValueError(
                f'{self.place} must have a key {key!r}, got '
                f'{sorted(self._left)}; add it'
            )
        return value

    def expect(
        self,
        key: str,
        allowed: Sequence[Any],
        *,
        default: Any = _MISSING,
        remedy: str,
    ) -> Any:
        """Take a key that may have only these values.

        Args:
            key: Name of the key.
            allowed: The values that can be translated.
            default: What a missing key means in the foreign code.
            remedy: End of the message.

        Returns:
            The value.

        Raises:
            ValueError: If the value is another one, or the key is missing
                and there is no default.
        """
        value = self.take(key, default)
        # The type too: 1 is not True, and 0 is not False.
        if any(
            same(value, item) and type(value) is type(item) for item in allowed
        ):
            return value
        options = ' or '.join(repr(item) for item in allowed)
        raise ValueError(
            f'{self.place}.{key} must be {options}, got {value!r}; {remedy}'
        )

    def section(self, key: str) -> 'Section':
        """Take a key whose value is a dict, as a section of its own."""
        return Section(self.take(key), f'{self.place}.{key}')

    def rest(self) -> dict:
        """Take all that is left."""
        left, self._left = self._left, {}
        return left

    def close(self, remedies: Mapping[str, str] | None = None) -> None:
        """Refuse what was not taken.

        Args:
            remedies: Special advice per key.

        Raises:
            ValueError: If a key is left.
        """
        for key, value in self._left.items():
            advice = (remedies or {}).get(
                key,
                'mmext has no setting for it: check what it did in the '
                'code it was written for, then remove it',
            )
            raise ValueError(
                f'{self.place} must have only keys that can be translated, '
                f'got {key}={value!r}; {advice}'
            )

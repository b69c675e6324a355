"""Read a dict of a foreign config by a table of its keys.

A table lists what a key may hold and what becomes of it; a key that no table
lists is an error, so that no setting is lost. Values are copied.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from mmdet.registry import MODELS as MMDET_MODELS
from mmdet.registry import TASK_UTILS as MMDET_TASK_UTILS

__all__ = [
    'ABSENT',
    'NO_INIT',
    'REQUIRED',
    'Key',
    'Section',
    'agree',
    'component',
    'keep',
    'only',
    'read',
    'required_type',
    'to_plain',
    'with_host_prefix',
]

REQUIRED = object()
ABSENT = object()
_UNKNOWN = (
    'mmext has no setting for it: check what it did in the code it was '
    'written for, then remove it'
)


class Key(NamedTuple):
    """One key of a public dict, and what becomes of it.

    A missing key has the value ``default``, which is what it meant in the
    public code; ``REQUIRED`` makes it an error, and ``ABSENT`` leaves it
    out of the result.
    """

    there: str
    here: str | None  # None: checked, and left out of the result.
    default: Any = REQUIRED
    allowed: Sequence[Any] | None = None  # None: any value.
    remedy: str = 'mmext has no other kind'
    read: Callable[[Any, str], Any] | None = None  # From value and place.


def keep(there: str, default: Any = REQUIRED, **options: Any) -> Key:
    """A key that has the same name here."""
    return Key(there, there, default, **options)


def only(
    there: str,
    *allowed: Any,
    remedy: str = 'mmext has no other kind',
    default: Any = ABSENT,
) -> Key:
    """A key with one meaning here; a missing one means the first value."""
    default = allowed[0] if default is ABSENT else default
    return Key(there, None, default, allowed, remedy)


def required_type(*names: str) -> Key:
    """The required ``type``."""
    return only('type', *names, default=REQUIRED)


NO_INIT = only('init_cfg', None)


class Section:
    """One dict of a public config, read by tables until nothing is left."""

    def __init__(self, cfg: Any, place: str) -> None:
        if not isinstance(cfg, Mapping):
            raise TypeError(f'{place} must be a dict, got {cfg!r}')
        self.place = place
        self._keys = list(cfg)
        self._left = to_plain(cfg)

    def read(self, *keys: Key) -> dict:
        """Take these keys, and return them by their names here."""
        result = {}
        for key in keys:
            value = self._take(key)
            if key.read is not None and value is not ABSENT:
                value = key.read(value, f'{self.place}.{key.there}')
            if key.here is not None and value is not ABSENT:
                result[key.here] = value
        return result

    def rest(self) -> dict:
        """Take all that is left."""
        left, self._left = self._left, {}
        return left

    def close(self, remedies: Mapping[str, str] | None = None) -> None:
        """Refuse what was not taken."""
        for key, value in self._left.items():
            raise ValueError(
                f'{self.place} must have only keys that can be translated, '
                f'got {key}={value!r}; {(remedies or {}).get(key, _UNKNOWN)}'
            )

    def _take(self, key: Key) -> Any:
        value = self._left.pop(key.there, key.default)
        if value is REQUIRED:
            raise ValueError(
                f'{self.place} must have a key {key.there!r}, got '
                f'{self._keys}; add it'
            )
        # The type too: 1 is not True, and 0 is not False.
        if key.allowed is None or any(
            _same(value, item) and type(value) is type(item)
            for item in key.allowed
        ):
            return value
        options = ' or '.join(dict.fromkeys(map(repr, key.allowed)))
        raise ValueError(
            f'{self.place}.{key.there} must be {options}, got {value!r}; '
            f'{key.remedy}'
        )


def read(cfg: Any, place: str, *keys: Key) -> dict:
    """Read a dict that has no other keys than these."""
    section = Section(cfg, place)
    result = section.read(*keys)
    section.close()
    return result


def to_plain(value: Any) -> Any:
    """Copy nested config containers into plain dicts, lists and tuples."""
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(to_plain(item) for item in value)
    return value


def _same(first: Any, second: Any) -> bool:
    """Whether two values are equal, a tuple being as good as a list."""
    return _lists(first) == _lists(second)


def _lists(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _lists(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_lists(item) for item in value]
    return value


def agree(what: str, values: Mapping[str, Any]) -> Any:
    """The one value that all places give, from ``{place: value}``."""
    first = next(iter(values.values()))
    if all(_same(first, value) for value in values.values()):
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
    """Copy of a component's config, its type checked and prefixed."""
    name = Section(cfg, place).read(keep('type'))['type']
    plain = with_host_prefix(to_plain(cfg))
    if isinstance(name, str) and MMDET_MODELS.get(plain['type']) is None:
        raise ValueError(
            f'{place}.type must name a registered model, got {name!r}; import '
            'the module that registers it first, or use one of mmdet'
        )
    return plain

"""Which part of a config an exception of building is about."""

import linecache
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from mmengine.config import Config

from ..config import Steps, key_place, walk_dicts
from ..findings import frames_of

# Functions of MMEngine that build what a dict says, their argument ``cfg``.
_BUILDERS = ('build_from_cfg', 'build_scheduler_from_cfg')
UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")


def error_text(error: BaseException) -> str:
    """What an exception says, in one line; of a bare ``assert`` its code."""
    text = str(error)
    if isinstance(error, KeyError) and error.args:
        text = str(error.args[0])
    # What registries of MMEngine add is advice for all cases.
    text = ' '.join(text.split()).partition('. Please check whether')[0]
    frames = frames_of(error)
    if not text and frames:
        frame, line = frames[-1]
        text = linecache.getline(frame.f_code.co_filename, line).strip()
    return f'{type(error).__name__}: {text}'


class Blamed(NamedTuple):
    """What could not be built."""

    # Keys that lead to the innermost dict whose component was being built.
    path: Steps
    # In that dict, which the exception names by itself or by its value, with
    # the keys below it; empty if it names none.
    key: Steps = ()
    # What the component was to be made of; None if not known.
    kind: Any = None

    @property
    def whole(self) -> Steps:
        """All keys."""
        return (*self.path, *self.key)


def find_part(
    error: BaseException,
    section: Any,
    path: Steps,
    methods: Collection[str] = ('__init__',),
) -> Blamed:
    """The part of a section at ``path`` that an exception is about.

    It was raised while the section was built, in one of these methods of a
    component.
    """
    here, kind = path, None
    for cfg, kind in _builds_of(error):  # noqa: B007
        here = _best_match(cfg, section, path, here) or here
    inner = part_at(section, here[len(path) :])
    # Of methods that were running, the innermost first.
    classes = [
        type(frame.f_locals['self']).__name__
        for frame, _ in frames_of(error)[::-1]
        if frame.f_code.co_name in methods and 'self' in frame.f_locals
    ]
    for name in classes:
        dicts = [
            where
            for where, part in walk_dicts(inner, here)
            if plain_name(part.get('type')) == name
        ]
        if dicts:
            here = dicts[0]
            inner = part_at(section, here[len(path) :])
            break
    keyword = UNEXPECTED.search(str(error))
    if keyword is not None:
        named = isinstance(inner, Mapping) and keyword[1] in inner
        return Blamed(here, (keyword[1],) if named else (), kind)
    value = _named_value(str(error), inner, here) or here
    return Blamed(here, value[len(here) :], kind)


def plain_name(kind: Any) -> str:
    """A ``type`` without its scope; empty for no name."""
    if isinstance(kind, str):
        return kind.rpartition('.')[2]
    return getattr(kind, '__name__', '')


def _builds_of(error: BaseException) -> Iterator[tuple[Mapping, Any]]:
    """Dicts that were being built, and their classes, the outermost first."""
    frames = frames_of(error)
    for frame, _ in frames:
        cfg = frame.f_locals.get('cfg')
        if frame.f_code.co_name in _BUILDERS and isinstance(cfg, Mapping):
            yield cfg, frame.f_locals.get('obj_cls')
    inner = error.__cause__ or error.__context__
    # A builder that raises anew what a class has raised.
    if inner and frames and frames[-1][0].f_code.co_name in _BUILDERS:
        yield from _builds_of(inner)


def _best_match(
    cfg: Mapping, section: Any, path: Steps, here: Steps
) -> Steps | None:
    """The dict at or below ``here`` that has most in common with one."""
    best, most = None, 0
    for where, part in walk_dicts(part_at(section, here[len(path) :]), here):
        if plain_name(part.get('type')) != plain_name(cfg.get('type')):
            continue
        same = 1 + sum(
            key in cfg and _same(cfg[key], value)
            for key, value in part.items()
            if key != 'type'
        )
        if same > most:
            best, most = where, same
    return best


def _same(one: Any, other: Any) -> bool:
    """Whether two values of configs are equal, as far as they can be."""
    plain = (str, int, float, type(None), list, tuple, Mapping)
    if isinstance(one, plain) and isinstance(other, plain):
        return bool(one == other)
    return one is other


def _named_value(text: str, inner: Any, here: Steps) -> Steps | None:
    """The deepest key whose value a message names."""
    best: Steps | None = None
    for where, part in walk_dicts(inner, here):
        for key, value in part.items():
            items = value if isinstance(value, list | tuple) else [value]
            named = key != '_scope_' and any(
                _is_in(item, text, key == 'type') for item in items
            )
            if named and (best is None or len(where) + 1 >= len(best)):
                best = (*where, key)
    return best


def _is_in(value: Any, text: str, is_type: bool) -> bool:
    """Whether a message has a value of a config as a word."""
    if not isinstance(value, str):
        return False
    word = plain_name(value) if is_type else value
    pattern = rf'(?<!\w){re.escape(word)}(?!\w)'
    return len(word) > 3 and re.search(pattern, text) is not None


class Merged(NamedTuple):
    """Keys of a base that a config left in a dict whose type it changed."""

    # Name of the type that the base has there.
    kind: str
    # ``file:line`` where the base sets the first of the keys.
    place: str
    keys: tuple[str, ...]


def merged_keys(
    file: str, path: Steps, part: Mapping, key: str
) -> Merged | None:
    """Whether a key is left over from a base's dict of another type.

    ``part`` is the dict at ``path`` of the config after all merges, whose
    type does not take the key. None if the key was written for this type, or
    if that is not known.
    """
    place = key_place(file, '.'.join(map(str, (*path, key))))
    if not place.file:
        return None
    # The value that the file which sets the key has there.
    written = Config.fromfile(place.file, import_custom_modules=False)
    value = part_at(written.to_dict(), path)
    if not isinstance(value, Mapping) or key not in value:
        return None
    kind = plain_name(value.get('type'))
    if not kind or kind == plain_name(part.get('type')):
        return None
    own = {'type', '_scope_', '_delete_'}
    return Merged(
        kind,
        f'{place.file}:{place.line}',
        tuple(
            name
            for name, item in value.items()
            if name in part and name not in own and _same(item, part[name])
        ),
    )


def part_at(cfg: Mapping, path: Steps) -> Any:
    """The value at a path of a config; None if there is none."""
    value: Any = cfg
    for step in path:
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif isinstance(value, list | tuple) and isinstance(step, int):
            value = value[step] if step < len(value) else None
        else:
            return None
    return value

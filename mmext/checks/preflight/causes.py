"""Settings that cause an error, with values with which it is gone.

An exception names a value or a function, and not the setting behind it.
:func:`read_settings` goes from the failing line outwards: names in the code
that are keys of the config are settings that may be the cause, if something
speaks against their value, such as its type, or a number in the message.
:func:`try_settings` tries other values; a remedy is one that was seen to help.
"""

import ast
import inspect
import linecache
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from types import FrameType
from typing import Any, NamedTuple

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, TRANSFORMS

from ..config import (
    Steps,
    copy_tree,
    find_component,
    join_key,
    walk_dicts,
)
from ..findings import ErrorCatcher
from .sandbox import (
    builder_frames,
    frames_to_cause,
    part_at,
    plain_name,
)

# Trials of one error, and their time on the processor in seconds.
_MAX_TRIALS, _MAX_SECONDS = 10, 30.0
# Lines that are read above a failing one, and below in one call.
_LINES_ABOVE, _LINES_BELOW = 30, 8
# In which a value and those that are taken are named.
_LINES_AROUND = 3
_MAX_LENGTH, _MAX_SHOWN = 10_000, 8
# Keys that name a component, or what is done with it.
_NO_ARGUMENTS = ('type', '_scope_', 'init_cfg')
# The data decide about their value: with another one, the error may be gone
# and the training wrong.
_OF_DATA = ('num_classes', 'num_things_classes', 'num_stuff_classes')
_OF_DATA += ('ignore_index', 'batch_size')
_WORD = re.compile(r'[A-Za-z_]\w*')
_NUMBER = re.compile(r'\d+')
_DIMENSION = re.compile(r'dimension \d+')
# Messages whose numbers are a value, and what it would have to be.
_OF_SIZES = re.compile(
    r'channels|size|shape|match|out of|has no attribute|invalid', re.IGNORECASE
)
_ATTRIBUTE = re.compile(r'\s*self\.(\w+)\s*(?::[^=]+)?=(?!=)')
_NO_LIST = re.compile(
    r'object is not (iterable|subscriptable)|has no len|must be a sequence'
)
_OUT_OF_BOUNDS = re.compile(r'index (\d+) is out of bounds .*size (\d+)')
_NO_FIELD = re.compile(
    r"'(?:InstanceData|PixelData|\w*DataSample)' object has no attribute "
    r"'(\w+)'"
)
# Fields of a sample -> the setting of LoadAnnotations that fills them.
_LOADED_BY = {
    'bboxes': 'with_bbox',
    'labels': 'with_label',
    'masks': 'with_mask',
    'gt_sem_seg': 'with_seg',
    'sem_seg': 'with_seg',
}
# Steps that pack a sample -> the package whose models take it.
_PACKERS = {
    'PackDetInputs': 'mmdet',
    'PackSegInputs': 'mmseg',
    'PackInputs': 'mmpretrain',
}


class Setting(NamedTuple):
    """An argument of a component, which may cause an error."""

    # Where it is set, or would be if it is a default.
    path: Steps
    value: Any
    # Values with which the error may be gone, the most likely first.
    others: tuple[Any, ...] = ()
    # Values that the code takes, where it has a list of them.
    choices: tuple[Any, ...] = ()

    def in_words(self) -> str:
        """``model.num_queries='60'``; a long list is shortened."""
        value = self.value
        if isinstance(value, list | tuple) and len(value) > _MAX_SHOWN:
            text = f'{type(value).__name__} of {len(value)} values'
        else:
            text = repr(value)
        return f'{join_key(self.path)}={text}'


class Trial(NamedTuple):
    """A setting, and another value with which an error is gone."""

    setting: Setting
    value: Any

    @property
    def remedy(self) -> str:
        """As ``set model.num_queries=60, with which this error is gone``."""
        right = self.setting._replace(value=self.value)
        text = f'set {right.in_words()}, with which this error is gone'
        if self.setting.choices:
            text += f'; it may be {", ".join(map(repr, self.setting.choices))}'
        return text


def try_settings(
    cfg: Config,
    settings: Sequence[Setting],
    goes_through: Callable[[Config], bool],
) -> Trial | None:
    """Try other values of settings; the first with which it goes through."""
    end, left = time.thread_time() + _MAX_SECONDS, _MAX_TRIALS
    for setting in settings:
        for value in setting.others:
            if not left or time.thread_time() > end:
                return None
            left -= 1
            top = copy_tree(cfg.to_dict())
            node = part_at(top, setting.path[:-1])
            if not isinstance(node, dict | list):
                continue
            node[setting.path[-1]] = value
            if goes_through(Config(top, format_python_code=False)):
                return Trial(setting, value)
    return None


def read_settings(
    error: BaseException, top: Mapping[str, Any], section: str
) -> tuple[Setting, ...]:
    """Settings that may cause an error, the most likely first.

    ``top`` is the config as dicts, ``section`` the one whose part failed. The
    code may be of any kind: what cannot be read is left out.
    """
    found: list[tuple[Any, Setting]] = []
    with ErrorCatcher(lambda other: None):
        found += _of_message(str(error), top)
    with ErrorCatcher(lambda other: None):
        found += _Reader(error, top, section).read()
    found.sort(key=lambda item: item[0])
    best: dict[Steps, Setting] = {}
    for _, setting in found:
        best.setdefault(setting.path, setting)
    return tuple(best.values())


def settings_in_line(
    error: BaseException, top: Mapping[str, Any], section: str
) -> tuple[Setting, ...]:
    """Settings that the failing statement names, whatever their value."""
    found: list[Setting] = []
    with ErrorCatcher(lambda other: None):
        found += _Reader(error, top, section).read_line()
    return tuple({setting.path: setting for setting in found}.values())


class _Reader:
    """Reads the code that an exception went through."""

    def __init__(
        self, error: BaseException, top: Mapping[str, Any], section: str
    ) -> None:
        self._message = str(error)
        self._is_index = isinstance(error, IndexError)
        text = _DIMENSION.sub('', self._message)
        numbers = map(int, _NUMBER.findall(text))
        # The last one is what was found, as a rule.
        self._numbers = list(dict.fromkeys(numbers))[::-1]
        self._frames = frames_to_cause(error)[::-1]
        kinds = [type(f.f_locals.get('self')) for f, _ in self._frames]
        kinds += [f.f_locals.get('obj_cls') for f in builder_frames(error)]
        # Classes whose code ran, the innermost first, with their bases.
        self._owners = {
            base.__name__: kind
            for kind in reversed(kinds)
            if inspect.isclass(kind)
            for base in reversed(kind.__mro__)
        }
        self._nodes: list[tuple[Steps, Mapping, str]] = []
        kind_at: dict[Steps, str] = {}
        for path, node in walk_dicts(top.get(section), (section,)):
            name = plain_name(node.get('type'))
            above = (path[:n] for n in range(len(path) - 1, 0, -1))
            name = name or next(
                (kind_at[outer] for outer in above if outer in kind_at), ''
            )
            kind_at[path] = name
            self._nodes.append((path, node, name))

    def read(self) -> Iterator[tuple[Any, Setting]]:
        """Settings, each with its rank: how much speaks against its value."""
        distance = 0
        seen: set[str] = set()
        for frame, line in self._frames:
            lines = list(_lines_upwards(frame, line))
            for index, text in enumerate(lines):
                around = ''.join(lines[index : index + _LINES_AROUND])
                for word in _words(text, frame):
                    distance += 1
                    if word in _NO_ARGUMENTS or word in seen:
                        continue
                    seen.add(word)
                    for owned, setting, default in self._settings(word):
                        choices = _choices(around, frame, setting.value)
                        rank, others = self._others(
                            word, setting.value, default, choices
                        )
                        if others:
                            yield (
                                (rank, not owned, distance),
                                setting._replace(
                                    others=tuple(others), choices=choices
                                ),
                            )

    def read_line(self) -> Iterator[Setting]:
        """Settings of classes that ran, in the innermost statement."""
        for frame, line in self._frames[:1]:
            for word in _words(next(_lines_upwards(frame, line)), frame):
                for owned, setting, _ in self._settings(word):
                    if owned and word not in _NO_ARGUMENTS:
                        yield setting

    def _settings(self, word: str) -> Iterator[tuple[bool, Setting, Any]]:
        """Where a word is set; whether a class that ran reads it, default."""
        for path, node, name in self._nodes:
            kind = self._owners.get(name)
            default = _defaults(kind).get(word) if kind else None
            is_part = isinstance(node.get(word), Mapping) and (
                'type' in node[word]
            )
            if word in node and not is_part:
                yield (
                    kind is not None,
                    Setting((*path, word), node[word]),
                    default,
                )
            elif default is not None and 'type' in node:
                yield True, Setting((*path, word), default), default

    def _others(
        self, word: str, value: Any, default: Any, choices: Sequence[Any]
    ) -> tuple[int, list[Any]]:
        """Values to try, and how little speaks for them, from 0."""
        numbers = self._numbers
        if isinstance(value, bool) or value is None:
            return 0, []
        if choices:
            return 0, list(choices[:2])
        if isinstance(value, str):
            with suppress(SyntaxError, ValueError):
                meant = ast.literal_eval(value)
                more = [float(meant)] if type(meant) is int else []
                return 0, [meant, *more]
            return 0, []
        if isinstance(value, Mapping):
            named = {str(key): inner for key, inner in value.items()}
            return 0, [named] * any(not isinstance(key, str) for key in value)
        if isinstance(value, list | tuple) and value:
            kind, size = type(value), len(value)
            if 'channels' in word:
                made = [kind(c) for c in self._channels(size)]
                if any(channels != value for channels in made):
                    return 0, [c for c in made if c != value]
            if size == 1 and 'not supported between' in self._message:
                return 0, [value[0]]
            if size in numbers:
                *first, last = value
                return 1, [
                    kind([*first[: n - 1], *[last] * (n - size), last])
                    for n in numbers
                    if 1 < n < _MAX_LENGTH and n != size
                ]
            return 2, []
        if isinstance(default, list | tuple):
            return 0, [default]
        if _NO_LIST.search(self._message):
            return 0, [[value]]
        if type(value) is not int or word in _OF_DATA:
            return 2, []
        others = [n for n in numbers if n != value]
        if value in numbers and 'divisible' in self._message:
            parts = [n for n in range(2, *others[:1]) if not others[0] % n]
            return 1, sorted(parts, key=lambda n: abs(n - value))[:1]
        if value in numbers and _OF_SIZES.search(self._message):
            return 1, [*others[:2], value - 1]
        return 2, [value - 1] * self._is_index

    def _channels(self, size: int) -> Sequence[tuple[int, ...]]:
        """Channels of the maps in lists of functions, as many first."""
        found = {
            tuple(x.shape[1] for x in maps)
            for frame, _ in self._frames
            for maps in list(frame.f_locals.values())
            if isinstance(maps, list | tuple)
            and len(maps) > 1
            and all(isinstance(x, torch.Tensor) and x.dim() == 4 for x in maps)
        }
        return sorted(found, key=lambda channels: len(channels) != size)


def _lines_upwards(frame: FrameType, line: int) -> Iterator[str]:
    """The failing statement, then the lines above it in its function."""
    file, first = frame.f_code.co_filename, frame.f_code.co_firstlineno
    text, end = linecache.getline(file, line), line
    while end < line + _LINES_BELOW and (
        text.count('(') + text.count('[') > text.count(')') + text.count(']')
    ):
        end += 1
        text += linecache.getline(file, end)
    yield text
    for number in range(line - 1, max(first, line - _LINES_ABOVE) - 1, -1):
        yield linecache.getline(file, number)


def _words(text: str, frame: FrameType) -> Iterator[str]:
    """Names in code, and those of which its attributes of ``self`` are."""
    words = dict.fromkeys(_WORD.findall(text))
    yield from words
    made = _assignments(type(frame.f_locals.get('self')))
    for word in words:
        yield from _WORD.findall(made.get(word, ''))


@lru_cache(maxsize=256)
def _assignments(kind: type) -> dict[str, str]:
    """Code that gives the attributes of a class their values."""
    made: dict[str, str] = {}
    for base in kind.__mro__:
        if base.__module__.partition('.')[0] in ('torch', 'builtins'):
            continue
        with suppress(OSError, TypeError):
            lines = inspect.getsource(base).splitlines()
            for text, after in zip(lines, [*lines[1:], '']):
                name = _ATTRIBUTE.match(text)
                if name is not None:
                    more = after if text.count('(') > text.count(')') else ''
                    made.setdefault(name[1], f'{text[name.end() :]} {more}')
    return made


@lru_cache(maxsize=256)
def _defaults(kind: type) -> dict[str, Any]:
    """Arguments of a class and its bases that have a default."""
    defaults: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        with suppress(TypeError, ValueError):
            for name, p in inspect.signature(base.__init__).parameters.items():
                defaults[name] = None if p.default is p.empty else p.default
    return defaults


def _choices(text: str, frame: FrameType, value: Any) -> tuple[Any, ...]:
    """Values in a container that the code names, which lacks this one."""
    if type(value) not in (int, str) or not re.search(r'\bin\b|\[', text):
        return ()
    known = {**frame.f_locals}
    owner = known.get('self')
    for word in _WORD.findall(text):
        items = known.get(word, getattr(owner, word, None))
        if isinstance(items, Mapping | list | tuple | set) and items:
            same = [item for item in items if type(item) is type(value)]
            if len(same) == len(items) and value not in same:
                return tuple(same)
    return ()


def _of_message(
    text: str, top: Mapping[str, Any]
) -> Iterator[tuple[Any, Setting]]:
    """Settings that the message alone is about."""
    field = _NO_FIELD.search(text)
    if field is not None:
        for setting in _of_sample(field[1], top):
            yield (0,), setting
    bound = _OUT_OF_BOUNDS.search(text)
    if bound is not None:
        count, size = int(bound[1]) + 1, int(bound[2])
        for path, node in walk_dicts(top.get('model'), ('model',)):
            for key, value in node.items():
                if value == count and type(value) is int and size:
                    yield (3,), Setting((*path, key), value, (size,))


def _of_sample(field: str, top: Mapping[str, Any]) -> Iterator[Setting]:
    """Steps of the training pipeline that may leave out a field."""
    model = top.get('model') or {}
    scope = top.get('default_scope') or 'mmengine'
    kind = find_component(model.get('type'), (MODELS,), scope)
    packages = [
        base.__module__.partition('.')[0]
        for base in getattr(kind, '__mro__', ())
    ]
    flag = _LOADED_BY.get(field)
    loader = top.get('train_dataloader')
    for path, step in walk_dicts(loader, ('train_dataloader',)):
        name = plain_name(step.get('type'))
        if name == 'LoadAnnotations' and flag and not step.get(flag):
            yield Setting((*path, flag), step.get(flag, False), (True,))
        if name in _PACKERS:
            packer = find_component(step['type'], (TRANSFORMS,), scope)
            package = getattr(packer, '__module__', '').partition('.')[0]
            right = {
                f'{other}.{pack}'
                for pack, other in _PACKERS.items()
                if other in packages
            }
            if package not in packages:
                yield Setting((*path, 'type'), step['type'], tuple(right))

"""Search a config for settings that nothing reads where they are."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ._config_sections import (
    SECTIONS,
    UNREAD,
    Section,
    find_component,
    is_used,
    place,
    takes,
    walk,
)
from ._right_places import (
    FLAG,
    RIGHT_PLACES,
    Path,
    RightPlaces,
    RunnerKind,
    checkpoint_hook,
    config_lines,
    merge,
    nested,
    of_checkpointing,
    wrapper_takes,
)

__all__ = ['MisplacedKey', 'MisplacedKeySearch']

_WRAPPERS = (('model_wrapper_cfg',), ('strategy', 'model_wrapper'))
_CP = 'with_cp'
# Dicts of settings that components look up by name, and that nobody checks.
_LOOKED_UP = {'train_cfg', 'test_cfg', 'paramwise_cfg', 'clip_grad'}
# Packages in which with_cp is a switch, or a number of layers.
_HOSTS = ('mmext', 'mmdet', 'mmseg', 'mmcv', 'mmpretrain')
# What FlexibleRunner leaves to its strategy, or has not.
_NOT_FLEXIBLE = (
    'model_wrapper_cfg',
    'sync_bn',
    'activation_checkpointing',
    'efficient_conv_bn_eval',
)
_NO_STRATEGY = (RunnerKind.PORTABLE, RunnerKind.PLAIN)
_LIKE = 0.85


@dataclass(frozen=True)
class MisplacedKey:
    """A setting where nothing reads it.

    Attributes:
        key: The setting, by its right name.
        place: Where it is, such as
            ``model.train_cfg.find_unused_parameters``.
        value: Its value.
        reason: Why it does not work there.
        read_at: Where it is read, in words.
        cure: What to merge into the config instead; empty if the setting
            only has to go.
    """

    key: str
    place: str
    value: Any
    reason: str
    read_at: str
    cure: Mapping[str, Any] = field(default_factory=dict)

    @property
    def remedy(self) -> str:
        """Lines for the config, or that there is nothing to set."""
        return config_lines(self.cure) or 'remove it'


def _near(key: Any) -> str | None:
    """The setting that a name is meant for, None if it is another name."""
    if not isinstance(key, str) or key in RIGHT_PLACES:
        return None
    plain = key.replace('_', '').lower()
    for name in RIGHT_PLACES:
        other = name.replace('_', '')
        if plain == other:
            return name
        # Short names are near to too many others.
        if len(other) > 8 and (
            difflib.SequenceMatcher(None, plain, other).ratio() >= _LIKE
        ):
            return name
    return None


def _same(one: Any, other: Any) -> bool:
    """Equal, and True is not 1."""
    return (type(one), one) == (type(other), other)


class MisplacedKeySearch:
    """One search.

    Args:
        top: The top level of the config.
        text: Its source, empty if it has none.
        runner: The runner that is going to be used, see
            :func:`~mmext.preflight.find_misplaced_keys`.
    """

    def __init__(
        self, top: dict[str, Any], text: str, runner: type | str | None
    ) -> None:
        self._top = top
        self._code = re.sub('#.*', '', text or '')
        self._scope = top.get('default_scope') or 'mmengine'
        self._right = RightPlaces(top, self._scope, runner)
        # Where settings are read, and the backbones that may read with_cp.
        self._read: dict[str, list[tuple[Path, Any]]] = {}
        self._backbones: dict[Path, bool | None] = {}

    def run(self) -> list[MisplacedKey]:
        """Search all of the config."""
        sections = list(self._sections())
        found = [
            (section, key, name, reason)
            for section in sections
            for key, name in self._candidates(section)
            if (reason := self._reason(section, key, name))
        ]
        if any(name == _CP for _, _, name, _ in found) or _CP in self._top:
            self._find_backbones(sections)
        results = [
            MisplacedKey(
                name,
                place((*section.path, key)),
                section.cfg[key],
                reason,
                self._right.read_at(name),
                self._cure(section, key, name),
            )
            for section, key, name, reason in found
        ]
        return [*results, *self._flag(), *self._top_level()]

    def _sections(self) -> Iterator[Section]:
        for name in SECTIONS:
            if name in self._top and not self._is_skipped(name):
                yield from walk(self._top[name], (name,), self._scope)

    def _is_skipped(self, name: str) -> bool:
        """Whether a section is only a variable, or reported as a whole."""
        if name == 'model_wrapper_cfg':
            return self._right.kind is RunnerKind.FLEXIBLE
        return name in UNREAD and (
            self._is_used(name)
            or self._top[name] == self._right.strategy.get(name)
        )

    def _candidates(self, section: Section) -> Iterator[tuple[str, str]]:
        """Keys of a dict to look at, and the settings they are meant for."""
        for key in section.cfg:
            if key in RIGHT_PLACES:
                yield key, key
            elif section.path in _WRAPPERS and _near(key):
                yield key, _near(key)

    def _class(self, section: Section) -> Any:
        """Class of the component that a dict describes, None if unknown."""
        kind = section.cfg.get('type')
        if kind is None and section.path in _WRAPPERS:
            kind = 'MMDistributedDataParallel'
        registries = SECTIONS[section.path[0]]
        return find_component(kind, registries, section.scope)

    def _reason(self, section: Section, key: str, name: str) -> str | None:
        """Why a key is misplaced, None if it is not or nobody knows."""
        value = section.cfg[key]
        reason = self._unread(section, key)
        if reason is None and key == name:
            if name == _CP and self._is_bad_switch(section, value):
                return 'with_cp must be a bool or a number of layers'
            self._read.setdefault(name, []).append((section.path, value))
        return reason

    def _unread(self, section: Section, key: str) -> str | None:
        """Why nothing reads a key of a dict."""
        where = str(section.path[0])
        if not SECTIONS[where]:
            return f'nothing reads it in {where}'
        if where == 'strategy' and self._right.kind in _NO_STRATEGY:
            return self._unread_in_strategy(key, section.cfg[key])
        if 'type' in section.cfg or section.path in _WRAPPERS:
            if key == _CP and self._parent_reads(section):
                return None
            kind = self._class(section)
            has = None if kind is None else takes(kind, key)
            if section.path in _WRAPPERS:
                has = wrapper_takes(kind, key)
            if has is not False:
                return None
            return f'{kind.__name__} takes no such argument'
        outer: Section | None = section
        while outer is not None and 'type' not in outer.cfg:
            whole = outer.parent is None and where != 'model'
            if outer.name in _LOOKED_UP or whole or where == 'optim_wrapper':
                return f'nothing reads it in {place(outer.path)}'
            outer = outer.parent
        if where == 'model' and key != _CP:
            return 'it is for what is around the model'
        return None

    def _unread_in_strategy(self, key: str, value: Any) -> str | None:
        # A config may serve several runners, and say the same to each.
        same = self._is_fulfilled(key, value) or (
            key == FLAG and _same(value, self._top.get(key))
        )
        if same or not value:
            return None
        return f'{self._runner_name} reads no strategy'

    def _parent_reads(self, section: Section) -> bool:
        """Whether a backbone's ``with_cp`` is for mmext's detector."""
        parent = section.parent
        if section.name != 'backbone' or parent is None:
            return False
        kinds = getattr(self._class(parent), '__mro__', ())
        return any(kind.__module__.startswith('mmext.') for kind in kinds)

    def _is_bad_switch(self, section: Section, value: Any) -> bool:
        """Whether ``with_cp`` of a known package has a senseless value."""
        if value is None or isinstance(value, bool | int):
            return False
        module = getattr(self._class(section), '__module__', '')
        return module.split('.')[0] in _HOSTS

    def _find_backbones(self, sections: Sequence[Section]) -> None:
        for section in sections:
            if section.path[0] != 'model' or section.path[-1] != 'backbone':
                continue
            kind = self._class(section)
            can = None if kind is None else takes(kind, _CP)
            self._backbones[section.path] = self._parent_reads(section) or can

    def _cure(self, section: Section, key: str, name: str) -> dict[str, Any]:
        value = section.cfg[key]
        if name != _CP:
            return self._right.of_wrapper(name, value)
        if self._unread(section, key) is None:
            if any(isinstance(step, int) for step in section.path):
                return {}
            return nested((*section.path, key), bool(value))
        is_part = section.path[0] == 'model' and len(section.path) > 1
        if is_part and 'type' in section.cfg and value:
            return checkpoint_hook([place(section.path[1:])])
        return self._checkpointing(value)

    def _checkpointing(self, value: Any) -> dict[str, Any]:
        readers = [
            ((*path, _CP), old)
            for path, old in self._read.get(_CP, ())
            if path[0] == 'model'
            and all(isinstance(step, str) for step in path)
        ]
        cure: dict[str, Any] = {}
        for each in of_checkpointing(value, readers, self._backbones):
            merge(cure, each)
        return cure

    def _is_used(self, name: str) -> bool:
        """Whether the config's own code uses one of its top-level names."""
        return is_used(name, self._code)

    def _is_fulfilled(self, name: str, value: Any) -> bool:
        """Whether all that reads a setting has that value."""
        values = [old for _, old in self._read.get(name, ())]
        return bool(values) and all(_same(value, old) for old in values)

    @property
    def _runner_name(self) -> str:
        return getattr(self._right.runner, '__name__', 'the runner')

    def _flag(self) -> Iterator[MisplacedKey]:
        """The top-level ``find_unused_parameters``."""
        value = self._top.get(FLAG)
        if value is None:
            return
        right = self._right
        wrapper = right.wrapper
        if right.kind is RunnerKind.FLEXIBLE:
            wrapper = right.strategy.get('model_wrapper') or {}
        # What is not read and changes nothing does not matter.
        own = wrapper.get(FLAG)
        if own is None:
            own = value if right.reads_flag else False
        if bool(own) == bool(value):
            self._read.setdefault(FLAG, []).append(((), value))
            return
        if right.reads_flag:
            reason, where = f'model_wrapper_cfg has {own}', 'in one place only'
        else:
            where = right.read_at(FLAG)
            reason = f'{self._runner_name} reads it elsewhere'
        cure: dict[str, Any] = {FLAG: True}
        if value:
            cure = right.of_wrapper(FLAG, True)
            if cure == {FLAG: True}:
                cure['model_wrapper_cfg'] = {FLAG: True}
        yield MisplacedKey(FLAG, FLAG, value, reason, where, cure)

    def _top_level(self) -> Iterator[MisplacedKey]:
        """Everything else at the top level."""
        flexible = any(
            self._top.get(key) is not None for key in _NOT_FLEXIBLE
        ) and (self._right.kind is RunnerKind.FLEXIBLE)
        for key, value in self._top.items():
            if value is None or key == FLAG:
                continue
            if flexible and key in _NOT_FLEXIBLE:
                yield self._not_flexible(key, value)
            name = key if key in RIGHT_PLACES else _near(key)
            if (
                name is None
                or self._is_used(key)
                or self._is_fulfilled(name, value)
            ):
                continue
            reason = 'nothing reads it at the top level'
            if name != key:
                reason = f'no such setting; {name} is near'
            yield MisplacedKey(
                name,
                key,
                value,
                reason,
                self._right.read_at(name),
                self._checkpointing(value)
                if name == _CP
                else self._right.of_wrapper(name, value),
            )

    def _not_flexible(self, key: str, value: Any) -> MisplacedKey:
        """A setting that MMEngine's other runner reads."""
        where, cure = 'in strategy', {}
        if key == 'model_wrapper_cfg':
            where += '.model_wrapper'
            cure = self._right.of_strategy(value)
        elif key == 'sync_bn':
            cure = self._right.of_strategy({}, sync_bn=value)
        else:
            where = "by MMEngine's Runner"
            if key == 'activation_checkpointing':
                names = [value] if isinstance(value, str) else value
                cure = checkpoint_hook(names)
        reason = f'{self._runner_name} does not read it'
        return MisplacedKey(key, key, value, reason, where, cure)

"""Settings of the model wrapper and of checkpointing where nobody reads them.

MMEngine hands most sections of a config on without a look at their keys. A
``find_unused_parameters`` in ``model.train_cfg`` is not an error there; it
does nothing. In other places it is an error, but only when the training
starts, after the model was built.
"""

import difflib
import inspect
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mmengine.config import Config
from mmengine.logging import print_log

from .right_places import (
    FLAG,
    RIGHT_PLACES,
    RightPlaces,
    RunnerKind,
    checkpoint_hook,
    merge,
    of_checkpointing,
    wrapper_takes,
)
from .sections import (
    SECTIONS,
    UNREAD,
    ConfigNode,
    find_component,
    is_own_key,
    is_used,
    own_code_with,
    swallows,
    takes,
    walk_nodes,
)
from .source import config_lines
from .walk import Steps, join_key, nest

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
# Letters of a beginning that can only be that of one setting.
_SHORTENED = 10


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
        fix: What to merge into the config instead; empty if the setting
            only has to go.
        named_in: A file of the project's own code that names the setting, so
            that it may be read after all; empty for none.
    """

    key: str
    place: str
    value: Any
    reason: str
    read_at: str
    fix: Mapping[str, Any] = field(default_factory=dict)
    named_in: str = ''

    @property
    def remedy(self) -> str:
        """Lines for the config, or that there is nothing to set."""
        return config_lines(self.fix) or 'remove it'


def _near(key: Any) -> str | None:
    """The setting that a name is meant for, None if it is another name."""
    if not isinstance(key, str) or key in RIGHT_PLACES:
        return None
    plain = key.replace('_', '').lower()
    for name in RIGHT_PLACES:
        other = name.replace('_', '')
        if plain.removeprefix('ddp') == other:
            return name
        # `find_unused`, which is short for one only.
        if len(plain) >= _SHORTENED and other.startswith(plain):
            return name
        # Short names are near to too many others.
        if len(other) > 8 and (
            difflib.SequenceMatcher(None, plain, other).ratio() >= _LIKE
        ):
            return name
    return None


def _last(place: str) -> str:
    return re.split(r'[.\[]', place)[-1]


def _same(one: Any, other: Any) -> bool:
    """Equal, and True is not 1."""
    return (type(one), one) == (type(other), other)


class _Search:
    """One search, see :func:`find_misplaced_keys`."""

    def __init__(
        self, top: dict[str, Any], text: str, runner: type | str | None
    ) -> None:
        self._top = top
        self._code = re.sub('#.*', '', text or '')
        self._scope = top.get('default_scope') or 'mmengine'
        self._right = RightPlaces(top, self._scope, runner)
        # Where settings are read, and the backbones that may read with_cp.
        self._read: dict[str, list[tuple[Steps, Any]]] = {}
        self._backbones: dict[Steps, bool | None] = {}

    def run(self) -> list[MisplacedKey]:
        """Search all of the config."""
        sections = list(self._sections())
        misplaced = [
            (section, key, name, reason)
            for section in sections
            for key, name in self._candidates(section)
            if (reason := self._reason(section, key, name))
        ]
        if any(name == _CP for _, _, name, _ in misplaced) or _CP in self._top:
            self._find_backbones(sections)
        results = [
            MisplacedKey(
                name,
                join_key((*section.path, key)),
                section.cfg[key],
                reason,
                self._right.read_at(name),
                self._fix(section, key, name),
            )
            for section, key, name, reason in misplaced
        ]
        results += [*self._flag(), *self._top_level()]
        results = [
            item for item in results if not is_own_key(self._top, item.place)
        ]
        kinds = [self._class(node) for node in sections] if results else []
        kinds.append(self._right.runner)
        return [
            replace(
                item,
                named_in=own_code_with(_last(item.place), self._top, kinds),
            )
            for item in results
        ]

    def _sections(self) -> Iterator[ConfigNode]:
        for name in SECTIONS:
            if name in self._top and not self._is_skipped(name):
                yield from walk_nodes(self._top[name], (name,), self._scope)

    def _is_skipped(self, name: str) -> bool:
        """Whether a section is only a variable, or reported as a whole."""
        if name == 'model_wrapper_cfg':
            return self._right.kind is RunnerKind.FLEXIBLE
        return name in UNREAD and (
            self._is_used(name)
            or self._top[name] == self._right.strategy.get(name)
        )

    def _candidates(self, section: ConfigNode) -> Iterator[tuple[str, str]]:
        """Keys of a dict to look at, and the settings they are meant for."""
        for key in section.cfg:
            name = key if key in RIGHT_PLACES else _near(key)
            if name is not None:
                yield key, name

    def _class(self, section: ConfigNode) -> Any:
        """Class of the component that a dict describes, None if unknown."""
        kind = section.cfg.get('type')
        if kind is None and section.path in _WRAPPERS:
            kind = 'MMDistributedDataParallel'
        registries = SECTIONS[section.path[0]]
        return find_component(kind, registries, section.scope)

    def _reason(self, section: ConfigNode, key: str, name: str) -> str | None:
        """Why a key is misplaced, None if it is not or nobody knows."""
        value = section.cfg[key]
        reason = self._unread(section, key)
        if reason is None and key == name:
            if name == _CP and self._is_bad_switch(section, value):
                return 'with_cp must be a bool or a number of layers'
            self._read.setdefault(name, []).append((section.path, value))
        return reason

    def _unread(self, section: ConfigNode, key: str) -> str | None:
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
            if has is None and inspect.isclass(kind) and swallows(kind, key):
                return f'{kind.__name__} takes any argument, and drops it'
            if has is not False:
                return None
            return f'{kind.__name__} takes no such argument'
        outer: ConfigNode | None = section
        while outer is not None and 'type' not in outer.cfg:
            whole = outer.parent is None and where != 'model'
            if outer.name in _LOOKED_UP or whole or where == 'optim_wrapper':
                return f'nothing reads it in {join_key(outer.path)}'
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

    def _parent_reads(self, section: ConfigNode) -> bool:
        """Whether a backbone's ``with_cp`` is for mmext's detector."""
        parent = section.parent
        if section.name != 'backbone' or parent is None:
            return False
        kinds = getattr(self._class(parent), '__mro__', ())
        return any(kind.__module__.startswith('mmext.') for kind in kinds)

    def _is_bad_switch(self, section: ConfigNode, value: Any) -> bool:
        """Whether ``with_cp`` of a known package has a senseless value."""
        if value is None or isinstance(value, bool | int):
            return False
        module = getattr(self._class(section), '__module__', '')
        return module.split('.')[0] in _HOSTS

    def _find_backbones(self, sections: Sequence[ConfigNode]) -> None:
        for section in sections:
            if section.path[0] != 'model' or section.path[-1] != 'backbone':
                continue
            kind = self._class(section)
            can = None if kind is None else takes(kind, _CP)
            self._backbones[section.path] = self._parent_reads(section) or can

    def _fix(self, section: ConfigNode, key: str, name: str) -> dict[str, Any]:
        value = section.cfg[key]
        if name != _CP:
            return self._right.of_wrapper(name, value)
        if self._unread(section, key) is None:
            if any(isinstance(step, int) for step in section.path):
                return {}
            return nest((*section.path, key), bool(value))
        is_part = section.path[0] == 'model' and len(section.path) > 1
        if is_part and 'type' in section.cfg and value:
            return checkpoint_hook([join_key(section.path[1:])])
        return self._checkpointing(value)

    def _checkpointing(self, value: Any) -> dict[str, Any]:
        readers = [
            ((*path, _CP), old)
            for path, old in self._read.get(_CP, ())
            if path[0] == 'model'
            and all(isinstance(step, str) for step in path)
        ]
        fix: dict[str, Any] = {}
        for settings in of_checkpointing(value, readers, self._backbones):
            merge(fix, settings)
        return fix

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
        # What is not read and changes nothing does not matter.
        own = right.wrapper_settings.get(FLAG)
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
        fix: dict[str, Any] = {FLAG: True}
        if value:
            fix = right.of_wrapper(FLAG, True)
            if fix == {FLAG: True}:
                fix['model_wrapper_cfg'] = {FLAG: True}
        yield MisplacedKey(FLAG, FLAG, value, reason, where, fix)

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
        where, fix = 'in strategy', {}
        if key == 'model_wrapper_cfg':
            where += '.model_wrapper'
            fix = self._right.of_strategy(value)
        elif key == 'sync_bn':
            fix = self._right.of_strategy({}, sync_bn=value)
        else:
            where = "by MMEngine's Runner"
            if key == 'activation_checkpointing':
                names = [value] if isinstance(value, str) else value
                fix = checkpoint_hook(names)
        reason = f'{self._runner_name} does not read it'
        return MisplacedKey(key, key, value, reason, where, fix)


_SWITCH = 'check_misplaced_keys'


class MisplacedKeyError(ValueError):
    """Settings are where nothing reads them."""

    def __init__(self, keys: Sequence[MisplacedKey]) -> None:
        self.keys = list(keys)
        lines = ['settings must be where something reads them, got']
        fix: dict[str, Any] = {}
        for key in keys:
            lines.append(f'  {key.place} = {key.value!r}')
            lines.append(f'    {key.reason}; it is read {key.read_at}')
            merge(fix, key.fix)
        lines.append('Remove what is named above.')
        if fix:
            lines.append('For what it was meant to do, set:')
            # Not indented, so that it can be pasted.
            lines += ['', config_lines(fix).rstrip(), '']
        if any(key.key == _CP and key.value for key in keys):
            lines.append(
                'Modules without with_cp are checkpointed by '
                'mmext.ActivationCheckpointHook, in default_hooks.'
            )
        lines.append(
            'Where code of your own does read it, say so at the top level: '
            f'own_keys = {[key.place for key in keys]!r}'
        )
        super().__init__('\n'.join(lines))

    def __reduce__(self) -> tuple:
        """Go to another process whole."""
        return type(self), (self.keys,)


def check_misplaced_keys(
    cfg: Config | Mapping[str, Any], runner: type | str | None = None
) -> None:
    """Raise if a config sets something where nothing reads it.

    Args:
        cfg: The config of a training. ``check_misplaced_keys=False`` at its
            top level turns this check off; ``own_keys`` names the keys that
            code of one's own reads, see :func:`is_own_key`. What may be read
            by a project's own code, as that names it, is a warning in the
            log.
        runner: See :func:`find_misplaced_keys`.

    Raises:
        TypeError: If the switch is not a bool.
        MisplacedKeyError: If there are misplaced keys. It names all of them
            and the lines that work.

    Examples:
        >>> check_misplaced_keys({'model': {'train_cfg': {'with_cp': False}}})
        Traceback (most recent call last):
            ...
        mmext.checks.config.misplaced_keys.MisplacedKeyError: settings must \
be where something reads them, got
          model.train_cfg.with_cp = False
        ...
    """
    switch = cfg.get(_SWITCH, True)
    if not isinstance(switch, bool):
        raise TypeError(f'{_SWITCH} must be True or False, got {switch!r}')
    keys = find_misplaced_keys(cfg, runner) if switch else []
    for key in keys:
        if key.named_in:
            print_log(
                f'{key.place} = {key.value!r}: {key.reason}, unless '
                f'{key.named_in} does, which names it. If so, set '
                f'own_keys = {[key.place]!r}; else it is to be set '
                f'{key.read_at}',
                logger='current',
                level=logging.WARNING,
            )
    certain = [key for key in keys if not key.named_in]
    if certain:
        raise MisplacedKeyError(certain)


def find_misplaced_keys(
    cfg: Config | Mapping[str, Any], runner: type | str | None = None
) -> list[MisplacedKey]:
    """Find settings that nothing reads where they are.

    These are ``find_unused_parameters``, ``static_graph``,
    ``gradient_as_bucket_view``, ``broadcast_buffers``,
    ``detect_anomalous_params`` and ``with_cp``, and at the top level names
    that differ from theirs by a typing error. An argument of a component is
    misplaced if its class does not take it; what cannot be known, such as
    what a class does with ``**kwargs``, is not reported.

    Args:
        cfg: The config. It is not changed. Nothing is built, but packages
            that components are registered in may be imported.
        runner: The runner that is going to be used, a class or a name. By
            default ``runner_type`` of the config, else ``FlexibleRunner``
            where there is a ``strategy``, else mmext's.

    Returns:
        The misplaced ones, in the order of the config's sections.

    Examples:
        >>> cfg = {'model': {'train_cfg': {'find_unused_parameters': True}}}
        >>> [key.remedy for key in find_misplaced_keys(cfg)]
        ['find_unused_parameters = True']
    """
    text = cfg.text if isinstance(cfg, Config) else ''
    return _Search(dict(cfg.items()), text, runner).run()

"""Settings of the model wrapper and of checkpointing, and who reads them.

MMEngine hands most sections of a config on without a look at their keys. A
``find_unused_parameters`` in ``model.train_cfg`` is not an error there; it
does nothing. In other locations it is an error, but only when the training
starts, after the model was built. :class:`RightLocations` says where such a
setting is read, :func:`find_misplaced_keys` where it is in vain.
"""

import copy
import difflib
import inspect
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.registry import MODEL_WRAPPERS, RUNNERS

from .child import config_lines, is_same
from .sections import (
    OLD_KEYS,
    SECTIONS,
    ConfigNode,
    find_component,
    is_own_key,
    is_used,
    own_code_with,
    swallows,
    takes,
    walk_nodes,
)
from .walk import join_key

FLAG = 'find_unused_parameters'
_WRAPPER = 'in the top-level model_wrapper_cfg'

# Settings that people look for in many locations -> the location that is read.
RIGHT_LOCATIONS: dict[str, str] = {
    FLAG: 'at the top level of the config',
    'static_graph': _WRAPPER,
    'gradient_as_bucket_view': _WRAPPER,
    'broadcast_buffers': _WRAPPER,
    'detect_anomalous_params': _WRAPPER,
    'with_cp': 'in model.backbone, and with CO-DINO in encoder and decoder '
    'of model.query_head.transformer',
}

_CP = 'with_cp'
_DDP = 'MMDistributedDataParallel'
# What MMEngine's runners wrap a model with that has no settings of its own.
_PLAIN_DDP: dict[str, Any] = {'type': _DDP, 'broadcast_buffers': False}


class RunnerKind(Enum):
    """What a runner makes of the settings of the model wrapper."""

    PORTABLE = 'reads both the top level and model_wrapper_cfg'
    PLAIN = 'reads no top level where there is a model_wrapper_cfg'
    FLEXIBLE = 'reads strategy.model_wrapper only'
    UNKNOWN = 'has a way of its own'


def _wrapper_takes(kind: Any, key: str) -> bool | None:
    """Whether a model wrapper has an argument; None if that is unknown."""
    if kind is None:
        return None
    package = getattr(kind, '__module__', '').split('.')[0]
    return takes(kind, key, forwards=package in ('mmext', 'mmengine'))


class RightLocations:
    """Says where a config has to set something.

    ``runner`` is a class or a name; by default ``runner_type`` of the config,
    else ``FlexibleRunner`` where there is a ``strategy``, else mmext's.
    """

    def __init__(
        self, top: Mapping[str, Any], runner: type | str | None = None
    ) -> None:
        self._top = top
        self._scope = top.get('default_scope') or 'mmengine'
        default = 'mmext.PortableRunner'
        if top.get('strategy') is not None:
            default = 'FlexibleRunner'
        self._runner = runner or top.get('runner_type') or default
        self._wrapper, self._strategy = (
            top[name] if isinstance(top.get(name), Mapping) else {}
            for name in ('model_wrapper_cfg', 'strategy')
        )

    @cached_property
    def runner(self) -> type | None:
        """Class of the runner, None where it cannot be found."""
        runner = find_component(self._runner, (RUNNERS,), self._scope)
        return runner if inspect.isclass(runner) else None

    @property
    def runner_name(self) -> str:
        """The runner in a sentence."""
        return getattr(self.runner, '__name__', 'the runner')

    @cached_property
    def kind(self) -> RunnerKind:
        """What the runner does with the settings."""
        # Not at the top: they load torch.
        from mmengine.runner import FlexibleRunner, Runner

        wrap_model = getattr(self.runner, 'wrap_model', None)
        if self.runner and issubclass(self.runner, FlexibleRunner):
            return RunnerKind.FLEXIBLE
        if wrap_model is Runner.wrap_model:
            return RunnerKind.PLAIN
        if getattr(wrap_model, '__module__', '').startswith('mmext.'):
            return RunnerKind.PORTABLE
        return RunnerKind.UNKNOWN

    @property
    def wrapper_settings(self) -> Mapping[str, Any]:
        """What the runner gives to the wrapper's class."""
        if self.kind is RunnerKind.FLEXIBLE:
            return self._strategy.get('model_wrapper') or {}
        return self._wrapper

    @property
    def wrapper_class(self) -> Any:
        """Class of ``model_wrapper_cfg``, None where it cannot be found."""
        kind = self._wrapper.get('type', _DDP)
        return find_component(kind, (MODEL_WRAPPERS,), self._scope)

    @property
    def reads_flag(self) -> bool:
        """Whether the top-level ``find_unused_parameters`` is read."""
        if self.kind is RunnerKind.FLEXIBLE:
            return False
        if self.kind is RunnerKind.PORTABLE:
            from torch.nn.parallel import DistributedDataParallel

            kind = self.wrapper_class
            return not inspect.isclass(kind) or issubclass(
                kind, DistributedDataParallel
            )
        none = self._top.get('model_wrapper_cfg') is None
        return self.kind is RunnerKind.UNKNOWN or none

    def read_at(self, key: str) -> str:
        """Where a setting is read, in words."""
        if key != _CP and self.kind is RunnerKind.FLEXIBLE:
            return 'in strategy.model_wrapper'
        if key == FLAG and not self.reads_flag:
            return _WRAPPER
        return RIGHT_LOCATIONS[key]

    def of_wrapper(self, key: str, value: Any) -> dict[str, Any]:
        """Config that gives the wrapper a setting; empty if it takes none."""
        if key == FLAG and self.reads_flag:
            return {key: value}
        if self.kind is RunnerKind.FLEXIBLE:
            kind = self._strategy.get('type', 'DDPStrategy')
            default = {} if self.wrapper_settings else _PLAIN_DDP
            wrapper = {**default, key: value}
            fix = {'strategy': {'type': kind, 'model_wrapper': wrapper}}
            if kind != 'DDPStrategy':
                # Others wrap models another way.
                fix = {}
        elif self._wrapper:
            known = _wrapper_takes(self.wrapper_class, key) is not False
            fix = {'model_wrapper_cfg': {key: value}} if known else {}
        else:
            default: dict[str, Any] = {'type': 'mmext.DistributedDataParallel'}
            if self.kind is not RunnerKind.PORTABLE:
                default = dict(_PLAIN_DDP)
                if self._top.get(FLAG):
                    default[FLAG] = True
            fix = {'model_wrapper_cfg': {**default, key: value}}
        if fix and key == FLAG and self._top.get(FLAG) is not None:
            # It may come from a base, so that it cannot be removed.
            fix = {FLAG: value, **fix}
        return fix


_WRAPPERS = (('model_wrapper_cfg',), ('strategy', 'model_wrapper'))
# Dicts of settings that components look up by name, and that nobody checks.
_LOOKED_UP = {'train_cfg', 'test_cfg', 'paramwise_cfg', 'clip_grad'}
# Sections of the wrapper -> the runners that do not read them.
_NO_SECTION = {
    'strategy': (RunnerKind.PORTABLE, RunnerKind.PLAIN),
    'model_wrapper_cfg': (RunnerKind.FLEXIBLE,),
}
_LIKE = 0.85
# Letters of a beginning that can only be that of one setting.
_SHORTENED = 10


@dataclass(frozen=True)
class MisplacedKey:
    """A setting where nothing reads it."""

    location: str  # Such as 'model.train_cfg.find_unused_parameters'.
    value: Any
    reason: str  # Why it does not work there.
    read_at: str  # Where it is read, in words.
    # What to merge into the config instead; empty if the setting only has to
    # go.
    fix: Mapping[str, Any]
    # A file of the project's own code that names the setting, so that it may
    # be read after all; empty for none.
    named_in: str

    @property
    def remedy(self) -> str:
        """Lines for the config, or that there is nothing to set."""
        return config_lines(self.fix) or 'remove it'


def check_misplaced_keys(
    cfg: Config | Mapping[str, Any], runner: type | str | None = None
) -> None:
    """Raise if a config sets something where nothing reads it.

    The ValueError names all such keys and the lines that work.
    ``check_misplaced_keys=False`` at the top level turns this check off;
    ``own_keys`` names the keys that code of one's own reads, see
    :func:`is_own_key`. What may be read by a project's own code, as that
    names it, is a warning in the log.
    """
    switch = cfg.get('check_misplaced_keys', True)
    if not isinstance(switch, bool):
        raise TypeError(
            f'check_misplaced_keys must be True or False, got {switch!r}'
        )
    keys = find_misplaced_keys(cfg, runner) if switch else []
    for key in keys:
        if key.named_in:
            print_log(
                f'{key.location} = {key.value!r}: {key.reason}, unless '
                f'{key.named_in} does, which names it. If so, set '
                f'own_keys = {[key.location]!r}; else it is to be set '
                f'{key.read_at}',
                logger='current',
                level=logging.WARNING,
            )
    certain = [key for key in keys if not key.named_in]
    if certain:
        raise ValueError(_error_text(certain))


def _error_text(keys: Sequence[MisplacedKey]) -> str:
    lines = ['settings must be where something reads them, got']
    fix: dict[str, Any] = {}
    for key in keys:
        lines.append(f'  {key.location} = {key.value!r}')
        lines.append(f'    {key.reason}; it is read {key.read_at}')
        merge(fix, key.fix)
    lines.append('Remove what is named above.')
    if fix:
        lines.append('For what it was meant to do, set:')
        # Not indented, so that it can be pasted.
        lines += ['', config_lines(fix), '']
    if any(key.read_at == RIGHT_LOCATIONS[_CP] and key.value for key in keys):
        lines.append(
            'Modules without with_cp are checkpointed by '
            'mmext.ActivationCheckpointHook, in default_hooks.'
        )
    lines.append(
        'Where code of your own does read it, say so at the top level: '
        f'own_keys = {[key.location for key in keys]!r}'
    )
    return '\n'.join(lines)


def find_misplaced_keys(
    cfg: Config | Mapping[str, Any], runner: type | str | None = None
) -> list[MisplacedKey]:
    """Find settings that nothing reads where they are.

    These are ``find_unused_parameters``, ``static_graph``,
    ``gradient_as_bucket_view``, ``broadcast_buffers``,
    ``detect_anomalous_params`` and ``with_cp``, and at the top level names
    that differ from theirs by a typing error. An argument of a component is
    misplaced if its class does not take it; what cannot be known, such as
    what a class does with ``**kwargs``, is not reported. ``runner`` is that of
    :class:`RightLocations`. Nothing is built, but packages that components are
    registered in may be imported.

    Examples:
        >>> cfg = {'model': {'train_cfg': {'find_unused_parameters': True}}}
        >>> [key.remedy for key in find_misplaced_keys(cfg)]
        ['find_unused_parameters = True']
    """
    return list(_Search(cfg, runner).run())


def merge(into: dict[str, Any], new: Mapping[str, Any]) -> None:
    """Put settings over others, as a config over its base; lists grow."""
    for key, value in new.items():
        old = into.get(key)
        if isinstance(value, Mapping) and isinstance(old, dict):
            merge(old, value)
        elif isinstance(value, list) and isinstance(old, list):
            old += [item for item in value if item not in old]
        else:
            into[key] = copy.deepcopy(value)


def _meant(key: Any) -> str | None:
    """The setting that a key is, or is meant for; None if it is another.

    A setting's name with one more word is a name of its own.
    """
    if not isinstance(key, str) or key in RIGHT_LOCATIONS:
        return key if isinstance(key, str) else None
    plain, words = key.replace('_', '').lower(), key.lower().strip('_')
    for name in RIGHT_LOCATIONS:
        other = name.replace('_', '')
        if words.startswith(f'{name}_') or (
            words.endswith(f'_{name}') and words != f'ddp_{name}'
        ):
            return None
        # `find_unused` is short for one only; `with_c` is near to too many.
        short = len(plain) >= _SHORTENED and other.startswith(plain)
        if (
            short
            or plain.removeprefix('ddp') == other
            or (
                len(other) > 8
                and difflib.SequenceMatcher(None, plain, other).ratio()
                >= _LIKE
            )
        ):
            return name
    return None


class _Search:
    """One search, see :func:`find_misplaced_keys`."""

    def __init__(
        self, cfg: Config | Mapping[str, Any], runner: type | str | None
    ) -> None:
        self._top = dict(cfg.items())
        text = cfg.text if isinstance(cfg, Config) else ''
        # Without comments, and the names of files that MMEngine adds.
        self._code = re.sub(r'(?m)#.*|^\S+\.py$', '', text or '')
        self._right = RightLocations(self._top, runner)
        self._scope = self._top.get('default_scope') or 'mmengine'
        self._nodes = [
            node
            for name in (*SECTIONS, *OLD_KEYS)
            if name in self._top
            and (name in SECTIONS or not is_used(name, self._code))
            for node in walk_nodes(self._top[name], (name,), self._scope)
        ]
        # What settings have where they are read.
        self._read: dict[str, list[Any]] = {}

    def run(self) -> Iterator[MisplacedKey]:
        """Search all of the config, the top level last."""
        for node in (*self._nodes, ConfigNode((), self._top, self._scope)):
            for key, value in node.cfg.items():
                name = _meant(key)
                reason = name and self._unread(node, key, name)
                location = join_key((*node.path, key))
                if not reason and name == key:
                    self._read.setdefault(name, []).append(value)
                if not reason or is_own_key(self._top, location):
                    continue
                read_at = self._right.read_at(name)
                if location == FLAG and self._right.reads_flag:
                    read_at = 'in one place only'
                yield MisplacedKey(
                    location=location,
                    value=value,
                    reason=reason,
                    read_at=read_at,
                    fix=self._fix(name, location, value),
                    named_in=own_code_with(location, self._top, self._classes),
                )

    @cached_property
    def _classes(self) -> list[Any]:
        return [*map(self._class, self._nodes), self._right.runner]

    def _class(self, node: ConfigNode) -> Any:
        """Class of the component that a dict describes, None if unknown."""
        kind = node.cfg.get('type')
        if kind is None and node.path in _WRAPPERS:
            kind = _DDP
        return find_component(kind, SECTIONS.get(node.path[0], ()), node.scope)

    def _unread(self, node: ConfigNode, key: str, name: str) -> str | None:
        """Why nothing reads a key of a dict; None if it is or may be read."""
        if not node.path:
            return self._unread_at_top(key, name)
        where = str(node.path[0])
        if not SECTIONS.get(where):
            return f'nothing reads it in {where}'
        if self._right.kind in _NO_SECTION.get(where, ()):
            value = node.cfg[key]
            # A config may serve several runners, and say the same to each.
            read = [self._right.wrapper_settings.get(key)]
            if key == FLAG:
                read.append(self._top.get(FLAG))
            if not value or any(is_same(value, other) for other in read):
                return None
            return f'{self._right.runner_name} reads no {where}'
        if 'type' in node.cfg or node.path in _WRAPPERS:
            return self._no_argument(node, key)
        outer: ConfigNode | None = node
        while outer is not None and 'type' not in outer.cfg:
            whole = outer.parent is None and where != 'model'
            if outer.name in _LOOKED_UP or whole or where == 'optim_wrapper':
                return f'nothing reads it in {join_key(outer.path)}'
            outer = outer.parent
        if where == 'model' and key != _CP:
            return 'it is for what is around the model'
        return None

    def _no_argument(self, node: ConfigNode, key: str) -> str | None:
        """Why a component does not take a key."""
        if key == _CP and node.name == 'backbone' and node.parent is not None:
            # It may be for mmext's detector.
            kinds = getattr(self._class(node.parent), '__mro__', ())
            if any(kind.__module__.startswith('mmext.') for kind in kinds):
                return None
        kind = self._class(node)
        if node.path in _WRAPPERS:
            has = _wrapper_takes(kind, key)
        else:
            has = None if kind is None else takes(kind, key)
        if has is None and inspect.isclass(kind) and swallows(kind, key):
            return f'{kind.__name__} takes any argument, and drops it'
        if has is False:
            return f'{kind.__name__} takes no such argument'
        return None

    def _unread_at_top(self, key: str, name: str) -> str | None:
        value, right = self._top[key], self._right
        if value is None:
            return None
        if key == FLAG:
            # What is not read and changes nothing does not matter.
            own = right.wrapper_settings.get(FLAG)
            if own is None:
                own = value if right.reads_flag else False
            if bool(own) == bool(value):
                return None
            if right.reads_flag:
                return f'model_wrapper_cfg has {own}'
            return f'{right.runner_name} reads it elsewhere'
        read = self._read.get(name)
        if is_used(key, self._code) or (
            read and all(is_same(value, other) for other in read)
        ):
            return None
        if name != key:
            return f'no such setting; {name} is near'
        return 'nothing reads it at the top level'

    def _fix(self, name: str, location: str, value: Any) -> dict[str, Any]:
        """What to set instead; of ``with_cp``, ``read_at`` says it."""
        if name == _CP:
            return {}
        if location != FLAG:
            return self._right.of_wrapper(name, value)
        flag = {FLAG: True}
        if value and self._right.of_wrapper(FLAG, True) != flag:
            return self._right.of_wrapper(FLAG, True)
        return {**flag, 'model_wrapper_cfg': flag} if value else flag

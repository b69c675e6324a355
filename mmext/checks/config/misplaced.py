"""Settings of the model wrapper and of checkpointing where nobody reads them.

MMEngine hands most sections of a config on without a look at their keys. A
``find_unused_parameters`` in ``model.train_cfg`` is not an error there; it
does nothing. In other places it is an error, but only when the training
starts, after the model was built.
"""

import copy
import difflib
import inspect
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mmengine.config import Config
from mmengine.logging import print_log

from .child import is_same
from .sections import (
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
from .source import config_lines
from .walk import join_key
from .wrapping import (
    FLAG,
    RIGHT_PLACES,
    RightPlaces,
    RunnerKind,
    wrapper_takes,
)

_WRAPPERS = (('model_wrapper_cfg',), ('strategy', 'model_wrapper'))
_CP = 'with_cp'
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
_SWITCH = 'check_misplaced_keys'


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
            lines += ['', config_lines(fix), '']
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
    """The setting that a key is, or is meant for; None if it is another."""
    if not isinstance(key, str) or key in RIGHT_PLACES:
        return key if isinstance(key, str) else None
    plain = key.replace('_', '').lower()
    for name in RIGHT_PLACES:
        other = name.replace('_', '')
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
        self, top: dict[str, Any], text: str, runner: type | str | None
    ) -> None:
        self._top = top
        self._code = re.sub('#.*', '', text or '')
        scope = top.get('default_scope') or 'mmengine'
        self._right = RightPlaces(top, scope, runner)
        self._nodes = [
            node
            for name in SECTIONS
            if name in top
            for node in walk_nodes(top[name], (name,), scope)
        ]
        self._whole = ConfigNode((), top, scope)
        # What settings have where they are read.
        self._read: dict[str, list[Any]] = {}

    def run(self) -> list[MisplacedKey]:
        """Search all of the config, the top level last."""
        wrong: list[tuple[ConfigNode, str, str, str]] = []
        for node in (*self._nodes, self._whole):
            for key, value in node.cfg.items():
                name = _meant(key)
                reason = name and self._unread(node, key, name)
                if reason:
                    wrong.append((node, key, name, reason))
                elif name == key:
                    self._read.setdefault(name, []).append(value)
        keys = [
            MisplacedKey(
                name,
                join_key((*node.path, key)),
                node.cfg[key],
                reason,
                self._read_at(node, key, name),
                self._fix(node, key, name),
            )
            for node, key, name, reason in wrong
        ]
        keys = [key for key in keys if not is_own_key(self._top, key.place)]
        kinds = [self._class(node) for node in self._nodes] if keys else []
        kinds.append(self._right.runner)
        return [
            replace(key, named_in=own_code_with(key.place, self._top, kinds))
            for key in keys
        ]

    def _class(self, node: ConfigNode) -> Any:
        """Class of the component that a dict describes, None if unknown."""
        kind = node.cfg.get('type')
        if kind is None and node.path in _WRAPPERS:
            kind = 'MMDistributedDataParallel'
        return find_component(kind, SECTIONS[node.path[0]], node.scope)

    def _unread(self, node: ConfigNode, key: str, name: str) -> str | None:
        """Why nothing reads a key of a dict; None if it is or may be read."""
        if not node.path:
            return self._unread_at_top(key, name)
        where = str(node.path[0])
        if not SECTIONS[where]:
            return f'nothing reads it in {where}'
        if self._right.kind in _NO_SECTION.get(where, ()):
            value = node.cfg[key]
            # A config may serve several runners, and say the same to each.
            read = [self._right.wrapper_settings.get(key)]
            if key == FLAG:
                read.append(self._top.get(FLAG))
            if not value or any(is_same(value, other) for other in read):
                return None
            return f'{self._runner_name} reads no {where}'
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
            has = wrapper_takes(kind, key)
        else:
            has = None if kind is None else takes(kind, key)
        if has is None and inspect.isclass(kind) and swallows(kind, key):
            return f'{kind.__name__} takes any argument, and drops it'
        if has is False:
            return f'{kind.__name__} takes no such argument'
        return None

    def _fix(self, node: ConfigNode, key: str, name: str) -> dict[str, Any]:
        value = node.cfg[key]
        if name == _CP:
            # Where depends on the model: `read_at` says it in words.
            return {}
        if key != FLAG or node.path:
            return self._right.of_wrapper(name, value)
        fix = {FLAG: True}
        if value and self._right.of_wrapper(FLAG, True) != fix:
            return self._right.of_wrapper(FLAG, True)
        return {**fix, 'model_wrapper_cfg': fix} if value else fix

    @property
    def _runner_name(self) -> str:
        return getattr(self._right.runner, '__name__', 'the runner')

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
            return f'{self._runner_name} reads it elsewhere'
        read = self._read.get(name)
        if is_used(key, self._code) or (
            read and all(is_same(value, other) for other in read)
        ):
            return None
        if name != key:
            return f'no such setting; {name} is near'
        return 'nothing reads it at the top level'

    def _read_at(self, node: ConfigNode, key: str, name: str) -> str:
        if key == FLAG and not node.path and self._right.reads_flag:
            return 'in one place only'
        return self._right.read_at(name)

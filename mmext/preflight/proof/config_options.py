"""Changes of a config, as dotted keys, where MMEngine really reads them."""

from collections.abc import Iterable, Mapping
from typing import Any

from ...utils.config_nodes import walk_dicts
from .._right_places import FLAG, RightPlaces, RunnerKind
from ..current_settings import current_settings
from ..sync_cures import SyncSettings

__all__ = ['FLAG', 'STATIC_GRAPH', 'ConfigOptions']

STATIC_GRAPH = 'static_graph'
_FILTER = 'filter_empty_gt'
_HOOK = 'default_hooks.activation_checkpoint'
_HOOK_TYPE = 'mmext.ActivationCheckpointHook'


class ConfigOptions:
    """Tells which keys of a config to change.

    Args:
        cfg: The config; None for one that sets nothing.
    """

    def __init__(self, cfg: Mapping[str, Any] | None = None) -> None:
        self._top = dict((cfg or {}).items())
        scope = self._top.get('default_scope') or 'mmengine'
        self._places = RightPlaces(self._top, scope, None)

    @classmethod
    def of_settings(cls, settings: SyncSettings) -> 'ConfigOptions':
        """For a config that sets only these.

        Args:
            settings: Of DDP.
        """
        cfg: dict[str, Any] = {}
        if settings.find_unused_parameters:
            cfg[FLAG] = True
        if settings.static_graph:
            kind = 'mmext.DistributedDataParallel'
            cfg['model_wrapper_cfg'] = {'type': kind, STATIC_GRAPH: True}
        return cls(cfg)

    @property
    def _flexible(self) -> bool:
        return self._places.kind is RunnerKind.FLEXIBLE

    @property
    def _wrapper(self) -> Mapping[str, Any]:
        """What the wrapper's class gets as arguments."""
        if self._flexible:
            return self._places.strategy.get('model_wrapper') or {}
        return self._places.wrapper

    def current(self) -> SyncSettings:
        """The settings that DDP will get."""
        return current_settings(self._top)

    @property
    def filters_empty(self) -> bool:
        """Whether the data set leaves samples without objects out.

        Augmentation may still make some.
        """
        return _sets_true(self._top.get('train_dataloader'), _FILTER)

    @property
    def rarely_empty(self) -> str:
        """Why a batch without labels is rare, in words; empty if it is not."""
        if self.filters_empty:
            return (
                'filter_empty_gt leaves them out, unless augmentation takes '
                'the last object of a sample'
            )
        loader = self._top.get('train_dataloader') or {}
        for _, node in walk_dicts(loader):
            if str(node.get('type')).endswith('PackSegInputs'):
                return 'a whole batch without a labelled pixel is rare'
        return ''

    def key_of(self, setting: str) -> str:
        """Where a setting is set, or else has to be.

        Args:
            setting: ``'find_unused_parameters'`` or ``'static_graph'``.

        Returns:
            The dotted key.
        """
        wrapper = (
            'strategy.model_wrapper' if self._flexible else 'model_wrapper_cfg'
        )
        in_wrapper = setting in self._wrapper
        if setting == FLAG and self._places.reads_flag and not in_wrapper:
            return FLAG
        return f'{wrapper}.{setting}'

    def settings(self, wanted: SyncSettings) -> dict[str, Any]:
        """Smallest change that gives DDP other settings.

        Args:
            wanted: The settings.

        Returns:
            Dotted keys and their new values; empty if there is nothing to
            change, or the wrapper has no such setting.
        """
        now = self.current()
        options: dict[str, Any] = {}
        if wanted.static_graph != now.static_graph:
            options |= self._change(STATIC_GRAPH, wanted.static_graph)
        flag = wanted.find_unused_parameters
        if flag != now.find_unused_parameters and not wanted.static_graph:
            options |= self._change(FLAG, flag)
        return options

    def _change(self, setting: str, value: bool) -> dict[str, Any]:
        key = self.key_of(setting)
        if setting in self._wrapper:
            options = {key: value}
            if setting == FLAG and self._top.get(FLAG) is not None:
                # Both places have to say the same.
                options[FLAG] = value
            return options
        return dict(_dotted(self._places.of_wrapper(setting, value)))

    def without_reentrant(self) -> dict[str, Any]:
        """The hook that replaces reentrant checkpoints.

        Returns:
            Dotted keys and their new values.
        """
        hooks = self._top.get('default_hooks')
        old = hooks.get('activation_checkpoint') if hooks else None
        if isinstance(old, Mapping) and old.get('type') == _HOOK_TYPE:
            return {f'{_HOOK}.replace_reentrant': True}
        return {_HOOK: {'type': _HOOK_TYPE, 'replace_reentrant': True}}


def _sets_true(value: Any, key: str) -> bool:
    """Whether a key is True anywhere in a nested value."""
    if isinstance(value, Mapping):
        return value.get(key) is True or any(
            _sets_true(item, key) for item in value.values()
        )
    if isinstance(value, list | tuple):
        return any(_sets_true(item, key) for item in value)
    return False


def _dotted(
    value: Mapping[str, Any], prefix: str = ''
) -> Iterable[tuple[str, Any]]:
    for key, item in value.items():
        name = f'{prefix}{key}'
        if isinstance(item, Mapping):
            yield from _dotted(item, f'{name}.')
        else:
            yield name, item

"""What a config sets for DDP, and which of its keys change it."""

from collections.abc import Mapping
from typing import Any

from mmengine.config import Config
from mmengine.optim import OptimWrapperDict

from ...config import (
    FLAG,
    RightPlaces,
    RunnerKind,
    walk_dicts,
)
from ...ddp import SyncSettings

STATIC_GRAPH = 'static_graph'
_HOOK = 'default_hooks.activation_checkpoint'
_WRAPPER = 'mmext.DistributedDataParallel'
_HOOK_TYPE = 'mmext.ActivationCheckpointHook'


class ConfigOptions:
    """What a config sets for DDP, and which keys to change for other settings.

    ``locations`` says what its runner reads.
    """

    def __init__(self, cfg: Config | Mapping[str, Any]) -> None:
        self._top = cfg.to_dict() if isinstance(cfg, Config) else dict(cfg)
        self.locations = RightPlaces(self._top)

    @property
    def current(self) -> SyncSettings:
        """The settings that a training with this config would run with.

        Keys that its runner does not read do not count.
        """
        wrapper = self.locations.wrapper_settings
        flag = wrapper.get(FLAG)
        if flag is None and self.locations.reads_flag:
            flag = self._top.get(FLAG)
        return SyncSettings(bool(flag), bool(wrapper.get(STATIC_GRAPH)))

    @property
    def uses_our_wrapper(self) -> bool:
        """Whether the model is wrapped by the wrapper of this package."""
        wrapper = self._top.get('model_wrapper_cfg') or {}
        kind = wrapper.get('type', _WRAPPER)
        portable = self.locations.kind is RunnerKind.PORTABLE
        return portable and kind == _WRAPPER

    @property
    def accumulated(self) -> int:
        """How many batches make one step of the optimizer."""
        wrapper = self._top.get('optim_wrapper') or {}
        number = wrapper.get('accumulative_counts')
        return number if isinstance(number, int) and number > 1 else 1

    @property
    def rarely_empty(self) -> str:
        """Why a batch without labels is rare, in words; empty if it is not."""
        loader = self._top.get('train_dataloader')
        nodes = [node for _, node in walk_dicts(loader)]
        if any(node.get('filter_empty_gt') is True for node in nodes):
            return (
                'filter_empty_gt leaves them out, unless augmentation takes '
                'the last object of a sample'
            )
        if any(str(n.get('type')).endswith('PackSegInputs') for n in nodes):
            return 'a whole batch without a labelled pixel is rare'
        return ''

    def key_of(self, setting: str) -> str:
        """Where a setting is set, or else has to be."""
        flexible = self.locations.kind is RunnerKind.FLEXIBLE
        wrapper = 'strategy.model_wrapper' if flexible else 'model_wrapper_cfg'
        in_wrapper = setting in self.locations.wrapper_settings
        if setting == FLAG and self.locations.reads_flag and not in_wrapper:
            return FLAG
        return f'{wrapper}.{setting}'

    def settings(self, wanted: SyncSettings) -> dict[str, Any]:
        """Smallest change that gives DDP other settings, as keys and values.

        Empty if there is nothing to change, or the wrapper has no such
        setting.
        """
        now = self.current
        options: dict[str, Any] = {}
        if wanted.static_graph != now.static_graph:
            options |= self._change(STATIC_GRAPH, wanted.static_graph)
        flag = wanted.find_unused_parameters
        if flag != now.find_unused_parameters and not wanted.static_graph:
            options |= self._change(FLAG, flag)
        return options

    def _change(self, setting: str, value: bool) -> dict[str, Any]:
        key = self.key_of(setting)
        if setting in self.locations.wrapper_settings:
            options = {key: value}
            if setting == FLAG and self._top.get(FLAG) is not None:
                # Both locations have to say the same.
                options[FLAG] = value
            return options
        return _dotted(self.locations.of_wrapper(setting, value))

    @property
    def _hook(self) -> Mapping[str, Any]:
        hooks = self._top.get('default_hooks') or {}
        old = hooks.get('activation_checkpoint')
        ours = isinstance(old, Mapping) and old.get('type') == _HOOK_TYPE
        return old if ours else {}

    @property
    def keeps_reentrant(self) -> bool:
        """Whether the hook is there, and cannot replace what is left."""
        return self._hook.get('replace_reentrant') is True

    def without_reentrant(self) -> dict[str, Any]:
        """The hook that replaces reentrant checkpoints; empty if it cannot."""
        if self.keeps_reentrant:
            return {}
        if self._hook:
            return {f'{_HOOK}.replace_reentrant': True}
        return {_HOOK: {'type': _HOOK_TYPE, 'replace_reentrant': True}}


def _dotted(value: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
    """Nested settings as dotted keys."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, Mapping):
            flat |= _dotted(item, f'{prefix}{key}.')
        else:
            flat[f'{prefix}{key}'] = item
    return flat


def wrappers_of(optim_wrapper: Any) -> list[Any]:
    """The wrapper of each optimizer."""
    if isinstance(optim_wrapper, OptimWrapperDict):
        return list(optim_wrapper.optim_wrappers.values())
    return [optim_wrapper]

"""Changes of a config, as keys and values, where MMEngine reads them."""

from collections.abc import Iterable, Mapping
from typing import Any

from mmengine.config import Config

from ...config import FLAG, RightPlaces, RunnerKind, walk_dicts
from ...ddp import SyncSettings


def current_settings(cfg: Config | Mapping[str, Any]) -> SyncSettings:
    """The settings that a training with this config would run with.

    Keys that its runner does not read do not count.
    """
    top = cfg.to_dict() if isinstance(cfg, Config) else dict(cfg)
    right = RightPlaces(top)
    wrapper = right.wrapper_settings
    flag = wrapper.get(FLAG)
    if flag is None and right.reads_flag:
        flag = top.get(FLAG)
    return SyncSettings(bool(flag), bool(wrapper.get('static_graph')))


STATIC_GRAPH = 'static_graph'
_ACCUMULATED = 'accumulative_counts'
_FILTER = 'filter_empty_gt'
_HOOK = 'default_hooks.activation_checkpoint'
_WRAPPER = 'mmext.DistributedDataParallel'
_HOOK_TYPE = 'mmext.ActivationCheckpointHook'


class ConfigOptions:
    """Says which keys of a config to change; None is one that sets nothing."""

    def __init__(self, cfg: Mapping[str, Any] | None = None) -> None:
        self._top = dict((cfg or {}).items())
        self._places = RightPlaces(self._top)

    @classmethod
    def of_settings(cls, settings: SyncSettings) -> 'ConfigOptions':
        """For a config that sets only these."""
        cfg: dict[str, Any] = {}
        if settings.find_unused_parameters:
            cfg[FLAG] = True
        if settings.static_graph:
            kind = 'mmext.DistributedDataParallel'
            cfg['model_wrapper_cfg'] = {'type': kind, STATIC_GRAPH: True}
        return cls(cfg)

    def current(self) -> SyncSettings:
        """The settings that DDP will get."""
        return current_settings(self._top)

    @property
    def uses_our_wrapper(self) -> bool:
        """Whether the model is wrapped by the wrapper of this package."""
        wrapper = self._top.get('model_wrapper_cfg') or {}
        kind = wrapper.get('type', _WRAPPER)
        portable = self._places.kind is RunnerKind.PORTABLE
        return portable and kind == _WRAPPER

    @property
    def accumulated(self) -> int:
        """How many batches make one step of the optimizer."""
        number = (self._top.get('optim_wrapper') or {}).get(_ACCUMULATED)
        return number if isinstance(number, int) and number > 1 else 1

    @property
    def filters_empty(self) -> bool:
        """Whether the data set leaves samples without objects out.

        Augmentation may still make some.
        """
        loader = self._top.get('train_dataloader')
        return any(node.get(_FILTER) is True for _, node in walk_dicts(loader))

    @property
    def rarely_empty(self) -> str:
        """Why a batch without labels is rare, in words; empty if it is not."""
        if self.filters_empty:
            return (
                'filter_empty_gt leaves them out, unless augmentation takes '
                'the last object of a sample'
            )
        for _, node in walk_dicts(self._top.get('train_dataloader')):
            if str(node.get('type')).endswith('PackSegInputs'):
                return 'a whole batch without a labelled pixel is rare'
        return ''

    def key_of(self, setting: str) -> str:
        """Where a setting is set, or else has to be."""
        flexible = self._places.kind is RunnerKind.FLEXIBLE
        wrapper = 'strategy.model_wrapper' if flexible else 'model_wrapper_cfg'
        in_wrapper = setting in self._places.wrapper_settings
        if setting == FLAG and self._places.reads_flag and not in_wrapper:
            return FLAG
        return f'{wrapper}.{setting}'

    def settings(self, wanted: SyncSettings) -> dict[str, Any]:
        """Smallest change that gives DDP other settings, as keys and values.

        Empty if there is nothing to change, or the wrapper has no such
        setting.
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
        if setting in self._places.wrapper_settings:
            options = {key: value}
            if setting == FLAG and self._top.get(FLAG) is not None:
                # Both places have to say the same.
                options[FLAG] = value
            return options
        return dict(_dotted(self._places.of_wrapper(setting, value)))

    @property
    def _hook(self) -> Mapping[str, Any]:
        hooks = self._top.get('default_hooks')
        old = hooks.get('activation_checkpoint') if hooks else None
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


def _dotted(
    value: Mapping[str, Any], prefix: str = ''
) -> Iterable[tuple[str, Any]]:
    for key, item in value.items():
        name = f'{prefix}{key}'
        if isinstance(item, Mapping):
            yield from _dotted(item, f'{name}.')
        else:
            yield name, item

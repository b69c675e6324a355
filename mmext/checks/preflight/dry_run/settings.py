"""What a config sets for a step, and which of its keys change it.

The flags of the model wrapper, the checkpoints, and the groups of the
optimizer, which are compared with the model.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmengine.config import Config
from mmengine.optim import OptimWrapperDict
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS
from torch import nn
from torch.optim import Optimizer

from ....utils.training import merge_groups
from ...config import (
    FLAG,
    RightPlaces,
    RunnerKind,
    find_component,
    walk_dicts,
)
from ...ddp import SyncSettings

STATIC_GRAPH = 'static_graph'
_HOOK = 'default_hooks.activation_checkpoint'
_WRAPPER = 'mmext.DistributedDataParallel'
_HOOK_TYPE = 'mmext.ActivationCheckpointHook'
_SIMILAR = 0.6
# Constructors that read ``custom_keys`` as MMEngine documents it.
_READ_CUSTOM_KEYS = (
    'DefaultOptimWrapperConstructor',
    'mmext.MergedOptimWrapperConstructor',
)


class ConfigOptions:
    """What a config sets for DDP, and which keys to change for other settings.

    ``places`` says what its runner reads.
    """

    def __init__(self, cfg: Config | Mapping[str, Any]) -> None:
        self._top = cfg.to_dict() if isinstance(cfg, Config) else dict(cfg)
        scope = self._top.get('default_scope') or 'mmengine'
        self.places = RightPlaces(self._top, scope, None)

    @property
    def current(self) -> SyncSettings:
        """The settings that a training with this config would run with.

        Keys that its runner does not read do not count.
        """
        wrapper = self.places.wrapper_settings
        flag = wrapper.get(FLAG)
        if flag is None and self.places.reads_flag:
            flag = self._top.get(FLAG)
        return SyncSettings(bool(flag), bool(wrapper.get(STATIC_GRAPH)))

    @property
    def uses_our_wrapper(self) -> bool:
        """Whether the model is wrapped by the wrapper of this package."""
        wrapper = self._top.get('model_wrapper_cfg') or {}
        kind = wrapper.get('type', _WRAPPER)
        portable = self.places.kind is RunnerKind.PORTABLE
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
        flexible = self.places.kind is RunnerKind.FLEXIBLE
        wrapper = 'strategy.model_wrapper' if flexible else 'model_wrapper_cfg'
        in_wrapper = setting in self.places.wrapper_settings
        if setting == FLAG and self.places.reads_flag and not in_wrapper:
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
        if setting in self.places.wrapper_settings:
            options = {key: value}
            if setting == FLAG and self._top.get(FLAG) is not None:
                # Both places have to say the same.
                options[FLAG] = value
            return options
        return _dotted(self.places.of_wrapper(setting, value))

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


@dataclass(frozen=True)
class OptimizerFacts:
    """How the optimizer's groups fit the model."""

    # Trainable parameters that no group holds.
    missing: tuple[str, ...] = ()
    # Parameters in a group that need no gradient.
    frozen: tuple[str, ...] = ()
    # Trainable parameters whose group has a learning rate of 0.
    rate_zero: tuple[str, ...] = ()
    # Keys of ``paramwise_cfg.custom_keys`` that are in no parameter's name,
    # with the nearest real name or an empty string.
    unmatched: Mapping[str, str] = field(default_factory=dict)
    # Keys that fit names, all of which a longer key takes.
    shadowed: tuple[str, ...] = ()
    # How many there are in all optimizers, and how many if those with the
    # same settings were one.
    groups: int = 0
    merged: int = 0
    # Whether MMEngine's constructor has made them.
    mergeable: bool = False


def optimizer_facts(
    model: nn.Module, optimizers: Sequence[Optimizer], cfg: Mapping[str, Any]
) -> OptimizerFacts:
    """How the groups of optimizers fit a model and its config."""
    groups = [group for o in optimizers for group in o.param_groups]
    rates: dict[int, float] = {}
    for group in groups:
        for parameter in group['params']:
            rate = float(group.get('lr', 1.0))
            rates[id(parameter)] = max(rates.get(id(parameter), 0.0), rate)
    named = list(model.named_parameters())
    trainable = [(n, p) for n, p in named if p.requires_grad]
    mergeable = _has_default_constructor(cfg)
    unmatched, shadowed = {}, ()
    paramwise = cfg['optim_wrapper'].get('paramwise_cfg') if mergeable else {}
    if isinstance(paramwise, Mapping) and paramwise.get('custom_keys'):
        keys = map(str, paramwise['custom_keys'])
        unmatched, shadowed = _custom_key_use(keys, [n for n, _ in trainable])
        frozen = [n for n, p in named if not p.requires_grad]
        # A key for what is frozen has no effect, but is no typing error.
        unmatched = {
            key: near
            for key, near in unmatched.items()
            if not any(key in name for name in frozen)
        }
    return OptimizerFacts(
        missing=tuple(n for n, p in trainable if id(p) not in rates),
        frozen=tuple(
            n for n, p in named if not p.requires_grad and id(p) in rates
        ),
        rate_zero=tuple(n for n, p in trainable if rates.get(id(p)) == 0.0),
        unmatched=unmatched,
        shadowed=shadowed,
        groups=len(groups),
        merged=sum(len(merge_groups(o.param_groups)) for o in optimizers),
        mergeable=mergeable,
    )


def wrappers_of(optim_wrapper: Any) -> list[Any]:
    """The wrapper of each optimizer."""
    if isinstance(optim_wrapper, OptimWrapperDict):
        return list(optim_wrapper.optim_wrappers.values())
    return [optim_wrapper]


def _has_default_constructor(cfg: Mapping[str, Any]) -> bool:
    """Whether MMEngine's own constructor reads the config's optim_wrapper."""
    section = cfg.get('optim_wrapper')
    if not isinstance(section, Mapping):
        return False
    kind = section.get('constructor')
    if kind is None:
        return True
    scope = cfg.get('default_scope') or 'mmengine'
    kind = find_component(kind, (OPTIM_WRAPPER_CONSTRUCTORS,), scope)
    known = map(OPTIM_WRAPPER_CONSTRUCTORS.get, _READ_CUSTOM_KEYS)
    readers = [constructor.add_params for constructor in known]
    return getattr(kind, 'add_params', None) in readers


def _custom_key_use(
    keys: Iterable[str], names: Iterable[str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """What MMEngine's constructor makes of ``custom_keys``.

    A key applies where it is part of a trainable parameter's name; of several,
    the longest. Returns keys that fit nothing, with the nearest real name or
    an empty string; and keys that fit, but never as the longest.
    """
    # A parameter of the model itself is called '.name' there.
    names = [name if '.' in name else f'.{name}' for name in names]
    ordered = sorted(sorted(keys), key=len, reverse=True)
    fits = {key: [n for n in names if key in n] for key in ordered}
    taken = {
        next((key for key in ordered if key in name), '') for name in names
    }
    unmatched = {key: _nearest(key, names) for key in ordered if not fits[key]}
    shadowed = tuple(k for k in ordered if fits[k] and k not in taken)
    return unmatched, shadowed


def _nearest(key: str, names: Iterable[str]) -> str:
    """The part of a name that a key resembles most."""
    length = key.count('.') + 1
    candidates = {}
    for name in names:
        parts = name.strip('.').split('.')
        for start in range(max(len(parts) - length + 1, 0)):
            candidates['.'.join(parts[start : start + length])] = None
    near = difflib.get_close_matches(key, list(candidates), 1, _SIMILAR)
    return near[0] if near else ''

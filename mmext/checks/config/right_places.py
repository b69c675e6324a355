"""Where the settings of the model wrapper and of checkpointing belong."""

import copy
import inspect
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import Any

from mmengine.registry import MODEL_WRAPPERS, RUNNERS, STRATEGIES

from .sections import find_component, takes
from .walk import Steps, nest

FLAG = 'find_unused_parameters'
_WRAPPER = 'in the top-level model_wrapper_cfg'

# Settings that people look for in many places -> the place that is read.
RIGHT_PLACES: dict[str, str] = {
    FLAG: 'at the top level of the config',
    'static_graph': _WRAPPER,
    'gradient_as_bucket_view': _WRAPPER,
    'broadcast_buffers': _WRAPPER,
    'detect_anomalous_params': _WRAPPER,
    'with_cp': 'in model.backbone, and with CO-DINO in encoder and decoder '
    'of model.query_head.transformer',
}

_PORTABLE = 'mmext.PortableRunner'
_OUR_DDP = 'mmext.DistributedDataParallel'
_DDP = 'MMDistributedDataParallel'


class RunnerKind(Enum):
    """What a runner makes of the settings of the model wrapper."""

    PORTABLE = 'reads both the top level and model_wrapper_cfg'
    PLAIN = 'reads no top level where there is a model_wrapper_cfg'
    FLEXIBLE = 'reads strategy.model_wrapper only'
    UNKNOWN = 'has a way of its own'


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


def wrapper_takes(kind: Any, key: str) -> bool | None:
    """Whether a model wrapper has an argument; None if that is unknown."""
    if kind is None:
        return None
    package = getattr(kind, '__module__', '').split('.')[0]
    return takes(kind, key, forwards=package in ('mmext', 'mmengine'))


def _mmengine_runners() -> tuple[type, type]:
    """Runner and FlexibleRunner, which load torch."""
    from mmengine.runner import FlexibleRunner, Runner

    return Runner, FlexibleRunner


def _as_dict(value: Any) -> Mapping:
    return value if isinstance(value, Mapping) else {}


class RightPlaces:
    """Says where a config has to set something.

    ``runner`` is a class or a name; by default ``runner_type`` of the config,
    else ``FlexibleRunner`` where there is a ``strategy``, else mmext's.
    """

    def __init__(
        self, top: Mapping[str, Any], scope: str, runner: type | str | None
    ) -> None:
        self._top = top
        self._scope = scope
        self._given = runner
        self.wrapper = _as_dict(top.get('model_wrapper_cfg'))
        self.strategy = _as_dict(top.get('strategy'))

    @cached_property
    def runner(self) -> type | None:
        """Class of the runner, None where it cannot be found."""
        given = self._given or self._top.get('runner_type')
        if given is None:
            if self._top.get('strategy') is not None:
                return _mmengine_runners()[1]
            given = _PORTABLE
        runner = find_component(given, (RUNNERS,), self._scope)
        return runner if inspect.isclass(runner) else None

    @cached_property
    def kind(self) -> RunnerKind:
        """What the runner does with the settings."""
        wrap_model = getattr(self.runner, 'wrap_model', None)
        plain, flexible = _mmengine_runners()
        if self.runner and issubclass(self.runner, flexible):
            return RunnerKind.FLEXIBLE
        if wrap_model is plain.wrap_model:
            return RunnerKind.PLAIN
        if getattr(wrap_model, '__module__', '').startswith('mmext.'):
            return RunnerKind.PORTABLE
        return RunnerKind.UNKNOWN

    @property
    def wrapper_settings(self) -> Mapping[str, Any]:
        """What the runner gives to the wrapper's class."""
        if self.kind is RunnerKind.FLEXIBLE:
            return self.strategy.get('model_wrapper') or {}
        return self.wrapper

    @property
    def wrapper_class(self) -> Any:
        """Class of ``model_wrapper_cfg``, None where it cannot be found."""
        kind = self.wrapper.get('type', _DDP)
        return find_component(kind, (MODEL_WRAPPERS,), self._scope)

    @property
    def wrapper_is_ddp(self) -> bool:
        """Whether the wrapper is one of DDP's, as far as it is known."""
        from torch.nn.parallel import DistributedDataParallel

        kind = self.wrapper_class
        return not inspect.isclass(kind) or issubclass(
            kind, DistributedDataParallel
        )

    @property
    def reads_flag(self) -> bool:
        """Whether the top-level ``find_unused_parameters`` is read."""
        if self.kind is RunnerKind.FLEXIBLE:
            return False
        if self.kind is RunnerKind.PORTABLE:
            return self.wrapper_is_ddp
        none = self._top.get('model_wrapper_cfg') is None
        return self.kind is RunnerKind.UNKNOWN or none

    def read_at(self, key: str) -> str:
        """Where a setting is read, in words."""
        if key != 'with_cp' and self.kind is RunnerKind.FLEXIBLE:
            return 'in strategy.model_wrapper'
        if key == FLAG and not self.reads_flag:
            return _WRAPPER
        return RIGHT_PLACES[key]

    def of_wrapper(self, key: str, value: Any) -> dict[str, Any]:
        """Config that gives the wrapper a setting; empty if it takes none."""
        if key == FLAG and self.reads_flag:
            return {key: value}
        if self.kind is RunnerKind.FLEXIBLE:
            fix = self.of_strategy({key: value})
        else:
            fix = self._of_wrapper_cfg(key, value)
        if fix and key == FLAG and self._top.get(FLAG) is not None:
            # It may come from a base, so that it cannot be removed.
            fix = {FLAG: value, **fix}
        return fix

    def _of_wrapper_cfg(self, key: str, value: Any) -> dict[str, Any]:
        if self.wrapper:
            if wrapper_takes(self.wrapper_class, key) is False:
                return {}
            return {'model_wrapper_cfg': {key: value}}
        default: dict[str, Any] = {'type': _OUR_DDP}
        if self.kind is not RunnerKind.PORTABLE:
            default = {'type': _DDP, 'broadcast_buffers': False}
            if self._top.get(FLAG):
                default[FLAG] = True
        return {'model_wrapper_cfg': {**default, key: value}}

    def of_strategy(
        self, wrapper: Mapping[str, Any], **settings: Any
    ) -> dict[str, Any]:
        """Config that gives a FlexibleRunner's strategy some settings.

        Empty if the strategy is not DDP's, which wraps models another way.
        """
        kind = self.strategy.get('type', 'DDPStrategy')
        strategy = find_component(kind, (STRATEGIES,), self._scope)
        from mmengine._strategy import DDPStrategy

        wrap_model = getattr(strategy, '_wrap_model', None)
        if wrap_model is not DDPStrategy._wrap_model:
            return {}
        if wrapper and not self.strategy.get('model_wrapper'):
            default = {'type': _DDP, 'broadcast_buffers': False}
            wrapper = {**default, **wrapper}
        if wrapper:
            settings['model_wrapper'] = dict(wrapper)
        fix = {'strategy': {'type': kind, **settings}}
        if self._given is None and self._top.get('runner_type') is None:
            fix = {'runner_type': 'FlexibleRunner', **fix}
        return fix


def of_checkpointing(
    value: Any,
    readers: Iterable[tuple[Steps, Any]],
    backbones: Mapping[Steps, bool | None],
) -> list[dict[str, Any]]:
    """Configs to merge that set ``with_cp`` where it is read.

    A backbone without ``with_cp`` is checkpointed by mmext's hook.
    """
    if not isinstance(value, bool | int):
        value = bool(value)
    places = list(readers)
    if places:
        return [
            nest(path, value)
            for path, old in places
            if (type(old), old) != (type(value), value)
        ]
    if not value:
        return []
    able = [path for path, can in backbones.items() if can]
    if able:
        return [nest((*path, 'with_cp'), value) for path in able]
    names = ['.'.join(map(str, path[1:])) for path in backbones]
    return [checkpoint_hook(names)] if names else []


def checkpoint_hook(modules: Sequence[str]) -> dict[str, Any]:
    """Config of the hook that checkpoints modules of any kind."""
    hook = {
        'type': 'mmext.ActivationCheckpointHook',
        'modules': list(modules),
    }
    return nest(('default_hooks', 'activation_checkpoint'), hook)

"""Where a config sets what is around the model: the runner and its wrapper."""

import inspect
from collections.abc import Mapping
from enum import Enum
from functools import cached_property
from typing import Any

from mmengine.registry import MODEL_WRAPPERS, RUNNERS

from .sections import find_component, takes

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
_DDP = 'MMDistributedDataParallel'
# What MMEngine's runners wrap a model with that has no settings of its own.
_PLAIN_DDP: dict[str, Any] = {'type': _DDP, 'broadcast_buffers': False}


class RunnerKind(Enum):
    """What a runner makes of the settings of the model wrapper."""

    PORTABLE = 'reads both the top level and model_wrapper_cfg'
    PLAIN = 'reads no top level where there is a model_wrapper_cfg'
    FLEXIBLE = 'reads strategy.model_wrapper only'
    UNKNOWN = 'has a way of its own'


def wrapper_takes(kind: Any, key: str) -> bool | None:
    """Whether a model wrapper has an argument; None if that is unknown."""
    if kind is None:
        return None
    package = getattr(kind, '__module__', '').split('.')[0]
    return takes(kind, key, forwards=package in ('mmext', 'mmengine'))


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
        self._given = runner or top.get('runner_type')
        self.wrapper = _as_dict(top.get('model_wrapper_cfg'))
        self.strategy = _as_dict(top.get('strategy'))

    @cached_property
    def runner(self) -> type | None:
        """Class of the runner, None where it cannot be found."""
        default = _PORTABLE
        if self._top.get('strategy') is not None:
            default = 'FlexibleRunner'
        runner = find_component(
            self._given or default, (RUNNERS,), self._scope
        )
        return runner if inspect.isclass(runner) else None

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
            return self.strategy.get('model_wrapper') or {}
        return self.wrapper

    @property
    def wrapper_class(self) -> Any:
        """Class of ``model_wrapper_cfg``, None where it cannot be found."""
        kind = self.wrapper.get('type', _DDP)
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
            kind = self.strategy.get('type', 'DDPStrategy')
            default = {} if self.wrapper_settings else _PLAIN_DDP
            wrapper = {**default, key: value}
            fix = {'strategy': {'type': kind, 'model_wrapper': wrapper}}
            if kind != 'DDPStrategy':
                # Others wrap models another way.
                fix = {}
        elif self.wrapper:
            known = wrapper_takes(self.wrapper_class, key) is not False
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

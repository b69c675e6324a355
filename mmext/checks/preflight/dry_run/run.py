"""Train a model for a few steps, alone, and say what DDP would do with it.

Also what a config sets for DDP, and which of its keys change it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from typing import Any

from mmengine.config import Config
from mmengine.optim import OptimWrapperDict
from torch import Tensor, nn

from ...config import (
    FLAG,
    RightLocations,
    RunnerKind,
    join_key,
    walk_dicts,
)
from ...ddp import (
    Explanation,
    Step,
    StepUsage,
    SyncSettings,
    Verdict,
    foreign_parameters,
    kept_tensors,
    lazy_tensors,
    location_in,
    restored,
)
from ...findings import ErrorCatcher, frames_of
from ..causes import read_settings
from ..sandbox import part_at
from .crashes import Crash, explain_crash, modules_of_error
from .step import StepRecord, StepRun, own_backward

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
        self.locations = RightLocations(self._top)

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

    def key_of_strides(self, part: str) -> str:
        """Where the strides of a part of the model are set, or the part."""
        path: list[Any] = ['model']
        for name in part.split('.'):
            step = int(name) if name.isdecimal() else name
            if part_at(self._top, (*path, step)) is not None:
                path.append(step)
            elif not name.isdecimal():
                # Parts of a list may have one dict in common.
                break
        section = part_at(self._top, path)
        for where, node in walk_dicts(section, tuple(path)):
            for key in node:
                if str(key).endswith('strides'):
                    return join_key((*where, key))
        return join_key(path)

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
        return dotted_options(self.locations.of_wrapper(setting, value))

    @property
    def _hook(self) -> Mapping[str, Any]:
        hooks = self._top.get('default_hooks') or {}
        old = hooks.get('activation_checkpoint')
        ours = isinstance(old, Mapping) and old.get('type') == _HOOK_TYPE
        return old if ours else {}

    def without_reentrant(self) -> dict[str, Any]:
        """The hook that replaces reentrant checkpoints; empty if it cannot.

        One that is there already cannot replace what is left.
        """
        if self._hook.get('replace_reentrant') is True:
            return {}
        if self._hook:
            return {f'{_HOOK}.replace_reentrant': True}
        return {_HOOK: {'type': _HOOK_TYPE, 'replace_reentrant': True}}


def dotted_options(
    settings: Mapping[str, Any], prefix: str = ''
) -> dict[str, Any]:
    """Nested settings as dotted keys; a dict with a type stays whole."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value and 'type' not in value:
            flat |= dotted_options(value, f'{prefix}{key}.')
        else:
            flat[f'{prefix}{key}'] = value
    return flat


def wrappers_of(optim_wrapper: Any) -> list[Any]:
    """The wrapper of each optimizer."""
    if isinstance(optim_wrapper, OptimWrapperDict):
        return list(optim_wrapper.optim_wrappers.values())
    return [optim_wrapper]


@dataclass(frozen=True)
class DryRun:
    """All that was seen."""

    # Of each kind of batch, in their order.
    steps: Mapping[str, tuple[StepRecord, ...]]
    # At most one of each kind.
    crashes: tuple[Crash, ...] = ()
    # Modules with a ``loss_weight`` of 0.
    zero_weights: tuple[str, ...] = ()
    # Where the config sets what.
    config: ConfigOptions = field(default_factory=partial(ConfigOptions, {}))
    # Parameters and buffers without a shape; no step is run with them.
    lazy: tuple[str, ...] = ()
    # Parameters of the optimizer that are not the model's.
    foreign: tuple[str, ...] = ()
    # Whether weights that the config names were left out.
    random_weights: bool = False

    @property
    def is_telling(self) -> bool:
        """Whether the first kind, the most common one, went through a step.

        Special batches alone, as those without an object, do not show what
        a training does with its parameters.
        """
        return bool(next(iter(self.steps.values()), ()))

    @property
    def clean_kinds(self) -> tuple[str, ...]:
        """Kinds of batches that went through."""
        crashed = {crash.kind for crash in self.crashes}
        return tuple(
            k for k in self.steps if self.steps[k] and k not in crashed
        )

    @property
    def fails(self) -> bool:
        """Whether the first kind ended with an error."""
        return next(iter(self.steps), '') not in self.clean_kinds

    def all_steps(self) -> Iterator[StepRecord]:
        """The steps of all kinds, one after the other."""
        for steps in self.steps.values():
            yield from steps

    def usages(self) -> tuple[StepUsage, ...]:
        """What each step did with the parameters."""
        return tuple(step.usage for step in self.all_steps())

    def averaged_steps(self) -> list[StepRecord]:
        """Those after which gradients are averaged, if they are accumulated.

        Where none of the first kind is such a step, all are looked at.
        """
        number = self.config.accumulated
        first, *others = [*self.steps.values()] or [()]
        return list(chain(first[number - 1 :: number] or first, *others))

    @cached_property
    def judged(self) -> 'DryRun':
        """With random weights, the run without what only an update did.

        The rate is made for trained weights. After one update of random ones
        an RPN may propose nothing, and what comes behind it gets no gradient.
        """
        if not self.random_weights:
            return self
        number = self.config.accumulated
        kept = {}
        for kind, steps in self.steps.items():
            unused = {n for step in steps[:number] for n in step.usage.unused}
            kept[kind] = tuple(
                step
                for step in steps
                if step.step < number or unused.issuperset(step.usage.unused)
            )
        return replace(self, steps=kept, random_weights=False)

    def explain(self, current: SyncSettings) -> Explanation:
        """What DDP does with the steps after which gradients are averaged."""
        return Explanation(
            [Step(s.usage, s.kind, s.step) for s in self.averaged_steps()],
            current,
            accumulates=self.config.accumulated > 1,
        )


def dry_run_model(
    model: nn.Module,
    batches: Mapping[str, Sequence[Any]],
    *,
    optim_wrapper: Any = None,
    cfg: Config | Mapping[str, Any] | None = None,
    steps: int = 2,
    later_steps: int | None = None,
    random_weights: bool = False,
) -> DryRun:
    """Run steps of a model and record what decides about a training.

    No process group is needed, and no wrapper: the forward, the backward and a
    step of the optimizer are run here. A batch with which the model fails ends
    that kind of batch, and nothing else. Parameters, buffers, gradients and
    random numbers are put back; a graph that a module has kept is not.

    ``batches`` has for each kind what the data loader would give, one for
    each step; fewer are used again. ``steps`` is at least 2: a graph that one
    step keeps fails in the next. Kinds after the first have ``later_steps``.
    """
    if not hasattr(model, 'parse_losses'):
        raise TypeError(
            'model must be a BaseModel without a wrapper, as it is before '
            f'Runner.wrap_model, got {type(model).__name__}'
        )
    optimizers = []
    cfg = cfg.to_dict() if isinstance(cfg, Config) else cfg or {}
    if optim_wrapper is not None:
        optimizers = [w.optimizer for w in wrappers_of(optim_wrapper)]
    records: dict[str, tuple[StepRecord, ...]] = {}
    crashes = []
    config = ConfigOptions(cfg)
    lazy = lazy_tensors(model)
    if lazy:
        # They cannot be put back as they were.
        return DryRun(steps={}, lazy=lazy, config=config)
    groups = [group for o in optimizers for group in o.param_groups]
    foreign = tuple(foreign_parameters(model, groups))
    for index, (kind, given) in enumerate(batches.items()):
        number = steps
        if index and later_steps:
            number, given = later_steps, given[:later_steps]
        # Each kind begins with the same weights and random numbers.
        with restored(model, optimizers):
            records[kind], crash = _run_kind(
                model,
                kind,
                given,
                number,
                optimizers,
                own_backward(optim_wrapper),
                cfg,
            )
        crashes += [crash] if crash is not None else []
        # What one kind has left must not fail with the next one.
        for tensors in kept_tensors(model).values():
            for tensor in tensors:
                if not tensor._is_view():
                    tensor.detach_()
    weights = (
        (name, vars(module).get('loss_weight'))
        for name, module in model.named_modules()
    )
    return DryRun(
        steps=records,
        crashes=tuple(crashes),
        zero_weights=tuple(
            name
            for name, weight in weights
            if isinstance(weight, int | float) and weight == 0
        ),
        config=config,
        foreign=foreign,
        random_weights=random_weights,
    )


def _run_kind(
    model: nn.Module,
    kind: str,
    batches: Sequence[Any],
    steps: int,
    optimizers: Sequence[Any],
    backward: Callable[[Tensor], None] | None,
    cfg: Mapping[str, Any],
) -> tuple[tuple[StepRecord, ...], Crash | None]:
    """The steps of one kind of batch, up to the first that fails."""
    done: list[StepRecord] = []
    left: dict[str, list[Any]] = {}
    for number in range(max(steps, len(batches))):
        run = StepRun(model, optimizers, left, backward)
        batch = batches[number % len(batches)]
        failed: list[Exception] = []
        with ErrorCatcher(failed.append):
            if number == 0:
                model.train()
            record = run.run(batch, kind, number)
        if done and run.used_again:
            # Known only now.
            kept = tuple(
                replace(g, used_again=g.location in run.used_again)
                for g in done[-1].kept
            )
            done[-1] = replace(done[-1], kept=kept)
        if failed:
            # What it holds, the tensors of a step, is freed with it.
            error = failed.pop()
            crash = Crash(
                kind=kind,
                step=number,
                phase=run.phase,
                error=type(error).__name__,
                message=str(error),
                modules=modules_of_error(error, model),
                location=location_in(frames_of(error)),
                cause=explain_crash(
                    model, partial(run.run, batch, kind, number), error, cfg
                ),
                settings=read_settings(error, cfg, 'model'),
            )
            del error
            return tuple(done), crash
        done.append(record)
        left = run.left
    return tuple(done), None


@dataclass(frozen=True)
class Verdicts:
    """All choices of settings, and why the recommended one is that."""

    rows: tuple[Verdict, ...]
    reason: str

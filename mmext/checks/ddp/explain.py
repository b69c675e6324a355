"""Explain what DDP does with the steps of a training, and what helps.

The only location that words it: the error of a training
(``GradientSyncError``), the preflight's rules and :func:`explain_step` say
what is said here. Why a parameter has no gradient is
:class:`~mmext.checks.ddp.trace.UnusedReason`. Each advice was tried by
replaying the steps.
"""

import dataclasses
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from torch import Tensor, nn

from .reducer import Outcome, Prediction, SyncSettings, predict_outcome
from .trace import (
    StepUsage,
    UnusedParameter,
    UnusedReason,
    lazy_tensors,
    restored,
    trace_step,
    trace_train_step,
)

NO_SEARCH = SyncSettings()
SEARCH = SyncSettings(find_unused_parameters=True)
STATIC = SyncSettings(static_graph=True)

_FREEZE = (
    'or, if it is not to be trained, freeze it in __init__ with '
    'requires_grad_(False), or remove it'
)
_REMEDIES = {
    UnusedReason.NEVER_USED: ('use it in the loss', _FREEZE),
    UnusedReason.BRANCH_NOT_TAKEN: (
        'use it in every step, times 0 where a batch has nothing for it',
    ),
    UnusedReason.NOT_IN_LOSS: ('add its output to a loss', _FREEZE),
    UnusedReason.DETACHED: ('let gradients pass there', _FREEZE),
    UnusedReason.NO_GRAD: ('compute it with gradients', _FREEZE),
    UnusedReason.FROZEN: ('freeze it earlier, when the model is built',),
    UnusedReason.IN_FORWARD: (
        'return its loss from forward, and let the training do the backward',
    ),
}
REPLACE_CHECKPOINTS = (
    'replace the reentrant checkpoints with mmext.ActivationCheckpointHook; '
    'where code of yours calls torch.utils.checkpoint, pass '
    'use_reentrant=False'
)
USE_IN_FORWARD = "use them in forward(mode='loss')"
OUTSIDE_FORWARD = (
    'used outside of forward, where find_unused_parameters does not look'
)
LAYOUT_REMEDY = (
    'set sparse=False in the embedding; else use it in every step, as an '
    'embedding only, and no sparse gradients elsewhere'
)
REGISTER = (
    'register layers in nn.ModuleList or nn.ModuleDict, and tensors as '
    'nn.Parameter, not in a list or dict of Python; put a module outside of '
    'the model, such as a loss, into the model; or average the gradients '
    'yourself before the optimizer steps'
)
KEEP_DENSE = (
    'make it dense, or keep it as an attribute that is not a buffer, and move '
    'it to the device yourself'
)
AVERAGE_ALL = (
    'let all losses be part of one backward of what forward returns, and the '
    'optimizer step after it; make and unfreeze parameters in __init__, '
    'before the model is wrapped; scale what an embedding returns instead of '
    'max_norm'
)

_MAX_NAMES = 12
# The cheapest first, and when it is the one to use.
_WHEN = {
    NO_SEARCH: 'every step gives every parameter one gradient',
    SEARCH: 'some parameters get no gradient, which takes a search in each '
    'step: a walk over the graph and a small reduction',
    STATIC: 'a search does not see all that is used; a static graph works if '
    'all steps use the same parameters in the same way, and gradients are '
    'not accumulated',
}
_FLAG = 'find_unused_parameters = {}'
_HOOK = """default_hooks = dict(
    activation_checkpoint=dict(
        type='mmext.ActivationCheckpointHook', replace_reentrant=True
    )
)"""
_WRAPPER = """model_wrapper_cfg = dict(
    type='mmext.DistributedDataParallel', static_graph={}
)"""


def remedy_for(reasons: Iterable[UnusedReason]) -> str:
    """What helps where parameters have no gradient for these reasons."""
    parts = [part for reason in reasons for part in _REMEDIES[reason]]
    return '; '.join(sorted(dict.fromkeys(parts), key=_FREEZE.__eq__))


def group_lines(text: str, names: Sequence[str], where: str = '') -> list[str]:
    """What holds for some parameters, and the first of them."""
    count = '1 parameter' if len(names) == 1 else f'{len(names)} parameters'
    return [f'{count}{where} {text}', *name_lines(names)]


def name_lines(names: Sequence[str]) -> list[str]:
    """Names below each other, the first ones of many."""
    lines = [f'    {name}' for name in names[:_MAX_NAMES]]
    if len(names) > _MAX_NAMES:
        lines.append(f'    ... and {len(names) - _MAX_NAMES} more')
    return lines


def reasons_in(usages: Sequence[StepUsage]) -> dict[str, UnusedParameter]:
    """Why parameters have no gradient, by the step that says most of it.

    What one step never uses, and another one does, is in a branch.
    """
    results: dict[str, UnusedParameter] = {}
    for usage in usages:
        for name, unused in usage.unused.items():
            if name not in results or (
                results[name].reason is UnusedReason.NEVER_USED
            ):
                results[name] = unused
    for name in {
        gradient.name for usage in usages for gradient in usage.ready
    }:
        if name in results and results[name].reason is UnusedReason.NEVER_USED:
            results[name] = UnusedParameter(UnusedReason.BRANCH_NOT_TAKEN)
    return results


class Step(NamedTuple):
    """What a step did; ``kind`` is that of its batch, ``number`` from 0."""

    usage: StepUsage
    kind: str = ''
    number: int = 0


@dataclass(frozen=True)
class Advice:
    """What to do, and lines for the top level of the config, if any."""

    text: str
    config: str = ''


@dataclass(frozen=True)
class Verdict:
    """What happens with one choice of settings.

    Attributes:
        checkpointing: Which activation checkpoints the model has: those
            that are there, ``'none'`` if there are none, or what would be
            left of them.
        find_unused_parameters: As DDP's.
        static_graph: As DDP's; the other flag has no effect with it.
        outcome: ``'ok'``, or ``'error at step 2: ...'``, from 1, or
            ``'silent: ...'``.
        works: Whether everything is trained as it should be.
        current: Whether these are the settings in use.
        recommended: Whether they are the ones to use.
        names: The parameters concerned.
        batches: Kind of batch with which it happens; empty if all is well.
        failure: What happens first, ``Outcome.OK`` also where a reentrant
            checkpoint keeps parameters from being trained.
        reentrant: Whether reentrant checkpoints stay as they are.
    """

    checkpointing: str
    find_unused_parameters: bool
    static_graph: bool
    outcome: str
    works: bool
    current: bool = False
    recommended: bool = False
    names: tuple[str, ...] = ()
    batches: str = ''
    failure: Outcome = Outcome.OK
    reentrant: bool = True

    @property
    def settings(self) -> SyncSettings:
        """The two flags."""
        return SyncSettings(self.find_unused_parameters, self.static_graph)


class Explanation:
    """What DDP does with steps, with each choice of settings.

    Args:
        steps: At least one. In a training they may come in any order.
        current: The settings in use.
        accumulates: Whether gradients of several batches are added up before
            they are averaged, which a static graph does not allow.
        in_config: Whether advice is for a config of MMEngine; else it is for
            the arguments of ``DistributedDataParallel``.

    Attributes:
        unused: Why parameters have no gradient in a step.
        verdicts: One for each choice; also without reentrant checkpoints,
            where there are some.
        current: The verdict on the settings in use.
        recommended: The cheapest one that works; None if none does.
        reason: Why it is that one.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        current: SyncSettings = NO_SEARCH,
        *,
        accumulates: bool = False,
        in_config: bool = True,
    ) -> None:
        self._steps, self._settings = steps, current
        self._in_config = in_config
        self._usages = [step.usage for step in steps]
        self.unused = reasons_in(self._usages)
        self._reasons = list(
            dict.fromkeys(unused.reason for unused in self.unused.values())
        )
        rows = {
            (settings, reentrant): self._verdict(
                settings, reentrant, accumulates
            )
            for settings in _WHEN
            for reentrant in (True, False)[: 1 + self._has_reentrant()]
        }
        # DDP leaves the other flag out with a static graph.
        used = STATIC if current.static_graph else current, True
        chosen = next((key for key, row in rows.items() if row.works), None)
        self.reason = 'no setting helps: the model has to change'
        if chosen is not None:
            self.reason = _WHEN[chosen[0]]
            if not chosen[1]:
                self.reason += ', once no checkpoint is reentrant'
        self._rows = {
            key: dataclasses.replace(
                row, current=key == used, recommended=key == chosen
            )
            for key, row in rows.items()
        }
        self.verdicts = tuple(self._rows.values())
        self.current = self._rows[used]
        self.recommended = None if chosen is None else self._rows[chosen]

    def row(
        self, settings: SyncSettings, reentrant: bool = True
    ) -> Verdict | None:
        """The verdict on a choice; ``reentrant`` keeps such checkpoints."""
        return self._rows.get((settings, reentrant))

    def works(self, settings: SyncSettings, reentrant: bool = True) -> bool:
        """Whether there is such a choice, and it works."""
        row = self.row(settings, reentrant)
        return row is not None and row.works

    def _has_reentrant(self) -> bool:
        return UnusedReason.CHECKPOINT_INPUT in self._reasons or any(
            usage.reentrant or usage.call_sites for usage in self._usages
        )

    def _verdict(
        self, settings: SyncSettings, reentrant: bool, accumulates: bool
    ) -> Verdict:
        usages = self._usages
        if not reentrant:
            # Any other checkpoint is an ordinary part of the graph.
            usages = [usage.without_reentrant() for usage in usages]
        failure, index = _first_failure(usages, settings)
        if settings is STATIC and accumulates:
            failure, index = Prediction(Outcome.ACCUMULATED), 0
        step, names = self._steps[index], failure.names
        if failure.outcome is Outcome.READY_TWICE:
            # The reducer names one, and would come to all.
            more = usages[index].twice
            if settings.find_unused_parameters:
                more += usages[index].hidden
            names = tuple(dict.fromkeys((*names, *more)))
        text = failure.outcome.value
        if failure.outcome is Outcome.OK:
            names = tuple(
                dict.fromkeys(
                    name
                    for usage in usages
                    for name, unused in usage.unused.items()
                    if unused.reason is UnusedReason.CHECKPOINT_INPUT
                )
            )
            if names:
                text = 'silent: parameters in a checkpoint are not trained'
        elif failure.outcome is Outcome.DIVERGED:
            text = f'silent: {text.partition(": ")[2]}'
        else:
            # A missing gradient is noticed in the forward of the next step.
            late = failure.outcome is Outcome.UNFINISHED
            number = step.number + 1 + late
            text = f'error at step {number}: {text.partition(":")[0]}'
        checkpointing = 'none of them reentrant'
        if reentrant:
            has_any = self._has_reentrant() or any(u.reran for u in usages)
            checkpointing = 'as they are' if has_any else 'none'
        return Verdict(
            checkpointing=checkpointing,
            find_unused_parameters=settings.find_unused_parameters,
            static_graph=settings.static_graph,
            outcome=text,
            works=text == 'ok',
            names=names,
            batches='' if failure.outcome is Outcome.OK else step.kind,
            failure=failure.outcome,
            reentrant=reentrant,
        )

    def advice(self) -> list[Advice]:
        """Ways to make the steps work, the cheapest first.

        Settings are advised only if the steps work with them.
        """
        if self.current.failure is Outcome.UNEXPECTED and any(
            usage.sparse or any(gradient.sparse for gradient in usage.ready)
            for usage in self._usages
        ):
            names = ' and '.join(self.current.names)
            return [Advice(f'In the model, for {names}: {LAYOUT_REMEDY}.')]
        advice, lost = [], UnusedReason.CHECKPOINT_INPUT
        names = [n for n, use in self.unused.items() if use.reason is not lost]
        if names:
            shown = ' and '.join(names[:2])
            if len(names) > 2:
                shown = f'{names[0]} and {len(names) - 1} more'
            remedy = remedy_for(r for r in self._reasons if r is not lost)
            text = f'In the model, for {shown}: {remedy}.'
            used = [u.without_unused() for u in self._usages]
            flag = self._settings.find_unused_parameters
            failure, _ = _first_failure(used, SyncSettings(flag))
            if failure.outcome is not Outcome.OK:
                text += ' This alone is not enough.'
            advice.append(Advice(text))
        if any(usage.outside_forward for usage in self._usages):
            mode = "(mode='loss')" * self._in_config
            advice.append(Advice(f'In the model: use them in forward{mode}.'))
        if lost in self._reasons:
            # Flags would only hide that these are not trained.
            return [*self._replace_checkpoints(), *advice]
        flags = [flag for flag in (NO_SEARCH, SEARCH) if self.works(flag)][:1]
        for flag in flags:
            if flag != self._settings:
                advice.append(self._setting(_WHEN[flag], self._lines(flag)))
        if any(usage.reentrant for usage in self._usages):
            advice += self._replace_checkpoints()
        differ = {UnusedReason.BRANCH_NOT_TAKEN, UnusedReason.FROZEN}
        if (
            not flags
            and not self._settings.static_graph
            and self.works(STATIC)
            and differ.isdisjoint(self._reasons)
        ):
            advice.append(self._setting(_WHEN[STATIC], self._static(True)))
        return advice

    def _setting(self, text: str, lines: str) -> Advice:
        where = 'At the top level of the config:'
        if not self._in_config:
            where = 'Arguments of DistributedDataParallel:'
        text = f'{text[0].upper()}{text[1:]}.'
        return Advice(f'{text} {where}' if lines else text, lines)

    def _static(self, value: bool) -> str:
        form = _WRAPPER if self._in_config else 'static_graph={}'
        return form.format(value)

    def _replace_checkpoints(self) -> list[Advice]:
        """Replace reentrant checkpoints, with the flag that this needs."""
        text, hook = 'pass use_reentrant=False to the checkpoints', ''
        if self._in_config:
            text, hook = REPLACE_CHECKPOINTS, _HOOK
        return [
            self._setting(
                text, '\n'.join(filter(None, (hook, self._lines(flag))))
            )
            for flag in (NO_SEARCH, SEARCH)
            if self.works(flag, reentrant=False)
        ][:1]

    def _lines(self, flag: SyncSettings) -> str:
        """Lines that change the settings in use to a flag."""
        lines = []
        if self._settings.static_graph:
            lines.append(self._static(False))
        wanted = flag.find_unused_parameters
        if self._settings.find_unused_parameters != wanted:
            line = _FLAG.format(wanted)
            lines.append(line if self._in_config else line.replace(' ', ''))
        return '\n'.join(lines)

    def advice_lines(self) -> list[str]:
        """The advice, numbered; config lines can be pasted as they are."""
        lines = []
        for number, advice in enumerate(self.advice(), 1):
            lines += ['', filled(f'Advice {number}. {advice.text}')]
            if advice.config:
                lines += ['', advice.config]
        return lines

    def __str__(self) -> str:
        """What has no gradient, each choice of settings, and the advice."""
        groups: dict[str, list[str]] = {}
        for name, unused in self.unused.items():
            groups.setdefault(unused.in_words(), []).append(name)
        lines = []
        for text, names in groups.items():
            lines += [*group_lines(f'got no gradient: {text}', names), '']
        for row in self.verdicts:
            settings = 'static_graph=True'
            if not row.static_graph:
                flag = row.find_unused_parameters
                settings = f'find_unused_parameters={flag}'
            if len(self.verdicts) > len(_WHEN):
                settings += f', checkpoints {row.checkpointing}'
            marks = ' (in use)' * row.current
            marks += ' (recommended)' * row.recommended
            lines.append(f'{settings}: {row.outcome}{marks}')
        return '\n'.join([*lines, *self.advice_lines()])


def explain_step(
    model: nn.Module,
    batch: Any,
    settings: SyncSettings = NO_SEARCH,
    *,
    loss: Callable[[Any], Tensor] | None = None,
    forward: Callable[..., Any] | None = None,
) -> Explanation:
    """Run a training step in this process; explain what DDP would do with it.

    The step of a ``BaseModel`` is ``forward(mode='loss')``, as the wrappers of
    MMEngine run it. The step of any other module needs ``loss``. The model is
    left as it was: mode, gradients, buffers and random numbers included. Other
    batches may use other parameters.

    Args:
        model: A module, not wrapped.
        batch: As the data loader gives it; with ``loss`` the arguments of
            ``forward``: a mapping by name, a tuple or list by position, or
            the only one.
        settings: The flags in use.
        loss: Function from the output of ``forward`` to the scalar; for
            modules that are not a ``BaseModel``.
        forward: Function that DDP runs in its forward, if that is not the
            model, such as ``training_step`` of a ``LightningModule``; with
            ``loss`` only.

    Returns:
        The parameters without a gradient, with the reason and the line of
        code; what DDP would do with each choice of settings, and which are
        recommended. Its ``str`` can be read.

    Raises:
        TypeError: If the model has no ``parse_losses``, and there is no
            ``loss``.

    Examples:
        >>> import torch
        >>> from mmengine.model import BaseModel
        >>> class Net(BaseModel):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.used, self.extra = nn.Linear(2, 1), nn.Linear(2, 1)
        ...
        ...     def forward(self, inputs, mode='loss'):
        ...         return {'loss': self.used(inputs).sum()}
        >>> explanation = explain_step(Net(), {'inputs': torch.ones(1, 2)})
        >>> explanation.recommended.settings
        SyncSettings(find_unused_parameters=True, static_graph=False)
        >>> print(str(explanation).partition('Advice')[0])
        2 parameters got no gradient: never used in forward
            extra.weight
            extra.bias
        <BLANKLINE>
        find_unused_parameters=False: error at step 2: a parameter has no \
gradient (in use)
        find_unused_parameters=True: ok (recommended)
        static_graph=True: ok
        <BLANKLINE>
        <BLANKLINE>
    """
    if loss is None and not hasattr(model, 'parse_losses'):
        raise TypeError(
            'model must be a BaseModel without a wrapper, as it is before '
            f'Runner.wrap_model, got {type(model).__name__}; for another '
            'module, give loss, the function from the output of forward to '
            'the scalar'
        )
    lazy = lazy_tensors(model)
    if lazy:
        # DDP refuses them; a step could not be undone.
        usage = StepUsage((), (), frozenset(), refused=lazy)
        return Explanation([Step(usage)], settings, in_config=loss is None)
    with restored(model):
        if loss is None:
            usage = trace_train_step(model, batch)
        else:
            model.train()
            run = _call_with(forward or model, batch)
            usage = trace_step(model, run, loss)
    return Explanation([Step(usage)], settings, in_config=loss is None)


def _call_with(function: Callable[..., Any], batch: Any) -> Callable[[], Any]:
    if isinstance(batch, Mapping):
        return partial(function, **batch)
    if not isinstance(batch, tuple | list):
        batch = (batch,)
    return partial(function, *batch)


def filled(text: str) -> str:
    """Text in lines of 79 columns that break between words only."""
    return textwrap.fill(
        text, 79, break_long_words=False, break_on_hyphens=False
    )


def _first_failure(
    usages: Sequence[StepUsage], settings: SyncSettings
) -> tuple[Prediction, int]:
    """What goes wrong first, silent before loud, and in which step.

    In a training any kind of batch may follow any other, and processes may
    have different ones; so the steps may come in any order.
    """
    failures = [
        (prediction, index)
        for prediction, index in _predictions(usages, settings)
        if prediction.outcome is not Outcome.OK
    ]
    silent = [f for f in failures if f[0].outcome is Outcome.DIVERGED]
    return (silent or failures or [(Prediction(Outcome.OK), 0)])[0]


def _predictions(
    usages: Sequence[StepUsage], settings: SyncSettings
) -> Iterator[tuple[Prediction, int]]:
    """Predictions, and which of the usages has the cause."""
    if not settings.static_graph:
        for index, usage in enumerate(usages):
            prediction = predict_outcome(
                [usage],
                find_unused_parameters=settings.find_unused_parameters,
                wrapped=usages[0],
            )
            yield prediction, index
        return
    # One of each way to use the parameters.
    different: dict[Any, int] = {}
    for index, usage in enumerate(usages):
        way = (
            frozenset(usage.counts().items()),
            usage.reachable,
            usage.passed,
            usage.in_forward,
            usage.late,
            usage.by_hand,
            frozenset(usage.serials.items()),
        )
        different.setdefault(way, index)
    for first, index in product(different.values(), repeat=2):
        # The first step is repeated: it may not even be like itself.
        steps = [usages[first], usages[first], usages[index]]
        prediction = predict_outcome(
            steps, static_graph=True, wrapped=usages[0]
        )
        # An error in step 1 is not a change of the graph.
        own = prediction.step < len(steps) - 1
        yield prediction, first if own else index


# In one process a loop calls `model.train_step`. In several it calls that of
# the wrapper, and MMEngine's wrapper for DDP has one of its own: it runs
# `forward(mode='loss')`, adds the losses up and steps one optimizer. What a
# model does otherwise in `train_step`, as a GAN with two optimizers, is then
# not done, and nothing says so.
STEP_REMEDY = (
    "move what it does into forward(mode='loss') and parse_losses, which are "
    'called; or, for a model of several modules with an optimizer each, set '
    "model_wrapper_cfg=dict(type='MMSeparateDistributedDataParallel'), which "
    'calls it and averages the gradients of each direct submodule; or derive '
    'a wrapper from mmext.DistributedDataParallel with a train_step of its own'
)
# What a wrapper's own train_step does in place of the model's.
_METHODS = ('train_step', '_run_forward')
# Wrappers with such a train_step besides MMEngine's; ours adds itself.
WRAPPERS: list[type] = []


def _own_methods(model: Any) -> tuple[str, ...]:
    """Methods of a model, or of its class, that are not ``BaseModel``'s."""
    from mmengine.model import BaseModel

    kind = model if inspect.isclass(model) else type(model)
    of_object = {} if inspect.isclass(model) else vars(model)
    own = []
    for name in _METHODS:
        given = of_object.get(name, getattr(kind, name, None))
        if given is None or given is getattr(BaseModel, name):
            continue
        # Only BaseModel's train_step calls it.
        if name == 'train_step' or issubclass(kind, BaseModel):
            own.append(name)
    return tuple(own)


def has_own_train_step(model: Any) -> bool:
    """Whether a model, or a class, trains in another way than BaseModel."""
    return 'train_step' in _own_methods(model)


def bypassed_methods(model: Any, wrapper: Any) -> tuple[str, ...]:
    """Methods of a model, or its class, that a wrapper does not call.

    Those of ``_METHODS`` that the model has of its own; empty for a class of
    wrappers that leaves the step to the model, or has another ``train_step``
    than the ones that are known.
    """
    from mmengine.model import (
        MMDistributedDataParallel,
        MMFullyShardedDataParallel,
    )

    wrappers = *WRAPPERS, MMDistributedDataParallel, MMFullyShardedDataParallel
    step = getattr(wrapper, 'train_step', None)
    known = {kind.train_step for kind in wrappers}
    return _own_methods(model) if step in known else ()


def loose_parameters(model: nn.Module, wrapper: Any) -> list[str]:
    """Parameters that a wrapper of submodules averages for nobody.

    ``MMSeparateDistributedDataParallel`` wraps the direct submodules, and
    passes over trainable parameters of the model itself.
    """
    from mmengine.model import MMSeparateDistributedDataParallel

    if not (
        inspect.isclass(wrapper)
        and issubclass(wrapper, MMSeparateDistributedDataParallel)
    ):
        return []
    return [
        name
        for name, parameter in model.named_parameters(recurse=False)
        if parameter.requires_grad
    ]

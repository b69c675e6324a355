"""What a dry run shows of the steps: errors, losses and norms."""

import math
import textwrap
from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch import nn

from ...ddp import SyncSettings
from ...device import DeviceMixError, MemoryForecast
from ...findings import Finding, Rule, Severity, code_location, terminal
from ..build import Built
from ..dry_run.crashes import Crash
from ..dry_run.rehearsal import GIB, RehearsedStep, norm_of_one
from ..dry_run.run import DryRun
from ..dry_run.step import KeptGraph, LossTerm, StepRecord
from .registry import GPU, INSTALL, NORM, STEP, WORLD, count_of, in_words
from .subject import Subject, as_mapping
from .sync import sync_findings

_STALE = 'StaleGraphError'
_NO_PACKAGE = ('ImportError', 'ModuleNotFoundError')
_DETACH = 'keep it detached: value.detach()'
_MAX_TEXT = 200
_MAX_NORMS = 3
_MAX_SITES = 5
_PLAIN_NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm
# A step of CO-DINO waits as often.
_FEW_READS = 4
# Fewest rows and columns of a map that is judged, and the ratio of two
# strides that rounding explains: 4 in place of 5 gives 1.25.
_JUDGED, _ROUNDED = 4, 1.6

STEP001 = STEP.declare(
    'STEP001',
    symptoms=('list index out of range',),
    title='a step ends with an error',
    severity=Severity.ERROR,
    remedy='correct the code that is named, or the values that it gets',
)
STEP002 = STEP.declare(
    'STEP002',
    title='a module keeps the graph of a step',
    severity=Severity.INFO,
    remedy=_DETACH,
)
STEP003 = STEP.declare(
    'STEP003',
    symptoms=('loss become infinite or NaN!', 'loss: nan'),
    title='a loss is infinite or NaN',
    severity=Severity.ERROR,
    remedy='look at what divides, takes a logarithm or a root there, and at '
    'the scale of its input',
)
STEP004 = STEP.declare(
    'STEP004',
    title='gradients are infinite or NaN',
    severity=Severity.ERROR,
    remedy='look at what follows it in the forward: the root or the norm of '
    '0, a division by 0 in torch.where',
)
STEP005 = STEP.declare(
    'STEP005',
    title='a value with a gradient is not added to the loss',
    severity=Severity.WARNING,
    remedy="put 'loss' into the key, or return it detached",
)
STEP006 = STEP.declare(
    'STEP006',
    symptoms=('does not require grad and does not have a grad_fn',),
    title='a loss has no gradient',
    severity=Severity.WARNING,
    remedy="take 'loss' out of the key of a value that is only logged; else "
    'look for what detaches it',
)
STEP007 = STEP.declare(
    'STEP007',
    title='parameters only get gradients from losses that are 0',
    severity=Severity.WARNING,
    remedy='give the loss a weight, or leave the parameters out',
)
STEP008 = STEP.declare(
    'STEP008',
    symptoms=('Trying to backward through the graph a second time',),
    title='a step goes through the graph of an earlier one',
    severity=Severity.ERROR,
    remedy='compute the value in each forward; or store it detached, and '
    'keep its parameters out of the optimizer; retain_graph=True would only '
    'hide the error',
)
STEP009 = STEP.declare(
    'STEP009',
    title='gradients go to what is neither in the model nor in an optimizer',
    severity=Severity.WARNING,
    remedy='make it a parameter of the model, and use it in forward; or '
    'detach what comes of it',
)
STEP010 = STEP.declare(
    'STEP010',
    symptoms=('= 0.000',),
    title='strides of anchors or RoIs differ from the strides of their maps',
    severity=Severity.ERROR,
    remedy='set the strides to those of the maps, or give the part other '
    'maps (out_indices of the backbone, start_level of the neck)',
)
NORM001 = NORM.declare(
    'NORM001',
    title='a batch norm runs more than once a step',
    severity=Severity.WARNING,
    remedy='use one batch norm for each use, such as SepBN, or a norm '
    'without running statistics, such as GN',
)
NORM003 = NORM.declare(
    'NORM003',
    symptoms=('Expected more than 1 value per channel when training',),
    title='a norm gets one value of each channel',
    severity=Severity.ERROR,
    remedy='set batch_size=2 or more; or use a norm that takes no statistics '
    'of single channels, such as GN, or SyncBN in several processes',
    fix='leave out the last batch of an epoch, where only that one has a '
    'single sample',
)
GPU001 = GPU.declare(
    'GPU001',
    symptoms=(
        'Expected all tensors to be on the same device',
        'indices should be either on',
    ),
    title='a step fails on a GPU that goes through on a CPU',
    severity=Severity.ERROR,
    remedy='make the tensor where the others are: device=x.device, '
    'x.new_tensor(...), or register_buffer; for an operator that mixed '
    'precision refuses, what its message names',
)
GPU002 = GPU.declare(
    'GPU002',
    title='the host waits for the GPU in a step',
    severity=Severity.INFO,
    remedy='where it is code of your own, keep the value on the GPU: '
    'torch.where in the place of a mask, no .item(), .tolist() or bool() of '
    'a tensor',
)
GPU003 = GPU.declare(
    'GPU003',
    symptoms=('CUDA out of memory',),
    title='memory that a step needs on a GPU',
    severity=Severity.ERROR,
    remedy='take a smaller batch, smaller pictures, mixed precision or '
    'activation checkpoints; --gpu-memory GIB says which of them suffices',
)
GPU004 = GPU.declare(
    'GPU004',
    title='a loss is infinite or NaN in mixed precision',
    severity=Severity.ERROR,
    remedy="compute it in float32 there: torch.autocast('cuda', "
    'enabled=False) and x.float(); in float16 an eps below 6e-8 is 0, and '
    "numbers end at 65504; or set optim_wrapper.dtype='bfloat16', which has "
    'the range of float32',
)
WORLD001 = WORLD.declare(
    'WORLD001',
    title='processes do something else than was predicted',
    severity=Severity.ERROR,
    remedy='look for what depends on the rank or on the number of processes: '
    'collectives in the forward, SyncBN, a branch that other data take',
)


def step_findings(dry_run: DryRun) -> Iterator[Finding]:
    """Findings that hold for one process as for many."""
    same: dict[tuple[str, str, str, str], list[Crash]] = {}
    for crash in dry_run.crashes:
        cause = crash.error, crash.message, crash.phase, crash.location
        same.setdefault(cause, []).append(crash)
    rare = bool(dry_run.config.rarely_empty)
    for crashes in same.values():
        yield _crash(crashes, rare)
    yield from _kept(dry_run)
    yield from _not_finite(dry_run)
    yield from _loss_keys(dry_run)
    if dry_run.is_telling:
        yield from _zero_losses(dry_run)
    yield from _norms(dry_run)
    yield from _strides(dry_run)
    outsiders = {
        text: None for s in dry_run.all_steps() for text in s.outsiders
    }
    if outsiders:
        yield STEP009.finding(
            f'gradients add up that no optimizer uses: {"; ".join(outsiders)}'
        )


def _crash(crashes: list[Crash], rare: bool) -> Finding:
    """One finding for an error, with all kinds of batches that meet it."""
    crash, kinds = crashes[0], tuple(other.kind for other in crashes)
    step = (
        f'step {crash.step + 1} with a batch of kind '
        f'{", ".join(map(repr, kinds))} ends in its {crash.phase}'
    )
    if crash.error == _STALE:
        text = crash.message.partition('. Compute ')[0]
        return STEP008.finding(f'{step}: {text}', batches=kinds)
    text = textwrap.shorten(crash.message, _MAX_TEXT, placeholder=' ...')
    inside = f' in {" > ".join(crash.modules)}' if crash.modules else ''
    at = f' ({crash.location})' if crash.location else ''
    remedy = INSTALL if crash.error in _NO_PACKAGE else ''
    severity = Severity.ERROR
    if kinds == ('empty',):
        severity = Severity.WARNING if rare else Severity.ERROR
        remedy = (
            'let the model train on a batch without any object, or keep such '
            'samples out of the training: filter_cfg=dict('
            'filter_empty_gt=True) of the data set'
        )
    message = f'{step} with {crash.error}: {text}{inside}{at}'
    cause = crash.cause
    if cause is not None:
        message += f'; {cause.text}'
        remedy = cause.remedy or remedy
    return STEP001.finding(
        message,
        severity=severity,
        remedy=remedy,
        key=cause.key if cause is not None else '',
        names=cause.modules if cause is not None else crash.modules,
        batches=kinds,
    )


def _kept(dry_run: DryRun) -> Iterator[Finding]:
    """Graphs on modules, each once, at their worst."""
    worst: dict[str, tuple[Severity, KeptGraph]] = {}
    batches: dict[str, dict[str, None]] = {}
    stale = {crash.kind for crash in dry_run.crashes if crash.error == _STALE}
    for kind, steps in dry_run.steps.items():
        counts: dict[str, int] = {}
        for kept in (kept for step in steps for kept in step.kept):
            severity = Severity.INFO
            if kept.used_again:
                severity = Severity.ERROR
                if kind not in stale:
                    severity = Severity.WARNING
            elif kept.count > counts.get(kept.location, kept.count):
                severity = Severity.WARNING
            counts[kept.location] = kept.count
            batches.setdefault(kept.location, {})[kind] = None
            if (
                kept.location not in worst
                or severity > worst[kept.location][0]
            ):
                worst[kept.location] = severity, kept
    for location, (severity, kept) in worst.items():
        effect = 'which keeps memory of the step'
        if severity is Severity.ERROR:
            effect = 'the next step uses it, and fails'
        elif kept.used_again:
            effect = 'the next step uses it, through a graph that grows'
        elif severity is Severity.WARNING:
            effect = 'more with each step, so memory runs out'
        yield STEP002.finding(
            f'{location} keeps {count_of(range(kept.count), "tensor")} '
            f'with the graph of a step ({kept.function}) after it; {effect}',
            severity=severity,
            names=(location,),
            batches=tuple(batches[location]),
        )


def _not_finite(dry_run: DryRun) -> Iterator[Finding]:
    """The first step of each kind that has one, said once if it is the same.

    Steps after it are spoiled, as there is no optimizer step without a
    finite gradient. With random weights in the place of trained ones, so are
    all after the first: the rate is made for the trained ones. And the first
    says little.
    """
    results: dict[str, tuple[Rule, tuple[str, ...], list[StepRecord]]] = {}
    for steps in dry_run.steps.values():
        for step in steps[:1] if dry_run.random_weights else steps:
            bad = [repr(term.name) for term in step.losses if not term.finite]
            if not bad and not step.bad_gradients:
                continue
            if bad:
                rule, names = STEP003, (step.bad_module,)
                text = 'the first module to return such a value is '
                text += step.bad_module
                if not step.bad_module:
                    names = ()
                    text = 'the outputs of all modules are finite, so look at '
                    text += 'the loss'
                text = f'{", ".join(bad)}; {text}'
            else:
                rule, names = STEP004, step.bad_gradients
                text = (
                    f'the gradients of {count_of(names)}, though the losses '
                    'are finite; the first that the backward comes to is '
                    f'{names[0]}'
                )
            results.setdefault(text, (rule, names, []))[2].append(step)
            break
    for text, (rule, names, steps) in results.items():
        at = ', '.join(f'step {s.step + 1} of {s.kind!r}' for s in steps)
        random = dry_run.random_weights
        yield rule.finding(
            f'infinite or NaN: {text} (first in {at})'
            + '; the weights are random here' * random,
            severity=Severity.WARNING if random else Severity.ERROR,
            names=names,
            batches=tuple(step.kind for step in steps),
        )


def _terms(dry_run: DryRun) -> dict[str, list[LossTerm]]:
    terms: dict[str, list[LossTerm]] = {}
    for step in dry_run.all_steps():
        for term in step.losses:
            terms.setdefault(term.name, []).append(term)
    return terms


def _loss_keys(dry_run: DryRun) -> Iterator[Finding]:
    """Keys that MMEngine treats in another way than they look."""
    for name, terms in _terms(dry_run).items():
        grads = [term.requires_grad for term in terms]
        if not terms[0].summed and any(grads):
            yield STEP005.finding(
                f'forward returns {name!r} with a gradient, but the '
                "letters 'loss' are not in its key, so it is not added to "
                'the loss',
                names=(name,),
            )
        elif terms[0].summed and not any(grads):
            yield STEP006.finding(
                f"forward returns {name!r}, which has 'loss' in its "
                'key and is added to the loss, but has no gradient: it only '
                'changes the number in the log',
                names=(name,),
            )


def _zero_losses(dry_run: DryRun) -> Iterator[Finding]:
    """Parameters of which only losses that are 0 in all steps know."""
    zero: set[str] = set()
    others: set[str] = set()
    keys = []
    for name, terms in _terms(dry_run).items():
        if terms[0].summed:
            is_zero = all(term.value == 0 for term in terms)
            for term in terms:
                (zero if is_zero else others).update(term.parameters)
            if is_zero and any(term.requires_grad for term in terms):
                keys.append(repr(name))
    hidden = {name for usage in dry_run.usages() for name in usage.reentrant}
    names = tuple(sorted(zero - others - hidden))
    if not names or not keys:
        return
    everything = [name for usage in dry_run.usages() for name in usage.names]
    where = ', '.join(name or 'the model' for name in dry_run.zero_weights)
    weights = f'; loss_weight is 0 in {where}' if dry_run.zero_weights else ''
    yield STEP007.finding(
        f'{count_of(names)} in {in_words(names, everything)} '
        f'only get gradients from {", ".join(keys)}, which is 0 '
        f'in all steps, so they are not trained{weights}',
        names=names,
    )


def _norms(dry_run: DryRun) -> Iterator[Finding]:
    calls: dict[str, int] = {}
    for step in dry_run.all_steps():
        for name, count in step.norms.items():
            calls[name] = max(calls.get(name, 0), count)
    shared = [name for name, count in calls.items() if count > 1]
    if not shared:
        return
    listed = terminal.in_words(
        [f'{name} {calls[name]} times' for name in shared], _MAX_NORMS
    )
    yield NORM001.finding(
        f'batch norm that runs more than once a step: {listed}; each run '
        'normalises with statistics of its own, and evaluation with a mix of '
        'them',
        names=tuple(shared),
    )


def _strides(dry_run: DryRun) -> Iterator[Finding]:
    """Strides against image size / map size, in the first step."""
    step = next(dry_run.all_steps(), None)
    if step is None or step.image_size is None:
        return
    for part, argument, strides, sizes in step.maps:
        if len(strides) != len(sizes):
            continue
        # Small maps are left out: their sizes are rounded too much.
        seen = [
            tuple(side / n for side, n in zip(step.image_size, size))
            if min(size) >= _JUDGED
            else None
            for size in sizes
        ]
        wrong = [
            f'{own[0]:g} where map {i} has {pixels[0]:.3g}'
            for i, (own, pixels) in enumerate(zip(strides, seen))
            if pixels
            and any(max(a / b, b / a) > _ROUNDED for a, b in zip(own, pixels))
        ]
        if wrong:
            maps = ', '.join(f'{height}x{width}' for height, width in sizes)
            yield STEP010.finding(
                f'{part}.{argument} has the stride {", ".join(wrong)}: an '
                f'image of {step.image_size[0]}x{step.image_size[1]} gives '
                f'maps of {maps}, so that boxes get features of other places',
                key=dry_run.config.key_of_strides(part),
                names=(part,),
            )


def single_sample_findings(
    subject: Subject, built: Built, samples: int
) -> Iterator[Finding]:
    """What fails in a batch of one sample, where the training has one.

    ``samples`` are those of an epoch whose last batch is not left out, 0 if
    they are not known.
    """
    loader = as_mapping(subject.top.get('train_dataloader'))
    size, world = loader.get('batch_size', 1), subject.world
    if not isinstance(size, int) or size < 1 or not loader:
        return
    # As MMEngine's sampler deals them out.
    own = -(-samples // (world or 1))
    if size != 1 and own % size != 1:
        return
    norm = norm_of_one(subject.cfg, built)
    # What stands in the place of a SyncBN is of no class of PyTorch's.
    synchronized = norm and not isinstance(norm[1], _PLAIN_NORMS)
    if norm is None or (synchronized and (world or 1) > 1):
        return
    options, remedy = {}, ''
    text = 'batch_size=1'
    if size != 1:
        text = (
            f'the last batch of an epoch has one sample ({own} samples, '
            f'batch_size={size})'
        )
        if own > size and loader.get('batch_sampler') is None:
            options = {'train_dataloader.drop_last': True}
            remedy = 'set train_dataloader.drop_last=True'
    if synchronized and world is None:
        text += ', and one process trains'
    yield NORM003.finding(
        f'{text}: {norm[0]} gets one value of each channel there, and fails: '
        'Expected more than 1 value per channel when training',
        key='train_dataloader.batch_size',
        severity=Severity.WARNING
        if synchronized and world is None
        else Severity.ERROR,
        names=norm[:1],
        options=options,
        remedy=remedy,
    )


def dry_run_findings(dry_run: DryRun, current: SyncSettings) -> list[Finding]:
    """Findings of a dry run, the worst first."""
    results = [
        *step_findings(dry_run),
        *sync_findings(dry_run.judged, current, dry_run.config),
    ]
    return sorted(results, key=lambda finding: -finding.severity)


def rehearsal_findings(step: RehearsedStep) -> Iterator[Finding]:
    """What a step does on a GPU: errors, waits and memory."""
    if step.failure is not None:
        error = step.failure
        text = textwrap.shorten(str(error), 3 * _MAX_TEXT, placeholder=' ...')
        # The other one says itself where it is.
        mixes = isinstance(error, DeviceMixError)
        at = '' if mixes else code_location(error)
        yield GPU001.finding(
            f'a step on a GPU ends with {type(error).__name__}: {text}'
            f'{at and f" ({at})"}'
        )
        return
    done = step.done
    count = sum(done.reads.values())
    if count > _FEW_READS:
        lines = Counter()
        for site, number in done.reads.items():
            lines[f'{site.operator} at {site.location}'] += number
        sites = [f'{n} by {line}' for line, n in lines.most_common(_MAX_TEXT)]
        yield GPU002.finding(
            f'the host waits {count} times for the GPU in a step: '
            f'{"; ".join(sites[:_MAX_SITES])}',
            names=tuple(sites[_MAX_SITES:]),
        )
    bad = [n for n, v in done.losses.items() if not math.isfinite(v)]
    if bad and step.dtype and not done.without_values:
        at = f': {done.spoiled} makes such a value of finite ones'
        yield GPU004.finding(
            f'in {step.dtype}, {", ".join(bad)} '
            f'{"is" if len(bad) == 1 else "are"} infinite or NaN'
            + (at if done.spoiled else '')
            + ('; the weights are random here' * step.random_weights),
            severity=Severity.WARNING
            if step.random_weights
            else Severity.ERROR,
            names=(done.spoiled.module,) if done.spoiled else (),
        )
    memory, limit = done.memory, step.gpu_memory
    parts = ', '.join(
        f'{kind} {size / GIB:.2f}' for kind, size in memory.parts.items()
    )
    text = f'a step needs {_range(memory)} GiB: at the peak {parts}'
    if not limit or memory.most <= limit * GIB:
        severity = Severity.INFO
    elif memory.peak <= limit * GIB:
        severity = Severity.WARNING
        text = f'{text}; it may not fit into {limit:g} GiB'
    else:
        severity = Severity.ERROR
        text = f'{text}; it does not fit into {limit:g} GiB'
    others = [
        f'{change}: it fails with {type(other).__name__}'
        if isinstance(other, Exception)
        else f'{change}: {_range(other)} GiB'
        for change, other in step.others.items()
    ]
    yield GPU003.finding(
        text,
        severity=severity,
        remedy=f'one of these, as rehearsed: {"; ".join(others)}'
        if others
        else '',
    )


def _range(memory: MemoryForecast) -> str:
    """In GiB."""
    return f'{memory.peak / GIB:.2f} to {memory.most / GIB:.2f}'


def world_findings(world: Any, works: bool) -> list[Finding]:
    """At most one, where real processes do not do what one process suggests.

    ``works`` says whether the steps of a single process predict no error.
    """
    if world is None or (
        world.agrees and (world.observed == 'ok' or not works)
    ):
        return []
    if world.agrees is None:
        message = 'the model itself fails in several processes'
    elif world.agrees:
        # Predicted from the steps of these processes, which differ from
        # those of a single one.
        message = (
            'real processes fail, and one process alone predicts no error: '
            f'{world.observed}'
        )
    else:
        message = (
            'real processes do something else than one process predicts: '
            f'{world.observed} (predicted: {world.predicted})'
        )
    detail = f'; {world.detail}' if world.detail else ''
    return [WORLD001.finding(f'{message}{detail}')]

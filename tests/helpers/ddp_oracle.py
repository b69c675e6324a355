"""What DDP really does with a model, on two processes, and what is predicted.

Nothing of the package takes part in the training: the wrapper is PyTorch's,
the optimizer a subtraction, and weights are compared by their bytes.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from mmengine.model import MMDistributedDataParallel
from mmengine.optim import OptimWrapper
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from helpers.forked_pairs import Report
from helpers.preflight_nets import Spec, batch_of, build_net
from mmext.checks import ddp
from mmext.checks.ddp import SyncSettings
from mmext.engine.distributed import DistributedDataParallel

NUM_STEPS = 4
RATE = 0.05
Job = tuple[Spec, SyncSettings]
# Part of the message of an error of PyTorch's -> its name.
KINDS = {
    'Expected to have finished reduction': 'unfinished',
    'Expected to mark a variable ready only once': 'ready_twice',
    'training graph has changed': 'graph_changed',
    'Modules with uninitialized parameters': 'refused',
    "doesn't have any parameters that require a gradient": 'refused',
    'Expected sparse gradient': 'unexpected',
    'Expected variable to have sparse gradient': 'unexpected',
    'Cannot access storage of SparseTensorImpl': 'unexpected',
    'Encountered gradient which is undefined': 'unexpected',
    'Connection closed by peer': 'lost',
    'Connection reset by peer': 'lost',
}


@dataclass
class Rank:
    """What a process tells.

    Attributes:
        kind: ``'ok'``, one of ``KINDS``, or ``'crashed'``.
        step: In which step; after the last, if the end was reached.
        error: Class and text of the error.
        sums: Of each step: the digest of all weights.
        weights: All weights at the end.
        predictions: Outcome and step of all that is predicted.
        trace_error: Why nothing is predicted.
    """

    kind: str = 'ok'
    step: int = 0
    error: str = ''
    sums: tuple[str, ...] = ()
    weights: Any = None
    predictions: tuple[tuple[str, int], ...] = ()
    trace_error: str = ''


def weights_of(net: nn.Module) -> Tensor:
    """All parameters in one vector."""
    return torch.cat(
        [p.detach().flatten() for p in net.parameters() if not is_lazy(p)]
    )


def digest(net: nn.Module) -> str:
    """Of all weights, by their bytes."""
    return hashlib.sha256(weights_of(net).numpy().tobytes()).hexdigest()


def seed(step: int, rank: int) -> None:
    """The random numbers of a step."""
    torch.manual_seed(100 * step + rank)


def descend(net: nn.Module) -> None:
    """A step of every parameter that has a gradient."""
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.grad is not None and parameter.requires_grad:
                parameter -= RATE * parameter.grad.to_dense()
            parameter.grad = None


def loss_of(model: nn.Module, net: nn.Module, step: int, rank: int) -> Tensor:
    """The loss of a step of a model, wrapped or not."""
    seed(step, rank)
    data = net.data_preprocessor(batch_of(step, rank), True)
    return net.parse_losses(model(**data, mode='loss'))[0]


def predictions_of(
    spec: Spec, settings: SyncSettings, rank: int
) -> tuple[tuple[tuple[str, int], ...], str]:
    """What is predicted from the steps of a model without a wrapper."""
    net = build_net(spec)
    usages = []
    try:
        for step in range(NUM_STEPS):
            seed(step, rank)
            batch = batch_of(step, rank)
            usages.append(ddp.trace_train_step(net, batch, net.backward))
    except Exception as error:
        return (), f'{type(error).__name__}: {error}'
    failures = ddp.predict_failures(
        usages,
        find_unused_parameters=settings.find_unused_parameters,
        static_graph=settings.static_graph,
    )
    return tuple((p.outcome.name.lower(), p.step) for p in failures), ''


def _kind(error: Exception) -> str:
    return next(
        (kind for text, kind in KINDS.items() if text in str(error)),
        'crashed',
    )


def plain_rank(job: Job, rank: int) -> Report:
    """Train with PyTorch's wrapper."""
    spec, settings = job
    predictions, trace_error = predictions_of(spec, settings, rank)
    result = Rank(predictions=predictions, trace_error=trace_error)
    net = build_net(spec)
    sums, step = [], -1
    try:
        model = MMDistributedDataParallel(
            net,
            broadcast_buffers=False,
            find_unused_parameters=settings.find_unused_parameters,
            static_graph=settings.static_graph,
        )
        for step in range(NUM_STEPS):
            net.backward(loss_of(model, net, step, rank))
            descend(net)
            sums.append(digest(net))
        step = NUM_STEPS
        result.weights = weights_of(net).tolist()
        # What is missing in a step, the next forward notices.
        loss_of(model, net, NUM_STEPS, rank)
    except Exception as error:
        result.kind = _kind(error)
        result.error = f'{type(error).__name__}: {error}'
    result.step, result.sums = step, tuple(sums)
    failed = result.kind != 'ok'
    return Report(result, ends=failed, failed=failed)


class _Descent(OptimWrapper):
    """An optimizer for any model, with the backward of the model."""

    def __init__(self, net: nn.Module) -> None:
        # Of all that there will be, too: a parameter that is made later is
        # added by who makes it.
        super().__init__(_AllParameters(net))
        self.net = net
        self.sums: list[str] = []

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        self.net.backward(loss)

    def step(self, **kwargs: Any) -> None:
        super().step(**kwargs)
        self.sums.append(digest(self.net))


class _AllParameters(torch.optim.Optimizer):
    """Descends with every parameter that its model has by then."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(list(net.parameters()), {})
        self.net = net

    def step(self, closure: Any = None) -> None:
        descend(self.net)


def wrapped_rank(job: Job, rank: int) -> Report:
    """Train with the package's wrapper."""
    spec, settings = job
    net = build_net(spec)
    result, step = Rank(), -1
    optim = None
    try:
        model = DistributedDataParallel(
            net,
            find_unused_parameters=settings.find_unused_parameters,
            static_graph=settings.static_graph,
        )
        optim = _Descent(net)
        for step in range(NUM_STEPS):
            seed(step, rank)
            model.train_step(batch_of(step, rank), optim)
        step = NUM_STEPS
    except Exception as error:
        result.kind = type(error).__name__
        result.error = f'{type(error).__name__}: {error}'
    result.step = step
    result.sums = tuple(optim.sums) if optim is not None else ()
    if result.kind == 'ok':
        result.weights = weights_of(net).tolist()
    ended = result.kind not in ('ok', 'GradientSyncError', 'PeerError')
    return Report(result, ends=ended, failed=result.kind != 'ok')


def _observed(ranks: Sequence[Rank | None]) -> str:
    kinds = [rank.kind if rank else 'hung' for rank in ranks]
    if kinds == ['ok'] * len(ranks):
        same = len({rank.sums for rank in ranks}) == 1
        return 'ok' if same else 'diverged'
    return '/'.join(
        f'{kind}@{rank.step}' if rank else kind
        for kind, rank in zip(kinds, ranks)
    )


def judge(ranks: Sequence[Rank | None]) -> tuple[bool | None, str, str]:
    """Whether it is what was predicted; what happened; what was predicted.

    None where the model itself fails, with and without a wrapper.
    """
    observed = _observed(ranks)
    told = [rank for rank in ranks if rank is not None]
    predicted = ' | '.join(
        rank.trace_error
        or ', '.join(f'{kind}@{step}' for kind, step in rank.predictions)
        for rank in told
    )
    crashed = [rank for rank in told if rank.kind == 'crashed']
    if crashed:
        same = any(rank.trace_error for rank in told)
        return (None if same else False), observed, predicted
    if any(rank.trace_error for rank in told):
        return False, observed, predicted
    loud = [
        [p for p in rank.predictions if p[0] not in ('ok', 'diverged')]
        for rank in told
    ]
    if not any(loud):
        silent = any(
            kind == 'diverged' for rank in told for kind, _ in rank.predictions
        )
        return (
            observed == ('diverged' if silent else 'ok'),
            observed,
            predicted,
        )
    failed = False
    for rank, predictions in zip(told, loud):
        if rank.kind in ('ok', 'lost'):
            continue
        results = [(kind, step + _late(kind)) for kind, step in predictions]
        step = -1 + (rank.kind != 'refused') * (rank.step + 1)
        if rank.kind == 'refused':
            step = 0
        if results[:1] != [(rank.kind, step)]:
            return False, observed, predicted
        failed = True
    return failed, observed, predicted


def _late(kind: str) -> int:
    """An error that is raised by the next forward."""
    return int(kind == 'unfinished')


def judge_wrapper(ranks: Sequence[Rank | None]) -> tuple[bool, str]:
    """Whether no process went on with other weights, and what happened."""
    observed = _observed(ranks)
    told = [rank for rank in ranks if rank is not None]
    steps = min(len(rank.sums) for rank in told) if told else 0
    same = len({rank.sums[:steps] for rank in told}) == 1
    return len(told) == len(ranks) and same, observed

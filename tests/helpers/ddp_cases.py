"""Small models in which DDP's reducer has to report an error or fails.

A rank reports what was raised and where, and losses and gradients beside
those of one process that sees the batches of both ranks. The cases are run by
``ddp_case_runner``.
"""

import functools
import json
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._dynamo  # Optimizers load it late, which takes seconds.
from mmengine.model import BaseModel, MMDistributedDataParallel
from mmengine.optim import OptimWrapper
from torch import nn
from torch.utils.checkpoint import checkpoint

import mmext.engine.distributed
from helpers.ddp_parts import PARTS
from mmext.models.checkpointing.checkpoint import checkpoint_modules

WORLD_SIZE = 2
NUM_STEPS = 3
WIDTH = 4
NUM_QUERIES = 5
EMPTY_STEP = 1


@dataclass(frozen=True)
class Case:
    """A model, its data and its wrapper.

    Args:
        name: Unique among the cases that are run together.
        model: Arguments of :class:`Toy`.
        find_unused: ``find_unused_parameters`` of the wrapper.
        static: ``static_graph`` of the wrapper.
        head: Which head a batch uses: 'first', that of the 'rank', or that
            of the 'step'.
        empty: Whether rank 1 has no objects at step 1.
        wrapper: 'torch' for MMEngine's, 'mmext' for ours.
    """

    name: str
    model: dict[str, Any] = field(default_factory=dict)
    find_unused: bool = False
    static: bool = False
    head: str = 'first'
    empty: bool = False
    wrapper: str = 'torch'


class Toy(BaseModel):
    """Queries go through a stem, a block and heads, like a small detector.

    Args:
        stem: Before the block: 'trainable', 'frozen' or 'none'. After the
            last two the features are made to require a gradient, as models
            do that checkpoint from the first layer on.
        use: The block is applied 'once', twice in 'series', to two 'views'
            each of which a head then sees, or to two that are 'merged'
            before the head.
        checkpoint: Of the block: 'none', 'reentrant', 'ours', 'fairscale'.
        decoder: How often a second block is applied; 0 for no such block.
        decoder_checkpoint: The same for it.
        unused: Whether there is a parameter without a gradient: 'no',
            'param' (never used), 'output' (what it computes is dropped),
            'logged' (it is returned, and is no loss), 'no_grad'.
        heads: Number of heads, of which a batch uses one.
        skip_empty: Leave the box branch out of a batch without objects,
            instead of a loss of zero.
        input_grad: False leaves features of a stem that does not train
            without the need of a gradient.
        part: Behind the block, see ``ddp_parts.PARTS``.
    """

    def __init__(
        self,
        stem: str = 'trainable',
        use: str = 'once',
        checkpoint: str = 'none',
        decoder: int = 0,
        decoder_checkpoint: str = 'none',
        unused: str = 'no',
        heads: int = 1,
        skip_empty: bool = False,
        input_grad: bool = True,
        part: str = '',
    ) -> None:
        super().__init__()
        self.use, self.decoder_uses = use, decoder
        self.unused, self.skip_empty = unused, skip_empty
        self.input_grad = input_grad or stem == 'trainable'
        self.flavours = (checkpoint, decoder_checkpoint)
        if stem != 'none':
            self.stem = nn.Linear(WIDTH, WIDTH)
            self.stem.requires_grad_(stem == 'trainable')
        self.block = wrap(_block(), checkpoint)
        if decoder:
            self.decoder = wrap(_block(), decoder_checkpoint)
        self.heads = nn.ModuleList(nn.Linear(WIDTH, 2) for _ in range(heads))
        self.box = nn.Linear(WIDTH, WIDTH)
        self.part = PARTS[part].build(WIDTH) if part else None
        if unused != 'no':
            self.class_embed = nn.Parameter(torch.ones(WIDTH, 3))
        self.double()
        if part:
            self.part.ready()

    def forward(
        self,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        head: int,
        step: int,
        rank: int,
        mode: str = 'loss',
    ) -> dict[str, torch.Tensor]:
        """Two losses; each is a mean over what the rank itself has."""
        x = self.stem(inputs) if hasattr(self, 'stem') else inputs
        if not x.requires_grad:
            x = x.detach().requires_grad_(self.input_grad)
        outs, scores = [], []
        for view in [x, x.flip(1)] if self.use == 'views' else [x]:
            # The head of a view comes before the block of the next one.
            outs.append(self._encode(view))
            scores.append(self.heads[head](outs[-1]))
        x = sum(outs)
        if self.part is not None:
            x = self.part(x, step, rank)
        losses = self._extra(x)
        if self.unused == 'no_grad':
            with torch.no_grad():
                x = x + (x @ self.class_embed).mean()
        for _ in range(self.decoder_uses):
            x = apply(self.decoder, x, self.flavours[1])
            scores.append(self.heads[head](x))
        losses['loss_cls'] = sum(s.square().mean() for s in scores)
        if len(targets) or not self.skip_empty:
            error = self.box(x)[: len(targets)] - targets
            losses['loss_box'] = error.abs().sum() / max(len(targets), 1)
        return losses

    def _encode(self, x: torch.Tensor) -> torch.Tensor:
        out = apply(self.block, x, self.flavours[0])
        if self.use == 'series':
            return apply(self.block, out, self.flavours[0])
        if self.use == 'merged':
            return out + apply(self.block, x.flip(1), self.flavours[0])
        return out

    def _extra(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """What is computed and is in no loss."""
        if self.unused not in ('output', 'logged'):
            return {}
        norm = (x @ self.class_embed).norm()
        return {'norm': norm} if self.unused == 'logged' else {}


def _block() -> nn.Module:
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)
    )


def wrap(module: nn.Module, flavour: str) -> nn.Module:
    """The module, checkpointed where that is done when it is built."""
    if flavour == 'ours':
        checkpoint_modules([module], True, 'toy')
    elif flavour == 'fairscale':
        from fairscale.nn.checkpoint import checkpoint_wrapper

        return checkpoint_wrapper(module)
    return module


def apply(module: nn.Module, x: torch.Tensor, flavour: str) -> torch.Tensor:
    """Output of the module, checkpointed where that is done by the caller."""
    if flavour == 'reentrant':
        return checkpoint(module, x, use_reentrant=True)
    return module(x)


def batch_of(case: Case, step: int, rank: int) -> dict[str, Any]:
    """What a rank's data loader gives at a step."""
    data = torch.Generator().manual_seed(10 * step + rank)
    options = {'generator': data, 'dtype': torch.float64}
    count = 0 if case.empty and (step, rank) == (EMPTY_STEP, 1) else 2 + rank
    return {
        'inputs': torch.randn(NUM_QUERIES, WIDTH, **options),
        'targets': torch.randn(count, WIDTH, **options),
        'head': {'first': 0, 'rank': rank, 'step': step % 2}[case.head],
        'step': step,
        'rank': rank,
    }


def build_model(case: Case, **changes: Any) -> Toy:
    """The model, with the weights that every case has."""
    torch.manual_seed(0)
    return Toy(**{**case.model, **changes}).train()


def build_wrapper(case: Case, model: nn.Module) -> nn.Module:
    """The model in the wrapper of the case."""
    kind = MMDistributedDataParallel
    if case.wrapper == 'mmext':
        kind = mmext.engine.distributed.DistributedDataParallel
    return kind(
        model,
        broadcast_buffers=False,
        find_unused_parameters=case.find_unused,
        static_graph=case.static,
    )


def _flat(model: nn.Module, gradients: bool) -> list[float]:
    """All trainable parameters or their gradients; no gradient is zero."""
    values = [p for p in model.parameters() if p.requires_grad]
    if gradients:
        values = [
            torch.zeros_like(p) if p.grad is None else p.grad.to_dense()
            for p in values
        ]
    return torch.cat([v.detach().flatten() for v in values]).tolist()


class _Recorder(OptimWrapper):
    """Notes the gradients that each step is made with."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(torch.optim.SGD(model.parameters(), lr=0.1))
        self.model = model
        self.gradients: list[list[float]] = []

    def step(self, **kwargs: Any) -> None:
        self.gradients.append(_flat(self.model, gradients=True))
        super().step(**kwargs)


@functools.cache
def _reference(options: str) -> dict[str, Any]:
    """One process, no checkpoint: losses of each rank, mean gradients."""
    case = Case('', **json.loads(options))
    model = build_model(case, checkpoint='none', decoder_checkpoint='none')
    optim = _Recorder(model)
    losses = []
    for step in range(NUM_STEPS):
        values, sums = [], {}
        start = {p: p.detach().clone() for p in model.parameters()}
        for rank in range(WORLD_SIZE):
            for parameter, value in start.items():
                # What a hook has changed, it changes in each process.
                parameter.data.copy_(value)
            out = model(**batch_of(case, step, rank))
            loss, _ = model.parse_losses(out)
            loss.backward()
            values.append(float(loss.detach()))
            for parameter in model.parameters():
                if parameter.grad is not None:
                    total = sums.get(parameter, 0) + parameter.grad.to_dense()
                    sums[parameter] = total
                parameter.grad = None
        losses.append(values)
        for parameter, total in sums.items():
            parameter.grad = total / WORLD_SIZE
        optim.step()
        optim.zero_grad()
    return {'losses': losses, 'gradients': optim.gradients}


def run_rank(case: Case, rank: int) -> dict[str, Any]:
    """Train; what a rank reports."""
    names = ('model', 'head', 'empty')
    options = {name: getattr(case, name) for name in names}
    reference = _reference(json.dumps(options))
    model = build_model(case)
    optim = _Recorder(model)
    report: dict[str, Any] = {'error': '', 'message': '', 'step': NUM_STEPS}
    losses: list[float] = []
    step = -1
    try:
        wrapped = build_wrapper(case, model)
        for step in range(NUM_STEPS):
            logs = wrapped.train_step(batch_of(case, step, rank), optim)
            losses.append(float(logs['loss']))
    except Exception as error:
        # Not raised: it is what the case is run for.
        report.update(
            error=type(error).__name__, message=str(error), step=step
        )
    report.update(
        losses=losses,
        gradients=optim.gradients,
        weights=_flat(model, gradients=False),
        true_losses=[values[rank] for values in reference['losses']],
        true_gradients=reference['gradients'],
    )
    return report

"""Steps in which a process changes, or uses, parameters in a way of its own.

Each by its name in ``CASES``, with what plain DDP does of it. Configs name
this module in ``custom_imports``.
"""

from typing import Any, NamedTuple

import torch
from mmengine.model import BaseModel, MMDistributedDataParallel
from mmengine.optim import DefaultOptimWrapperConstructor, build_optim_wrapper
from mmengine.registry import (
    DATASETS,
    MODELS,
    OPTIM_WRAPPER_CONSTRUCTORS,
)
from torch import Tensor, nn
from torch.ao.quantization import get_default_qat_qconfig, prepare_qat
from torch.utils.data import Dataset

from helpers.forked_pairs import Report
from helpers.odd_modules import Counted
from mmext.engine.distributed import DistributedDataParallel

WIDTH = 4
NUM_BATCHES = 6


class Case(NamedTuple):
    """What a model does, and what becomes of it with plain DDP.

    Attributes:
        real: ``'ok'``, ``'drift'`` for replicas that drift apart without an
            error, or a part of the error.
        rule: Of the one finding; empty for none.
        says: A part of its message.
        accumulated: Batches of a step of the optimizer.
        static: ``static_graph`` of the wrapper.
        refused: Whether our wrapper and the preflight refuse what plain DDP
            trains.
    """

    real: str = 'ok'
    rule: str = ''
    says: str = ''
    accumulated: int = 1
    static: bool = False
    refused: bool = False


CASES = {
    'plain': Case(),
    'steps in backward': Case('drift', 'DDP010', 'before DDP has averaged'),
    'steps by data': Case('drift', 'DDP010', 'before DDP has averaged'),
    'clears in backward': Case(),
    'decays in backward': Case(),
    'undefined gradient': Case(),
    'layers in a list': Case('drift', 'DDP010', 'layers[0]; the optimizer'),
    'frozen layers in a list': Case('ok', 'DDP010', 'so they stay as they'),
    'made in forward': Case('ok', 'DDP010', 'not trained at', refused=True),
    'scripted': Case(),
    'frozen script': Case(),
    'max norm': Case('drift', 'DDP010', 'max_norm of the embedding'),
    # All rows, as of positions: they are the same in all processes.
    'max norm of all': Case(),
    'quantized': Case(),
    'frozen inside': Case('finished reduction', 'DDP001', ': frozen (req'),
    'expanded': Case('single memory', 'STEP001', 'scale is made of an exp'),
    # It trains, and what it saved cannot be loaded.
    'expanded buffer': Case('ok', 'BUILD002', 'cannot be loaded again'),
    'embedded samples': Case(
        'ok', 'STEP009', "of which batch['inputs'][0] is"
    ),
    'accumulates': Case(accumulated=2),
    'accumulates, unused first': Case(
        'ok', 'DDP007', 'if it is the last of those', 2
    ),
    'accumulates, unused last': Case(
        'finished reduction', 'DDP007', 'DDP stops at the step after', 2
    ),
    'accumulates, static': Case(
        'expect_autograd_hooks_', 'DDP008', 'of 2 batches', 2, static=True
    ),
}


@DATASETS.register_module(force=True)
class Points(Dataset):
    """Points, each with its number; ``embedded`` by a table of their own."""

    def __init__(self, embedded: bool = False) -> None:
        torch.manual_seed(0)
        self.table = nn.Embedding(4 * NUM_BATCHES, WIDTH) if embedded else None

    def __len__(self) -> int:
        return 4 * NUM_BATCHES

    def __getitem__(self, index: int) -> dict:
        numbers = torch.Generator().manual_seed(index)
        point = torch.randn(WIDTH, generator=numbers)
        number = torch.tensor(index)
        if self.table is not None:
            point = point + self.table(number)
        return {'inputs': point, 'index': number}


@MODELS.register_module(force=True)
class OwnSteps(BaseModel):
    """Two layers, and what a case of ``CASES`` does.

    Args:
        case: Its name, with ``_`` for a space.
    """

    def __init__(self, case: str = 'plain') -> None:
        super().__init__()
        torch.manual_seed(0)
        self.case = case.replace('_', ' ')
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.between = nn.Identity()
        if self.case == 'frozen inside':
            self.between = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 1)
        if self.case in _HOOKS:
            for parameter in self.stem.parameters():
                parameter.register_post_accumulate_grad_hook(_HOOKS[self.case])
        # Layers that are not the model's.
        self.layers: list[nn.Module] = []
        if 'layers in a list' in self.case:
            layer = nn.Linear(WIDTH, WIDTH)
            self.layers += [layer.requires_grad_('frozen' not in self.case)]
        elif self.case == 'scripted':
            self.between = torch.jit.script(Counted())
        elif self.case == 'frozen script':
            layer = nn.Linear(WIDTH, WIDTH).eval()
            self.between = torch.jit.freeze(torch.jit.script(layer))
        if 'max norm' in self.case:
            self.table = nn.Embedding(6, WIDTH, max_norm=0.5)
        elif 'unused' in self.case:
            self.extra, self.count = nn.Linear(WIDTH, WIDTH), 0
        elif self.case == 'quantized':
            self.stem.qconfig = get_default_qat_qconfig('fbgemm')
            prepare_qat(self.train(), inplace=True)
        elif self.case == 'undefined gradient':
            self.bias = nn.Parameter(torch.ones(1))
        elif self.case == 'expanded':
            self.scale = nn.Parameter(torch.ones(1).expand(WIDTH))
        elif self.case == 'expanded buffer':
            self.register_buffer('scale', torch.ones(1).expand(WIDTH))

    def forward(
        self, inputs: list, index: list, mode: str = 'loss'
    ) -> dict[str, Tensor]:
        """The loss."""
        if self.case == 'frozen inside':
            self.between.requires_grad_(False)
        x = self.between(self.stem(torch.stack(inputs)).tanh())
        if 'max norm' in self.case:
            rows = torch.stack(index) % 6
            rows = torch.arange(6) if 'all' in self.case else rows
            x = x + self.table(rows).mean(0)
        if 'unused' in self.case:
            # In every second step.
            self.count += 1
            if self.count % 2 == ('unused last' in self.case):
                x = x + self.extra(x)
        if 'expanded' in self.case:
            x = x * self.scale
        for layer in self.layers:
            x = layer(x)
        if self.case == 'made in forward':
            if not hasattr(self, 'late'):
                self.late = nn.Linear(WIDTH, WIDTH)
            x = self.late(x)
        y = self.head(x)
        if self.case == 'undefined gradient':
            y = _Straight.apply(y, self.bias)
        return {'loss': (y - 1).square().mean()}


class _Straight(torch.autograd.Function):
    """A sum whose second term gets no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        return x + y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def _descend(parameter: nn.Parameter) -> None:
    """A step of one parameter."""
    with torch.no_grad():
        parameter.sub_(parameter.grad, alpha=0.1)
    parameter.grad = None


def _descend_by_data(parameter: nn.Parameter) -> None:
    """The same, without a trace in the version of the parameter."""
    parameter.data.sub_(parameter.grad, alpha=0.1)


def _clear(parameter: nn.Parameter) -> None:
    parameter.grad = None


def _decay(parameter: nn.Parameter) -> None:
    parameter.data.mul_(0.9)


_HOOKS = {
    'steps in backward': _descend,
    'steps by data': _descend_by_data,
    'clears in backward': _clear,
    'decays in backward': _decay,
}


@OPTIM_WRAPPER_CONSTRUCTORS.register_module(force=True)
class WithLayersInLists(DefaultOptimWrapperConstructor):
    """The optimizer of all that the model uses."""

    def __call__(self, model: nn.Module) -> Any:
        wrapper = super().__call__(model)
        parameters = [
            parameter
            for layer in getattr(model, 'module', model).layers
            for parameter in layer.parameters()
        ]
        wrapper.optimizer.param_groups[0]['params'] += parameters
        return wrapper


def config_of(name: str) -> str:
    """Text of a config that trains the model of a case."""
    case = CASES[name]
    return f"""
custom_imports = dict(imports=['helpers.own_steps', 'mmext.engine'])
default_scope = 'mmengine'
model = dict(type='OwnSteps', case={name.replace(' ', '_')!r})
train_dataloader = dict(
    batch_size=2, num_workers=0, dataset=dict(
        type='Points', embedded={name == 'embedded samples'}),
    sampler=dict(type='DefaultSampler', shuffle=True),
    collate_fn=dict(type='pseudo_collate'))
train_cfg = dict(by_epoch=True, max_epochs=1)
optim_wrapper = dict(
    type='OptimWrapper', accumulative_counts={case.accumulated},
    constructor='WithLayersInLists',
    optimizer=dict(type='SGD', lr=0.1))
model_wrapper_cfg = dict(
    type='mmext.DistributedDataParallel', static_graph={case.static})
"""


def real_rank(job: tuple[str, bool], rank: int) -> Report:
    """Train a case, wrapped by PyTorch or by us: weights, text of an error."""
    name, is_ours = job
    case, data = CASES[name], Points(name == 'embedded samples')
    kind = DistributedDataParallel if is_ours else MMDistributedDataParallel
    result: dict[str, Any] = {'error': '', 'weights': []}
    try:
        model = OwnSteps(name)
        wrapper = kind(
            model, broadcast_buffers=False, static_graph=case.static
        )
        optim = build_optim_wrapper(
            wrapper,
            {
                'type': 'OptimWrapper',
                'accumulative_counts': case.accumulated,
                'constructor': 'WithLayersInLists',
                'optimizer': {'type': 'SGD', 'lr': 0.1},
            },
        )
        for step in range(NUM_BATCHES):
            samples = [data[4 * step + 2 * rank + i] for i in range(2)]
            batch = {k: [s[k] for s in samples] for k in samples[0]}
            wrapper.train_step(batch, optim)
        groups = optim.param_groups
        result['weights'] = [p.tolist() for g in groups for p in g['params']]
    except Exception as error:
        # Not raised: it is what the case is run for.
        result['error'] = str(error)
    failed = bool(result['error'])
    return Report(result, ends=failed, failed=failed)

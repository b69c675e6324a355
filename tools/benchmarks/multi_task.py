"""Training steps of mmext beside those of LibMTL and TorchJD.

ResNet-50 with an output stride of 8, three tasks with a 1 x 1 convolution
each, the same weights and data, Adam: hard sharing and MTAN, with equal
weights, DWA, PCGrad and CAGrad. Steps are timed in turns in one process, the
medians compared; memory is the peak of live tensors during a step, with
gradients and what is kept from step to step, without weights and the moments
of Adam.

LibMTL runs as its trainer does a step, without its data loading and metrics;
TorchJD as its documentation says: ``mtl_backward`` on the last shared feature
for hard sharing, ``backward`` on all parameters for MTAN, one task after the
other (``parallel_chunk_size=1``).

Needs both packages, for example::

    pip install --no-deps --target other LibMTL==1.1.5
    pip install --target other 'torchjd[quadprog_projector]' scipy
    PYTHONPATH=other python tools/benchmarks/multi_task.py
"""

import argparse
import copy
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

# isort: split
import torch
from benchmark_parts import median_seconds, positive
from live_bytes import TensorPeak
from mmengine.optim import OptimWrapper, build_optim_wrapper
from mmengine.registry import MODELS
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

from mmext.utils.cli import run_tool

TASKS = ('a', 'b', 'c')
CHANNELS = 4
MODELS_OF = ('HardSharing', 'MTAN')
METHODS = ('EW', 'DWA', 'PCGrad', 'CAGrad')
MIB = 1 << 20


@MODELS.register_module()
class SquareErrorHead(nn.Module):
    """A 1 x 1 convolution, and the mean square of its error."""

    def __init__(self, in_channels: int, task: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, CHANNELS, 1)
        self.task = task

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Output of the deepest feature."""
        return self.conv(features[-1])

    def loss(self, features: Sequence[Tensor], data_samples: Tensor) -> Tensor:
        """Error against the task's part of a tensor."""
        return F.mse_loss(self(features), data_samples[self.task])


def build_ours(architecture: str, method: str) -> tuple[nn.Module, Any]:
    """Model and optimizer wrapper."""
    torch.manual_seed(0)
    model = MODELS.build(
        {
            'type': 'mmext.MultiTaskModel',
            'backbone': {
                'type': 'mmseg.ResNet',
                'depth': 50,
                'strides': (1, 2, 1, 1),
                'dilations': (1, 1, 2, 4),
                'contract_dilation': True,
            },
            'architecture': {'type': f'mmext.{architecture}'},
            'heads': {
                task: {
                    'type': 'SquareErrorHead',
                    'in_channels': 2048,
                    'task': number,
                }
                for number, task in enumerate(TASKS)
            },
            'balancer': {
                'type': 'mmext.DWA'
                if method == 'DWA'
                else 'mmext.EqualWeights'
            },
        }
    )
    cfg: dict = {'optimizer': {'type': 'Adam', 'lr': 1e-6}}
    if method in ('PCGrad', 'CAGrad'):
        cfg['type'] = 'mmext.GradientSurgeryOptimWrapper'
        cfg['aggregator'] = _aggregator_config(method)
    return model.train(), build_optim_wrapper(model, cfg)


def _aggregator_config(method: str) -> dict:
    return {'type': method, **({'c': 0.5} if method == 'CAGrad' else {})}


def our_step(model: nn.Module, optim_wrapper: OptimWrapper) -> Callable:
    """A step as the training loop does it."""

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        return model.train_step(
            {'inputs': inputs, 'data_samples': targets}, optim_wrapper
        )['loss']

    step.parameters = list(model.parameters())
    return step


@contextmanager
def keep_gradients() -> Iterator[None]:
    """Let ``zero_grad`` write zeros, as it did before PyTorch 2.0."""
    zero_grad = nn.Module.zero_grad
    nn.Module.zero_grad = lambda self, set_to_none=False: zero_grad(
        self, False
    )
    try:
        yield
    finally:
        nn.Module.zero_grad = zero_grad


def libmtl_step(ours: nn.Module, architecture: str, method: str) -> Callable:
    """A step as LibMTL's trainer does it, from the weights of ours."""
    # It imports one function of old torchvisions, to download weights.
    stub = types.ModuleType('torchvision.models.utils')
    stub.load_state_dict_from_url = None
    for name in ('torchvision', 'torchvision.models', stub.__name__):
        sys.modules.setdefault(name, stub)
    from LibMTL import architecture as architectures
    from LibMTL import weighting
    from LibMTL.model import resnet
    from LibMTL.model.resnet_dilated import ResnetDilated

    base = getattr(
        architectures, {'HardSharing': 'HPS', 'MTAN': 'MTAN'}[architecture]
    )
    heads = nn.ModuleDict(
        {t: copy.deepcopy(ours.heads[t].conv) for t in TASKS}
    )
    device = next(ours.parameters()).device

    class Model(base, getattr(weighting, method)):
        def __init__(self) -> None:
            super().__init__(
                list(TASKS),
                lambda: ResnetDilated(resnet.resnet50()),
                heads,
                rep_grad=False,
                multi_input=False,
                device=device,
            )
            self.init_param()

        def zero_grad_share_params(self) -> None:
            # Since PyTorch 2.0 gradients become None, and LibMTL 1.1.5 fails.
            with keep_gradients():
                super().zero_grad_share_params()

    model = Model().to(device).train()
    model.epoch, model.train_loss_buffer = 0, torch.ones(len(TASKS), 2).numpy()
    if architecture == 'HardSharing':
        model.encoder.load_state_dict(ours.backbone.state_dict(), strict=False)
    options = {'T': 2.0, 'calpha': 0.5, 'rescale': 1}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        outputs = model(inputs)
        losses = torch.zeros(len(TASKS), device=device)
        for number, task in enumerate(TASKS):
            losses[number] = F.mse_loss(outputs[task], targets[number])
        optimizer.zero_grad(set_to_none=False)
        model.backward(losses, **options)
        optimizer.step()
        return losses.detach().sum()

    step.parameters = list(model.parameters())
    return step


def torchjd_step(ours: nn.Module, architecture: str, method: str) -> Callable:
    """A step as TorchJD's documentation does it, on a copy of our model."""
    from torchjd import aggregation
    from torchjd.autojac import backward, jac_to_grad, mtl_backward

    model = copy.deepcopy(ours)
    args = _aggregator_config(method)
    aggregator = getattr(aggregation, args.pop('type'))(**args)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)
    own = {id(p) for p in model.heads.parameters()}
    shared = [p for p in model.parameters() if id(p) not in own]

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        if architecture == 'HardSharing':
            features = model.backbone(inputs)[-1:]
            per_task = dict.fromkeys(TASKS, features)
        else:
            per_task = model.architecture(inputs).features
        losses = [model.heads[t].loss(per_task[t], targets) for t in TASKS]
        optimizer.zero_grad()
        if architecture == 'HardSharing':
            mtl_backward(losses, features=features, parallel_chunk_size=1)
            jac_to_grad(shared, aggregator)
        else:
            backward(losses, parallel_chunk_size=1)
            jac_to_grad(model.parameters(), aggregator)
        optimizer.step()
        return torch.stack([loss.detach() for loss in losses]).sum()

    step.parameters = list(model.parameters())
    return step


def peak_of(step: Callable, data: Sequence[Tensor]) -> int:
    """Bytes of the tensors that are alive at once in a step.

    It is a second one, with what a first one keeps.
    """
    for parameter in step.parameters:
        parameter.grad = None
    with TensorPeak() as memory:
        step(*data)
        memory.peak = memory.now
        step(*data)
    return memory.peak


def compare(
    architecture: str, method: str, args: argparse.Namespace
) -> list[tuple]:
    """Rows of the table: name, seconds, seconds of ours, bytes of both."""
    model, optim_wrapper = build_ours(architecture, method)
    others = {'LibMTL': libmtl_step}
    if method in ('PCGrad', 'CAGrad'):
        others['TorchJD'] = torchjd_step
    steps = {
        name: make(model, architecture, method)
        for name, make in others.items()
    }
    steps['mmext'] = our_step(model, optim_wrapper)
    size = args.size
    inputs = torch.randn(args.batch, 3, *size)
    targets = torch.randn(
        len(TASKS), args.batch, CHANNELS, -(-size[0] // 8), -(-size[1] // 8)
    )
    losses = {n: float(step(inputs, targets)) for n, step in steps.items()}
    if architecture == 'HardSharing':
        # Of the same weights; LibMTL initializes MTAN's attention by itself.
        spread = max(losses.values()) - min(losses.values())
        if spread > 1e-3 * losses['mmext']:
            raise RuntimeError(f'losses must be the same, got {losses}')
    peaks = {n: peak_of(step, (inputs, targets)) for n, step in steps.items()}
    times = dict(
        zip(
            steps,
            median_seconds(
                [
                    lambda step=step: step(inputs, targets)
                    for step in steps.values()
                ],
                args.rounds,
                torch.device('cpu'),
            ),
        )
    )
    return [
        (
            *(architecture, method, name),
            *(times['mmext'], times[name], peaks['mmext'], peaks[name]),
        )
        for name in others
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print ours, theirs and the ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument('--rounds', type=positive, default=7)
    parser.add_argument('--batch', type=positive, default=2)
    parser.add_argument(
        '--size', type=positive, nargs=2, default=[96, 128], metavar=('H', 'W')
    )
    parser.add_argument('--threads', type=positive, default=2)
    for name, choices in (('models', MODELS_OF), ('methods', METHODS)):
        parser.add_argument(
            f'--{name}', nargs='+', choices=choices, default=choices
        )
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    table = Table('model', 'method', 'other', title='Seconds of a step, MiB')
    for column in ('ours', 'theirs', 'ratio', 'ours', 'theirs', 'ratio'):
        table.add_column(column, justify='right')
    for architecture in args.models:
        for method in args.methods:
            for row in compare(architecture, method, args):
                *names, ours, theirs, our_peak, their_peak = row
                table.add_row(
                    *names,
                    f'{ours:.3f}',
                    f'{theirs:.3f}',
                    f'{ours / theirs:.2f}',
                    f'{our_peak / MIB:.0f}',
                    f'{their_peak / MIB:.0f}',
                    f'{our_peak / their_peak:.2f}',
                )
    Console(width=100).print(table)
    return 0


if __name__ == '__main__':
    run_tool(main)

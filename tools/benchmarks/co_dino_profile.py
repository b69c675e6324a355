"""Where the time of CO-DINO's step and of its prediction goes on a CPU.

Each part beside its limit: the operations of its matrix products and
convolutions at the rate of a large matrix product, which is measured first,
and the bytes that its other operators read and write at the rate of a copy.
An operator has one of both; a part has the sum. ``factor`` is the time divided
by the limit, ``kept`` are MiB for the backward pass, whose time counts for the
part whose forward pass it is of. Kernels that PyTorch does not see have a
time, and the bytes of their tensors as a limit.
"""

import argparse
import sys
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

import mmext.utils.quiet_hosts  # noqa: F401  (first: it is quiet then)
from mmext.models.co_dino import query_head, region_proposals
from mmext.utils.cli import run_tool

sys.path.insert(0, str(Path(__file__).parent))
from benchmark_parts import positive
from co_dino_step import CONFIG, Side
from live_bytes import SavedBytes

OTHER = 'other'
# Functions, and the part that they are.
FUNCTIONS = (
    (query_head, 'match_queries', 'matching'),
    (query_head, 'join_targets', 'losses'),
    (query_head, 'class_losses', 'losses'),
    (query_head, 'box_losses', 'losses'),
    (query_head, 'image_detections', 'post-processing'),
    (query_head, 'select_detections', 'post-processing'),
    (region_proposals, '_predict', 'RPN'),
    (region_proposals, '_losses', 'RPN, losses'),
    (region_proposals, '_propose', 'RPN, proposals'),
)
OPERATIONS = {
    **flop_registry,
    torch.ops.aten.addmm_: flop_registry[torch.ops.aten.addmm],
}
COLUMNS = '', 's', 'share', 'TFLOP', 'GiB', 'limit, s', 'factor', 'kept'
VIEWS = ('view', 'expand', 'transpose', 'permute', 'detach', 't', 'split')


def make_parser() -> argparse.ArgumentParser:
    """The command line of this tool."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add('--config', type=Path, default=CONFIG)
    add('--height', type=positive, default=512, metavar='PIXELS')
    add('--width', type=positive, default=512, metavar='PIXELS')
    add('--batch-size', type=positive, default=1)
    add('--boxes', type=positive, default=10, help='of each image')
    add('--checkpoints', action='store_true', help='as the config says')
    add('--bf16', action='store_true', help='under autocast to bfloat16')
    add(
        '--what',
        nargs='+',
        choices=('step', 'prediction'),
        default=('step', 'prediction'),
    )
    return parser


def measured_rates(dtype: torch.dtype) -> tuple[float, float]:
    """Operations and bytes per second: a matrix product, a copy."""

    def best(run: Callable[[], object]) -> float:
        times = []
        for _ in range(8):
            start = time.process_time()
            run()
            times.append(time.process_time() - start)
        return min(times[1:]) / torch.get_num_threads()

    one, other = (torch.randn(2048, 2048).to(dtype) for _ in range(2))
    into = torch.empty_like(one)
    operations = 2 * 2048**3
    products = best(lambda: torch.mm(one, other, out=into))
    source = torch.ones(2**26)
    target = torch.empty_like(source)
    return operations / products, 2**29 / best(lambda: target.copy_(source))


class Parts(TorchDispatchMode):
    """Processor time, operations and bytes of each part."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: dict = defaultdict(float)
        self.operations: dict = defaultdict(float)
        self.bytes: dict = defaultdict(float)
        self._stack = [OTHER]
        self._last = time.process_time()
        self._now = OTHER
        # Nodes of autograd have numbers that rise: first of a part, part.
        self._numbers, self._owners = [0], [OTHER]

    def _clock(self, into: str) -> None:
        now = time.process_time()
        self.seconds[self._now] += now - self._last
        self._last, self._now = now, into

    def _mark(self) -> None:
        part = self._stack[-1]
        self._clock(part)
        self._numbers.append(torch._C._autograd._get_sequence_nr())
        self._owners.append(part)

    @property
    def current(self) -> str:
        """The part that runs."""
        return self._stack[-1]

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What runs meanwhile belongs to a part."""
        self._stack.append(name)
        self._mark()
        try:
            yield
        finally:
            self._stack.pop()
            self._mark()

    def _owner(self) -> str:
        node = torch._C._current_autograd_node()
        if node is None or len(self._stack) > 1:
            return self._stack[-1]
        number = node._sequence_nr()
        if number > self._numbers[-1]:  # it adds up a gradient
            return self._now
        return self._owners[bisect_right(self._numbers, number) - 1]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: Any = None
    ) -> Any:
        """Run an operator and note what it took."""
        kwargs = kwargs or {}
        packet = func._overloadpacket
        part = self._owner()
        self._clock(part)
        result = func(*args, **kwargs)
        if packet in OPERATIONS:
            self.operations[part] += OPERATIONS[packet](
                *args, **kwargs, out_val=result
            )
        elif packet.__name__ not in VIEWS:
            self.bytes[part] += sum(
                value.numel() * value.element_size()
                for value in tree_leaves((args, kwargs, result))
                if isinstance(value, Tensor)
            )
        return result


class KeptBytes(SavedBytes):
    """What autograd keeps, by part: ``kept``, bytes."""

    def __init__(self, model: nn.Module, parts: Parts) -> None:
        self.parts, self.kept = parts, defaultdict(int)
        super().__init__(model)

    def _note(self, tensor: Tensor, counts: bool = True) -> None:
        before = self.now
        super()._note(tensor, counts)
        self.kept[self.parts.current] += self.now - before


def parts_of(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Modules of a detector, and the part that each is."""
    head = model.query_head
    transformer = head.transformer
    yield model.backbone, 'backbone'
    if model.neck is not None:
        yield model.neck, 'neck'
    for name in ('encoder', 'decoder'):
        for layer in getattr(transformer, name).layers:
            modules = dict(layer.named_modules())
            for key, module in modules.items():
                if '.' in key and key.count('.') == 1:
                    yield module, f'{name}, {key.split(".")[0]}'
    for module in (*head.cls_branches, *head.reg_branches):
        yield module, 'query head'
    if model.rpn_head is not None:
        yield model.rpn_head, 'RPN'
    for heads, name in ((model.roi_head, 'R-CNN'), (model.bbox_head, 'ATSS')):
        for co_head in heads:
            yield co_head, name


def watch(parts: Parts, model: nn.Module, stack: ExitStack) -> None:
    """Have the forward passes of a model's parts known as such."""

    def wrapped(run: Callable, name: str) -> Callable:
        def call(*args: Any, **kwargs: Any) -> Any:
            with parts.part(name):
                return run(*args, **kwargs)

        return call

    for module, name in parts_of(model):
        for method in ('forward', 'loss_and_positives'):
            if hasattr(module, method):
                run = wrapped(getattr(module, method), name)
                stack.enter_context(mock.patch.object(module, method, run))
    transformer = model.query_head.transformer
    for owner, method, name in (
        (transformer, 'propose', 'proposals'),
        (model.query_head, 'dn_generator', 'denoising'),
        (transformer, 'decode', 'decoder, rest'),
        (transformer, 'encode', 'encoder, rest'),
        *FUNCTIONS,
    ):
        run = getattr(owner, method, None)
        if isinstance(run, nn.Module):
            owner, method, run = run, 'forward', run.forward
        if run is not None:
            stack.enter_context(
                mock.patch.object(owner, method, wrapped(run, name))
            )


def profile(side: Side, what: str) -> tuple[Parts, dict[str, int]]:
    """Run once to get warm, and once watched."""
    for _ in range(2):
        getattr(side, what)()
    if what == 'step':
        side.optimizer()
        side.optim.zero_grad()
    parts = Parts()
    kept = KeptBytes(side.model, parts)
    with ExitStack() as stack:
        watch(parts, side.model, stack)
        if what == 'step':
            with kept.counting():
                side.loss()
        with parts:
            getattr(side, what)()
            if what == 'step':
                with parts.part('optimizer'):
                    side.optimizer()
        parts._clock(OTHER)
    return parts, kept.kept


def show(
    parts: Parts,
    kept: dict[str, int],
    rates: tuple[float, float],
    args: Any,
    what: str,
) -> None:
    """Print the table of a run."""
    rows = {}
    for part, seconds in parts.seconds.items():
        operations, moved = parts.operations[part], parts.bytes[part]
        limit = operations / rates[0] + moved / rates[1]
        seconds /= torch.get_num_threads()
        rows[part] = seconds, operations, moved, limit, kept.get(part, 0)
    total = [sum(column) for column in zip(*rows.values())]
    table = Table(
        title=f'{what} of {args.config.stem}, {args.height} x {args.width}: '
        f'{rates[0] / 1e9:.0f} GFLOP/s, {rates[1] / 2**30:.1f} GiB/s'
    )
    for title in COLUMNS:
        table.add_column(title, justify='right' if title else 'left')
    ordered = sorted(rows.items(), key=lambda item: -item[1][0])
    for part, row in [('all', total), *ordered]:
        seconds, operations, moved, limit, kept_bytes = row
        table.add_row(
            part,
            f'{seconds:.2f}',
            f'{seconds / total[0]:.1%}',
            f'{operations / 1e12:.3f}',
            f'{moved / 2**30:.1f}',
            f'{limit:.2f}',
            f'{seconds / limit:.1f}' if limit > 1e-3 else '',
            f'{kept_bytes / 2**20:.0f}',
        )
    Console(width=110).print(table)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool."""
    args = make_parser().parse_args(argv)
    args.device, args.cpu_time = 'cpu', True
    side = Side('ours bf16' if args.bf16 else 'ours', args)
    rates = measured_rates(torch.bfloat16 if args.bf16 else torch.float32)
    for what in args.what:
        show(*profile(side, what), rates, args, what)
    return 0


if __name__ == '__main__':
    run_tool(main)

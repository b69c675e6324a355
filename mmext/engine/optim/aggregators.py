"""Gradients of several tasks, and what combines them.

The aggregators are those of TorchJD: built from configs, saved and restored.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist

_INSTALL = 'pip install "mmext[multi_task]"'


def of_tasks(cfg: Any, tasks: Sequence[int], count: int) -> Any:
    """The config of an aggregator for some of ``count`` tasks.

    Lists with an entry for each task, and ``n_tasks``, become those of the
    tasks. A name, and an aggregator that is built, stay what they are.
    """
    if not isinstance(cfg, Mapping):
        return cfg
    some = {}
    for key, value in cfg.items():
        if key == 'n_tasks':
            value = len(tasks)
        elif isinstance(value, list | tuple) and len(value) == count:
            value = [value[task] for task in tasks]
        some[key] = of_tasks(value, tasks, count)
    return some


def build_aggregator(cfg: Any, like: Tensor) -> nn.Module:
    """Build an aggregator of TorchJD.

    Args:
        cfg: Name of an ``Aggregator`` or a ``Weighting`` in
            ``torchjd.aggregation``; a dict of it, ``type``, and of its
            arguments, where lists of numbers become tensors and dicts with a
            ``type`` further objects; or an aggregator.
        like: A parameter: the device, and the dtype, of tensors among the
            arguments.

    Returns:
        A module that makes ``(P,)`` of ``(K, P)``.

    Raises:
        ImportError: If TorchJD, or what it needs for this one, is missing.
        ValueError: If there is nothing of that name; if an argument is
            missing or unknown; if it needs two batches in each step.
    """
    if isinstance(cfg, nn.Module):
        return cfg
    try:
        from torchjd import aggregation
    except ImportError as error:
        raise ImportError(
            f'gradient surgery needs TorchJD: {_INSTALL}'
        ) from error
    bases = (aggregation.Aggregator, aggregation.Weighting)
    args = {'type': cfg} if isinstance(cfg, str) else dict(cfg)
    name = args.pop('type', None)
    kinds = {
        key: kind
        for key in aggregation.__all__
        if issubclass(kind := getattr(aggregation, key), bases)
    }
    if name not in kinds:
        raise ValueError(
            f'aggregator must be one of {", ".join(kinds)}, of '
            f'torchjd.aggregation, got {name!r}'
        )
    dtype = torch.promote_types(like.dtype, torch.float32)
    for key, value in args.items():
        if isinstance(value, Mapping) and 'type' in value:
            options = dict(value)
            kind = getattr(aggregation, options.pop('type'), None)
            if kind is None:
                raise ValueError(
                    f'{value["type"]!r} is not in torchjd.aggregation, as the '
                    'type of an argument of aggregator must be'
                )
            args[key] = kind(**options)
        elif isinstance(value, list | tuple):
            args[key] = torch.tensor(value, dtype=dtype, device=like.device)
    signature = inspect.signature(kinds[name])
    try:
        signature.bind(**args)
    except TypeError as error:
        raise ValueError(
            f'aggregator must give the arguments of {name}{signature}, as in '
            "aggregator=dict(type='CAGrad', c=0.5) or dict(type='NashMTL', "
            f'n_tasks=K) for K tasks: {error}, got {cfg!r}'
        ) from error
    try:
        part = kinds[name](**args)
    except ImportError as error:
        raise ImportError(f'{error}, or {_INSTALL}') from error
    if isinstance(part, aggregation.Aggregator):
        return part
    inner = part
    while hasattr(inner, 'weighting'):
        inner = inner.weighting
    if isinstance(
        inner, aggregation.MoDoWeighting | aggregation.SDMGradWeighting
    ):
        raise ValueError(
            f'{type(inner).__name__} needs the gradients of independent '
            'batches in each step, and the optimizer wrapper has those of '
            "one; aggregator='MGDA' is the method without that correction"
        )
    # Of the Gramian all others take what they need.
    if isinstance(inner, aggregation.ExcessMTLWeighting):
        return aggregation.WeightedAggregator(part)
    return aggregation.GramianWeightedAggregator(part)


# Of an attribute that is no plain data, such as a module or a solver.
_NONE = object()


def get_state(
    aggregator: nn.Module, built: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Attributes of an aggregator, as plain values and tensors.

    With ``built``, what this gave when the aggregator was new, only those that
    differ from it: what calls have changed, and no settings.
    """
    before = built['modules'] if built else {}
    modules = {}
    for path, module in aggregator.named_modules():
        values = {}
        for name, value in {**vars(module), **module._buffers}.items():
            plain = _encode(value)
            known = before.get(path, {}).get(name, _NONE)
            if plain is not _NONE and not _same(plain, known):
                values[name] = plain
        if values:
            modules[path] = values
    return {'kind': type(aggregator).__name__, 'modules': modules}


def set_state(
    aggregator: nn.Module, state: Mapping[str, Any], device: torch.device
) -> bool:
    """Restore what calls have changed; False if it is of another kind.

    Tensors that were on a CPU stay there, others go to ``device``.
    """
    modules = dict(aggregator.named_modules())
    if state['kind'] != type(aggregator).__name__ or any(
        path not in modules for path in state['modules']
    ):
        return False
    for path, values in state['modules'].items():
        module = modules[path]
        for name, value in values.items():
            setattr(module, name, _decode(value, device))
        # Nash-MTL builds its problem in its first call, which is over.
        if hasattr(module, '_init_optim_problem'):
            module._init_optim_problem()
    return True


def _encode(value: Any) -> Any:
    """Plain data for a checkpoint that is read without running code."""
    if isinstance(value, Tensor):
        on_cpu = value.device.type == 'cpu'
        return ['tensor', value.detach().cpu().clone(), on_cpu]
    if isinstance(value, np.ndarray):
        return ['array', torch.from_numpy(value.copy())]
    if isinstance(value, torch.dtype):
        return ['dtype', str(value).removeprefix('torch.')]
    if isinstance(value, torch.device):
        return ['device', value.type == 'cpu']
    if isinstance(value, tuple):
        items = [_encode(item) for item in value]
        return _NONE if _NONE in items else ['tuple', items]
    if value is None or isinstance(value, bool | int | float | str):
        return ['plain', value]
    return _NONE


def _decode(value: list, device: torch.device) -> Any:
    kind, content = value[:2]
    if kind == 'tensor':
        return content.clone() if value[2] else content.to(device)
    if kind == 'array':
        return content.numpy().copy()
    if kind == 'dtype':
        return getattr(torch, content)
    if kind == 'device':
        return torch.device('cpu') if content else device
    if kind == 'tuple':
        return tuple(_decode(item, device) for item in content)
    return content


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list):
        return (
            isinstance(other, list)
            and len(one) == len(other)
            and all(map(_same, one, other))
        )
    if isinstance(one, Tensor):
        return (
            isinstance(other, Tensor)
            and one.shape == other.shape
            and one.dtype == other.dtype
            and torch.equal(one, other)
        )
    return type(one) is type(other) and one == other


# Gradients -------------------------------------------------------------------

# Numbers that ranks send each other at once, and that are multiplied at once.
_BUCKET, _PIECE = 25 << 18, 1 << 18


def layout_of(
    touched: set[tuple[int, int]],
) -> tuple[list[int], dict[int, int]]:
    """Parameters that several tasks reach, and the task of each other one."""
    tasks: dict[int, list[int]] = {}
    for task, index in sorted(touched):
        tasks.setdefault(index, []).append(task)
    shared = sorted(index for index in tasks if len(tasks[index]) > 1)
    owners = {i: tasks[i][0] for i in sorted(tasks) if len(tasks[i]) == 1}
    return shared, owners


class TaskGradients:
    """Gradients of K tasks, by task and number of the parameter.

    They are kept as autograd gives them, never copied into one block, and
    never changed in place, as several may share memory. What combines them
    lets go of each parameter's before it takes the next one.

    Args:
        parameters: All that the optimizer trains.
        num_tasks: K.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], num_tasks: int
    ) -> None:
        self.parameters, self.num_tasks = parameters, num_tasks
        self.parts: dict[tuple[int, int], Tensor] = {}
        self.dtype = torch.float32
        for parameter in parameters:
            self.dtype = torch.promote_types(self.dtype, parameter.dtype)

    def add(self, task: int, index: int, gradient: Tensor) -> None:
        """Add a gradient to the one that is there; it may be sparse."""
        if gradient.layout is not torch.strided:
            gradient = gradient.to_dense()
        gradient = gradient.to(self.parameters[index].device, self.dtype)
        before = self.parts.get((task, index))
        self.parts[task, index] = (
            gradient if before is None else before + gradient
        )

    def average(self, group: dist.ProcessGroup | None) -> None:
        """Take the mean over ranks; what one lacks and others have is 0."""
        mask = torch.zeros(
            self.num_tasks, len(self.parameters), dtype=torch.uint8
        )
        for key in self.parts:
            mask[key] = 1
        mask = mask.to(self.parameters[0].device)
        dist.all_reduce(mask, dist.ReduceOp.MAX, group=group)
        bucket: list[tuple[int, int]] = []
        # By parameter: a bucket is freed when its last part is.
        keys = [(task, index) for index, task in mask.t().nonzero().tolist()]
        for key in keys:
            bucket.append(key)
            sizes = [self.parameters[index].numel() for _, index in bucket]
            if sum(sizes) < _BUCKET and key != keys[-1]:
                continue
            flat = torch.cat(
                [
                    self._or_zero(self.parts.pop(key, None), key[1]).flatten()
                    for key in bucket
                ]
            )
            dist.all_reduce(flat, group=group)
            flat.div_(dist.get_world_size(group))
            for (task, index), part in zip(bucket, flat.split(sizes)):
                shape = self.parameters[index].shape
                self.parts[task, index] = part.view(shape)
            bucket = []

    def _or_zero(self, part: Tensor | None, index: int) -> Tensor:
        """A gradient of a parameter, zeros where there is none."""
        if part is not None:
            return part
        return torch.zeros_like(self.parameters[index], dtype=self.dtype)

    def is_finite(self) -> bool:
        """Whether all numbers are."""
        sums = [part.sum() for part in self.parts.values()]
        return bool(torch.stack(sums).isfinite().all())

    def reaches(self, task: int, indices: Sequence[int]) -> bool:
        """Whether a gradient of a task, of some parameters, is not 0."""
        keys = self.parts.keys() & {(task, index) for index in indices}
        return any(self.parts[key].any() for key in keys)

    def gramian(
        self, tasks: Sequence[int], indices: Sequence[int], factor: float
    ) -> Tensor:
        """Products of the gradients, divided by a factor, with each other."""
        gramian = self.parameters[0].new_zeros(
            len(tasks), len(tasks), dtype=self.dtype
        )
        for index in indices:
            parts = (self.parts.get((task, index)) for task in tasks)
            flat = [
                self._or_zero(part, index).flatten().split(_PIECE)
                for part in parts
            ]
            for pieces in zip(*flat):
                rows = torch.stack(pieces).div_(factor)
                gramian += rows @ rows.T
        return gramian

    def matrix(self, tasks: Sequence[int], indices: Sequence[int]) -> Tensor:
        """A row for each task; the gradients are not kept beside it."""
        sizes = [self.parameters[index].numel() for index in indices]
        matrix = self.parameters[0].new_zeros(
            len(tasks), sum(sizes), dtype=self.dtype
        )
        for index, columns in zip(indices, matrix.split(sizes, 1)):
            for task in range(self.num_tasks):
                part = self.parts.pop((task, index), None)
                if part is not None and task in tasks:
                    columns[tasks.index(task)].copy_(part.flatten())
        return matrix

    def combined(self, index: int, weights: Mapping[int, float]) -> Tensor:
        """Sum of a parameter's gradients times weights; they are dropped."""
        total = torch.zeros_like(self.parameters[index], dtype=self.dtype)
        for task in range(self.num_tasks):
            part = self.parts.pop((task, index), None)
            if part is not None and task in weights:
                total.add_(part, alpha=weights[task])
        return total

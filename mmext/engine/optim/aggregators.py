"""Gradients of several tasks in one block, and what combines them.

The aggregators are those of TorchJD: built from configs, saved and restored.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

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
    """Gradients of K tasks in one block: a row each for shared parameters.

    Args:
        parameters: All that the optimizer trains.
        num_tasks: K.
        shared: Numbers of the parameters that have a row for each task.
        owners: Task by number of the parameters that one task reaches.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        num_tasks: int,
        shared: Sequence[int],
        owners: Mapping[int, int],
    ) -> None:
        self.parameters, self.num_tasks = parameters, num_tasks
        self.shared, self.owners = tuple(shared), dict(owners)
        # What is reached in this window, as (task, number).
        self.touched: set[tuple[int, int]] = set()
        # What came against expectation, until it is arranged.
        self._loose: dict[tuple[int, int], Tensor] = {}
        dtype = torch.float32
        for parameter in parameters:
            dtype = torch.promote_types(dtype, parameter.dtype)
        width = sum(parameters[index].numel() for index in self.shared)
        end = num_tasks * width
        self.flat = torch.empty(
            end + sum(parameters[index].numel() for index in self.owners),
            dtype=dtype,
            device=parameters[0].device,
        )
        self.matrix = self.flat[:end].view(num_tasks, width)
        self._views = {
            (task, index): view
            for task, row in enumerate(self.matrix)
            for index, view in self._split(row, self.shared)
        }
        for index, view in self._split(self.flat[end:], self.owners):
            self._views[self.owners[index], index] = view

    def _split(
        self, row: Tensor, indices: Sequence[int]
    ) -> Iterator[tuple[int, Tensor]]:
        """The parts of a row that belong to parameters, in their shapes."""
        sizes = [self.parameters[index].numel() for index in indices]
        for index, part in zip(indices, row.split(sizes) if sizes else ()):
            yield index, part.view(self.parameters[index].shape)

    def begin(self) -> None:
        """Begin a window, in the same memory."""
        self.touched.clear()
        self._loose.clear()

    def add(self, gradients: Mapping[tuple[int, int], Tensor]) -> None:
        """Add gradients, by task and number; the first of each is copied."""
        loose = gradients.keys() - self._views.keys()
        for key in loose:
            before = self._loose.get(key)
            new = _dense(gradients[key], self.flat)
            self._loose[key] = new if before is None else before + new
        again = gradients.keys() & self.touched
        for keys, put in (
            (gradients.keys() - again - loose, torch._foreach_copy_),
            (again - loose, torch._foreach_add_),
        ):
            if keys:
                keys = sorted(keys)
                put(
                    [self._views[key] for key in keys],
                    [_dense(gradients[key], self.flat) for key in keys],
                )
        self.touched.update(gradients)

    def items(self) -> dict[tuple[int, int], Tensor]:
        """What was added up, by task and number."""
        return {
            key: self._views.get(key, self._loose.get(key))
            for key in sorted(self.touched)
        }

    def arranged(self, touched: set[tuple[int, int]]) -> 'TaskGradients':
        """The same in rows for exactly what several tasks have reached.

        Where a task has not reached one of these, it is 0.
        """
        shared, owners = layout_of(touched)
        if (tuple(shared), owners) == (self.shared, self.owners):
            result = self
        else:
            result = TaskGradients(
                self.parameters, self.num_tasks, shared, owners
            )
            result.add(self.items())
        for key in result._views.keys() - result.touched:
            result._views[key].zero_()
        return result

    def set_gradients(
        self, combined: Tensor, factor: float, weights: Tensor | None
    ) -> None:
        """Add the combination ``(P,)``, and what is of one task, to ``grad``.

        The combination is multiplied by ``factor``, what is of one task by
        its number of ``weights`` ``(K,)``.
        """
        if factor != 1:
            combined = combined * factor
        parts = dict(self._split(combined, self.shared))
        for index, task in self.owners.items():
            own = self._views[task, index]
            parts[index] = (
                own.clone() if weights is None else own * weights[task]
            )
        for index, gradient in parts.items():
            parameter = self.parameters[index]
            gradient = gradient.to(parameter.dtype)
            if parameter.grad is not None:
                gradient = parameter.grad + gradient
            parameter.grad = gradient


def _dense(gradient: Tensor, like: Tensor) -> Tensor:
    """A gradient in another dtype; one of an embedding may be sparse."""
    if gradient.layout is not torch.strided:
        gradient = gradient.to_dense()
    return gradient.to(like.dtype)

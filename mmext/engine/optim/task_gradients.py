"""Gradients of several tasks in one block of memory."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn


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
        self, combined: Tensor, factor: float, weights: Tensor | None = None
    ) -> None:
        """Add the combination ``(P,)``, and what is of one task, to ``grad``.

        ``factor`` is for the combination, ``weights`` ``(K,)`` for what is
        of one task.
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

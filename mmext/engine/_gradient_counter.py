"""Count the completed gradients of a step, as DDP's reducer does."""

from collections.abc import Iterable

from torch import nn

__all__ = ['GradientCounter']


class GradientCounter:
    """Hooks on parameters that count how often a gradient was completed.

    Args:
        module: Its parameters that need gradients now are counted.
        ignored: Names that DDP was told to leave alone.
    """

    def __init__(self, module: nn.Module, ignored: Iterable[str] = ()) -> None:
        self._module = module
        ignored = set(ignored)
        named = [
            (name, parameter)
            for name, parameter in module.named_parameters()
            if parameter.requires_grad and name not in ignored
        ]
        self.names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self._known = {id(parameter) for parameter in self._parameters}
        self._known |= {
            id(parameter)
            for name, parameter in module.named_parameters()
            if name in ignored
        }
        self._counts = [0] * len(named)
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._hook(index))
            for index, parameter in enumerate(self._parameters)
        ]

    def _hook(self, index: int):
        # Not a method of the parameter's wrapper: the list may be renewed.
        def count(_: nn.Parameter) -> None:
            self._counts[index] += 1

        return count

    def reset(self) -> None:
        """Begin a step."""
        self._counts[:] = [0] * len(self._counts)

    def counts(self) -> list[int]:
        """How often each parameter of :attr:`names` was completed."""
        return list(self._counts)

    def select(self, condition) -> tuple[str, ...]:
        """Names whose count fulfils a condition."""
        return tuple(
            name
            for name, count in zip(self.names, self._counts)
            if condition(count)
        )

    def frozen(self) -> tuple[str, ...]:
        """Parameters that need no gradient any more."""
        return tuple(
            name
            for name, parameter in zip(self.names, self._parameters)
            if not parameter.requires_grad
        )

    def unknown(self) -> tuple[str, ...]:
        """Trainable parameters that are not counted, so not averaged."""
        if all(
            id(parameter) in self._known
            for parameter in self._module.parameters()
            if parameter.requires_grad
        ):
            return ()
        return tuple(
            name
            for name, parameter in self._module.named_parameters()
            if parameter.requires_grad and id(parameter) not in self._known
        )

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()

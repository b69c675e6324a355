"""Parts of a model whose gradients are undefined, or changed by hooks.

PyTorch runs the hooks of a parameter whose gradient is undefined, too, and DDP
takes zeros for it: such models train. A hook that changes weights in the
backward uses the gradient of its process.
"""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

RATE = 0.5


class _Scale(torch.autograd.Function):
    """The features times a weight, whose gradient is given, 0 or undefined."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, how: str) -> Tensor:
        ctx.how = how
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        x, weight = ctx.saved_tensors
        full = (grad * x).sum(0)
        given = {'full': full, 'zeros': torch.zeros_like(full), 'none': None}
        return grad * weight, given[ctx.how], None


class _Reverse(torch.autograd.Function):
    """Gradient reversal, which returns None for a factor of 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        return (-ctx.factor * grad if ctx.factor else None), None


class _Part(nn.Module):
    """A layer behind the block, by default a plain one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def ready(self) -> None:
        """Add hooks, when the type of the parameters is what it will be."""

    def forward(self, x: Tensor, step: int, rank: int) -> Tensor:
        return x + self.layer(x).tanh()


class _Scaled(_Part):
    """A weight with an undefined gradient, by rank and by step."""

    def __init__(
        self,
        width: int,
        how: Callable[[int, int], str],
        *,
        reentrant: bool | None = None,
        twice: bool = False,
    ) -> None:
        super().__init__(width)
        self.how, self.reentrant, self.twice = how, reentrant, twice
        self.weight = nn.Parameter(torch.full((width,), 1.5))

    def forward(self, x: Tensor, step: int, rank: int) -> Tensor:
        def scale(x: Tensor) -> Tensor:
            return _Scale.apply(x, self.weight, self.how(step, rank))

        x = super().forward(x, step, rank)
        if self.twice:
            x = x + self.weight
        if self.reentrant is None:
            return scale(x)
        return checkpoint(scale, x, use_reentrant=self.reentrant)


class _Reversed(_Part):
    """A classifier of domains behind a gradient reversal by 0."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.domain = nn.Linear(width, width)

    def forward(self, x: Tensor, step: int, rank: int) -> Tensor:
        features = super().forward(x, step, rank)
        return x + self.domain(_Reverse.apply(features, 0.0))


class _Dummy(_Part):
    """A parameter that only makes a checkpoint's input need a gradient."""

    def __init__(self, width: int, reentrant: bool) -> None:
        super().__init__(width)
        self.reentrant = reentrant
        self.dummy = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, step: int, rank: int) -> Tensor:
        def run(x: Tensor, dummy: Tensor) -> Tensor:
            return x + self.layer(x).tanh()

        return checkpoint(run, x, self.dummy, use_reentrant=self.reentrant)


class _Table(_Part):
    """An embedding whose gradient is sparse, dense, or undefined."""

    def __init__(self, width: int, how: str, sparse: bool) -> None:
        super().__init__(width)
        self.how = how
        self.table = nn.Embedding(4, width, sparse=sparse)

    def forward(self, x: Tensor, step: int, rank: int) -> Tensor:
        rows = self.table(torch.tensor([step % 4, rank]))
        return _Scale.apply(
            super().forward(x, step, rank), rows.mean(0), self.how
        )


class _BackwardHook(_Part):
    """A module whose backward hook takes the gradient away."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.after = nn.Linear(width, width)
        self.after.register_full_backward_hook(lambda *_: (None,))

    def forward(self, x: Tensor, step: int, rank: int) -> Tensor:
        return x + self.after(super().forward(x, step, rank))


class _Frozen(_Part):
    """A layer that is not trained in some steps."""

    def __init__(self, width: int, trained: tuple[bool, ...]) -> None:
        super().__init__(width)
        self.trained = trained
        self.layer.requires_grad_(trained[0])

    def forward(self, x: Tensor, step: int, rank: int) -> Tensor:
        self.layer.requires_grad_(self.trained[step])
        return super().forward(x, step, rank)


class _Hooked(_Part):
    """A layer whose weight has a hook, called with the part."""

    def __init__(self, width: int, register: Callable) -> None:
        super().__init__(width)
        self.register = register

    def ready(self) -> None:
        self.register(self)


def _on_grad(function: Callable[[Tensor], Any]) -> Callable[[_Part], None]:
    """Register a hook that gets the gradient and may return another one."""
    return lambda part: part.layer.weight.register_hook(function)


def _after(function: Callable[[nn.Parameter], Any]) -> Callable:
    """Register a hook that runs when the gradient is in ``grad``."""

    def register(part: _Part) -> None:
        hook = part.layer.weight.register_post_accumulate_grad_hook
        hook(lambda parameter: function(parameter))

    return register


def _clear(parameter: nn.Parameter) -> None:
    parameter.grad = None


def _replace(parameter: nn.Parameter) -> None:
    parameter.grad = 2 * parameter.grad


def _step(parameter: nn.Parameter, *, data: bool, clear: bool) -> None:
    """A step of an optimizer; that of ``data`` leaves no trace of itself."""
    with torch.no_grad():
        target = parameter.data if data else parameter
        target.sub_(parameter.grad, alpha=RATE)
    if clear:
        parameter.grad = None


def _fused(part: _Part) -> None:
    """Each hook steps all parameters that have a gradient, as LOMO does."""

    def step(grad: Tensor) -> Tensor:
        for parameter in part.parameters():
            if parameter.grad is not None:
                _step(parameter, data=True, clear=True)
        return grad

    for parameter in part.parameters():
        parameter.register_hook(step)


def _node(part: _Part) -> None:
    """A hook of the function that adds gradients up."""
    weight = part.layer.weight
    # The function, and its hook, are gone when nobody holds it.
    part.node = weight.view_as(weight).grad_fn.next_functions[0][0]
    part.node.register_hook(lambda *_: _step(weight, data=True, clear=False))


def _decay(parameter: nn.Parameter) -> None:
    """Weights change, and gradients have no part in it."""
    parameter.data.mul_(0.99)


def _by_rank(step: int, rank: int) -> str:
    return 'none' if rank else 'full'


def _by_step(step: int, rank: int) -> str:
    return 'none' if step == 1 else 'full'


def _hooked(register: Callable) -> Callable[[int], nn.Module]:
    return partial(_Hooked, register=register)


def _none(step: int, rank: int) -> str:
    return 'none'


def _zeros(step: int, rank: int) -> str:
    return 'zeros'


class Kind(NamedTuple):
    """How to build a part, and what plain DDP does with each setting.

    ``names`` are the parameters at fault.
    """

    build: Callable[[int], nn.Module]
    plain: str = 'ok'
    find_unused: str = 'ok'
    static: str = 'ok'
    names: tuple[str, ...] = ()


_TWICE = 'twice@0'
_UNEXPECTED = ('unexpected@0',) * 3
_DIVERGED = ('diverged',) * 3
_LAYER = ('part.layer.weight', 'part.layer.bias')
PARTS = {
    'plain': Kind(_Part),
    'none': Kind(partial(_Scaled, how=_none)),
    'none_on_a_rank': Kind(partial(_Scaled, how=_by_rank)),
    'none_in_a_step': Kind(partial(_Scaled, how=_by_step)),
    'zeros': Kind(partial(_Scaled, how=_zeros)),
    'none_beside_a_use': Kind(partial(_Scaled, how=_none, twice=True)),
    'none_in_reentrant': Kind(
        partial(_Scaled, how=_none, reentrant=True),
        find_unused=_TWICE,
        names=('part.weight',),
    ),
    'none_in_ordinary': Kind(partial(_Scaled, how=_none, reentrant=False)),
    'reversal_by_0': Kind(_Reversed),
    'dummy_of_reentrant': Kind(
        partial(_Dummy, reentrant=True), find_unused=_TWICE, names=_LAYER
    ),
    'dummy_of_ordinary': Kind(
        partial(_Dummy, reentrant=False),
        plain='unfinished@1',
        names=('part.dummy',),
    ),
    'none_of_table': Kind(partial(_Table, how='none', sparse=False)),
    'none_of_sparse_table': Kind(
        partial(_Table, how='none', sparse=True),
        *_UNEXPECTED,
        names=('part.table.weight',),
    ),
    'zeros_of_sparse_table': Kind(partial(_Table, how='zeros', sparse=True)),
    'backward_hook': Kind(_BackwardHook),
    'frozen_in_a_step': Kind(
        partial(_Frozen, trained=(True, False, True)),
        plain='unfinished@2',
        static='unfinished@2',
        names=_LAYER,
    ),
    'hook_returns_none': Kind(_hooked(_on_grad(lambda grad: None))),
    'hook_returns_zeros': Kind(_hooked(_on_grad(torch.zeros_like))),
    'hook_returns_another': Kind(_hooked(_on_grad(lambda grad: 2 * grad))),
    'hook_clears': Kind(_hooked(_after(_clear))),
    'hook_replaces': Kind(_hooked(_after(_replace))),
    'hook_decays': Kind(_hooked(_after(_decay))),
    **{
        f'hook_steps{"_data" * data}{"_clears" * clear}': Kind(
            _hooked(_after(partial(_step, data=data, clear=clear))),
            *_DIVERGED,
            names=_LAYER[:1],
        )
        for data, clear in product((False, True), repeat=2)
    },
    'hook_steps_others': Kind(
        _hooked(_fused), *_DIVERGED[:2], *_UNEXPECTED[:1], names=_LAYER[1:]
    ),
    'function_hook_steps': Kind(_hooked(_node), *_DIVERGED, names=_LAYER[:1]),
}

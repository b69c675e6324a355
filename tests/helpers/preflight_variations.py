"""What a model can do that DDP's reducer does not expect, by name.

``CONTAINERS`` are ways to return losses, ``VARIATIONS`` what a model does in
or between its steps, ``BACKWARDS`` what an optimizer wrapper makes of the
loss. ``preflight_nets`` puts them into models.
"""

import collections
import dataclasses
import itertools
import types
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple

import torch
from mmengine.config import ConfigDict
from mmengine.structures import BaseDataElement, InstanceData
from torch import Tensor, nn
from torch.nn.utils import parametrizations

WIDTH = 4


class OwnDict(dict):
    """A dict that is none for pytree."""


class OwnList(list):
    """A list that is none for pytree."""


class OwnTuple(tuple):
    """A tuple that is none for pytree."""


class OwnDeque(collections.deque):
    """A deque that is none for pytree."""


class Pair(NamedTuple):
    """A result with names."""

    losses: dict
    more: list


@dataclasses.dataclass
class Data:
    """A result with fields."""

    losses: Any
    note: str = ''


@dataclasses.dataclass(frozen=True)
class FrozenData:
    """A result whose fields are not to be set."""

    losses: Any


@dataclasses.dataclass(slots=True)
class SlotsData:
    """A result without ``__dict__``."""

    losses: Any


class Plain:
    """An object with losses."""

    def __init__(self, losses: Any) -> None:
        self.losses = losses


class Slots:
    """An object with losses, and without ``__dict__``."""

    __slots__ = ('losses',)

    def __init__(self, losses: Any) -> None:
        self.losses = losses


class Store(Mapping):
    """A mapping that is no dict."""

    def __init__(self, items: dict) -> None:
        self._items = dict(items)

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


class MutableStore(Store, MutableMapping):
    """The same, to be written to."""

    def __setitem__(self, key: str, value: Any) -> None:
        self._items[key] = value

    def __delitem__(self, key: str) -> None:
        del self._items[key]


class OwnTensor(Tensor):
    """A tensor of a class of its own."""


class Container(NamedTuple):
    """How losses are returned.

    Attributes:
        pack: Makes the result of a forward from a dict.
        unpack: Makes the dict from the result.
    """

    pack: Callable[[dict], Any]
    unpack: Callable[[Any], Any]


def _element(kind: type) -> Container:
    return Container(lambda d: kind(**d), lambda r: dict(r.items()))


def _default(items: dict) -> dict:
    result = collections.defaultdict(list)
    result.update(items)
    return result


def _number(values: Any) -> dict:
    return {f'loss_{i}': value for i, value in enumerate(values)}


def _losses(result: Any) -> Any:
    return result.losses


def _sorted(values: Any) -> dict:
    """Of a set: in an order that does not depend on addresses."""
    return _number(sorted(values, key=float))


CONTAINERS = {
    'dict': Container(lambda d: d, lambda r: r),
    'OrderedDict': Container(collections.OrderedDict, dict),
    'defaultdict': Container(_default, dict),
    'dict subclass': Container(OwnDict, dict),
    'ConfigDict': Container(ConfigDict, dict),
    'UserDict': Container(collections.UserDict, dict),
    'Mapping': Container(Store, dict),
    'MutableMapping': Container(MutableStore, dict),
    'mappingproxy': Container(types.MappingProxyType, dict),
    'list': Container(lambda d: list(d.values()), _number),
    'list subclass': Container(lambda d: OwnList(d.values()), _number),
    'UserList': Container(lambda d: collections.UserList(d.values()), _number),
    'tuple': Container(lambda d: tuple(d.values()), _number),
    'tuple subclass': Container(lambda d: OwnTuple(d.values()), _number),
    'namedtuple': Container(lambda d: Pair(d, []), _losses),
    'deque': Container(lambda d: collections.deque(d.values()), _number),
    'deque subclass': Container(lambda d: OwnDeque(d.values()), _number),
    'set': Container(lambda d: set(d.values()), _sorted),
    'frozenset': Container(lambda d: frozenset(d.values()), _sorted),
    'dataclass': Container(Data, _losses),
    'frozen dataclass': Container(FrozenData, _losses),
    'slots dataclass': Container(SlotsData, _losses),
    'object': Container(Plain, _losses),
    'object with slots': Container(Slots, _losses),
    'SimpleNamespace': Container(
        lambda d: types.SimpleNamespace(**d), lambda r: dict(vars(r))
    ),
    'BaseDataElement': _element(BaseDataElement),
    'InstanceData': Container(
        lambda d: [InstanceData(**{k: v.reshape(1) for k, v in d.items()})],
        lambda r: {k: v.sum() for k, v in r[0].items()},
    ),
    'tensor subclass': Container(
        lambda d: {k: v.as_subclass(OwnTensor) for k, v in d.items()},
        lambda r: {k: v.as_subclass(Tensor) for k, v in r.items()},
    ),
    'object in dict': Container(
        lambda d: {'losses': [Plain(d)]}, lambda r: r['losses'][0].losses
    ),
    'dict subclass in tuple': Container(
        lambda d: (OwnDict(d), 1), lambda r: dict(r[0])
    ),
    'tuple in dataclass': Container(
        lambda d: Data((d,)), lambda r: r.losses[0]
    ),
    'object beside a dict': Container(
        lambda d: [
            dict(itertools.islice(d.items(), 1)),
            Plain(dict(itertools.islice(d.items(), 1, None))),
        ],
        lambda r: r[0] | r[1].losses,
    ),
    'dict beside an object': Container(
        lambda d: [
            Plain(dict(itertools.islice(d.items(), 1))),
            dict(itertools.islice(d.items(), 1, None)),
        ],
        lambda r: r[0].losses | r[1],
    ),
    'function': Container(lambda d: lambda: d, lambda r: r()),
}


class Variation:
    """Something that a model does, by default nothing."""

    def build(self, net: nn.Module) -> None:
        """Add what it needs to a model that is not yet double."""

    def ready(self, net: nn.Module) -> None:
        """Change the model when it is complete."""

    def between(self, net: nn.Module, step: int, rank: int) -> None:
        """Before the forward of a step, outside of it."""

    def forward(
        self, net: nn.Module, x: Tensor, step: int, rank: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """In the forward: the features that go on, and further losses."""
        return x, {}

    def loss(self, net: nn.Module, loss: Tensor) -> Tensor:
        """In ``parse_losses``."""
        return loss


class _Freeze(Variation):
    """Blocks that are frozen or trained in some steps only."""

    def __init__(
        self, table: tuple[bool, ...], inside: bool, block: int = 1
    ) -> None:
        self.table, self.inside, self.block = table, inside, block

    def _set(self, net: nn.Module, step: int) -> None:
        flag = self.table[min(step, len(self.table) - 1)]
        net.blocks[self.block].requires_grad_(flag)

    def ready(self, net: nn.Module) -> None:
        net.blocks[self.block].requires_grad_(
            self.table[0] if not self.inside else not self.table[0]
        )

    def between(self, net: nn.Module, step: int, rank: int) -> None:
        if not self.inside:
            self._set(net, step)

    def forward(self, net, x, step, rank):
        if self.inside:
            self._set(net, step)
        return net.blocks[self.block](x), {}


def _layer(number: int) -> nn.Linear:
    """A layer with the same weights in all processes."""
    layer = nn.Linear(WIDTH, WIDTH).double()
    values = torch.Generator().manual_seed(number)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=values) / 4)
    return layer


class _Create(Variation):
    """A layer that is made late, or replaced."""

    def __init__(
        self, how: str, inside: bool, at: int, trained: bool = True
    ) -> None:
        self.how, self.inside, self.at = how, inside, at
        self.trained = trained

    def build(self, net: nn.Module) -> None:
        net.late_step = -1
        if self.how != 'create':
            net.late = _layer(5)
        if self.how == 'swap':
            net.other = _layer(7)

    def _change(self, net: nn.Module, step: int) -> None:
        if step < self.at or net.late_step >= 0:
            return
        net.late_step = step
        if self.how in ('create', 'module'):
            net.late = _layer(6)
            net.late.requires_grad_(self.trained)
        elif self.how == 'parameter':
            value = _layer(6).weight.detach()
            net.late.weight = nn.Parameter(value, requires_grad=self.trained)
        elif self.how == 'data':
            net.late.weight.data = _layer(6).weight.data
        elif self.how == 'norm':
            parametrizations.weight_norm(net.late)
        elif self.how == 'delete':
            net.late = nn.Identity()
        elif self.how == 'swap':
            net.late, net.other = net.other, net.late

    def between(self, net: nn.Module, step: int, rank: int) -> None:
        if not self.inside:
            self._change(net, step)

    def forward(self, net, x, step, rank):
        if self.inside:
            self._change(net, step)
        y = net.other(x).tanh() if self.how == 'swap' else x
        return (net.late(y).tanh() if hasattr(net, 'late') else y), {}


class _Sparse(Variation):
    """An embedding with sparse gradients."""

    def __init__(self, how: str = '') -> None:
        self.how = how

    def build(self, net: nn.Module) -> None:
        if 'functional' in self.how:
            net.table = nn.Parameter(torch.ones(6, WIDTH))
        elif 'bag' in self.how:
            net.table = nn.EmbeddingBag(6, WIDTH, mode='sum', sparse=True)
        else:
            net.table = nn.Embedding(6, WIDTH, sparse=True)

    def forward(self, net, x, step, rank):
        index = torch.tensor([step % 6, rank + 2, 1])
        if 'unused' in self.how or ('late' in self.how and step > 0):
            return x, {}
        if 'logged' in self.how:
            return x, {'norm': net.table(index).norm()}
        if 'functional' in self.how:
            rows = nn.functional.embedding(index, net.table, sparse=True)
        elif 'bag' in self.how:
            rows = net.table(index[None])
        else:
            rows = net.table(index)
        x = x + rows.mean(0)
        if 'tied' in self.how:
            x = x + (x @ net.table.weight.t()).mean()
        return x, {}


class _Lazy(Variation):
    """A layer whose parameters have no shape before the first forward."""

    def build(self, net: nn.Module) -> None:
        net.lazy = nn.LazyLinear(WIDTH, dtype=torch.float64)

    def forward(self, net, x, step, rank):
        return net.lazy(x), {}


class _Inner(Variation):
    """Gradients that are taken in the forward."""

    def __init__(self, how: str) -> None:
        self.how = how

    def build(self, net: nn.Module) -> None:
        net.critic = nn.Linear(WIDTH, 1)

    def forward(self, net, x, step, rank):
        how = self.how
        if how == 'penalty':
            z = x.detach().requires_grad_()
            score = net.critic(z.tanh()).sum()
            (slope,) = torch.autograd.grad(score, z, create_graph=True)
            penalty = (slope.norm() - 1).square()
            return x, {
                'loss_p': penalty + net.critic(x).square().mean(),
            }
        if how == 'meta':
            names = [n for n, _ in net.critic.named_parameters()]
            inner = net.critic(x.detach()).square().mean()
            slopes = torch.autograd.grad(
                inner, list(net.critic.parameters()), create_graph=True
            )
            fast = {
                n: p - 0.1 * s
                for n, p, s in zip(names, net.critic.parameters(), slopes)
            }
            out = torch.func.functional_call(net.critic, fast, (x,))
            return x, {'loss_m': out.square().mean()}
        if 'odd' in how and step % 2 == 0:
            return x, {'loss_i': net.critic(x).square().mean()}
        source = x if 'all' in how else x.detach()
        inner = net.critic(source).square().mean()
        inner.backward(retain_graph='all' in how)
        if 'cleared' in how:
            for parameter in net.parameters():
                parameter.grad = None
        if 'only' in how:
            return x, {}
        return x, {'loss_i': net.critic(x).square().mean()}


class _InLoss(Variation):
    """A backward in ``parse_losses``."""

    def build(self, net: nn.Module) -> None:
        net.aside = nn.Linear(WIDTH, 1)

    def forward(self, net, x, step, rank):
        net.aside_loss = net.aside(x.detach()).square().mean()
        return x, {}

    def loss(self, net: nn.Module, loss: Tensor) -> Tensor:
        net.aside_loss.backward()
        net.aside_loss = None
        return loss


class _Two(nn.Module):
    """A block with two results."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.first(x).tanh(), self.second(x).tanh()


class _Compiled(Variation):
    """A compiled block, one of whose results may be unused."""

    def __init__(self, backend: str, used: str, how: str = 'module') -> None:
        self.backend, self.used, self.how = backend, used, how

    def build(self, net: nn.Module) -> None:
        net.pair = _Two()

    def ready(self, net: nn.Module) -> None:
        if self.how == 'module':
            net.pair = torch.compile(net.pair, backend=self.backend)
        elif self.how == 'in place':
            net.pair.compile(backend=self.backend)
        else:
            net.run_pair = torch.compile(
                lambda x: net.pair(x), backend=self.backend
            )

    def forward(self, net, x, step, rank):
        run = net.run_pair if self.how == 'function' else net.pair
        first, second = run(x)
        if self.used == 'both':
            return first + second, {}
        if self.used == 'logged':
            return first, {'norm': second.norm()}
        return first, {}


class _Tied(Variation):
    """Two layers with one weight."""

    def build(self, net: nn.Module) -> None:
        net.tied = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        net.tied[1].weight = net.tied[0].weight

    def forward(self, net, x, step, rank):
        return net.tied[1](net.tied[0](x).tanh()), {}


class _Called(Variation):
    """A layer that is only called with ``functional_call``."""

    def build(self, net: nn.Module) -> None:
        net.called = nn.Linear(WIDTH, WIDTH)

    def forward(self, net, x, step, rank):
        values = {n: 2 * p for n, p in net.called.named_parameters()}
        return torch.func.functional_call(net.called, values, (x,)), {}


class _Bare(Variation):
    """A parameter that is itself what the forward returns."""

    def __init__(self, key: str) -> None:
        self.key = key

    def build(self, net: nn.Module) -> None:
        net.scale = nn.Parameter(torch.ones(()))

    def forward(self, net, x, step, rank):
        return x, {self.key: net.scale}


class _Normed(Variation):
    """Weights that are computed from others."""

    def __init__(self, function: Callable) -> None:
        self.function = function

    def build(self, net: nn.Module) -> None:
        net.normed = self.function(nn.Linear(WIDTH, WIDTH))

    def forward(self, net, x, step, rank):
        return net.normed(x), {}


class _Double(torch.autograd.Function):
    """Twice its input, by a function of one's own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return grad @ weight.t(), x.t() @ grad


class _Own(Variation):
    """An autograd function of one's own."""

    def build(self, net: nn.Module) -> None:
        net.matrix = nn.Parameter(torch.eye(WIDTH))

    def forward(self, net, x, step, rank):
        return _Double.apply(x, net.matrix), {}


class _Hooked(Variation):
    """Hooks that replace gradients, of a parameter and of features."""

    def ready(self, net: nn.Module) -> None:
        net.head.weight.register_hook(lambda grad: 2 * grad.clamp(-1, 1))

    def forward(self, net, x, step, rank):
        y = 1 * x
        if y.requires_grad:
            y.register_hook(lambda grad: grad / 2)
        return y, {}


class _Ema(Variation):
    """A copy of a layer that follows it, without gradients."""

    def build(self, net: nn.Module) -> None:
        net.student = _layer(3)
        net.teacher = _layer(3).requires_grad_(False)

    def forward(self, net, x, step, rank):
        with torch.no_grad():
            for old, new in zip(
                net.teacher.parameters(), net.student.parameters()
            ):
                old.mul_(0.9).add_(new, alpha=0.1)
            target = net.teacher(x)
        return x, {'loss_e': (net.student(x) - target).square().mean()}


class _GradBuffer(Variation):
    """A buffer that needs a gradient."""

    def build(self, net: nn.Module) -> None:
        net.register_buffer('shift', torch.zeros(WIDTH))

    def ready(self, net: nn.Module) -> None:
        net.shift.requires_grad_()

    def forward(self, net, x, step, rank):
        return x + net.shift, {}


class _Inplace(Variation):
    """A weight that the forward itself changes; per rank it drifts."""

    def __init__(self, per_rank: bool) -> None:
        self.per_rank = per_rank

    def build(self, net: nn.Module) -> None:
        net.clipped = _layer(4)

    def forward(self, net, x, step, rank):
        with torch.no_grad():
            net.clipped.weight.clamp_(-0.1, 0.1)
            if self.per_rank:
                net.clipped.weight.add_(0.01 * rank)
        return net.clipped(x), {}


class _NoGrad(Variation):
    """A forward of a part under no_grad before the real one."""

    def build(self, net: nn.Module) -> None:
        net.warm = nn.Linear(WIDTH, WIDTH)

    def forward(self, net, x, step, rank):
        with torch.no_grad():
            mean = net.warm(x).mean()
        return net.warm(x) - mean, {}


VARIATIONS: dict[str, Variation] = {
    'none': Variation(),
    'freeze between': _Freeze((True, False), inside=False),
    'unfreeze between': _Freeze((False, True), inside=False),
    'late unfreeze between': _Freeze((False, False, True), inside=False),
    'freeze and unfreeze between': _Freeze((True, False, True), False),
    'freeze inside': _Freeze((True, True, False), inside=True),
    'freeze at once inside': _Freeze((False,), inside=True),
    'unfreeze at once inside': _Freeze((True,), inside=True),
    'unfreeze inside': _Freeze((False, True), inside=True),
    'create between': _Create('create', inside=False, at=1),
    'create inside': _Create('create', inside=True, at=0),
    'create late inside': _Create('create', inside=True, at=2),
    'create frozen inside': _Create('create', True, 1, trained=False),
    'replace between': _Create('parameter', inside=False, at=1),
    'replace inside': _Create('parameter', inside=True, at=0),
    'replace late inside': _Create('parameter', inside=True, at=2),
    'replace by frozen': _Create('parameter', False, 1, trained=False),
    'replace module': _Create('module', inside=False, at=2),
    'delete module': _Create('delete', inside=False, at=1),
    'swap modules': _Create('swap', inside=False, at=1),
    'swap data': _Create('data', inside=False, at=1),
    'swap data inside': _Create('data', inside=True, at=1),
    'weight norm between': _Create('norm', inside=False, at=1),
    'sparse': _Sparse(),
    'sparse unused': _Sparse('unused'),
    'sparse later unused': _Sparse('late'),
    'sparse logged': _Sparse('logged'),
    'sparse bag': _Sparse('bag'),
    'sparse tied to dense': _Sparse('tied'),
    'sparse functional': _Sparse('functional'),
    'lazy': _Lazy(),
    'gradient penalty': _Inner('penalty'),
    'meta learning': _Inner('meta'),
    'inner backward': _Inner('inner'),
    'inner backward through all': _Inner('inner all'),
    'inner backward only': _Inner('inner only'),
    'inner backward in odd steps': _Inner('inner odd'),
    'inner backward cleared': _Inner('inner cleared'),
    'inner backward only, cleared': _Inner('inner only cleared'),
    'backward in parse_losses': _InLoss(),
    'compiled': _Compiled('aot_eager', 'both'),
    'compiled, unused': _Compiled('aot_eager', 'first'),
    'compiled, logged': _Compiled('aot_eager', 'logged'),
    'compiled eager, unused': _Compiled('eager', 'first'),
    'compiled in place, unused': _Compiled('aot_eager', 'first', 'in place'),
    'compiled function, unused': _Compiled('aot_eager', 'first', 'function'),
    'tied': _Tied(),
    'functional_call': _Called(),
    'bare loss': _Bare('loss_b'),
    'bare value': _Bare('scale'),
    'weight norm': _Normed(parametrizations.weight_norm),
    'spectral norm': _Normed(parametrizations.spectral_norm),
    'own function': _Own(),
    'gradient hooks': _Hooked(),
    'momentum encoder': _Ema(),
    'buffer with gradient': _GradBuffer(),
    'inplace': _Inplace(per_rank=False),
    'no_grad before': _NoGrad(),
}


def _once(net: nn.Module, loss: Tensor) -> None:
    loss.backward()


def _twice(net: nn.Module, loss: Tensor) -> None:
    loss.backward(retain_graph=True)
    loss.backward()


def _twice_cleared(net: nn.Module, loss: Tensor) -> None:
    loss.backward(retain_graph=True)
    for parameter in net.parameters():
        parameter.grad = None
    loss.backward()


def _surgery(net: nn.Module, loss: Tensor) -> None:
    """The gradient of the head is added once more."""
    loss.backward(retain_graph=True)
    head = list(net.head.parameters())
    (0.5 * loss).backward(inputs=[p for p in head if p.requires_grad])


def _grad(net: nn.Module, loss: Tensor) -> None:
    """Gradients by hand: no hook of a parameter runs."""
    parameters = [p for p in net.parameters() if p.requires_grad]
    grads = torch.autograd.grad(loss, parameters, allow_unused=True)
    for parameter, grad in zip(parameters, grads):
        parameter.grad = grad


def _part(net: nn.Module, loss: Tensor) -> None:
    """The head first, then the rest."""
    head = [p for p in net.head.parameters() if p.requires_grad]
    rest = [
        p
        for p in net.parameters()
        if p.requires_grad and all(p is not h for h in head)
    ]
    loss.backward(retain_graph=True, inputs=head)
    if rest:
        loss.backward(inputs=rest)


def _never(net: nn.Module, loss: Tensor) -> None:
    pass


def _scaled(net: nn.Module, loss: Tensor) -> None:
    """As gradient clipping does."""
    loss.backward()
    for parameter in net.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(0.5)


def _noise(net: nn.Module, loss: Tensor) -> None:
    """Something that each process adds for itself."""
    loss.backward()
    for parameter in net.head.parameters():
        parameter.grad = parameter.grad + loss.detach()


BACKWARDS: dict[str, Callable[[nn.Module, Tensor], None]] = {
    'once': _once,
    'twice': _twice,
    'twice, cleared between': _twice_cleared,
    'surgery': _surgery,
    'autograd.grad': _grad,
    'in parts': _part,
    'never': _never,
    'scaled after': _scaled,
    'local noise after': _noise,
}

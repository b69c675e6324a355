"""Random small models with all that DDP mishandles."""

import dataclasses
import itertools
import random
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from mmengine.model import BaseDataPreprocessor, BaseModel
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from helpers.preflight_variations import BACKWARDS, CONTAINERS, VARIATIONS

WIDTH = 4
NUM_BLOCKS = 3
HOWS = (
    'plain',
    'reentrant',
    'ordinary',
    'reentrant in reentrant',
    'reentrant in ordinary',
    'ordinary in reentrant',
)
CUTS = ('none', 'detach', 'no_grad', 'logged', 'dropped')
WHENS = ('always', 'even', 'odd', 'rank 0', 'rank 1', 'after the first')


@dataclass(frozen=True)
class Part:
    """One use of some blocks.

    Args:
        blocks: Which are run, one after the other.
        how: Are they checkpointed, see ``HOWS``.
        cut: What becomes of their output, see ``CUTS``.
        when: In which steps they run, see ``WHENS``.
        in_series: Whether the next part gets the output, or the input.
    """

    blocks: tuple[int, ...]
    how: str = 'plain'
    cut: str = 'none'
    when: str = 'always'
    in_series: bool = True


@dataclass(frozen=True)
class Spec:
    """A model.

    Args:
        stem: ``'trainable'``, ``'frozen'`` or ``'none'``.
        input_grad: Whether features that need no gradient are made to.
        parts: What is run between the stem and the head.
        frozen: Blocks that are not trained.
        outside: Whether ``parse_losses`` uses a parameter.
        variation: Name of what else it does, see ``VARIATIONS``.
        container: Name of what it returns its losses in, see ``CONTAINERS``.
        backward: What is made of the loss, see ``BACKWARDS``.
    """

    stem: str
    input_grad: bool
    parts: tuple[Part, ...]
    frozen: tuple[int, ...] = ()
    outside: bool = False
    variation: str = 'none'
    container: str = 'dict'
    backward: str = 'once'

    @property
    def unpredictable(self) -> bool:
        """Whether one process cannot know what several will do."""
        return self.backward == 'local noise after'

    def without_reentrant(self) -> 'Spec':
        """The same, all of whose checkpoints are ordinary."""
        parts = tuple(
            dataclasses.replace(p, how=p.how.replace('reentrant', 'ordinary'))
            for p in self.parts
        )
        return dataclasses.replace(self, parts=parts)


def _checkpointed(function: Any, how: str) -> Any:
    """The function, run again in the backward; 'a in b' is nested."""
    for kind in how.split(' in '):
        if kind == 'plain':
            continue
        inner, flag = function, kind == 'reentrant'

        def function(x: Tensor, inner: Any = inner, flag: bool = flag):
            return checkpoint(inner, x, use_reentrant=flag)

    return function


class _Before(BaseDataPreprocessor):
    """Lets the variation of a model do what it does between steps."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        # In a list: not one of its modules.
        self._net = [net]

    def forward(self, data: dict, training: bool = False) -> dict:
        """The batch as it is."""
        (net,) = self._net
        VARIATIONS[net.spec.variation].between(net, data['step'], data['rank'])
        return data


class Net(BaseModel):
    """The model of a spec."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec = spec
        self.data_preprocessor = _Before(self)
        if spec.stem != 'none':
            self.stem = nn.Linear(WIDTH, WIDTH)
            self.stem.requires_grad_(spec.stem == 'trainable')
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
            for _ in range(NUM_BLOCKS)
        )
        for index in spec.frozen:
            self.blocks[index].requires_grad_(False)
        self.head = nn.Linear(WIDTH, 2)
        if spec.outside:
            self.balance = nn.Parameter(torch.zeros(()))
        VARIATIONS[spec.variation].build(self)
        self.double()
        VARIATIONS[spec.variation].ready(self)

    def forward(
        self, inputs: Tensor, step: int, rank: int, mode: str = 'loss'
    ) -> dict[str, Tensor]:
        """One loss of the head, and one of each part beside the series."""
        x = self.stem(inputs) if hasattr(self, 'stem') else inputs
        if not x.requires_grad and self.spec.input_grad:
            x = x.detach().requires_grad_()
        variation = VARIATIONS[self.spec.variation]
        x, out = variation.forward(self, x, step, rank)
        for number, part in enumerate(self.spec.parts):
            if not _runs(part.when, step, rank):
                continue
            y = self._run(part, x)
            if part.cut == 'dropped':
                continue
            if part.cut == 'logged':
                out[f'norm_{number}'] = y.norm()
            elif part.in_series:
                x = y
            else:
                out[f'loss_{number}'] = y.square().mean()
        out['loss'] = self.head(x).square().mean()
        return CONTAINERS[self.spec.container].pack(out)

    def _run(self, part: Part, x: Tensor) -> Tensor:
        def function(x: Tensor) -> Tensor:
            for index in part.blocks:
                x = self.blocks[index](x)
            return x

        function = _checkpointed(function, part.how)
        if part.cut == 'no_grad':
            with torch.no_grad():
                return x + function(x)
        y = function(x)
        return x + y.detach() if part.cut == 'detach' else y

    def parse_losses(self, losses: Any) -> tuple:
        """As MMEngine's, with a weight that is learned."""
        losses = CONTAINERS[self.spec.container].unpack(losses)
        loss, logs = super().parse_losses(losses)
        if self.spec.outside:
            loss = loss * (1 + self.balance).square()
        return VARIATIONS[self.spec.variation].loss(self, loss), logs

    def backward(self, loss: Tensor) -> None:
        """What is made of the loss."""
        BACKWARDS[self.spec.backward](self, loss)


def _runs(when: str, step: int, rank: int) -> bool:
    return {
        'always': True,
        'even': step % 2 == 0,
        'odd': step % 2 == 1,
        'rank 0': rank == 0,
        'rank 1': rank == 1,
        'after the first': step > 0,
    }[when]


def build_net(spec: Spec) -> Net:
    """The model, with the weights that every process has."""
    torch.manual_seed(0)
    return Net(spec).train()


def batch_of(step: int, rank: int) -> dict[str, Any]:
    """What a process gets in a step."""
    numbers = torch.Generator().manual_seed(10 * step + rank)
    shape = (5, WIDTH)
    inputs = torch.randn(shape, generator=numbers, dtype=torch.float64)
    return {'inputs': inputs, 'step': step, 'rank': rank}


def _mostly(first: Any, *others: Any) -> st.SearchStrategy:
    """The first of some values in half of the cases."""
    return st.one_of(st.just(first), st.sampled_from(others))


_parts = st.builds(
    Part,
    blocks=_mostly((0,), (1,), (2,), (0, 1), (1, 0), (0, 0)),
    how=st.sampled_from(HOWS),
    cut=_mostly(*CUTS),
    when=_mostly(*WHENS),
    in_series=st.booleans(),
)
_specs = st.builds(
    Spec,
    stem=st.sampled_from(('trainable', 'frozen', 'none')),
    input_grad=_mostly(True, False),
    parts=st.lists(_parts, min_size=1, max_size=4).map(tuple),
    # A block that no part uses has no gradient: frozen in most models.
    frozen=_mostly((), (2,), (1, 2), (0,)),
    outside=_mostly(False, False, False, True),
)


def _freeze_unused(spec: Spec) -> Spec:
    used = {index for part in spec.parts for index in part.blocks}
    frozen = {*spec.frozen, *(set(range(NUM_BLOCKS)) - used)}
    return dataclasses.replace(spec, frozen=tuple(sorted(frozen)))


def make_varied(count: int, number: int = 0) -> list[Spec]:
    """Models with every variation, container and backward, on any of them.

    As many as are asked for: first each variation, each container and each
    backward by itself on a small model, then on others made up by chance,
    two at a time.
    """
    plain = Spec('trainable', True, (Part((0,)),), frozen=(1, 2))
    loose = Part((0,), cut='logged', in_series=False)
    dims = [
        *({'variation': name} for name in VARIATIONS),
        *({'container': name} for name in CONTAINERS),
        *(
            {'container': name, 'parts': (Part((0,), in_series=False), loose)}
            for name in CONTAINERS
        ),
        *({'backward': name} for name in BACKWARDS),
    ]
    specs = [dataclasses.replace(plain, **change) for change in dims]
    draw = random.Random(number)
    for spec in itertools.cycle(make_specs(40, number)):
        if len(specs) >= 2 * count:
            break
        change = {}
        for name, kinds in (
            ('variation', VARIATIONS),
            ('container', CONTAINERS),
            ('backward', BACKWARDS),
        ):
            if draw.random() < 0.5:
                change[name] = draw.choice(list(kinds))
        inner = 'backward' in change.get('variation', '')
        reentrant = any('reentrant' in part.how for part in spec.parts)
        kind = change.get('backward')
        if (inner and kind == 'autograd.grad') or (
            reentrant and kind in ('autograd.grad', 'surgery', 'in parts')
        ):
            # The reducer, and the checkpoint, have internal errors then.
            del change['backward']
        specs.append(dataclasses.replace(spec, **change))
    return list(dict.fromkeys(specs))[:count]


def make_specs(count: int, number: int = 0) -> list[Spec]:
    """Different models, always the same for the same arguments.

    Args:
        count: How many.
        number: Of the row of models.
    """
    specs: dict[Spec, None] = {}

    @seed(number)
    @settings(
        max_examples=4 * count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(_specs, st.integers(0, 3))
    def take(spec: Spec, leave_unused: int) -> None:
        specs[spec if not leave_unused else _freeze_unused(spec)] = None

    take()
    return list(specs)[:count]

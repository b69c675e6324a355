"""Modules that are no plain ``nn.Module``, or not only that, by name."""

from collections.abc import Callable
from typing import Any

import torch
from mmengine.model import BaseModel
from torch import Tensor, nn
from torch.ao.quantization import get_default_qat_qconfig, prepare_qat
from torch.nn.utils import parametrizations

WIDTH = 4


class Counted(nn.Module):
    """A layer, and a buffer that is another tensor after each call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.register_buffer('calls', torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return self.layer(x)


class _Frozen(nn.Module):
    """A script whose parameters are constants, behind a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        script = torch.jit.script(nn.Linear(WIDTH, WIDTH).eval())
        self.script = torch.jit.freeze(script)

    def forward(self, x: Tensor) -> Tensor:
        return self.script(self.layer(x))


class _NewBuffer(nn.Linear):
    """Has a buffer from its first call on."""

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, 'mean'):
            self.register_buffer('mean', x.detach().mean(0))
        return super().forward(x - self.mean)


class _OddBuffer(nn.Linear):
    """Has a buffer that most operators refuse."""

    def __init__(self, mix: Tensor) -> None:
        super().__init__(WIDTH, WIDTH)
        self.register_buffer('mix', mix)

    def forward(self, x: Tensor) -> Tensor:
        if self.mix.is_quantized:
            return super().forward(x @ self.mix.dequantize())
        return super().forward(torch.sparse.mm(self.mix, x.t()).t())


class _Forwarding(nn.Module):
    """Looks for what it does not have in the module inside, or fails."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__['_modules']:
            return self.__dict__['_modules'][name]
        if name == 'loss_weight':
            raise ValueError(f'{name} is not to be asked for')
        return getattr(self.__dict__['_modules']['inner'], name)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class _Slots(nn.Linear):
    __slots__ = ('note',)

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)
        self.note = 'none'


class _OwnTensor(Tensor):
    """A class of tensors."""


class _OwnWeight(nn.Module):
    """A parameter of another class than ``nn.Parameter``."""

    def __init__(self) -> None:
        super().__init__()
        weight = torch.randn(WIDTH, WIDTH).as_subclass(_OwnTensor)
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight).as_subclass(Tensor)


def _linear() -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH)


def _quantized() -> nn.Module:
    net = nn.Sequential(_linear()).train()
    net.qconfig = get_default_qat_qconfig('fbgemm')
    return prepare_qat(net)


# DDP refuses them.
REFUSED: dict[str, Callable[[], nn.Module]] = {
    'sparse buffer': lambda: _OddBuffer(torch.eye(WIDTH).to_sparse()),
    'compressed buffer': lambda: _OddBuffer(torch.eye(WIDTH).to_sparse_csr()),
    'quantized buffer': lambda: _OddBuffer(
        torch.quantize_per_tensor(torch.eye(WIDTH), 0.1, 0, torch.qint8)
    ),
}
ODD: dict[str, Callable[[], nn.Module]] = {
    'script': lambda: torch.jit.script(_linear()),
    'script with a buffer': lambda: torch.jit.script(Counted()),
    'scripts in a list': lambda: nn.Sequential(
        torch.jit.script(_linear()), torch.jit.script(Counted())
    ),
    'frozen script': _Frozen,
    'script behind attributes': lambda: _Forwarding(
        torch.jit.script(_linear())
    ),
    'trace': lambda: torch.jit.trace(
        nn.Sequential(_linear(), nn.BatchNorm1d(WIDTH)), torch.randn(3, WIDTH)
    ),
    'parametrized': lambda: parametrizations.weight_norm(_linear()),
    'orthogonal': lambda: parametrizations.orthogonal(_linear()),
    'spectral norm': lambda: nn.utils.spectral_norm(_linear()),
    'compiled': lambda: torch.compile(_linear(), backend='eager'),
    'graph': lambda: torch.fx.symbolic_trace(_linear()),
    'slots': _Slots,
    'quantized': _quantized,
    'new buffer': lambda: _NewBuffer(WIDTH, WIDTH),
}
# DDP of PyTorch 2.1 takes a parameter of such a class for a lazy one.
if torch.__version__ >= (2, 2):
    ODD['own tensor'] = _OwnWeight


class OddNet(BaseModel):
    """One of them between two layers."""

    def __init__(self, name: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.head = _linear(), nn.Linear(WIDTH, 1)
        self.part = (ODD | REFUSED)[name]()

    def forward(self, inputs: Tensor, mode: str = 'loss') -> dict[str, Tensor]:
        x = self.part(self.stem(inputs))
        return {'loss': (self.head(x) - 1).square().mean()}


def state_of(model: nn.Module) -> dict[str, list]:
    """Values, modes and names of all that a step may change."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    state = {
        name: (
            value.dequantize() if value.is_quantized else value.to_dense()
        ).tolist()
        for name, value in tensors
    }
    for name, module in model.named_modules():
        if not isinstance(module, torch.jit.ScriptModule):
            state[f'{name} trains'] = module.training
    return state


def batch_of(step: int, rank: int) -> dict[str, Tensor]:
    """What a process gets in a step."""
    numbers = torch.Generator().manual_seed(10 * step + rank)
    return {'inputs': torch.randn(5, WIDTH, generator=numbers)}

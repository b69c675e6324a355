"""A step on the device that only watches, beside the same on the CPU."""

import copy

import numpy as np
import pytest
import torch
from helpers.device import (
    build_with_batch,
    needs_device,
    step_on_cpu,
)
from mmengine.model import BaseModel
from mmengine.registry import DefaultScope
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

import mmext
from mmext.checks import rehearse
from mmext.checks.config import read_config
from mmext.checks.device import DeviceMixError, tensor

pytestmark = needs_device


@pytest.mark.slow
@pytest.mark.parametrize(
    ('config', 'reads'),
    [
        ('co_dino/co_dino_r18_shapes', 4),
        ('pidnet/pidnet_small_shapes', 0),
        ('mae/mae_vit_mini_shapes', 1),
        ('multi_task/mtan_dwa_r18_scenes', 1),
        ('multi_task/mmoe_ew_categorical', 2),
    ],
)
def test_steps_are_those_of_the_cpu(config, reads):
    """Losses to 1e-6, gradients to 1e-5, each relative to its norm."""
    cfg = read_config(mmext.config_path(f'{config}.py'))
    model, batch, scope = build_with_batch(cfg, (64, 96))
    results = []
    with DefaultScope.overwrite_default_scope(scope):
        for run in (rehearse, step_on_cpu):
            torch.manual_seed(0)
            np.random.seed(0)
            results.append(run(model, batch))
    done, right_step = results
    assert done.losses == pytest.approx(right_step.losses, rel=1e-6)
    model = right_step.model
    total = torch.stack(
        [p.grad.norm() for p in model.parameters() if p.grad is not None]
    ).norm()
    gradients = {n: p.grad for n, p in done.model.named_parameters()}
    for name, parameter in model.named_parameters():
        mine, right = gradients[name], parameter.grad
        assert (mine is None) == (right is None), name
        if mine is not None:
            assert mine.device == torch.device('sim:0')
            difference = (mine.elem - right).norm()
            assert difference <= 1e-5 * right.norm() + 1e-8 * total, name
    assert sum(done.reads.values()) == reads, done.reads
    assert not done.without_values


class Net(BaseModel):
    """Two layers, and what a test puts between them."""

    def __init__(self, between=lambda self, x: x):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 1)
        self.register_buffer('scale', torch.ones(8))
        self.anchors = torch.ones(4, 8)
        self.between = between

    def forward(self, inputs, mode='loss'):
        x = self.between(self, self.first(inputs))
        return {'loss': self.second(x).sum()}


BATCH = {'inputs': torch.arange(32.0).view(4, 8) / 32}


class Detour(torch.autograd.Function):
    """Its backward makes a tensor of the CPU."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * torch.ones(8)


MISTAKES = {
    'buffer made in forward': lambda self, x: x + torch.zeros(8),
    'tensor without a device': lambda self, x: x * torch.tensor([2.0] * 8),
    'attribute that is no buffer': lambda self, x: x + self.anchors,
    'range': lambda self, x: x + torch.arange(8),
    'index of the device': lambda self, x: x + self.anchors[x.argmax(1)].to(x),
    'mask of the device': lambda self, x: x + self.anchors[x > 9].sum().to(x),
    'weight of a loss': lambda self, x: (
        x + nn.functional.cross_entropy(x, x.argmax(1), weight=torch.ones(8))
    ),
    'cat': lambda self, x: torch.cat([x, torch.zeros(1, 8)]),
    'stack': lambda self, x: x + torch.stack([x.sum(), torch.ones(())]).sum(),
    'matmul': lambda self, x: x @ torch.eye(8),
    'where': lambda self, x: torch.where(x > 0, x, torch.zeros(4, 8)),
    'gather': lambda self, x: x.gather(1, torch.zeros(4, 8).long()),
    'into the host': lambda self, x: self.anchors.add_(x.detach()).to(x),
    'values of an index': lambda self, x: x.clone().index_put(
        (torch.zeros(1).long().to(x.device),), torch.ones(1, 8)
    ),
    'box by box': lambda self, x: x + sum(v.item() for v in x.detach()[0]),
    'numpy': lambda self, x: x + float(x.detach().numpy().sum()),
    'backward': lambda self, x: Detour.apply(x),
}


@pytest.mark.parametrize('mistake', MISTAKES)
def test_finds_the_mistake_and_its_line(mistake):
    between = MISTAKES[mistake]
    site = f'test_rehearse.py:{between.__code__.co_firstlineno}'
    if mistake == 'box by box':
        done = rehearse(Net(between), BATCH)
        ((read, count),) = done.reads.items()
        assert (read.operator, count) == ('_local_scalar_dense', 8)
        assert site in read.location
        return
    kind, text = DeviceMixError, 'device'
    if mistake == 'numpy':
        kind, text = TypeError, 'numpy'
    elif mistake == 'backward':
        between = Detour.backward
    with pytest.raises(kind, match=text) as error:
        rehearse(Net(between), BATCH)
    lines = range(
        between.__code__.co_firstlineno, between.__code__.co_firstlineno + 6
    )
    assert any(f'test_rehearse.py:{n} in' in str(error.value) for n in lines)


RIGHT = {
    'number of the host': lambda self, x: x * torch.tensor(2.0),
    'list': lambda self, x: x[[3, 2, 1, 0]],
    'mask and number': lambda self, x: x.clone().masked_fill(x > 0, 1.0),
    'assigned by a mask': lambda self, x: assign(x, x > 0, 0.5),
    'assigned by a list': lambda self, x: assign(x, [0, 2], 0.5),
    'assigned by a slice': lambda self, x: assign(x, slice(1, 3), 0.5),
    'index of the host': lambda self, x: x[torch.tensor([1, 0, 2, 3])],
    'views': lambda self, x: x.t().reshape(8, 4).T.unsqueeze(0).squeeze_(0),
    'in place': lambda self, x: x.clone().mul_(2).add_(self.scale).t_().t_(),
    'range': lambda self, x: x + torch.arange(8, device=x.device),
    'current device': lambda self, x: (
        x
        + torch.ones(
            8,
            device=torch.cuda.current_device()
            if torch.cuda.is_available()
            else 'cpu',
        )
    ),
    'line': lambda self, x: x * torch.linspace(0, 1, 8, device=x.device),
    'new': lambda self, x: x + x.new_tensor([1.0] * 8) + x.new_zeros(8),
    'sorted': lambda self, x: x.sort(dim=1).values.topk(8).values,
    'dropout': lambda self, x: nn.functional.dropout(x, 0.0),
    'checkpoint': lambda self, x: checkpoint(
        lambda y: y.sin() * 2, x, use_reentrant=False
    ),
    'reentrant': lambda self, x: checkpoint(
        lambda y: y.sin() * 2, x, use_reentrant=True
    ),
    'attention': lambda self, x: nn.functional.scaled_dot_product_attention(
        *[x.view(1, 2, 4, 4)] * 3
    ).reshape(4, 8),
    'masked attention': lambda self, x: (
        nn.functional.scaled_dot_product_attention(
            *[x.view(1, 2, 4, 4)] * 3,
            attn_mask=torch.ones(4, 4, device=x.device).tril().bool(),
        ).reshape(4, 8)
    ),
    'data': lambda self, x: set_data(self, x),
    'where': lambda self, x: torch.where(x > 0, x, 0) + x.new_full((), 0.5),
    'gather': lambda self, x: x.gather(1, x.long() % 8),
    'index_select': lambda self, x: x.index_select(0, x[:, 0].int() % 4),
    'index': lambda self, x: x[x[:, 0].long() % 4],
    'known repeats': lambda self, x: x.repeat_interleave(
        x[:, 0].isfinite().long(), 0, output_size=4
    ),
}
# In these the host has to wait once.
WAITS = {
    'lists and back': lambda self, x: (
        x + torch.tensor(x.tolist(), device=x.device).mean()
    ),
    'forced numpy': lambda self, x: x + float(x.numpy(force=True).sum()),
    'bool': lambda self, x: x if x.isfinite().all() else -x,
    'nonzero': lambda self, x: x + len(x.nonzero()),
    'mask': lambda self, x: x + x.detach()[x > 0].sum(),
    'masked_select': lambda self, x: x + x.masked_select(x > 0).sum(),
    'value of a mask': lambda self, x: (
        x + assign(x.detach(), x > 0, x.detach().sum())
    ),
    'unique': lambda self, x: x + len(x.unique()),
    'bincount': lambda self, x: x + len(x.abs().long().flatten().bincount()),
    'equal': lambda self, x: x * torch.equal(x, x),
    'repeats': lambda self, x: x.repeat_interleave(
        x[:, 0].isfinite().long(), 0
    ),
}
# These copy to the device; two of them in the backward, too.
UPLOADS = {
    'list': 1,
    'index of the host': 2,
    'assigned by a list': 3,
    'new': 1,
    'lists and back': 1,
}


def assign(x, where, value):
    x = x.clone()
    x[where] = value
    return x


def set_data(self, x):
    self.scale.data = self.scale.data * 3
    return x * self.scale


@pytest.mark.parametrize('name', RIGHT | WAITS)
def test_what_is_right_is_as_on_the_cpu(name):
    model = Net((RIGHT | WAITS)[name])
    theirs = copy.deepcopy(model)
    done = rehearse(model, BATCH)
    loss = theirs(**BATCH)['loss']
    loss.backward()
    assert done.losses['loss'] == pytest.approx(loss.item(), rel=1e-6)
    for mine, other in zip(done.model.parameters(), theirs.parameters()):
        torch.testing.assert_close(mine.grad.elem, other.grad)
    assert sum(done.reads.values()) == (name in WAITS), done.reads
    # And that of the batch.
    assert sum(done.uploads.values()) == 1 + UPLOADS.get(name, 0)


def test_what_is_given_stays():
    """Tied weights stay tied in the copy, and the optimizer knows them."""
    model = Net()
    model.tied = model.first
    wrapper = dict(
        optimizer=dict(type='AdamW', lr=0.1), clip_grad=dict(max_norm=1)
    )
    before = copy.deepcopy(model.state_dict())
    done = rehearse(model, BATCH, wrapper)
    assert done.model.tied.weight is done.model.first.weight
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
        assert value.device.type == 'cpu'
    moved = done.model.first.weight.elem - model.first.weight
    assert moved.abs().max().item() == pytest.approx(0.1, rel=0.01)
    assert 'sim' not in str(torch.ones(1).device)
    # Each parameter, buffer and moment is a block of 512 bytes.
    assert done.memory.parts['weights'] == 512 * 5
    assert done.memory.parts['optimizer states'] == 512 * 8


def test_the_process_has_no_accelerator_afterwards():
    def between(self, x):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return x * torch.rand(8, device=x.device)

    model, state = Net(between), torch.get_rng_state()
    rehearse(model, BATCH)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.accelerator.is_available()
    with torch.random.fork_rng():
        torch.manual_seed(0)
    loader = DataLoader([torch.ones(1)], pin_memory=True)
    with pytest.warns(UserWarning, match='no accelerator is found'):
        assert next(iter(loader)).device.type == 'cpu'


def test_mixed_precision_is_that_of_cuda():
    """Types as in PyTorch's table of operators that autocast changes."""
    types = {}

    def between(self, x):
        half = x @ x.new_ones(8, 8)
        with torch.autocast('cuda', enabled=False):
            types['off'] = (
                half.float() @ torch.ones_like(self.first.weight)
            ).dtype
        types.update(
            before=x.dtype,
            relu=half.relu().dtype,
            softmax=half.softmax(-1).dtype,
            sum=half.sum().dtype,
            mse=nn.functional.mse_loss(half, half).dtype,
            exp=half.exp().dtype,
            widest=torch.addcmul(half.float(), half, half).dtype,
        )
        return half

    amp = dict(
        type='AmpOptimWrapper',
        optimizer=dict(type='SGD', lr=0.1),
        clip_grad=dict(max_norm=1),
    )
    model = Net(between)
    for dtype in (torch.float16, torch.bfloat16):
        name = str(dtype).removeprefix('torch.')
        done = rehearse(model, BATCH, {**amp, 'dtype': name})
        lower = ['before', 'relu']
        assert {n for n in types if types[n] is dtype} == {*lower}
        assert {types[n] for n in types if n not in lower} == {torch.float32}
        # The norm that is clipped, and whether all is finite.
        assert sum(done.reads.values()) == 2
        in_full = rehearse(model, BATCH, {**amp, 'type': 'OptimWrapper'})
        assert done.losses == pytest.approx(in_full.losses, rel=0.02)
        moved = (
            done.model.second.weight.elem - in_full.model.second.weight.elem
        )
        assert moved.norm() < 0.02 * 0.1
    unsafe = Net(
        lambda self, x: (
            nn.functional.binary_cross_entropy(x.sigmoid(), x * 0) + x
        )
    )
    with pytest.raises(RuntimeError, match='unsafe to autocast'):
        rehearse(unsafe, BATCH, amp)


def test_ddp_needs_buckets():
    model = Net()
    one, two = (rehearse(model, BATCH, world=world) for world in (1, 2))
    # Of 4 * (72 + 9) bytes.
    assert two.memory.parts['DDP buckets'] == 512
    assert 'DDP buckets' not in one.memory.parts
    # And nothing that waits for a collection of garbage.
    assert two.memory.peak - one.memory.peak == 512


def test_a_peak_is_that_of_the_largest():
    """With the module that has it."""
    model = Net(lambda self, x: x.repeat(1000, 1).sin().sum(0))
    done = rehearse(model, BATCH)
    size, kind, site = done.memory.largest[0]
    assert (size, kind) == (128_000, 'activations')
    assert site.operator in ('repeat', 'sin')
    assert 'largest at the peak' in str(done)


def test_refuses():
    with pytest.raises(TypeError, match=r'BaseModel .* got Linear'):
        rehearse(nn.Linear(1, 1), BATCH)
    with pytest.raises(ValueError, match='world must be at least 1, got 0'):
        rehearse(Net(), BATCH, world=0)


def test_an_older_pytorch(monkeypatch):
    # Not the function that remembers that it has run.
    monkeypatch.setattr(tensor, '_install', tensor._install.__wrapped__)
    monkeypatch.setattr(tensor, 'is_available', lambda: False)
    with pytest.raises(RuntimeError, match=r'torch must be 2\.13'):
        rehearse(Net(), BATCH)

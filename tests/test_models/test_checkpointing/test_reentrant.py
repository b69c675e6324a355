"""Reentrant checkpoints of the hosts become ours, and nothing else changes.

The oracle is the same module built without checkpoints.
"""

import copy
import functools
import sys
import weakref

import pytest
import torch
import torch.utils.checkpoint
import torch.utils.checkpoint as cp
from mmdet.models.backbones import ResNet
from mmdet.models.layers import DetrTransformerEncoder
from mmengine.runner import turn_on_activation_checkpointing
from reference.co_dino_parts import grads
from reference.host_checkpoints import CHECKPOINTED, loss_of, reentrant_nodes
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from mmext.models.checkpointing.checkpoint import (
    checkpoint_module,
    is_checkpointed,
)
from mmext.models.checkpointing.reentrant import (
    CheckpointCall,
    checkpoint_calls,
    replace_reentrant_checkpoints,
    unreplaced_checkpoints,
)


def trained(name: str, with_cp: bool, replace: bool) -> tuple[dict, int, list]:
    """Loss, gradients and buffers, reentrant nodes, and names replaced."""
    torch.manual_seed(3)
    module = CHECKPOINTED[name](with_cp=with_cp)
    module.train()
    replaced = replace_reentrant_checkpoints(module) if replace else []
    loss = loss_of(module, name)
    nodes = reentrant_nodes(loss)
    loss.backward()
    values = {k: p.grad for k, p in module.named_parameters()}
    values |= {f'buffer {k}': v for k, v in module.named_buffers()}
    return {'loss': loss.detach(), **values}, nodes, replaced


@pytest.mark.slow
@pytest.mark.parametrize('name', CHECKPOINTED)
def test_host_matches_plain(name: str):
    """Losses, gradients, running statistics; no reentrant node is left."""
    plain, none, _ = trained(name, with_cp=False, replace=False)
    assert none == 0
    result, left, replaced = trained(name, with_cp=True, replace=True)
    assert left == 0
    assert replaced
    assert result.keys() == plain.keys()
    for key, value in plain.items():
        assert (result[key] is None) == (value is None), key
        if value is not None:
            assert torch.equal(result[key], value), key
    if name == 'TridentResNet':  # its with_cp=True never runs in mmdet
        with pytest.raises(AttributeError, match="'list' object has no attr"):
            trained(name, with_cp=True, replace=False)
        return
    assert trained(name, with_cp=True, replace=False)[1] > 0, (
        'nothing was reentrant, so this test shows nothing'
    )


def test_every_class_of_the_hosts_is_among_them():
    """Whatever has a reentrant call in its code, in what is installed."""
    with_calls = {
        kind
        for name, source in sys.modules.items()
        if name.startswith(('mmcv.', 'mmdet.', 'mmseg.'))
        for kind in vars(source).values()
        if isinstance(kind, type)
        and issubclass(kind, nn.Module)
        and kind.__module__.startswith(('mmcv.', 'mmdet.', 'mmseg.'))
        and checkpoint_calls(kind)
    }
    assert len(with_calls) > 20
    tried = {
        base
        for build in CHECKPOINTED.values()
        for module in build(with_cp=True).modules()
        for base in type(module).__mro__
        if checkpoint_calls(base)
    }
    missed = {k for k in with_calls if not tried.intersection(k.__mro__)}
    assert not missed


def test_flags_of_parents_stay_and_a_second_time_does_nothing():
    model = ResNet(18, base_channels=4, with_cp=True)
    names = replace_reentrant_checkpoints(model)
    assert names == [f'layer{i}.{j}' for i in (1, 2, 3, 4) for j in (0, 1)]
    assert model.with_cp is True
    assert not any(block.with_cp for block in model.layer1)
    assert replace_reentrant_checkpoints(model) == []
    assert unreplaced_checkpoints(model) == []


def test_parts_are_checkpointed_where_parts_were():
    model = CHECKPOINTED['HRFPN'](with_cp=True)
    assert replace_reentrant_checkpoints(model) == [
        'reduction_conv',
        'fpn_convs.0',
        'fpn_convs.1',
        'fpn_convs.2',
    ]
    model = CHECKPOINTED['VLFuse'](with_cp=True)
    assert replace_reentrant_checkpoints(model) == ['b_attn']


def test_nested_checkpoints_stay_nested():
    model = CHECKPOINTED['mmseg CGNet'](with_cp=True)
    names = replace_reentrant_checkpoints(model)
    assert {'level1.0', 'level1.0.f_glo'} <= set(names)


def test_what_is_not_on_stays_off():
    for build in CHECKPOINTED.values():
        assert replace_reentrant_checkpoints(build(with_cp=False)) == []


def encoder() -> DetrTransformerEncoder:
    torch.manual_seed(8)
    layer = {
        'self_attn_cfg': {'embed_dims': 8, 'num_heads': 2, 'dropout': 0.2},
        'ffn_cfg': {'embed_dims': 8, 'feedforward_channels': 16},
    }
    return DetrTransformerEncoder(num_layers=3, layer_cfg=layer).train()


def run_encoder(model: nn.Module) -> tuple[dict, int]:
    torch.manual_seed(9)
    query = torch.randn(2, 5, 8, requires_grad=True)
    output = model(
        query=query, query_pos=query * 2, key_padding_mask=None
    ).square()
    nodes = reentrant_nodes(output.sum())
    return grads(model, output.sum()), nodes


def fake_fairscale(module: nn.Module, offload: bool = False) -> None:
    """What fairscale's ``checkpoint_wrapper`` leaves on a module."""

    def forward(plain, this, offload_to_cpu, *args, **kwargs):
        raise AssertionError('the wrapper is still in use')

    forward.__module__ = 'fairscale.nn.checkpoint.checkpoint_activations'
    module.forward = functools.partial(
        forward, type(module).forward, weakref.ref(module), offload
    )


def test_fairscale_by_its_looks():
    model = encoder()
    for layer in model.layers:
        fake_fairscale(layer)
    names = replace_reentrant_checkpoints(model)
    assert names == ['layers.0', 'layers.1', 'layers.2']
    assert_same(run_encoder(model)[0], run_encoder(encoder())[0])


def assert_same(result: dict, expected: dict) -> None:
    assert result.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(result[key], value), key


def test_rejects_offloading():
    model = encoder()
    fake_fairscale(model.layers[1], offload=True)
    with pytest.raises(
        ValueError, match=r'layers\.1 must be wrapped without offload_to_cpu'
    ):
        replace_reentrant_checkpoints(model)


@pytest.fixture
def checkpoint_wrapper():
    """The function of the real package, which mmdet's ``num_cp`` needs."""
    package = pytest.importorskip('fairscale.nn.checkpoint')
    return package.checkpoint_wrapper


def test_fairscale(checkpoint_wrapper):
    model = encoder()
    for layer in model.layers:
        checkpoint_wrapper(layer)
    assert run_encoder(model)[1] == 3
    copied = copy.deepcopy(model)
    for value in (model, copied):
        assert len(replace_reentrant_checkpoints(value)) == 3
        result, nodes = run_encoder(value)
        assert nodes == 0
        assert_same(result, run_encoder(encoder())[0])
    # The copy of a wrapper computes with the weights of the first.
    assert copied.layers[0].forward.module is copied.layers[0]


def test_fairscale_and_batch_norm(checkpoint_wrapper):
    """Its hooks go; statistics count each batch once, with and without."""
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    plain = copy.deepcopy(net)
    checkpoint_wrapper(net)
    assert net[1]._forward_pre_hooks
    replace_reentrant_checkpoints(net)
    assert not net[1]._forward_pre_hooks
    assert not net[1]._forward_hooks
    for module in (net, plain):
        module(torch.arange(6.0).view(2, 3)).square().sum().backward()
        with torch.no_grad():
            module(torch.ones(2, 3))
    assert_same(net.state_dict(), plain.state_dict())


class Shifted(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x, shift=0.0):
        return self.linear(x + shift).tanh()


def shifted() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(3, 3), Shifted(), Shifted())


def test_mmengine():
    """Behind a frozen stem its own leaves the rest without gradients."""
    model, plain = shifted(), shifted()
    turn_on_activation_checkpointing(model, ['1', '2'])
    for net in (model, plain):
        net[0].requires_grad_(False)
    x = torch.ones(2, 3)
    with pytest.warns(UserWarning, match='None of the inputs have requires_'):
        assert not model(x).requires_grad
    with pytest.raises(TypeError, match='unexpected keyword'):
        model[1](x, shift=1.0)
    assert replace_reentrant_checkpoints(model) == ['1', '2']
    for net in (model, plain):
        net[2](net[1](net[0](x), shift=0.3)).sum().backward()
    for parameter, expected in zip(
        model[1:].parameters(), plain[1:].parameters()
    ):
        assert torch.equal(parameter.grad, expected.grad)


def test_mmengine_around_others():
    model = shifted()
    checkpoint_module(model[1])
    ours = model[1].forward
    fake_fairscale(model[2])
    turn_on_activation_checkpointing(model, ['1', '2', '2'])
    copied = copy.deepcopy(model)
    assert replace_reentrant_checkpoints(model) == ['1', '2']
    assert model[1].forward is ours
    replace_reentrant_checkpoints(copied)
    for net in (model, copied):
        assert all(is_checkpointed(module) for module in net[1:])
        assert net[2].forward.module is net[2]
        assert net[2].forward.own_forward is None


class Careless(nn.Module):
    """No flag turns the call off."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return checkpoint(self.linear, x)


class Lists(nn.Module):
    """A backbone as users write them."""

    def __init__(self, with_cp: bool):
        super().__init__()
        self.with_cp = with_cp
        self.blocks = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x) if self.with_cp else block(x)
        return x


def test_what_cannot_be_replaced_is_told():
    model = nn.Sequential(nn.Linear(3, 3), Careless())
    assert replace_reentrant_checkpoints(model) == []
    assert unreplaced_checkpoints(model) == ['1']
    assert unreplaced_checkpoints(Lists(True)) == ['']
    assert unreplaced_checkpoints(Lists(False)) == []


def test_items_of_a_list_in_the_code_of_users():
    model = Lists(True)
    assert replace_reentrant_checkpoints(model) == ['blocks.0', 'blocks.1']
    output = model(torch.ones(2, 3, requires_grad=True)).sum()
    assert reentrant_nodes(output) == 0


ckpt = checkpoint
WHOLE = CheckpointCall(False, None, False)


class Loops(nn.Module):
    def forward(self, x):
        for block in self.blocks:
            x = cp.checkpoint(block, x)
        for i, _block in enumerate(self.layers):
            x = torch.utils.checkpoint.checkpoint(self.layers[i], x)
        return x


class Counted(nn.Module):
    def forward(self, x):
        for _, (stage, _name) in enumerate(self.stages):
            x = cp.checkpoint(stage, x)
        return x


class Renamed(nn.Module):
    def forward(self, x):
        return ckpt(function=self.convs, x=x)


class Imports(nn.Module):
    def forward(self, x):
        from torch.utils import checkpoint as module
        from torch.utils.checkpoint import checkpoint as function

        return module.checkpoint(self.a, function(self.b, x))


class Helper(nn.Module):
    def forward(self, x):
        return self._run(x)

    def _run(self, x):
        return checkpoint(self._inner, x)


class Derived(Helper):
    def _run(self, x):
        return super()._run(x) + 1


class Sequence(nn.Module):
    def forward(self, x):
        return checkpoint_sequential(self.blocks, 2, x)


class Careful(nn.Module):
    def forward(self, x):
        return checkpoint(self.convs, x, use_reentrant=False)


class Open(nn.Module):
    def forward(self, x):
        return checkpoint(self.convs, x, use_reentrant=self.reentrant)


class Unrelated(nn.Module):
    checkpoint = None

    def forward(self, x):
        return self.checkpoint(self.convs, x)


@pytest.mark.parametrize(
    ('kind', 'expected'),
    [
        (
            Loops,
            [
                CheckpointCall(False, 'blocks', True),
                CheckpointCall(False, 'layers', True),
            ],
        ),
        (Counted, [CheckpointCall(False, 'stages', True)]),
        (Renamed, [CheckpointCall(False, 'convs', False)]),
        (
            Imports,
            [
                CheckpointCall(False, 'a', False),
                CheckpointCall(False, 'b', False),
            ],
        ),
        (Helper, [CheckpointCall(False, '_inner', False)]),
        (Derived, [CheckpointCall(False, '_inner', False)]),
        (Sequence, [CheckpointCall(False, 'blocks', False)]),
        (Careful, [CheckpointCall(True, 'convs', False)]),
        (Open, [CheckpointCall(False, 'convs', False)]),
        (Unrelated, []),
    ],
)
def test_calls_of_a_class(kind: type, expected: list):
    assert sorted(checkpoint_calls(kind)) == sorted(expected)


def test_limit_a_class_without_source():
    """Nothing is known but that it calls."""
    scope = {'nn': nn, 'checkpoint': checkpoint}
    exec(
        'class Typed(nn.Module):\n'
        '    def forward(self, x):\n'
        '        return checkpoint(self.convs, x)\n'
        'class Quiet(nn.Module):\n'
        '    def forward(self, x):\n'
        '        return self.convs(x)\n',
        scope,
    )
    assert checkpoint_calls(scope['Typed']) == (WHOLE,)
    assert checkpoint_calls(scope['Quiet']) == ()

"""mmext.MMoE, mmext.CGC, their experts, and mmext.HardSharing."""

import pickle
from copy import deepcopy

import pytest
import torch
from helpers.device import device_waits, needs_device
from helpers.multi_task_nets import (
    TASKS,
    TorchvisionLike,
    architecture,
    backbone,
    backward,
    without_gradient,
)

from mmext.registry import MODELS

SMALL = dict(expert=dict(channels=24))
ARCHITECTURES = {
    'hard_sharing': dict(kind='HardSharing'),
    'mtan': dict(kind='MTAN'),
    **{
        f'mmoe_{number}': dict(kind='MMoE', num_experts=number, **SMALL)
        for number in (1, 2, 4)
    },
    'mmoe_top_k': dict(kind='MMoE', num_experts=4, top_k=2, **SMALL),
    'mmoe_balanced': dict(kind='MMoE', balance_weight=0.1, **SMALL),
    'cgc': dict(kind='CGC', balance_weight=0.1, **SMALL),
}
one_of_each = pytest.mark.parametrize(
    'name', ['hard_sharing', 'mtan', 'mmoe_top_k', 'cgc']
)


def built(name, **more):
    """Backbone with two features, and an architecture on it."""
    net = backbone(out_indices=(2, 3))
    return net, architecture(net=net, **ARCHITECTURES[name], **more)


def table():
    """A batch of three categorical columns, and a backbone for it."""
    torch.manual_seed(0)
    net = MODELS.build(
        dict(
            type='mmext.CategoricalEmbedding',
            num_categories=dict(colour=3, shape=5, size=2),
            embed_dims=(2, 4, 2),
            channels=(8,),
        )
    )
    return net, torch.stack(
        [torch.randint(high, (16,)) for high in (3, 5, 2)], dim=1
    )


@pytest.mark.parametrize('name', ARCHITECTURES)
def test_the_same_weights_train_at_two_resolutions(name):
    net, model = built(name)
    for size in ((40, 72), (33, 65)):
        net.zero_grad()
        model.zero_grad()
        maps = net(torch.zeros(2, 3, *size))
        result = backward(model, torch.randn(2, 3, *size))
        assert list(result.features) == list(TASKS)
        for features in result.features.values():
            assert [f.shape[1] for f in features] == list(model.out_channels)
            assert [f.shape[2:] for f in features] == [
                m.shape[2:] for m in maps
            ]
        assert without_gradient(net, model) == []
    gates = getattr(model, 'gates', {})
    assert all(gate.weight.grad.any() for gate in gates.values())


@one_of_each
def test_copies_state_dicts_and_pickles_compute_the_same(name):
    net, model = built(name)
    both = torch.nn.ModuleDict({'net': net, 'model': model}).eval()
    inputs = torch.randn(1, 3, 32, 32)
    wanted = model(inputs)
    copy = deepcopy(both)
    assert copy['model'].backbone is copy['net']
    with torch.no_grad():
        for parameter in copy.parameters():
            parameter.zero_()
    copy.load_state_dict(both.state_dict())
    for other in (copy, pickle.loads(pickle.dumps(both))):
        torch.testing.assert_close(
            other['model'](inputs).features, wanted.features, rtol=0, atol=0
        )


@needs_device
@one_of_each
def test_a_step_does_not_wait_for_the_device(name):
    def run(model, net, inputs):
        result = model(inputs)
        values = [f.sum() for fs in result.features.values() for f in fs]
        sum([*values, *result.losses.values()]).backward()

    net, model = built(name)
    assert device_waits(run, model, net, torch.randn(2, 3, 64, 64)) == []


@one_of_each
def test_bfloat16_autocast(name):
    net, model = built(name)
    inputs = torch.randn(2, 3, 64, 64)
    net.eval()
    model.eval()
    wanted = model(inputs)
    with torch.autocast('cpu', torch.bfloat16):
        got = model(inputs)
    for task, features in got.features.items():
        for feature, exact in zip(features, wanted.features[task]):
            error = (feature.float() - exact).norm() / exact.norm()
            # Rounding may make another choice of experts.
            assert error < 0.1 or name == 'mmoe_top_k'
    for loss in got.losses.values():
        assert loss.dtype == torch.float32
    net.train()
    model.train()
    with torch.autocast('cpu', torch.bfloat16):
        backward(model, inputs)
    assert without_gradient(net, model) == []


def test_hard_sharing_gives_all_features_to_all_tasks():
    _, model = built('hard_sharing')
    inputs = torch.randn(2, 3, 32, 32)
    features = model.eval()(inputs).features
    assert model.out_channels == (16, 32)
    assert all(f is features['seg'] for f in features.values())
    assert model.state_dict() == {}


def test_a_backbone_that_returns_one_tensor():
    model = architecture('HardSharing', TorchvisionLike())
    (feature,) = model(torch.randn(1, 3, 32, 32)).features['seg']
    assert (feature.shape[1],) == model.out_channels == (16,)


@pytest.mark.parametrize('name', ['mmoe_4', 'mmoe_1', 'mmoe_top_k', 'cgc'])
def test_features_are_the_experts_weighted_by_the_gate(name):
    net, model = built(name, temperature=0.5)
    inputs = torch.randn(3, 3, 32, 32)
    net.eval()
    model.eval()
    maps = net(inputs)
    result = model(inputs)
    weights = model.gate_weights(maps)
    assert weights.keys() == result.features.keys()
    for task, rows in weights.items():
        experts = list(model.shared_experts)
        if 'cgc' in name:
            experts += list(model.task_experts[task])
        assert rows.shape == (3, len(experts))
        torch.testing.assert_close(rows.sum(1), torch.ones(3))
        if len(experts) > 1:
            gate = model.gates[task]
            pooled = maps[-1].flatten(2).mean(2)
            logits = (pooled @ gate.weight.T + gate.bias) / 0.5
            if name == 'mmoe_top_k':
                least = logits.sort(1).values[:, 2:3]
                logits[logits < least] = -1e9
            exp = logits.exp()
            torch.testing.assert_close(rows, exp / exp.sum(1, keepdim=True))
        outputs = [expert(maps) for expert in experts]
        for level, feature in enumerate(result.features[task]):
            stacked = torch.stack([o[level] for o in outputs])
            mixed = torch.einsum('ne,en...->n...', rows, stacked)
            torch.testing.assert_close(feature, mixed)


def test_experts_on_vectors():
    net, rows = table()
    for kind in ('MMoE', 'CGC'):
        model = architecture(
            kind,
            net,
            expert=dict(type='mmext.MLPExpert', channels=(8, 4), dropout=0.1),
            balance_weight=1.0,
        )
        result = backward(model, rows)
        assert result.features['depth'][0].shape == (16, 4)
        assert model.out_channels == (4,)
        assert without_gradient(net, model) == []


def test_balance_is_the_squared_variation_of_the_use():
    _, model = built('mmoe_balanced')
    inputs = torch.randn(4, 3, 32, 32)
    gates = list(model.gates.values())
    for gate in gates:
        torch.nn.init.zeros_(gate.weight)
        torch.nn.init.zeros_(gate.bias)
    assert model(inputs).losses['balance'] == 0
    # Each task may choose experts of its own, if all are used.
    for number, gate in enumerate(gates):
        gate.bias.data[number] = 20.0
    use = torch.tensor([1 / 3, 1 / 3, 1 / 3, 0])
    wanted = 0.1 * use.var(correction=0) / use.mean() ** 2
    torch.testing.assert_close(model(inputs).losses['balance'], wanted)


def test_balance_of_cgc_is_zero_for_equal_weights():
    _, model = built('cgc')
    for gate in model.gates.values():
        torch.nn.init.zeros_(gate.weight)
        torch.nn.init.zeros_(gate.bias)
    loss = model(torch.randn(2, 3, 32, 32)).losses['balance']
    torch.testing.assert_close(loss, torch.tensor(0.0))
    model.gates['seg'].bias.data[0] = 20.0
    # Two shared experts, then one of each task: seg uses the first only.
    use = torch.tensor([5 / 9, 2 / 9, 0, 1 / 3, 1 / 3])
    wanted = 0.1 * use.var(correction=0) / use.mean() ** 2
    loss = model(torch.randn(2, 3, 32, 32)).losses['balance']
    torch.testing.assert_close(loss, wanted)


BAD = {
    'experts': (dict(kind='MMoE', num_experts=0), 'num_experts must be'),
    'shared': (dict(kind='CGC', num_shared_experts=0), 'num_shared_experts'),
    'own': (dict(kind='CGC', num_task_experts=0), 'num_task_experts must'),
    'temperature': (dict(kind='MMoE', temperature=0.0), 'temperature must'),
    'nan': (dict(kind='MMoE', temperature=float('nan')), 'got nan'),
    'top_1': (dict(kind='MMoE', top_k=1), 'with 1 no gate is trained'),
    'top_9': (dict(kind='MMoE', top_k=9), 'to 4, the experts of a task'),
    'balance': (dict(kind='MMoE', balance_weight=-1), 'balance_weight must'),
}


@pytest.mark.parametrize('name', BAD)
def test_bad_arguments(name):
    options, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        architecture(net=backbone(), **options)


def test_channels_that_are_not_known_or_not_so():
    swin = backbone_without_channels()
    with pytest.raises(TypeError, match='give in_channels of the archit'):
        architecture('MMoE', swin)
    model = architecture('MMoE', swin, in_channels=(7,), **SMALL)
    with pytest.raises(ValueError, match=r'with \[4\] channels, but in_chan'):
        model(torch.randn(1, 3, 8, 8))
    model = architecture('MMoE', swin, in_channels=(4,), **SMALL)
    assert model(torch.randn(2, 3, 8, 8)).features['seg'][0].shape[1] == 24
    assert architecture('HardSharing', swin)(torch.randn(1, 3, 8, 8))
    with pytest.raises(TypeError, match='_layers'):
        architecture('HardSharing', swin).out_channels  # noqa: B018


def backbone_without_channels():
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3))


def test_experts_for_the_other_kind_of_features():
    net, rows = table()
    convs = dict(type='mmext.ConvExpert')
    with pytest.raises(ValueError, match=r'Embedding returns \[\(16, 8\)\]'):
        architecture('MMoE', net, expert=convs)(rows)
    model = architecture(
        'MMoE', backbone(), expert=dict(type='mmext.MLPExpert')
    )
    with pytest.raises(ValueError, match=r'mmext\.ConvExpert for maps'):
        model(torch.randn(2, 3, 32, 32))


def test_a_backbone_that_returns_something_else():
    class Odd(torch.nn.Module):
        def forward(self, x):
            return {'map': x}

    with pytest.raises(TypeError, match='Odd must return a tensor or a tup'):
        architecture('HardSharing', Odd())(torch.randn(1, 3, 8, 8))

"""Merged groups give every parameter what MMEngine's constructor gives it."""

import copy
from itertools import product

import pytest
import torch
from helpers.tiny_mae import tiny_mae
from mmdet.models.backbones import ResNet, SwinTransformer
from mmengine.optim import build_optim_wrapper
from torch import nn

from mmext.utils.torch_compat import has_fused_optimizers
from mmext.utils.training import merge_groups

SLOW = pytest.mark.slow
MERGED = 'mmext.MergedOptimWrapperConstructor'
THEIRS = 'DefaultOptimWrapperConstructor'
ADAMW = dict(type='AdamW', lr=2e-3, weight_decay=0.05)
SGD = dict(type='SGD', lr=0.02, momentum=0.9, weight_decay=1e-3)
NOT_COMPARED = ('params', 'fused', 'foreach', 'lr_mult', 'decay_mult')
MODELS = {
    'resnet': lambda: ResNet(
        18, base_channels=4, stem_channels=4, frozen_stages=1
    ),
    'swin': lambda: SwinTransformer(
        embed_dims=8,
        depths=(2, 2),
        num_heads=(1, 2),
        strides=(4, 2),
        window_size=4,
        out_indices=(0, 1),
    ),
    'mae': tiny_mae,
}
PARAMWISE = {
    'norms and biases': dict(
        norm_decay_mult=0.0, bias_decay_mult=0.0, bias_lr_mult=2.0
    ),
    'shapes': dict(flat_decay_mult=0.0, dwconv_decay_mult=0.5),
    'names': dict(
        norm_decay_mult=0.0,
        custom_keys={
            'layer': dict(lr_mult=0.1),
            'layer2': dict(lr_mult=0.1, decay_mult=1.0),
            'stages': dict(decay_mult=0.0),
            'stages.1': dict(lr_mult=1.0),
            'backbone': dict(lr_mult=0.5, decay_mult=0.25),
            'bias': dict(lr_mult=1.0, decay_mult=1.0),
            'cls_token': dict(eps=1e-6),
        },
    ),
}


def build(model, constructor, optimizer, paramwise=None):
    """A copy of the model and its optimizer wrapper."""
    model = copy.deepcopy(model)
    cfg = dict(constructor=constructor, optimizer=optimizer)
    return model, build_optim_wrapper(
        model, dict(cfg, paramwise_cfg=paramwise)
    )


def groups_of(wrapper):
    return wrapper.optimizer.param_groups


def by_name(model, wrapper):
    """What the optimizer does to each parameter."""
    names = {id(value): name for name, value in model.named_parameters()}
    return {
        names[id(parameter)]: {
            key: value
            for key, value in group.items()
            if key not in NOT_COMPARED
        }
        for group in groups_of(wrapper)
        for parameter in group['params']
    }


def train(model, wrapper, steps=3):
    """Steps with made-up gradients, and none for the last parameter."""
    random = torch.Generator().manual_seed(1)
    *trained, _ = [p for p in model.parameters() if p.requires_grad]
    for _ in range(steps):
        for parameter in trained:
            parameter.grad = torch.randn(
                parameter.shape, generator=random, dtype=parameter.dtype
            )
        wrapper.step()
    return list(model.parameters())


DEFAULT = {
    ('resnet', 'norms and biases', 'SGD'),
    ('resnet', 'names', 'AdamW'),
    ('swin', 'shapes', 'AdamW'),
    ('mae', 'names', 'AdamW'),
}


@pytest.mark.parametrize(
    ('name', 'options', 'kind'),
    [
        case if case in DEFAULT else pytest.param(*case, marks=SLOW)
        for case in product(MODELS, PARAMWISE, ('SGD', 'AdamW'))
    ],
)
def test_same_as_mmengine(name, options, kind):
    torch.manual_seed(0)
    model, paramwise = MODELS[name](), PARAMWISE[options]
    optimizer = {'SGD': SGD, 'AdamW': ADAMW}[kind]
    theirs = build(model, THEIRS, optimizer, paramwise)
    plain = dict(optimizer, **{'AdamW': {'fused': None}}.get(kind, {}))
    ours = build(model, MERGED, plain, paramwise)
    fused = build(model, MERGED, optimizer, paramwise)
    assert by_name(*ours) == by_name(*fused) == by_name(*theirs)
    assert len(groups_of(theirs[1])) == len(by_name(*theirs))
    assert len(groups_of(ours[1])) <= 6
    assert len(merge_groups(groups_of(ours[1]))) == len(groups_of(ours[1]))
    # Of the first group the log has the rate.
    assert groups_of(ours[1])[0]['lr'] == groups_of(theirs[1])[0]['lr']
    # Of SGD, see test_a_first_gradient_may_come_late.
    fuses = {kind == 'AdamW' and has_fused_optimizers(torch.device('cpu'))}
    assert {bool(group.get('fused')) for group in groups_of(fused[1])} == fuses
    assert not any(group.get('fused') for group in groups_of(ours[1]))
    before = list(model.parameters())
    expected, got = train(*theirs), train(*ours)
    assert all(map(torch.equal, got, expected))
    assert not all(map(torch.equal, got, before))
    for one, other in zip(train(*fused), expected):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    'given',
    [{'fused': False}, {'fused': None}, {'foreach': True}, {'foreach': False}],
    ids=str,
)
def test_what_the_config_says_holds(given):
    cfg = dict(ADAMW, **given)
    before = copy.deepcopy(cfg)
    model, wrapper = build(nn.Linear(3, 2), MERGED, cfg, {'bias_lr_mult': 2})
    for group in groups_of(wrapper):
        assert {key: group[key] for key in given} == given
        assert not group['fused']
    train(model, wrapper)
    assert cfg == before


@pytest.mark.parametrize('optimizer', [SGD, ADAMW], ids=['SGD', 'AdamW'])
def test_a_first_gradient_may_come_late(optimizer):
    """As after a thaw. PyTorch's fused SGD with momentum cannot do it."""
    model, wrapper = build(
        nn.ModuleList(nn.Linear(2, 2) for _ in range(2)),
        MERGED,
        optimizer,
        {'bias_lr_mult': 2},
    )
    for used in (model[0], model[1]):
        wrapper.update_params(used(torch.ones(1, 2)).sum())
    before = model[1].weight.clone()
    wrapper.update_params(model[1](torch.ones(1, 2)).sum())
    assert not torch.equal(model[1].weight, before)


def with_complex():
    model = nn.Linear(3, 2)
    model.phase = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    return model


@pytest.mark.parametrize(
    ('make', 'optimizer'),
    [
        (lambda: nn.Linear(3, 2), dict(type='RMSprop', lr=0.1)),
        (with_complex, ADAMW),
        (lambda: nn.Embedding(4, 2, sparse=True), SGD),
    ],
    ids=['RMSprop', 'complex', 'sparse'],
)
def test_not_fused_where_it_cannot_be(make, optimizer):
    cfg = {key: optimizer[key] for key in optimizer if key != 'weight_decay'}
    model, wrapper = build(make(), MERGED, cfg, {'bias_lr_mult': 2.0})
    assert not any(group.get('fused') for group in groups_of(wrapper))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
        if isinstance(model, nn.Embedding):
            parameter.grad = parameter.grad.to_sparse(1)
    before = [value.detach().clone() for value in model.parameters()]
    wrapper.step()
    after = list(model.parameters())
    assert not any(map(torch.equal, before, after))


def test_a_parameter_in_two_places_is_the_same_error():
    model = nn.ModuleDict({'a': nn.Linear(2, 2), 'b': nn.Linear(2, 2)})
    model['b'].weight = model['a'].weight
    for kind in (THEIRS, MERGED):
        with pytest.raises(ValueError, match='more than one parameter group'):
            build(model, kind, ADAMW, {'bias_lr_mult': 2.0})
        paramwise = {'bias_lr_mult': 2.0, 'bypass_duplicate': True}
        once = by_name(*build(model, kind, ADAMW, paramwise))
        assert list(once) == ['a.weight', 'a.bias', 'b.bias']

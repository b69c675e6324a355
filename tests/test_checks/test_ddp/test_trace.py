import re

import pytest
import torch
from helpers.torch_versions import needs_torch
from mmengine.model import BaseModel
from torch import nn
from torch.utils.checkpoint import CheckpointFunction, checkpoint

from mmext.checks.ddp import (
    Outcome,
    UnusedReason,
    predict_outcome,
    trace_step,
    trace_train_step,
)


class Net(BaseModel):
    """One part for each way of being used."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(2, 2)
        self.head = nn.Linear(2, 1)
        self.never = nn.Parameter(torch.zeros(3))
        self.aside = nn.Linear(2, 1)
        self.metric = nn.Linear(2, 1)
        self.teacher = nn.Linear(2, 1)
        self.detached = nn.Linear(2, 1)
        self.dead = nn.Linear(2, 1)
        self.norm = nn.BatchNorm1d(2)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)

    def forward(self, inputs, mode='loss'):
        x = self.norm(self.stem(self.frozen(inputs)))
        self.aside(x)
        with torch.no_grad():
            target = self.teacher(inputs)
        dead = checkpoint(self.dead, inputs, use_reentrant=True)
        shift = self.detached(x).detach() + torch.rand(1)
        return {
            'loss': (self.head(x) - target + shift + dead).square().mean(),
            'metric': self.metric(x).mean(),
        }


DATA = {'inputs': torch.arange(8.0).view(4, 2)}


def assert_no_hooks(model):
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    for parameter in model.parameters():
        assert not parameter._post_accumulate_grad_hooks


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


@pytest.fixture
def usage(net):
    with pytest.warns(UserWarning, match='requires_grad'):
        return trace_train_step(net, DATA)


def test_reasons(usage):
    reasons = {name: use.reason for name, use in usage.unused.items()}
    assert reasons == {
        'never': UnusedReason.NEVER_USED,
        **{
            f'{module}.{name}': reason
            for module, reason in {
                'aside': UnusedReason.NOT_IN_LOSS,
                'metric': UnusedReason.NOT_IN_LOSS,
                'teacher': UnusedReason.NO_GRAD,
                'detached': UnusedReason.DETACHED,
                'dead': UnusedReason.CHECKPOINT_INPUT,
            }.items()
            for name in ('weight', 'bias')
        },
    }


def test_locations_and_details(usage):
    assert (
        usage.unused['metric.bias'].detail == "forward returns it in 'metric'"
    )
    assert usage.unused['detached.bias'].detail == 'by detach'
    # The root module has no name.
    for name, module in (('teacher.bias', 'teacher, '), ('detached.bias', '')):
        assert re.fullmatch(
            rf'{module}test_checks/test_ddp/test_trace.py:\d+ in forward',
            usage.unused[name].location,
        )
    assert usage.unused['dead.bias'].location.startswith('dead')


def test_the_model_is_left_as_it_was(net):
    net.stem.weight.grad = torch.full((2, 2), 7.0)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    random = torch.get_rng_state()
    with pytest.warns(UserWarning, match='requires_grad'):
        trace_train_step(net, DATA)
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert torch.equal(net.stem.weight.grad, torch.full((2, 2), 7.0))
    assert net.head.weight.grad is None
    assert torch.equal(torch.get_rng_state(), random)
    assert_no_hooks(net)


def test_also_when_the_forward_fails(net):
    def forward():
        net(**DATA)
        raise KeyError('x')

    mean = net.norm.running_mean.clone()
    with (
        pytest.raises(KeyError),
        pytest.warns(UserWarning, match='requires_grad'),
    ):
        trace_step(net, forward, lambda out: out['loss'])
    assert torch.equal(net.norm.running_mean, mean)
    assert_no_hooks(net)


@pytest.mark.parametrize('reentrant', [True, False])
def test_reentrant_checkpoints_differ_from_others(reentrant):
    model = nn.ModuleDict({'stem': nn.Linear(2, 2), 'part': nn.Linear(2, 2)})

    def forward():
        x = model['stem'](torch.ones(1, 2))
        return checkpoint(model['part'], x, use_reentrant=reentrant)

    usage = trace_step(model, forward, torch.Tensor.sum)
    parts = ('part.weight', 'part.bias') if reentrant else ()
    assert usage.hidden == parts
    assert set(usage.reentrant) == set(parts)
    assert usage.outside_forward == ()
    prediction = predict_outcome([usage], find_unused_parameters=True)
    assert (prediction.outcome is Outcome.READY_TWICE) is reentrant


def test_a_parameter_of_the_loss_is_outside_of_forward():
    model = nn.ModuleDict({'net': nn.Linear(2, 2), 'weight': nn.Linear(2, 1)})
    usage = trace_step(
        model,
        lambda: model['net'](torch.ones(1, 2)),
        lambda out: model['weight'](out).sum(),
    )
    assert usage.outside_forward == ('weight.weight', 'weight.bias')


def test_a_checkpoint_under_no_grad_is_not_to_blame():
    model = nn.Linear(2, 2)
    other = nn.ModuleDict({'teacher': model, 'student': nn.Linear(2, 2)})

    def forward():
        x = torch.ones(1, 2, requires_grad=True)
        with torch.no_grad():
            target = checkpoint(model, x, use_reentrant=True)
        return other['student'](x) - target

    usage = trace_step(other, forward, torch.Tensor.sum)
    reasons = {use.reason for use in usage.unused.values()}
    assert reasons == {UnusedReason.NO_GRAD}


@pytest.mark.parametrize('how', ['detached', 'dropped', 'logged'])
def test_a_checkpoint_whose_output_is_cut_off_is_not_to_blame(how):
    model = nn.ModuleDict({'stem': nn.Linear(2, 2), 'part': nn.Linear(2, 2)})

    def forward():
        x = model['stem'](torch.ones(1, 2))
        y = checkpoint(model['part'], x, use_reentrant=True)
        out = {'loss': x.sum()}
        if how == 'detached':
            out['loss'] = out['loss'] + y.detach().sum()
        if how == 'logged':
            out['log'] = y.sum()
        return out

    usage = trace_step(model, forward, lambda out: out['loss'])
    reasons = {use.reason for use in usage.unused.values()}
    assert reasons == {
        UnusedReason.DETACHED
        if how == 'detached'
        else UnusedReason.NOT_IN_LOSS
    }
    # DDP's search makes it ready, as an empty gradient will do.
    joint = usage.counts(joint=True)
    assert joint['part.bias'] == (how == 'logged')
    assert usage.call_sites['part.bias'].endswith('in forward')
    assert usage.counts()['part.bias'] == 0


class Parts(nn.Module):
    """Three layers, and what is not made of PyTorch's functions."""

    def __init__(self):
        super().__init__()
        self.stem, self.first = nn.Linear(2, 2), nn.Linear(2, 2)
        self.second = nn.Linear(2, 2)

    def run(self, x):
        return self.second(self.first(x))

    def nested(self, x):
        return self.second(checkpoint(self.first, x, use_reentrant=True))


def in_place(x):
    out = torch.zeros(1, 2)
    out[:, 0] = x[:, 0].detach()
    return out.mul_(2)


@pytest.mark.parametrize(
    ('cut', 'function'),
    [
        (lambda y: y.detach(), 'detach'),
        (lambda y: y.data, 'data'),
        (lambda y: y.argmax(1).float(), 'argmax'),
        pytest.param(
            lambda y: torch.ones(1, 2)[0, y.argmax(1)[0]],
            'argmax',
            marks=needs_torch(2, 4, why='modes see an index of tensors'),
        ),
        (lambda y: (y > 0).float(), 'gt'),
        (lambda y: y.round().int().float(), 'int'),
        (in_place, 'detach'),
    ],
)
def test_functions_that_cut(cut, function):
    net = Parts()

    def forward():
        x = torch.ones(1, 2)
        return net.run(net.stem(x)).sum() + (cut(net.stem(x)) * 2).sum()

    def only_cut():
        # Its shape is no use of a weight.
        assert net.first.weight.shape[0] == 2
        return cut(net.stem(torch.ones(1, 2))).sum() + net.second.bias.sum()

    assert trace_step(net, forward, lambda out: out).unused == {}
    unused = trace_step(net, only_cut, lambda out: out).unused
    assert unused['stem.bias'].reason is UnusedReason.DETACHED
    assert unused['stem.bias'].detail == f'by {function}'
    assert 'test_trace.py:' in unused['stem.bias'].location
    assert unused['first.weight'].reason is UnusedReason.NEVER_USED


@pytest.mark.parametrize('part', ['first', 'run', 'nested'])
@pytest.mark.parametrize('times', [1, 2])
def test_passes_of_reentrant_checkpoints(part, times):
    """A gradient for each use, in a pass of its own, with the location."""
    net = Parts()

    def forward():
        x = net.stem(torch.ones(1, 2))
        for _ in range(times):
            x = checkpoint(getattr(net, part), x, use_reentrant=True)
        if part == 'first':
            # What the other kind runs again is no part of it.
            x = checkpoint(net.second, x, use_reentrant=False)
        return x.sum()

    usage = trace_step(net, forward, lambda out: out)
    inside = {'first.weight', 'first.bias'}
    if part != 'first':
        inside |= {'second.weight', 'second.bias'}
    assert set(usage.reentrant) == inside
    tasks = [g.task for g in usage.ready if g.name == 'first.bias']
    assert len(set(tasks)) == len(tasks) == times
    assert {g.task for g in usage.ready if 'stem' in g.name} == {0}
    assert usage.counts()['stem.weight'] == 1
    if part == 'run':
        where = usage.reentrant['first.bias']
        assert 'test_trace.py:' in where
        assert where.endswith(' in run')
    assert 'apply' not in vars(CheckpointFunction)

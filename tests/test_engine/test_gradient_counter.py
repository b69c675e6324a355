import torch
from torch import nn

from mmext.engine._gradient_counter import GradientCounter


def net():
    model = nn.ModuleDict({n: nn.Linear(1, 1, bias=False) for n in 'abc'})
    model['c'].requires_grad_(False)
    return model


def run(model, *names):
    x = torch.ones(1, 1)
    for name in names:
        x = model[name](x)
    x.sum().backward()


def test_each_gradient_is_counted():
    model = net()
    counter = GradientCounter(model)
    assert counter.names == ['a.weight', 'b.weight']
    run(model, 'a', 'c', 'a')
    assert counter.counts() == [1, 0]
    run(model, 'a')
    assert counter.select(lambda count: count > 1) == ('a.weight',)
    assert counter.select(lambda count: count == 0) == ('b.weight',)
    counter.reset()
    assert counter.counts() == [0, 0]


def test_shared_parameters_are_one():
    model = net()
    model['b'].weight = model['a'].weight
    assert GradientCounter(model).names == ['a.weight']


def test_what_changes_later_is_told():
    model = net()
    counter = GradientCounter(model)
    assert counter.frozen() == counter.unknown() == ()
    model['a'].requires_grad_(False)
    model['c'].requires_grad_(True)
    assert counter.frozen() == ('a.weight',)
    assert counter.unknown() == ('c.weight',)
    model['d'] = nn.Linear(1, 1, bias=False)
    assert counter.unknown() == ('c.weight', 'd.weight')


def test_ignored_parameters_are_not_counted_and_no_surprise():
    model = net()
    counter = GradientCounter(model, ignored=['b.weight'])
    assert counter.names == ['a.weight']
    assert counter.unknown() == ()


def test_hooks_can_be_removed():
    model = net()
    counter = GradientCounter(model)
    counter.remove()
    run(model, 'a')
    assert counter.counts() == [0, 0]

import pytest
import torch
from mmengine.model import BaseModel
from torch import nn

from mmext.checks.ddp import SyncSettings, UnusedReason
from mmext.engine.distributed.counter import GradientCheck, GradientCounter


class Net(BaseModel):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(1, 1), nn.Linear(1, 1)
        self.dtypes = []

    def forward(self, inputs, use_b=True):
        x = self.a(inputs)
        self.dtypes.append(x.dtype)
        return {'loss': (self.b(x) if use_b else x).mean()}


X = torch.ones(1, 1)


def step(check, model, **kwargs):
    check.begin('cpu', (X,), kwargs)
    model(X, **kwargs)['loss'].backward()
    wrong = check.is_wrong()
    if not wrong:
        check.finish_step(log=True)
    return wrong


def test_all_is_well():
    model = Net()
    check = GradientCheck(model, SyncSettings())
    assert not step(check, model)
    assert not step(check, model)
    assert check.num_steps == 2


def test_missing_gradients():
    model = Net()
    check = GradientCheck(model, SyncSettings())
    assert step(check, model, use_b=False)
    report = check.report(3, '')
    assert report.rank == 3
    assert report.missing == ('b.weight', 'b.bias')
    assert report.usage.unused['b.bias'].reason is UnusedReason.NEVER_USED
    assert report.used_before == frozenset()
    assert report.trace_error == ''


def test_the_search_allows_them_and_the_log_names_them(monkeypatch):
    lines = []
    monkeypatch.setattr(
        'mmext.engine.distributed.counter.print_log',
        lambda text, *args: lines.append(text),
    )
    model = Net()
    check = GradientCheck(model, SyncSettings(True))
    assert not step(check, model, use_b=False)
    assert not step(check, model, use_b=False)
    (line,) = lines
    assert 'b.weight, b.bias' in line
    assert 'find_unused_parameters=True' in line


def test_a_static_graph_is_compared_with_the_first_step():
    model = Net()
    check = GradientCheck(model, SyncSettings(False, True))
    assert not step(check, model, use_b=False)
    assert not step(check, model, use_b=False)
    assert step(check, model)
    report = check.report(0, '')
    assert report.twice == ('b.weight', 'b.bias')
    assert report.missing == ()
    # The same from the reducer's error, which ends a backward early.
    assert check.report(0, 'changed').twice == ('b.weight', 'b.bias')


def test_gradients_that_come_twice():
    model = Net()
    check = GradientCheck(model, SyncSettings())
    check.begin('cpu', (X,), {})
    loss = model(X)['loss']
    loss.backward(retain_graph=True)
    loss.backward()
    assert check.is_wrong()
    assert set(check.report(0, '').twice) == set(
        dict(model.named_parameters())
    )


def test_the_second_run_has_the_precision_of_the_first():
    model = Net()
    check = GradientCheck(model, SyncSettings())
    with torch.autocast('cpu', dtype=torch.bfloat16):
        check.begin('cpu', (X,), {})
        model(X)
    check.report(0, 'error')
    assert model.dtypes == [torch.bfloat16] * 2


def test_a_second_run_that_fails_is_reported():
    model = Net()
    check = GradientCheck(model, SyncSettings())
    check.begin('cpu', (torch.ones(1, 3),), {})
    report = check.report(0, 'error')
    assert report.usage is None
    assert 'could not be run again' in report.trace_error
    assert 'mat1 and mat2' in report.trace_error
    check.forget_input()
    assert 'its input is gone' in check.report(0, 'error').trace_error


def test_models_of_other_kinds():
    model = nn.Linear(2, 2)
    check = GradientCheck(model, SyncSettings())
    check.begin('cpu', (torch.ones(1, 2),), {})
    assert check.report(0, 'error').usage.unused == {}


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


def test_what_changes_later_is_found():
    model = net()
    counter = GradientCounter(model)
    assert counter.frozen() == counter.unknown() == ()
    model['a'].requires_grad_(False)
    model['c'].requires_grad_(True)
    assert counter.frozen() == ('a.weight',)
    assert counter.unknown() == ('c.weight',)
    model['d'] = nn.Linear(1, 1, bias=False)
    assert counter.unknown() == ('c.weight', 'd.weight')


@pytest.mark.parametrize('what', ['parameter', 'module', 'list'])
def test_a_replacement_of_the_same_name_is_found(what):
    model = net()
    model['inner'] = nn.ModuleList([nn.Linear(1, 1, bias=False)])
    counter = GradientCounter(model)
    for _ in range(2):
        assert counter.unknown() == ()
    if what == 'parameter':
        model['a'].weight = nn.Parameter(torch.ones(1, 1))
        assert counter.unknown() == ('a.weight',)
    elif what == 'module':
        model['a'] = nn.Linear(1, 1, bias=False)
        assert counter.unknown() == ('a.weight',)
    else:
        model['inner'][0] = nn.Linear(1, 1, bias=False)
        assert counter.unknown() == ('inner.0.weight',)
    assert len(counter.unknown()) == 1
    del model['a'], model['inner']
    assert counter.unknown() == ()


def test_each_once():
    model = net()
    counter = GradientCounter(model)
    assert counter.is_each_once(at_most=True)
    assert not counter.is_each_once()
    run(model, 'a', 'c')
    assert counter.is_each_once(at_most=True)
    assert not counter.is_each_once()
    run(model, 'b', 'c')
    assert counter.is_each_once()
    assert counter.total == 2
    run(model, 'b', 'c')
    assert not counter.is_each_once()
    assert not counter.is_each_once(at_most=True)
    counter.reset()
    assert counter.total == 3


def test_ignored_parameters_are_not_counted_and_no_surprise():
    model = net()
    counter = GradientCounter(model, ignored=['b.weight'])
    assert counter.names == ['a.weight']
    assert counter.unknown() == ()

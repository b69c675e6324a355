import pytest
import torch
from mmengine.model import BaseModel
from torch import nn

from mmext.checks.ddp import SyncSettings
from mmext.engine.distributed.counter import GradientCheck


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


@pytest.mark.parametrize('what', ['parameter', 'module', 'list'])
def test_a_replacement_of_the_same_name_is_found(what):
    model = net()
    model['inner'] = nn.ModuleList([nn.Linear(1, 1, bias=False)])
    check = GradientCheck(model, SyncSettings(True))
    for _ in range(2):
        assert not check.is_wrong()
    name = 'inner.0.weight' if what == 'list' else 'a.weight'
    if what == 'parameter':
        model['a'].weight = nn.Parameter(torch.ones(1, 1))
    elif what == 'module':
        model['a'] = nn.Linear(1, 1, bias=False)
    else:
        model['inner'][0] = nn.Linear(1, 1, bias=False)
    assert check.is_wrong()
    assert check.report(0, '').unfrozen == (name,)
    assert check.is_wrong()
    del model['a'], model['inner']
    assert not check.is_wrong()


@pytest.mark.parametrize('find_unused', [False, True])
def test_each_gradient_comes_once(find_unused):
    model = net()
    model['b'].weight = model['a'].weight  # one parameter of two names
    model['d'] = nn.Linear(1, 1, bias=False)
    check = GradientCheck(model, SyncSettings(find_unused))
    assert check.is_wrong() != find_unused
    run(model, 'a', 'b', 'c')
    assert check.is_wrong() != find_unused
    run(model, 'd', 'c')
    assert not check.is_wrong()
    assert check.is_dirty()
    check.finish_step(log=False)
    assert not check.is_dirty()
    run(model, 'd', 'c')
    assert check.is_wrong()
    assert check.report(0, '').twice == ('d.weight',)
    check.begin('cpu', (), {})
    assert check.is_dirty()


def test_ignored_parameters_are_not_counted_and_no_surprise():
    model = net()
    check = GradientCheck(model, SyncSettings(), ignored=['b.weight'])
    run(model, 'a', 'c')
    assert not check.is_wrong()
    assert check.knows_any([model['b'].weight])
    assert not check.knows_any([model['c'].weight])

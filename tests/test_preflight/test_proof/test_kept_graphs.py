from types import SimpleNamespace

import torch
from torch import nn

from mmext.preflight.proof.kept_graphs import kept_tensors


def places(value):
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].value = value
    return {place: len(held) for place, held in kept_tensors(model).items()}


def graph():
    return torch.ones(2, requires_grad=True) * 2


def test_places():
    assert places(graph()) == {'0.value': 1}
    assert places([graph(), {'a': (graph(),)}]) == {'0.value': 2}
    assert places(SimpleNamespace(inner=graph())) == {'0.value': 1}


def test_what_has_no_graph():
    assert places(torch.ones(2)) == {}
    assert places(graph().detach()) == {}
    assert places(torch.ones(2, requires_grad=True)) == {}
    assert places([graph, 'text', None, 1]) == {}


def test_buffers():
    model = nn.BatchNorm1d(2)
    model.running_mean = graph()
    assert list(kept_tensors(model)) == ['running_mean']


def test_a_circle_ends():
    value = [graph()]
    value.append(value)
    assert places(value) == {'0.value': 1}

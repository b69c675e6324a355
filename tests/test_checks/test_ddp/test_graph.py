import torch
from torch import nn

from mmext.checks.ddp.graph import (
    graph_leaves,
    named_tensors,
)


def test_named_tensors_go_by_the_outermost_key():
    a, b = torch.zeros(1), torch.zeros(2)
    assert {k: len(v) for k, v in named_tensors({'x': [a, b]}).items()} == {
        'x': 2
    }
    assert [len(t) for t in named_tensors((a, b))['']] == [1, 2]


def test_leaves_of_a_graph():
    used, unused = nn.Linear(2, 2), nn.Linear(2, 2)
    out = used(torch.ones(1, 2)).relu()
    assert graph_leaves([out]) == {id(p) for p in used.parameters()}
    assert not graph_leaves([out.detach(), torch.ones(1)])
    assert graph_leaves([unused.bias]) == {id(unused.bias)}


def test_a_long_graph_is_no_recursion():
    weight = nn.Parameter(torch.ones(1))
    out = weight * 1
    for _ in range(5000):
        out = out + 1
    assert graph_leaves([out]) == {id(weight)}

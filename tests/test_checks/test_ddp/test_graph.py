"""Tensors in outputs, as DDP finds and the wrapper opens them; graphs."""

import pytest
import torch
from helpers.preflight_variations import CONTAINERS, OwnDict, Plain
from torch import nn

from mmext.checks.ddp import accumulator_of
from mmext.checks.ddp.graph import (
    all_tensors,
    graph_leaves,
    joined,
    named_tensors,
    open_output,
    unopened_containers,
)

# What only a call would give is not seen, and this cannot be copied.
SEEN = [n for n in CONTAINERS if n not in ('function', 'mappingproxy')]
# Without a container that DDP does not open in one of its two ways.
OPENED = {
    'dict',
    'OrderedDict',
    'defaultdict',
    'list',
    'tuple',
    'namedtuple',
    'deque',
    'tensor subclass',
}
if torch.__version__ < (2, 2):
    OPENED -= {'defaultdict', 'deque'}


def losses():
    weight = nn.Parameter(torch.ones(2))
    return {'loss_0': weight.sum(), 'loss_1': 2 * weight.prod()}


@pytest.mark.parametrize('name', SEEN)
def test_all_tensors_are_found_and_replaced(name):
    container = CONTAINERS[name]
    given = losses()
    output = container.pack(dict(given))
    tensors = all_tensors(output)
    assert len(tensors) == 2
    assert (unopened_containers(output) == ()) == (name in OPENED)
    opened = open_output(output)
    assert (opened is None) == (name in OPENED)
    if opened is None:
        return
    closed = opened.close([10 * tensor for tensor in opened.tensors])
    assert type(closed) is type(output)
    values = [float(v) for v in container.unpack(closed).values()]
    assert values == [20.0, 20.0]
    # The model may have kept the container.
    values = [float(v) for v in container.unpack(output).values()]
    assert values == [2.0, 2.0]


def test_what_holds_no_tensor_is_not_copied():
    note = Plain('text')
    output = OwnDict(losses(), note=note, self=None)
    output['self'] = output
    opened = open_output(output)
    closed = opened.close([1 * tensor for tensor in opened.tensors])
    assert closed['note'] is note
    assert closed is not output


def test_what_cannot_be_copied_is_left_as_it_is():
    class Stubborn(Plain):
        def __deepcopy__(self, memo):
            raise TypeError('there is only one')

    output = [Stubborn(losses())]
    opened = open_output(output)
    closed = opened.close([1 * tensor for tensor in opened.tensors])
    assert closed[0] is output[0]


def test_a_joint_backward_reaches_all():
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    x = torch.ones(1, 2, requires_grad=True)
    value = {'loss': model(x).sum(), 'more': [(other(x), torch.ones(1))]}
    new = joined(value)
    assert new['more'][0][1] is value['more'][0][1]
    assert graph_leaves([new['loss']]) >= {id(other.weight)}
    grads_seen = []
    node = accumulator_of(other.weight)
    node.register_hook(lambda _, grads: grads_seen.append(grads))
    new['loss'].backward()
    assert grads_seen == [(None,)]
    assert joined([1, None]) == [1, None]


def test_named_tensors_go_by_the_outermost_key():
    a, b = torch.zeros(1), torch.zeros(2)
    assert {k: len(v) for k, v in named_tensors({'x': [a, b]}).items()} == {
        'x': 2
    }
    assert [len(t) for t in named_tensors((a, b))['']] == [1, 2]


def test_a_long_graph_is_no_recursion():
    weight = nn.Parameter(torch.ones(1))
    out = weight * 1
    for _ in range(5000):
        out = out + 1
    assert graph_leaves([out]) == {id(weight)}

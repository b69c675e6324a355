import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from mmext.preflight._firing_recorder import FiringRecorder


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        return self.second(self.first(x).relu())


class Net(nn.Module):
    """A stem, a part that may be checkpointed, and a head."""

    def __init__(self):
        super().__init__()
        self.stem, self.part = nn.Linear(2, 2), Part()
        self.head = nn.Linear(2, 1)


def record(net, loss):
    parameters = dict(net.named_parameters())
    with FiringRecorder(net, parameters) as recorder:
        recorder.watch(loss)
        loss.backward()
    return recorder


def names(recorder):
    return sorted(firing.name for firing in recorder.firings)


def test_each_parameter_fires_once_in_the_outer_pass():
    net = Net()
    loss = net.head(net.part(net.stem(torch.ones(1, 2)))).sum()
    recorder = record(net, loss)
    assert names(recorder) == sorted(n for n, _ in net.named_parameters())
    assert {firing.task for firing in recorder.firings} == {0}
    assert recorder.reentrant == {}
    # The head's gradient is complete before the stem's.
    order = [firing.name for firing in recorder.firings]
    assert order.index('head.weight') < order.index('stem.weight')


def test_two_uses_are_one_firing():
    net = Net()
    x = net.stem(torch.ones(1, 2))
    recorder = record(net, (net.head(x) + net.head(x * 2)).sum())
    assert names(recorder).count('head.weight') == 1


def test_a_reentrant_checkpoint_fires_in_a_pass_of_its_own():
    net = Net()
    x = net.stem(torch.ones(1, 2))
    loss = net.head(checkpoint(net.part, x, use_reentrant=True)).sum()
    recorder = record(net, loss)
    nested = {f.name for f in recorder.firings if f.task != 0}
    assert nested == {n for n, _ in net.named_parameters() if 'part' in n}
    assert set(recorder.reentrant) == nested
    assert set(recorder.reentrant.values()) == {'part'}


def test_a_checkpointed_function_is_told_with_its_place():
    net = Net()

    def run(x):
        return net.part.second(net.part.first(x))

    x = net.stem(torch.ones(1, 2))
    loss = net.head(checkpoint(run, x, use_reentrant=True)).sum()
    text = record(net, loss).reentrant['part.first.bias']
    assert text.startswith('part, ')
    assert text.endswith(' in run')
    assert 'test_firing_recorder.py:' in text


def test_parts_used_twice_fire_twice_and_have_tasks_of_their_own():
    net = Net()
    x = net.stem(torch.ones(1, 2))
    for _ in range(2):
        x = checkpoint(net.part, x, use_reentrant=True)
    recorder = record(net, net.head(x).sum())
    tasks = [f.task for f in recorder.firings if f.name == 'part.first.bias']
    assert len(tasks) == 2
    assert len(set(tasks)) == 2


@pytest.mark.parametrize('reentrant', [True, False])
def test_nested_checkpoints(reentrant):
    net = Net()

    def outer(x):
        x = checkpoint(net.part.first, x, use_reentrant=reentrant)
        return net.part.second(x)

    x = net.stem(torch.ones(1, 2))
    loss = net.head(checkpoint(outer, x, use_reentrant=True)).sum()
    recorder = record(net, loss)
    assert recorder.reentrant['part.second.weight'].startswith('part')
    assert recorder.reentrant['part.first.weight'].startswith('part')
    assert 'stem.weight' not in recorder.reentrant


def test_both_kinds_of_checkpoints_in_one_model():
    net = Net()
    x = net.stem(torch.ones(1, 2))
    x = checkpoint(net.part.first, x, use_reentrant=True)
    x = checkpoint(net.part.second, x, use_reentrant=False)
    recorder = record(net, net.head(x).sum())
    # What the other kind ran again is no part of it.
    assert recorder.reentrant == {
        'part.first.weight': 'part.first',
        'part.first.bias': 'part.first',
    }


def test_a_non_reentrant_checkpoint_is_nothing_special():
    net = Net()
    x = net.stem(torch.ones(1, 2))
    loss = net.head(checkpoint(net.part, x, use_reentrant=False)).sum()
    recorder = record(net, loss)
    assert {firing.task for firing in recorder.firings} == {0}
    assert recorder.reentrant == {}


def test_nothing_is_left_on_the_model():
    net = Net()
    record(net, net.head(net.stem(torch.ones(1, 2))).sum())
    for module in net.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    assert not net.stem.weight._post_accumulate_grad_hooks


def test_as_the_reducer_hears_it():
    net = Net()
    parameters = dict(net.named_parameters())

    def part_of(factor):
        x = torch.ones(1, 2, requires_grad=True)
        out = checkpoint(net.part, x, use_reentrant=True)
        return (out * factor).sum()

    with FiringRecorder(net, parameters, as_reducer=True) as recorder:
        for factor in (1, 0, 2):
            part_of(factor).backward()
    firings = [f for f in recorder.firings if f.name == 'part.first.bias']
    assert [firing.empty for firing in firings] == [False, True, False]
    assert set(recorder.reran) >= {'part', 'part.first'}
    assert 'head' not in recorder.reran

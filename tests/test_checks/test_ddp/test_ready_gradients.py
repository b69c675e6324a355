import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from mmext.checks.ddp.ready_gradients import ReadyRecorder


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
    with ReadyRecorder(net, parameters) as recorder:
        loss.backward()
    return recorder


def names(recorder):
    return sorted(gradient.name for gradient in recorder.ready)


def test_each_gradient_is_ready_once_in_the_outer_pass():
    net = Net()
    loss = net.head(net.part(net.stem(torch.ones(1, 2)))).sum()
    recorder = record(net, loss)
    assert names(recorder) == sorted(n for n, _ in net.named_parameters())
    assert {gradient.task for gradient in recorder.ready} == {0}
    assert recorder.reentrant == {}
    # The head's gradient is complete before the stem's.
    order = [gradient.name for gradient in recorder.ready]
    assert order.index('head.weight') < order.index('stem.weight')


def test_two_uses_are_ready_once():
    net = Net()
    x = net.stem(torch.ones(1, 2))
    recorder = record(net, (net.head(x) + net.head(x * 2)).sum())
    assert names(recorder).count('head.weight') == 1


def test_a_reentrant_checkpoint_has_a_pass_of_its_own():
    net = Net()
    x = net.stem(torch.ones(1, 2))
    loss = net.head(checkpoint(net.part, x, use_reentrant=True)).sum()
    recorder = record(net, loss)
    nested = {g.name for g in recorder.ready if g.task != 0}
    assert nested == {n for n, _ in net.named_parameters() if 'part' in n}
    assert set(recorder.reentrant) == nested
    assert set(recorder.reentrant.values()) == {'part'}


def test_a_checkpointed_function_is_reported_with_its_location():
    net = Net()

    def run(x):
        return net.part.second(net.part.first(x))

    x = net.stem(torch.ones(1, 2))
    loss = net.head(checkpoint(run, x, use_reentrant=True)).sum()
    text = record(net, loss).reentrant['part.first.bias']
    assert text.startswith('part, ')
    assert text.endswith(' in run')
    assert 'test_ready_gradients.py:' in text


def test_parts_used_twice_are_ready_twice_with_tasks_of_their_own():
    net = Net()
    x = net.stem(torch.ones(1, 2))
    for _ in range(2):
        x = checkpoint(net.part, x, use_reentrant=True)
    recorder = record(net, net.head(x).sum())
    tasks = [g.task for g in recorder.ready if g.name == 'part.first.bias']
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


def test_as_the_reducer_hears_it():
    net = Net()
    parameters = dict(net.named_parameters())

    def part_of(factor):
        x = torch.ones(1, 2, requires_grad=True)
        out = checkpoint(net.part, x, use_reentrant=True)
        return (out * factor).sum()

    with ReadyRecorder(net, parameters, as_reducer=True) as recorder:
        for factor in (1, 0, 2):
            part_of(factor).backward()
    gradients = [g for g in recorder.ready if g.name == 'part.first.bias']
    assert [gradient.empty for gradient in gradients] == [False, True, False]
    assert set(recorder.reran) >= {'part', 'part.first'}
    assert 'head' not in recorder.reran

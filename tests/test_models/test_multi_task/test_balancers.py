"""Balancers against TorchJD, against numbers by hand, and on bad losses."""

import math

import pytest
import torch
from helpers.toy_tasks import BALANCERS

from mmext.models import (
    DWA,
    FAMO,
    IMTLL,
    STCH,
    EqualWeights,
    FixedWeights,
    GeometricMean,
    RandomWeights,
    UncertaintyWeights,
    multi_task,
)
from mmext.registry import MODELS

TASKS = ('seg', 'depth', 'normal')
LOSSES = (0.3, 4.0, 1.2)
ALL = tuple(getattr(multi_task, name) for name in BALANCERS)


def losses_of(values=LOSSES):
    return torch.tensor(values, dtype=torch.double, requires_grad=True)


def derivative(function, values=LOSSES):
    """Value of a function of the losses, and its gradient."""
    losses = losses_of(values)
    value = function(losses)
    return value.detach(), torch.autograd.grad(value, losses)[0]


def step(balancer, values):
    """One training step with these losses."""
    balancer(torch.tensor(values))
    balancer.after_step()


@pytest.mark.parametrize('kind', ALL)
def test_weights_are_the_derivative(kind):
    balancer = kind(TASKS)
    losses = losses_of()
    terms, weights = balancer(losses)
    assert terms.shape == weights.shape == (3,)
    assert not weights.requires_grad
    # A task's term depends on its own loss only.
    for index, term in enumerate(terms):
        row = torch.autograd.grad(term, losses, retain_graph=True)[0]
        expected = torch.zeros_like(row)
        expected[index] = weights[index]
        torch.testing.assert_close(row, expected)


@pytest.mark.parametrize('kind', ALL)
def test_float32_and_the_number_of_losses(kind):
    balancer = MODELS.build(dict(type=f'mmext.{kind.__name__}', tasks=TASKS))
    half = torch.tensor(LOSSES, dtype=torch.bfloat16)
    assert balancer(half).terms.dtype == torch.float32
    with pytest.raises(ValueError, match=r'losses must have the shape \(3,\)'):
        balancer(half[:2])
    with pytest.raises(ValueError, match='none twice'):
        kind(('a', 'a'))


@pytest.mark.parametrize(
    ('ours', 'theirs'),
    [
        (EqualWeights, lambda module: module.Sum()),
        (UncertaintyWeights, lambda module: module.UW(3)),
        (IMTLL, lambda module: module.IMTLL(3)),
        (GeometricMean, lambda module: module.GeometricMean()),
        (FAMO, lambda module: module.FAMO(3)),
    ],
)
def test_as_torchjd(ours, theirs):
    module = pytest.importorskip('torchjd.scalarization')
    balancer, scalarizer = ours(TASKS), theirs(module)
    pairs = list(zip(balancer.parameters(), scalarizer.parameters()))
    for mine, other in pairs:
        with torch.no_grad():
            mine.copy_(torch.tensor([0.2, -0.4, 0.1]))
            other.copy_(mine)
    value, grad = derivative(lambda x: balancer(x).terms.sum())
    expected = derivative(scalarizer)
    torch.testing.assert_close((value, grad), expected, rtol=1e-6, atol=1e-7)
    balancer(losses_of()).terms.sum().backward()
    scalarizer(losses_of()).backward()
    for mine, other in pairs:
        torch.testing.assert_close(mine.grad, other.grad)


def test_dwa_as_torchjd():
    module = pytest.importorskip('torchjd.scalarization')
    mine, other = DWA(TASKS, temperature=1.5), module.DWA(1.5)
    torch.manual_seed(0)
    for _ in range(4):
        for _ in range(3):
            batch = torch.rand(3) + 0.1
            torch.testing.assert_close(mine(batch).terms.sum(), other(batch))
            mine.after_step()
        mine.end_epoch()
        other.step()


def test_famo_learns_as_in_torchjd():
    module = pytest.importorskip('torchjd.scalarization')
    mine, other = FAMO(TASKS), module.FAMO(3)
    torch.manual_seed(0)
    for _ in range(20):
        before = torch.rand(3) + 0.1
        after = before * (0.5 + torch.rand(3))
        expected = derivative(other, before.tolist())
        value = derivative(lambda x: mine(x).terms.sum(), before.tolist())
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)
        mine.update(before, after)
        other.update(after.double())
    assert mine.logits.abs().max() > 0.05
    before = mine.logits.clone()
    mine.update(torch.ones(3), torch.tensor([math.nan, 1.0, 1.0]))
    assert mine.logits.isfinite().all()
    assert not torch.equal(mine.logits, before)  # by momentum only


def test_stch_as_torchjd():
    module = pytest.importorskip('torchjd.scalarization')
    balancer = STCH(TASKS, mu=0.5, warmup=2)
    for scale in (3.0, 1.0):
        value = derivative(lambda x: balancer(x).terms.sum())
        expected = derivative(lambda x: x.log().sum())
        torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-6)
        step(balancer, [scale * value for value in LOSSES])
        balancer.end_epoch()
    torch.testing.assert_close(balancer.nadir, torch.tensor(LOSSES))
    now = [0.2, 3.5, 0.7]
    smooth = module.STCH(0.5, weights=torch.ones(3, dtype=torch.double))
    ratio = torch.tensor(LOSSES, dtype=torch.double)
    torch.testing.assert_close(
        derivative(lambda x: balancer(x).terms.sum(), now),
        derivative(lambda x: 3 * smooth((x / ratio).log()), now),
        rtol=1e-6,
        atol=1e-6,
    )


def test_stch_needs_a_positive_nadir():
    balancer = STCH(TASKS, warmup=1)
    step(balancer, [1.0, 0.0, 1.0])
    with pytest.raises(ValueError, match=r"loss of 'depth' .* is 0\.0"):
        balancer.end_epoch()


def test_dwa_of_a_recorded_training():
    balancer = DWA(('a', 'b'))
    epochs = [0.8517839909, 8.0179347992], [0.3689996600, 3.4601962185]
    for losses in epochs:
        step(balancer, losses)
        assert balancer.weights.tolist() == [1, 1]
        balancer.end_epoch()
    terms, weights = balancer(torch.tensor([1.0, 2.0]))
    torch.testing.assert_close(
        weights, torch.tensor([1.000413, 0.999587]), atol=5e-7, rtol=0
    )
    torch.testing.assert_close(terms, weights * torch.tensor([1.0, 2.0]))
    assert float(weights.sum()) == pytest.approx(2, abs=1e-6)


def test_dwa_of_losses_that_say_nothing():
    balancer = DWA(TASKS, temperature=1.0)
    nan = math.nan
    for losses in ([2.0, 0.0, 4.0], [1.0, 3.0, 4.0]):
        step(balancer, losses)
        balancer.end_epoch()
    # A mean of 0 before: ratio 1, as for the third.
    expected = 3 * torch.tensor([0.5, 1.0, 1.0]).softmax(0)
    torch.testing.assert_close(balancer.weights, expected)
    step(balancer, [0.5, nan, nan])
    step(balancer, [0.5, nan, 2.0])
    balancer.end_epoch()
    # No finite loss: mean and weight stay; one of two: it is the mean.
    expected = torch.tensor([1.0, expected[1], 1.0])
    torch.testing.assert_close(balancer.weights, expected)
    assert balancer.previous.tolist() == [0.5, 3.0, 2.0]


@pytest.mark.parametrize('kind', [GeometricMean, FAMO, STCH])
def test_a_loss_of_zero_leaves_all_finite(kind):
    losses = losses_of([0.0, 4.0, 1.2])
    terms, weights = kind(TASKS)(losses)
    grad = torch.autograd.grad(terms.sum(), losses)[0]
    assert terms.isfinite().all()
    assert grad.isfinite().all()
    torch.testing.assert_close(grad, weights)


def test_fixed_weights():
    balancer = FixedWeights(TASKS, dict(depth=2))
    terms, weights = balancer(torch.tensor(LOSSES))
    assert weights.tolist() == [1, 2, 1]
    torch.testing.assert_close(terms, torch.tensor([0.3, 8.0, 1.2]))
    for wrong, text in [
        (dict(dpeth=2), "weights: unknown task 'dpeth', tasks are"),
        (dict(depth=-1), 'weights.depth must be finite'),
        (dict(depth=math.inf), 'weights.depth must be finite'),
    ]:
        with pytest.raises(ValueError, match=text):
            FixedWeights(TASKS, wrong)


def test_random_weights_follow_from_seed_and_step():
    one, same, other = (RandomWeights(TASKS, seed) for seed in (0, 0, 1))
    state = torch.get_rng_state()
    drawn = [one(losses_of()).weights for _ in range(3)]
    assert torch.equal(torch.get_rng_state(), state)
    assert all(float(w.sum()) == pytest.approx(1) for w in drawn)
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], other(losses_of()).weights)
    same.set_state({**one.get_state(), 'num_steps': 2})
    with torch.no_grad():  # draws, and does not move on
        assert torch.equal(same(losses_of()).weights, drawn[2])
    assert torch.equal(same(losses_of()).weights, drawn[2])


def test_geometric_mean_of_a_negative_loss():
    with pytest.raises(ValueError, match=r"not negative, .*'depth': -1"):
        GeometricMean(TASKS)(losses_of([1.0, -1.0, 2.0]))


def test_state_of_other_tasks_and_of_another_balancer():
    state = DWA(TASKS).get_state()
    with pytest.raises(ValueError, match='seg, depth, normal, and the model'):
        DWA(('a', 'b')).set_state(state)
    famo = FAMO(TASKS)
    famo.set_state(state)  # logs a warning
    assert famo.num_updates == 0
    assert not {**DWA(TASKS).state_dict(), **famo.state_dict()}


@pytest.mark.parametrize(
    ('kind', 'args'),
    [
        (DWA, dict(temperature=0)),
        (DWA, dict(interval=0)),
        (STCH, dict(mu=0.0)),
        (STCH, dict(warmup=0)),
        (FAMO, dict(lr=-1.0)),
    ],
)
def test_arguments(kind, args):
    with pytest.raises(ValueError, match=next(iter(args))):
        kind(TASKS, **args)

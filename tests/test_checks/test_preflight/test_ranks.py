"""Predictions against two real processes, for models made up by chance."""

import collections
import dataclasses
import functools
from pathlib import Path

import pytest
import torch
from helpers import preflight_models
from helpers.preflight_models import batches, build
from helpers.preflight_nets import Part, Spec, batch_of, build_net, make_specs
from helpers.preflight_pair import run_pairs
from torch import distributed as dist

import mmext
from mmext.checks.ddp import (
    StepUsage,
    SyncSettings,
    predict_outcome,
    trace_train_step,
)
from mmext.checks.ddp.ready_gradients import ReadyGradient
from mmext.checks.preflight import WorldResult
from mmext.checks.preflight.ranks import (
    RankOutcome,
    RankResult,
    compare_ranks,
    run_rank,
    run_world,
    run_world_config,
)

FLAGS = (
    SyncSettings(),
    SyncSettings(find_unused_parameters=True),
    SyncSettings(static_graph=True),
)
TOLERANCE = 1e-9


def results_of(specs, folder: Path) -> list[tuple]:
    """Model, settings and result, for all settings of each model."""
    jobs = [(spec, settings) for spec in specs for settings in FLAGS]
    ranks = run_pairs(jobs, folder)
    return [
        (*job, compare_ranks(each, job[1], TOLERANCE))
        for job, each in zip(jobs, ranks, strict=True)
    ]


def check(results) -> collections.Counter:
    """Every prediction holds; how often each outcome was seen."""
    wrong = [each for each in results if each[2].agrees is not True]
    assert wrong == []
    return collections.Counter(each[2].observed for each in results)


# Another block in every other step.
ALTERNATING = Spec(
    stem='trainable',
    input_grad=True,
    parts=(
        Part((0,), when='even', in_series=False),
        Part((1,), when='odd', in_series=False),
    ),
    frozen=(2,),
)


@pytest.mark.slow
def test_predictions_hold(tmp_path):
    seen = check(results_of([ALTERNATING, *make_specs(3, 3)], tmp_path))
    assert sum(seen.values()) == 12
    assert 'ok' in seen
    assert len(seen) > 2


@pytest.mark.slow
def test_predictions_of_every_outcome_hold(tmp_path):
    seen = check(results_of([ALTERNATING, *make_specs(10, 3)], tmp_path))
    assert set(seen) == {
        'ok',
        'unfinished',
        'ready_twice',
        'graph_changed',
        'diverged',
    }


@pytest.mark.slow
def test_the_line_of_a_process_that_hangs_is_named():
    detail = result_of('hang_in_process', time_limit=20.0).detail
    assert 'rank 1: no result within 20 s; it was at ' in detail
    assert 'preflight_models.py' in detail.split('rank 1')[1]


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize('number', [1, 3])
def test_predictions_hold_for_many(tmp_path, number):
    seen = check(results_of(make_specs(40, number), tmp_path))
    assert sum(seen.values()) == 120
    assert len(seen) >= 4


@pytest.mark.filterwarnings('ignore:None of the inputs have requires_grad')
def test_checkpoints_can_be_thought_away():
    """A step without reentrant checkpoints is what is said of it."""
    compared = 0
    for spec in make_specs(40, 5):
        if any(part.cut in ('detach', 'no_grad') for part in spec.parts):
            # What is cut off besides by the checkpoint is not known.
            continue
        usages = [
            trace_train_step(build_net(each), batch_of(1, 0))
            for each in (spec, spec.without_reentrant())
        ]
        for search in (False, True):
            guess, truth = (
                predict_outcome([usage], find_unused_parameters=search)
                for usage in (usages[0].without_reentrant(), usages[1])
            )
            assert guess.outcome is truth.outcome, spec
            assert set(guess.names) == set(truth.names), spec
            compared += 1
    assert compared > 20


@functools.cache
def result_of(name: str, time_limit: float = 120.0) -> WorldResult:
    source = getattr(preflight_models, name)
    return run_world(source, SyncSettings(), time_limit=time_limit)


@pytest.mark.slow
def test_a_world_of_new_processes():
    """They are started, meet, and find what no process alone can see."""
    result = result_of('silent_in_process')
    assert (result.observed, result.predicted) == ('diverged', 'diverged')
    assert result.agrees is True
    assert result.difference > 0.01
    assert 'block.0.weight' in result.detail
    assert result.world == 2


@pytest.mark.slow
def test_a_clean_world():
    result = result_of('in_process')
    assert (result.observed, result.agrees) == ('ok', True)
    assert result.difference < 1e-5


@pytest.mark.slow
def test_a_model_that_fails():
    result = result_of('crash_in_process')
    assert (result.observed, result.agrees) == ('crashed', None)
    assert 'IndexError: no boxes' in result.detail


def test_time_is_limited():
    result = result_of('hang_in_process', time_limit=1.0)
    assert (result.observed, result.agrees) == ('hung', None)
    assert 'no result within 1 s' in result.detail


@pytest.mark.slow
@pytest.mark.parametrize('flag', [False, True])
def test_a_world_of_a_config(flag):
    result = run_world_config(
        mmext.config_path('pidnet/pidnet_small_shapes.py'),
        {'find_unused_parameters': flag},
        kinds=('normal', 'one-class'),
    )
    assert (result.observed, result.agrees) == ('ok', True)


def test_arguments():
    with pytest.raises(TypeError, match='at the top level of a module, got'):
        run_world(lambda *_: None, SyncSettings())
    for name in ('world', 'steps'):
        with pytest.raises(ValueError, match=f'{name} must be at least 2'):
            run_world(len, SyncSettings(), **{name: 1})
    with pytest.raises(ValueError, match='time_limit must be positive, got 0'):
        run_world(len, SyncSettings(), time_limit=0)


def ranks(*outcomes: RankOutcome, step: int = 1) -> list[RankResult]:
    """Two processes of which each has an unused parameter in step 0."""
    usage = StepUsage(('a', 'b'), (ReadyGradient('a', 0),), frozenset('a'))
    return [
        RankResult(rank, outcome, step, (usage,) * 3)
        for rank, outcome in enumerate(outcomes)
    ]


LOST, HUNG = RankOutcome.LOST, RankOutcome.HUNG


@pytest.mark.parametrize(
    ('outcomes', 'step', 'agrees'),
    [
        ([RankOutcome.UNFINISHED] * 2, 1, True),
        ([LOST, RankOutcome.UNFINISHED], 1, True),
        ([HUNG, RankOutcome.UNFINISHED], 1, True),
        # Too late, of another kind, nobody said it, all well.
        ([RankOutcome.UNFINISHED] * 2, 2, False),
        ([RankOutcome.READY_TWICE] * 2, 1, False),
        ([LOST, HUNG], 1, False),
        ([RankOutcome.OK] * 2, 3, False),
    ],
)
def test_agreement(outcomes, step, agrees):
    result = compare_ranks(ranks(*outcomes, step=step), SyncSettings())
    assert result.agrees is agrees
    assert result.predicted == 'unfinished'


def test_agreement_of_what_is_silent():
    good = ranks(RankOutcome.OK, RankOutcome.OK, step=3)
    settings = SyncSettings(find_unused_parameters=True)
    assert compare_ranks(good, settings).agrees is True
    bad = [dataclasses.replace(each, spreads=(0.1,)) for each in good]
    result = compare_ranks(bad, settings)
    assert (result.observed, result.agrees) == ('diverged', False)


@pytest.fixture(autouse=True)
def _group(tmp_path):
    """A group of one process."""
    dist.init_process_group(
        'gloo', f'file://{tmp_path}/store', rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


def run(mistake, *flags, kind='normal'):
    given = batches((kind,), 3)[kind]
    return run_rank(build(mistake), given, SyncSettings(*flags))


def test_to_the_end():
    result = run('norm')
    assert (result.outcome, result.step) == (RankOutcome.OK, 3)
    assert len(result.usages) == len(result.differences) == 3
    assert max(result.differences) < 1e-6
    assert result.names == ()


@pytest.mark.parametrize(
    ('mistake', 'flags', 'outcome', 'step'),
    [
        ('extra', (), RankOutcome.UNFINISHED, 1),
        ('reentrant', (True,), RankOutcome.READY_TWICE, 0),
    ],
)
def test_errors_of_the_reducer(mistake, flags, outcome, step):
    result = run(mistake, *flags)
    assert (result.outcome, result.step) == (outcome, step)
    assert result.error.startswith('RuntimeError: Expected to')
    assert result.place == ''


def test_errors_of_the_model():
    result = run('crash', kind='empty')
    assert result.outcome is RankOutcome.CRASHED
    assert result.error == 'IndexError: no boxes'
    assert 'preflight_models.py:' in result.place


def test_weights_stay():
    model = build()
    before = model.stem.weight.clone()
    run_rank(model, batches()['normal'], SyncSettings())
    assert torch.equal(model.stem.weight, before)

"""Predictions against real processes: of made-up models, and of configs."""

import collections
from pathlib import Path

import pytest
from helpers.preflight_nets import Part, Spec, batch_of, build_net, make_specs
from helpers.preflight_pair import run_pairs
from helpers.preflight_plants import PLANTS, write_plant

import mmext
from mmext.checks.ddp import (
    Outcome,
    Prediction,
    SyncSettings,
    predict_outcome,
    trace_train_step,
)
from mmext.checks.preflight.ranks import RankResult, compare_ranks, run_world

FLAGS = (
    SyncSettings(),
    SyncSettings(find_unused_parameters=True),
    SyncSettings(static_graph=True),
)


def results_of(specs, folder: Path) -> list[tuple]:
    """Model, settings and result, for all settings of each model."""
    jobs = [(spec, settings) for spec in specs for settings in FLAGS]
    results = run_pairs(jobs, folder)
    return [(*job, item) for job, item in zip(jobs, results, strict=True)]


def check(results) -> collections.Counter:
    """Every prediction holds; how often each outcome was seen."""
    wrong = [result for result in results if not result[2].agrees]
    assert wrong == []
    return collections.Counter(result[2].observed for result in results)


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
            trace_train_step(build_net(value), batch_of(1, 0))
            for value in (spec, spec.without_reentrant())
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


# The config's own runner and wrapper, and those of MMEngine.
OURS: dict = {}
PLAIN = {
    'runner_type': 'Runner',
    'model_wrapper_cfg': {'type': 'MMDistributedDataParallel'},
}


@pytest.fixture
def planted(tmp_path):
    """Run a config with a mistake of ``PlantedDetector``."""

    def run(mistake: str, **options):
        (plant,) = (item for item in PLANTS if item.rule == 'WORLD001')
        path = write_plant(plant, tmp_path)
        text = path.read_text().replace('extra alone', mistake)
        path.write_text(text)
        return run_world(str(path), **options)

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ('mistake', 'options', 'observed', 'agrees', 'detail'),
    [
        ('extra alone', OURS, 'unfinished', True, 'rank 0: GradientSyncError'),
        ('extra alone', PLAIN, 'unfinished', True, 'Expected to have finish'),
        ('reentrant silent', PLAIN, 'diverged', True, 'planted.block.0.weig'),
        ('crash', OURS, 'crashed', None, 'IndexError: no boxes (planted, '),
    ],
)
def test_a_planted_mistake(
    planted, mistake, options, observed, agrees, detail
):
    kinds = ('empty',) if mistake == 'crash' else ('normal',)
    result = planted(mistake, cfg_options=options, kinds=kinds)
    assert detail in result.detail
    assert (result.observed, result.agrees) == (observed, agrees)
    assert result.world == 2


def test_time_is_limited(planted):
    result = planted('', time_limit=1.0)
    assert (result.observed, result.agrees) == ('hung', None)
    assert 'rank 1: no result within 1 s' in result.detail


@pytest.mark.slow
@pytest.mark.parametrize('runner', ['mmext.PortableRunner', 'Runner'])
def test_a_config_that_is_right(runner):
    result = run_world(
        mmext.config_path('pidnet/pidnet_small_shapes.py'),
        {'runner_type': runner},
        kinds=('normal', 'one-class'),
    )
    assert (result.observed, result.agrees) == ('ok', True)


def predicted(*outcomes: Outcome) -> tuple[Prediction, ...]:
    return tuple(Prediction(outcome, 0, ()) for outcome in outcomes)


UNFINISHED = predicted(Outcome.UNFINISHED)
SILENT = predicted(Outcome.DIVERGED)


@pytest.mark.parametrize(
    ('outcomes', 'failures', 'observed', 'agrees'),
    [
        (['unfinished'] * 2, UNFINISHED, 'unfinished', True),
        (['lost', 'unfinished'], UNFINISHED, 'unfinished', True),
        (['hung', 'unfinished'], UNFINISHED, 'unfinished', True),
        # Our wrapper notices all that is predicted, also what is silent.
        (['stopped'] * 2, UNFINISHED, 'unfinished', True),
        (['stopped'] * 2, SILENT, 'diverged', True),
        (['stopped'] * 2, (), 'stopped', False),
        # Of another kind, nobody said it, all well, a process that died.
        (['ready_twice'] * 2, UNFINISHED, 'ready_twice', False),
        (['lost', 'hung'], UNFINISHED, 'hung', False),
        (['ok'] * 2, UNFINISHED, 'ok', False),
        (['ok'] * 2, SILENT, 'ok', False),
        (['ok'] * 2, (), 'ok', True),
        (['lost', 'ended'], (), 'ended', None),
        (['crashed', 'lost'], (), 'crashed', None),
        (['ok'] * 2, None, 'ok', None),
    ],
)
def test_agreement(outcomes, failures, observed, agrees):
    ranks = [RankResult(0, outcome, 'e', failures) for outcome in outcomes]
    result = compare_ranks(ranks)
    assert (result.observed, result.agrees) == (observed, agrees)


def test_gradients_that_differ():
    ranks = [RankResult(0, 'ok', '', SILENT, 0.1, ('a', 'b'))] * 2
    result = compare_ranks(ranks)
    assert (result.observed, result.agrees) == ('diverged', True)
    assert result.detail.endswith('by 0.1 of the largest: a, b')

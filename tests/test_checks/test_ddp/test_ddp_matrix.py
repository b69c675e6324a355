"""DDP on two processes, case by case: plain, ours, and what was predicted.

The cases, and what plain DDP does with each, stand in ``ddp_matrix``.
"""

import functools
import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec

import pytest
from helpers.ddp_case_runner import Result, run_cases
from helpers.ddp_cases import (
    NUM_STEPS,
    WORLD_SIZE,
    Case,
    batch_of,
    build_model,
)
from helpers.ddp_matrix import MATRIX, ours_of

from mmext.checks.ddp import (
    Outcome,
    Prediction,
    StepUsage,
    UnusedReason,
    predict_outcome,
    trace_train_step,
)

pytestmark = pytest.mark.xdist_group('processes')

Lookup = Callable[[str, str], Result]

ERRORS = {name for name in MATRIX if ours_of(name)[0] == 'G'}
DIVERGED = [n for n, e in MATRIX.items() if e.outcome == 'diverged']
UNTRAINED = [n for n, e in MATRIX.items() if e.outcome == 'untrained']
OURS_OK = [
    name
    for name, expected in MATRIX.items()
    if expected.case.model.get('checkpoint') == 'ours'
    and expected.outcome == 'ok'
]
# Each case takes ranks of its own to an error: one of twelve by default.
SLOW = {name for number, name in enumerate(MATRIX) if number % 12}


def cases(names: Iterable[str]) -> pytest.MarkDecorator:
    """A test for each of some cases; most are slow."""
    return pytest.mark.parametrize(
        'name',
        [
            pytest.param(name, marks=pytest.mark.slow)
            if name in SLOW
            else name
            for name in names
        ],
    )


every_case = cases(MATRIX)


def available(case: Case) -> bool:
    """Whether what the case is made of is installed."""
    used = case.model.get('checkpoint') == 'fairscale'
    return not used or find_spec('fairscale') is not None


@pytest.fixture(scope='module')
def result_of(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Lookup:
    """Results of the selected cases under both wrappers."""
    selected = {
        item.callspec.params.get('name')
        for item in request.session.items
        if item.path == request.path and hasattr(item, 'callspec')
    }
    results = run_cases(
        [
            replace(expected.case, name=f'{wrapper} {name}', wrapper=wrapper)
            for wrapper in ('torch', 'mmext')
            for name, expected in MATRIX.items()
            if name in selected and available(expected.case)
        ],
        tmp_path_factory.mktemp('cases'),
    )

    def find(wrapper: str, name: str) -> Result:
        if not available(MATRIX[name].case):
            pytest.skip('needs fairscale')
        return results[f'{wrapper} {name}']

    return find


def test_the_matrix_of_the_issue_is_complete() -> None:
    kinds = {
        (
            case.model['checkpoint'],
            case.model['unused'],
            case.find_unused,
            case.static,
            case.empty,
        )
        for case, *_ in MATRIX.values()
        if case.model.get('decoder') and 'unused' in case.model
    }
    both = (False, True)
    checkpoints = ('none', 'reentrant', 'ours')
    assert kinds == {
        *itertools.product(checkpoints, ('no', 'param'), both, both, both)
    }


@every_case
def test_plain_ddp(result_of: Lookup, name: str) -> None:
    assert result_of('torch', name).outcome() == MATRIX[name].outcome


@every_case
def test_our_wrapper(result_of: Lookup, name: str) -> None:
    expected = MATRIX[name]
    result = result_of('mmext', name)
    assert result.outcome() == ours_of(name)
    if name not in ERRORS:
        return
    step = int(ours_of(name).partition('@')[2])
    # Of what a hook does in the backward, the step of the optimizer learns.
    hooked = 'hook_steps' in name
    for report in result.reports:
        missing = [n for n in expected.names if n not in report['message']]
        assert not missing, report['message']
        # Raised before the optimizer has used what is wrong.
        assert len(report['gradients']) == step + hooked
    assert result.reports[0]['message'] == result.reports[1]['message']
    assert (result.divergence() == 0) != hooked


@cases(DIVERGED)
def test_plain_ddp_is_wrong_without_an_error(
    result_of: Lookup, name: str
) -> None:
    result = result_of('torch', name)
    assert result.kinds() == ['ok', 'ok']
    # Gradients are of the order of 1.
    assert result.error() > 0.05
    assert result.divergence() > 0.02
    assert result.loss_error() > 0.002


@cases(UNTRAINED)
def test_untrained_ranks_agree(result_of: Lookup, name: str) -> None:
    result = result_of('torch', name)
    assert result.error() > 0.5
    assert result.divergence() == 0


@cases(OURS_OK)
@pytest.mark.parametrize('wrapper', ['torch', 'mmext'])
def test_our_checkpoint_is_the_run_of_one_process(
    result_of: Lookup, name: str, wrapper: str
) -> None:
    result = result_of(wrapper, name)
    for report in result.reports:
        assert len(report['losses']) == len(report['gradients']) == NUM_STEPS
    first, second = result.reports
    assert first['losses'] != second['losses']  # other data
    assert first['gradients'] == second['gradients']
    assert result.error() < 1e-12
    assert result.loss_error() < 1e-12


@functools.cache
def traced(case: str, rank: int) -> Sequence[StepUsage]:
    """What the steps of a rank do, traced in this process."""
    built = Case(**json.loads(case))
    model = build_model(built)
    return [
        trace_train_step(model, batch_of(built, step, rank))
        for step in range(NUM_STEPS)
    ]


def steps_of(name: str, rank: int) -> Sequence[StepUsage]:
    case = replace(MATRIX[name].case, name='', find_unused=False, static=False)
    return traced(json.dumps(asdict(case)), rank)


def raised_by(prediction: Prediction) -> str:
    """How the runner of cases writes it."""
    step = prediction.step
    return {
        Outcome.OK: 'ok',
        Outcome.UNFINISHED: f'unfinished@{step + 1}',
        Outcome.READY_TWICE: f'twice@{step}',
        Outcome.DIVERGED: 'diverged',
        Outcome.GRAPH_CHANGED: f'changed@{step}',
        Outcome.UNEXPECTED: f'unexpected@{step}',
    }[prediction.outcome]


@every_case
def test_prediction_without_a_process_group(
    result_of: Lookup, name: str
) -> None:
    case, outcome, names = MATRIX[name]
    real = result_of('torch', name)
    for rank in range(WORLD_SIZE):
        prediction = predict_outcome(
            steps_of(name, rank),
            find_unused_parameters=case.find_unused,
            static_graph=case.static,
        )
        kind = real.kinds()[rank]
        if outcome == 'diverged':
            kind = 'diverged'
        if kind.startswith('lost'):
            kind = 'ok'  # This rank does well; the other one leaves it.
        assert raised_by(prediction) == kind
        assert set(prediction.names) <= set(names)


@cases(UNTRAINED)
def test_tracing_tells_what_is_untrained(name: str) -> None:
    for usage in steps_of(name, 0):
        assert set(usage.unused) == set(MATRIX[name].names)
        assert {use.reason for use in usage.unused.values()} == {
            UnusedReason.CHECKPOINT_INPUT
        }

"""Row by row: what two real processes do with each of these is in MATRIX."""

from functools import cache
from importlib.util import find_spec

import pytest
from helpers.ddp_cases import (
    NUM_STEPS,
    WORLD_SIZE,
    Case,
    batch_of,
    build_model,
)
from helpers.ddp_matrix import MATRIX
from helpers.preflight_models import dry_run_planted

from mmext.checks.ddp import (
    NO_SEARCH,
    SEARCH,
    Explanation,
    Outcome,
    Step,
    SyncSettings,
)
from mmext.checks.preflight.dry_run.run import dry_run_model

STATIC = SyncSettings(static_graph=True)
# What stands first in an outcome of the matrix; what is lost is the echo of
# another process.
OUTCOMES = {
    'ok': Outcome.OK,
    'unfinished': Outcome.UNFINISHED,
    'twice': Outcome.READY_TWICE,
    'changed': Outcome.GRAPH_CHANGED,
    'diverged': Outcome.DIVERGED,
    'unexpected': Outcome.UNEXPECTED,
}


def explain(dry_run, turned=False) -> Explanation:
    steps = [Step(s.usage, s.kind, s.step) for s in dry_run.all_steps()]
    return Explanation(steps[::-1] if turned else steps)


@cache
def explanation_of(
    model: str, head: str, empty: bool, rank: int
) -> Explanation:
    """Of the steps of one process, the same for all settings of DDP."""
    case = next(
        row.case
        for row in MATRIX.values()
        if (repr(row.case.model), row.case.head, row.case.empty)
        == (model, head, empty)
    )
    batches = [batch_of(case, step, rank) for step in range(NUM_STEPS)]
    dry_run = dry_run_model(build_model(case), {'normal': batches})
    assert dry_run.crashes == ()
    return explain(dry_run)


def settings_of(case: Case) -> SyncSettings:
    return STATIC if case.static else SyncSettings(case.find_unused)


@pytest.mark.filterwarnings('ignore:None of the inputs have requires_grad')
@pytest.mark.parametrize('name', MATRIX)
def test_as_real_processes_do(name):
    case, expected, names = MATRIX[name]
    if case.model.get('checkpoint') == 'fairscale' and not find_spec(
        'fairscale'
    ):
        pytest.skip('needs fairscale')
    rows = [
        explanation_of(repr(case.model), case.head, case.empty, rank).row(
            settings_of(case)
        )
        for rank in range(WORLD_SIZE)
    ]
    wrong = [row for row in rows if row.failure is not Outcome.OK]
    if expected in ('ok', 'untrained'):
        assert wrong == []
        assert all(row.works for row in rows) is (expected == 'ok')
        return
    words = [part.partition('@')[0] for part in expected.split('/')]
    told = {OUTCOMES[word] for word in words if word != 'lost'}
    assert {row.failure for row in wrong} == told
    # Both heads are named where each process leaves out another one.
    result = {name for row in wrong for name in row.names}
    assert result <= set(names)
    assert result


def test_any_step_may_follow_any():
    dry_run = dry_run_planted('extra by kind', ('normal', 'empty'))
    for turned in (False, True):
        row = explain(dry_run, turned).row(STATIC)
        # Which of the two depends on what comes first.
        assert row.failure in (Outcome.GRAPH_CHANGED, Outcome.UNFINISHED)
        assert row.names == ('extra.weight', 'extra.bias')
    row = explain(dry_run).row(NO_SEARCH)
    assert row.batches == 'empty'
    assert row.outcome == 'error at step 2: a parameter has no gradient'
    assert explain(dry_run).works(SEARCH)


def test_of_a_silent_model():
    explanation = dry_run_planted('reentrant silent').explain(NO_SEARCH)
    as_is, other = 'as they are', 'none of them reentrant'
    assert {
        (row.checkpointing, row.find_unused_parameters, row.static_graph): (
            row.outcome.partition(':')[0]
        )
        for row in explanation.verdicts
    } == {
        (as_is, False, False): 'silent',
        (as_is, True, False): 'error at step 1',
        (as_is, False, True): 'ok',
        (other, False, False): 'ok',
        (other, True, False): 'ok',
        (other, False, True): 'ok',
    }
    chosen, wrong = explanation.recommended, explanation.current
    assert (chosen.checkpointing, chosen.find_unused_parameters) == (
        other,
        False,
    )
    assert not wrong.works
    assert set(wrong.names) == {'block.0.weight', 'block.0.bias'}
    assert wrong.batches == 'normal'

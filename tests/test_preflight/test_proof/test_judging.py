"""Row by row: what two real processes do with each of these is in MATRIX."""

from functools import cache
from importlib.util import find_spec

import pytest
from ddp_cases import NUM_STEPS, WORLD_SIZE, Case, batch_of, build_model
from ddp_matrix import MATRIX
from preflight_models import prove_planted

from mmext.preflight import Outcome, SyncSettings
from mmext.preflight.proof import StepProof, prove
from mmext.preflight.proof.judging import (
    NO_SEARCH,
    SEARCH,
    STATIC,
    Checkpoints,
    Judgements,
    judge,
)

# What stands first in an outcome of the matrix; what is lost is the echo of
# another process.
OUTCOMES = {
    'ok': Outcome.OK,
    'unfinished': Outcome.UNFINISHED,
    'twice': Outcome.READY_TWICE,
    'changed': Outcome.GRAPH_CHANGED,
    'diverged': Outcome.DIVERGED,
}


@cache
def steps_of(model: str, head: str, empty: bool, rank: int) -> list[StepProof]:
    """Steps of one process, the same for all settings of DDP."""
    case = next(
        each.case
        for each in MATRIX.values()
        if (repr(each.case.model), each.case.head, each.case.empty)
        == (model, head, empty)
    )
    batches = [batch_of(case, step, rank) for step in range(NUM_STEPS)]
    proof = prove(build_model(case), {'normal': batches})
    assert proof.crashes == ()
    return list(proof.all_steps())


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
        judge(
            steps_of(repr(case.model), case.head, case.empty, rank),
            settings_of(case),
        )
        for rank in range(WORLD_SIZE)
    ]
    wrong = [row for row in rows if row.outcome is not Outcome.OK]
    if expected in ('ok', 'untrained'):
        assert wrong == []
        dead = [row for row in rows if row.untrained]
        assert bool(dead) is (expected == 'untrained')
        return
    words = [part.partition('@')[0] for part in expected.split('/')]
    told = {OUTCOMES[word] for word in words if word != 'lost'}
    assert {row.outcome for row in wrong} == told
    # Both heads are named where each process leaves out another one.
    found = {name for row in wrong for name in row.names}
    assert found <= set(names)
    assert found


def test_any_step_may_follow_any():
    proof = prove_planted('extra by kind', ('normal', 'empty'))
    steps = list(proof.all_steps())
    for order in (steps, steps[::-1]):
        row = judge(order, STATIC)
        # Which of the two depends on what comes first.
        assert row.outcome in (Outcome.GRAPH_CHANGED, Outcome.UNFINISHED)
        assert row.names == ('extra.weight', 'extra.bias')
    row = judge(steps, NO_SEARCH)
    assert (row.kind, row.step, row.result) == ('empty', 0, 'error at step 2')
    assert judge(steps, SEARCH).is_ok


def test_what_is_silent_comes_first():
    silent = list(prove_planted('reentrant silent').all_steps())
    loud = list(prove_planted('extra').all_steps())
    row = judge([*loud, *silent], NO_SEARCH)
    assert (row.outcome, row.result) == (Outcome.DIVERGED, 'silent')
    assert judge(silent, SEARCH).result == 'error at step 1'


def test_all_names_that_are_marked_twice():
    steps = list(prove_planted('reentrant').all_steps())
    row = judge(steps, SEARCH)
    assert set(row.names) == {'block.0.weight', 'block.0.bias'}
    assert judge(steps, SEARCH, Checkpoints.NO_REENTRANT).is_ok


def test_a_table_has_every_choice():
    proof = prove_planted('reentrant')
    table = Judgements(proof, SyncSettings(True, True))
    assert len(table.rows) == 9
    assert table.current is table.row(STATIC)
    assert table.reentrant
    assert table.checkpointed
    assert table.cost.nodes > 0
    plain = Judgements(prove_planted(), SyncSettings())
    assert not plain.checkpointed

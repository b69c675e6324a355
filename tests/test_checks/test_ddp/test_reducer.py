"""The rules by hand; the real reducer is asked in ``test_ddp_matrix``."""

import dataclasses

import pytest

from mmext.checks.ddp import (
    Outcome,
    StepUsage,
    UnusedParameter,
    UnusedReason,
    predict_outcome,
)
from mmext.checks.ddp.ready_gradients import ReadyGradient


def step(ready, names='abc', reachable=None):
    """A step from ``'a b1 b2'``: names with the task, 0 if left out."""
    items = [ReadyGradient(r[0], int(r[1:] or 0)) for r in ready.split()]
    if reachable is None:
        reachable = {item.name for item in items if item.task == 0}
    return StepUsage(tuple(names), tuple(items), frozenset(reachable))


def outcome(*steps, **settings):
    prediction = predict_outcome(steps, **settings)
    return prediction.outcome, prediction.step, prediction.names


OK = (Outcome.OK, 0, ())


STATIC = {'static_graph': True}


@pytest.mark.parametrize(
    ('steps', 'settings', 'expected'),
    [
        # The reducer has not begun, so it misses none.
        ([''], {}, OK),
        # Within the same task it is heard, and if the outer pass is what
        # completes them.
        (['c a1 b1 a1'], {}, (Outcome.READY_TWICE, 0, ('a',))),
        (['a1 b1 c a2'], {}, (Outcome.READY_TWICE, 0, ('a',))),
        # Once more than in the first step, in a nested pass of its own.
        (
            ['c a1 b1', 'c a1 b1 a2 b2'],
            STATIC,
            (Outcome.DIVERGED, 1, ('a', 'b')),
        ),
        (
            ['c a1 b1', 'a1 b1 a2 b2 c'],
            STATIC,
            (Outcome.GRAPH_CHANGED, 1, ('a', 'b')),
        ),
    ],
)
def test_what_no_case_of_the_matrix_has(steps, settings, expected):
    assert outcome(*map(step, steps), **settings) == expected


def test_unused():
    first, second = step('a b c'), step('c a')
    assert outcome(first, second) == (Outcome.UNFINISHED, 1, ('b',))
    assert outcome(first, second, find_unused_parameters=True) == OK


def test_a_gradient_has_the_layout_that_its_bucket_was_made_for():
    """Sparse parameters are in a bucket of their own."""
    dense = dataclasses.replace(step('c b a'), sparse=frozenset('b'))
    ready = [
        dataclasses.replace(gradient, sparse=gradient.name == 'b')
        for gradient in dense.ready
    ]
    right = dataclasses.replace(dense, ready=tuple(ready))
    assert outcome(right, right) == OK
    assert outcome(right, dense) == (Outcome.UNEXPECTED, 1, ('b',))
    none = dataclasses.replace(right, sparse=frozenset())
    assert outcome(none) == (Outcome.UNEXPECTED, 0, ('b',))


def test_used_outside_of_forward():
    outside = step('b c a', reachable='ac')
    assert outcome(outside) == OK
    assert outcome(outside, find_unused_parameters=True) == (
        Outcome.READY_TWICE,
        0,
        ('b',),
    )


def with_joint(usage, ready):
    return dataclasses.replace(usage, joint_ready=step(ready).ready)


def test_what_is_returned_from_a_reentrant_checkpoint_and_in_no_loss():
    # The search makes b ready, which it does not find.
    usage = with_joint(step('c a'), 'c a b1')
    assert outcome(usage)[0] is Outcome.UNFINISHED
    assert (
        outcome(usage, find_unused_parameters=True)[0] is Outcome.READY_TWICE
    )
    # A static graph does so in the first step only.
    assert outcome(usage, usage, static_graph=True) == (
        Outcome.UNFINISHED,
        1,
        ('b',),
    )


def test_what_adds_nothing_is_not_missed():
    usage = step('c a1 b1 a2 b2')
    empty = [ReadyGradient(f.name, f.task, f.task == 2) for f in usage.ready]
    usage = dataclasses.replace(usage, ready=tuple(empty))
    assert outcome(usage) == OK


USAGE = StepUsage(
    names=('stem', 'part', 'late', 'unused', 'dead'),
    ready=(
        ReadyGradient('late', 0),
        ReadyGradient('part', 1),
        ReadyGradient('part', 2),
        ReadyGradient('stem', 0),
    ),
    reachable=frozenset({'stem'}),
    unused={
        'unused': UnusedParameter(UnusedReason.NEVER_USED),
        'dead': UnusedParameter(UnusedReason.CHECKPOINT_INPUT),
    },
    reentrant={'part': 'block, file.py:3 in forward'},
)


def test_without_reentrant_checkpoints():
    plain = USAGE.without_reentrant()
    assert plain.counts()['part'] == 1
    assert plain.twice == ()
    assert plain.hidden == ('late',)
    assert {gradient.task for gradient in plain.ready} == {0}
    # Its gradient would be there.
    assert set(plain.unused) == {'unused'}
    assert plain.counts()['dead'] == 1


def test_joint_ready_are_counted_where_they_differ():
    usage = StepUsage(('a', 'b'), (ReadyGradient('a', 0),), frozenset('a'))
    assert usage.counts(joint=True) == {'a': 1, 'b': 0}
    joint = (ReadyGradient('a', 0), ReadyGradient('b', 1))
    usage = dataclasses.replace(usage, joint_ready=joint)
    assert usage.counts(joint=True) == {'a': 1, 'b': 1}
    assert usage.counts() == {'a': 1, 'b': 0}

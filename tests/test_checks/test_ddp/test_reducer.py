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
BOTH = [{'find_unused_parameters': flag} for flag in (False, True)]


@pytest.mark.parametrize('settings', [*BOTH, {'static_graph': True}])
def test_all_used(settings):
    assert outcome(step('c b a'), step('c a b'), **settings) == OK


def test_unused():
    first, second = step('a b c'), step('c a')
    assert outcome(first, second) == (Outcome.UNFINISHED, 1, ('b',))
    assert outcome(first, second, find_unused_parameters=True) == OK
    assert outcome(second, second, static_graph=True) == OK


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


def test_no_gradient_at_all():
    # The reducer has not begun, so it misses none.
    assert outcome(step('')) == OK


def test_static_graph_wants_the_same_again():
    few, many = step('c a'), step('c b a')
    assert outcome(few, many, static_graph=True) == (
        Outcome.GRAPH_CHANGED,
        1,
        ('b',),
    )
    assert outcome(many, few, static_graph=True) == (
        Outcome.UNFINISHED,
        1,
        ('b',),
    )


def test_a_reentrant_checkpoint_used_once():
    once = step('c b1 a')
    assert outcome(once) == OK
    assert outcome(once, find_unused_parameters=True) == (
        Outcome.READY_TWICE,
        0,
        ('b',),
    )
    assert outcome(once, once, static_graph=True) == OK


def test_a_reentrant_checkpoint_used_twice_before_the_stem():
    twice = step('c b1 b2 a')
    for settings in BOTH:
        assert outcome(twice, **settings)[0] is Outcome.READY_TWICE
    assert outcome(twice, twice, static_graph=True) == OK


def test_what_comes_after_the_last_parameter_is_not_heard():
    # All are complete within task 1, which ends before task 2 begins.
    silent = step('c a1 b1 a2 b2')
    assert outcome(silent) == (Outcome.DIVERGED, 0, ('a', 'b'))
    assert (
        outcome(silent, find_unused_parameters=True)[0] is Outcome.READY_TWICE
    )
    # Within the same task it is heard.
    assert outcome(step('c a1 b1 a1'))[0] is Outcome.READY_TWICE
    # And if the outer pass is what completes them.
    assert outcome(step('a1 b1 c a2'))[0] is Outcome.READY_TWICE


def test_what_is_returned_but_in_no_loss():
    # With the search, an empty gradient reaches b in every step; with a
    # static graph in the first only.
    returned = step('c a', reachable='abc')
    assert outcome(returned)[0] is Outcome.UNFINISHED
    assert outcome(returned, find_unused_parameters=True) == OK
    assert outcome(returned, returned, static_graph=True) == (
        Outcome.UNFINISHED,
        1,
        ('b',),
    )


def test_used_outside_of_forward():
    outside = step('b c a', reachable='ac')
    assert outcome(outside) == OK
    assert outcome(outside, find_unused_parameters=True) == (
        Outcome.READY_TWICE,
        0,
        ('b',),
    )


def test_a_static_graph_does_not_hear_all_either():
    # Once more than in the first step, in a nested pass of its own.
    first, second = step('c a1 b1'), step('c a1 b1 a2 b2')
    assert outcome(first, second, static_graph=True) == (
        Outcome.DIVERGED,
        1,
        ('a', 'b'),
    )
    heard = step('a1 b1 a2 b2 c')
    assert outcome(first, heard, static_graph=True)[0] is Outcome.GRAPH_CHANGED


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


def test_counts_name_all_parameters():
    assert USAGE.counts() == {
        'stem': 1,
        'part': 2,
        'late': 1,
        'unused': 0,
        'dead': 0,
    }
    assert USAGE.twice == ('part',)


def test_hidden_is_what_a_search_does_not_find():
    assert USAGE.hidden == ('part', 'late')
    # Hidden, but not by a checkpoint.
    assert USAGE.outside_forward == ('late',)


def test_without_reentrant_checkpoints():
    plain = USAGE.without_reentrant()
    assert plain.counts()['part'] == 1
    assert plain.twice == ()
    assert plain.hidden == ('late',)
    assert {gradient.task for gradient in plain.ready} == {0}
    # Its gradient would be there.
    assert set(plain.unused) == {'unused'}
    assert plain.counts()['dead'] == 1


def test_without_unused_parameters():
    used = USAGE.without_unused()
    assert used.names == ('stem', 'part', 'late')
    assert used.unused == {}
    assert used.ready == USAGE.ready


def test_joint_ready_are_counted_where_they_differ():
    usage = StepUsage(('a', 'b'), (ReadyGradient('a', 0),), frozenset('a'))
    assert usage.counts(joint=True) == {'a': 1, 'b': 0}
    joint = (ReadyGradient('a', 0), ReadyGradient('b', 1))
    usage = dataclasses.replace(usage, joint_ready=joint)
    assert usage.counts(joint=True) == {'a': 1, 'b': 1}
    assert usage.counts() == {'a': 1, 'b': 0}

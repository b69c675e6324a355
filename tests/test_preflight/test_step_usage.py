import dataclasses
import pickle

from mmext.preflight import Firing, ParameterUse, StepUsage, UnusedReason

USAGE = StepUsage(
    names=('stem', 'part', 'late', 'unused', 'dead'),
    firings=(
        Firing('late', 0),
        Firing('part', 1),
        Firing('part', 2),
        Firing('stem', 0),
    ),
    reachable=frozenset({'stem'}),
    unused={
        'unused': ParameterUse(UnusedReason.NEVER_USED),
        'dead': ParameterUse(UnusedReason.CHECKPOINT_INPUT),
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
    assert {firing.task for firing in plain.firings} == {0}
    # Its gradient would be there.
    assert set(plain.unused) == {'unused'}
    assert plain.counts()['dead'] == 1


def test_without_unused_parameters():
    used = USAGE.without_unused()
    assert used.names == ('stem', 'part', 'late')
    assert used.unused == {}
    assert used.firings == USAGE.firings


def test_it_can_be_sent_to_other_processes():
    assert pickle.loads(pickle.dumps(USAGE)) == USAGE


def test_joint_firings_are_counted_where_they_differ():
    usage = StepUsage(('a', 'b'), (Firing('a', 0),), frozenset('a'))
    assert usage.counts(joint=True) == {'a': 1, 'b': 0}
    joint = (Firing('a', 0), Firing('b', 1))
    usage = dataclasses.replace(usage, joint_firings=joint)
    assert usage.counts(joint=True) == {'a': 1, 'b': 1}
    assert usage.counts() == {'a': 1, 'b': 0}

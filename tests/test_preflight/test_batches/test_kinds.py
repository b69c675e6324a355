import pytest

from mmext.preflight.batches.kinds import (
    KINDS,
    TASKS,
    check_kinds,
    kinds_of,
)


@pytest.mark.parametrize('task', TASKS)
def test_kinds_of_a_task_are_known(task):
    kinds = kinds_of(task)
    assert {'normal', 'real'} <= set(kinds) <= set(KINDS)


def test_objects_come_in_all_kinds():
    assert kinds_of('detection') == kinds_of('semantic') == KINDS
    assert 'empty' not in kinds_of('classification')
    assert 'empty' in kinds_of('multi-label')
    assert kinds_of('pretraining') == ('normal', 'real')


def test_rejects_unknown_task():
    with pytest.raises(ValueError, match=r"one of .*got 'pose'"):
        kinds_of('pose')


@pytest.mark.parametrize(
    ('kinds', 'named'),
    [
        (['normal', 'odd'], r"\['odd'\]"),
        ([], r'\[\]'),
        ('normal', "got 'normal'"),
    ],
)
def test_rejects_unknown_kinds(kinds, named):
    with pytest.raises(ValueError, match=f'kinds must be some of .*{named}'):
        check_kinds(kinds)


def test_accepts_known_kinds():
    assert check_kinds(KINDS) is None

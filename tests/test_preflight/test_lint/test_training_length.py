"""How long a config trains."""

import pytest
from lint_findings import changed

from mmext.preflight.lint.subject import Subject
from mmext.preflight.lint.training_length import (
    TrainingLength,
    training_length,
)


def length(train_cfg):
    return training_length(Subject(changed({'train_cfg': train_cfg})))


@pytest.mark.parametrize(
    ('train_cfg', 'expected'),
    [
        (dict(type='EpochBasedTrainLoop', max_epochs=3), (True, 3)),
        (
            dict(type='mmext.ResumableIterBasedTrainLoop', max_iters=9),
            (False, 9),
        ),
        (dict(by_epoch=True, max_epochs=3), (True, 3)),
        (dict(by_epoch=False, max_iters=9, max_epochs=3), (False, 9)),
        (dict(type='MyLoop', max_epochs=3), None),
        (dict(max_epochs=3), None),
        (dict(by_epoch=True), None),
        (dict(by_epoch=True, max_epochs=True), None),
        (dict(by_epoch=True, max_epochs=0), None),
        ({}, None),
    ],
)
def test_reads_loops(train_cfg, expected):
    found = length(train_cfg)
    assert found == (expected and TrainingLength(*expected))


def test_in_words():
    assert TrainingLength(True, 3).unit == 'epochs'
    assert TrainingLength(True, 3).key == 'max_epochs'
    assert TrainingLength(False, 3).unit == 'iterations'
    assert TrainingLength(False, 3).key == 'max_iters'

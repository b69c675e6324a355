"""Wrong configs that were reported, and right ones, as their users run them.

A few are run each time; ``-m exhaustive`` runs all, and
``python -m helpers.corpus_run`` prints them as a table.
"""

from pathlib import Path

import pytest
from helpers.corpus_bases import Case, write_data
from helpers.corpus_right import RIGHT
from helpers.corpus_run import (
    CASES,
    check_right,
    check_wrong,
    errors_of,
    words,
)
from helpers.toy_ranks import load_segmentation

pytestmark = pytest.mark.xdist_group('processes')

# Of many kinds: a build, a merge, an evaluator, classes, a pipeline, DDP.
DEFAULT = ()
SLOW = (
    'adam_with_momentum',
    'evaluator_of_train',
    'auxiliary_forgotten',
    'slide_without_stride',
    'levels_of_the_neck',
    'nothing_packed',
    'no_boxes_loaded',
    'neck_of_another_depth',
    'keys_are_numbers',
    'five_levels_of_four',
    'instances_without_masks',
)
RIGHT_DEFAULT = ()
RIGHT_SLOW = (
    'accumulated',
    'own_rates',
    'two_data_sets',
    'by_epochs',
    'copy_and_paste',
    'windows',
    'rtmdet',
    'crops_of_several_sizes',
)


def marked(names, default, slow):
    """Names as parameters, with the marks of how long all of them take."""
    parameters = []
    for name in names:
        marks = []
        if name not in default:
            marks.append(pytest.mark.slow)
            if name not in slow:
                marks.append(pytest.mark.exhaustive)
        parameters.append(pytest.param(name, marks=marks, id=name))
    return parameters


@pytest.fixture(scope='module')
def data(tmp_path_factory) -> Path:
    return write_data(tmp_path_factory.mktemp('corpus'))


@pytest.mark.parametrize('name', marked(CASES, DEFAULT, SLOW))
def test_cause_is_named_and_mended(name, data, tmp_path):
    case: Case = CASES[name]
    if case.of_mmseg:
        load_segmentation()
    outcome = check_wrong(case, data, tmp_path)
    said = [words(finding) for finding in outcome.findings] or outcome.printed
    assert outcome.cause, said
    assert outcome.mended, said


# PyTorch's, of one box, which soft_teacher has; our tensors call std() there.
@pytest.mark.filterwarnings(r'default:std\(\). degrees of freedom')
@pytest.mark.parametrize('name', marked(RIGHT, RIGHT_DEFAULT, RIGHT_SLOW))
def test_no_false_error(name, data, tmp_path):
    if name.startswith('panoptic'):
        # Without it such a training ends at its start.
        pytest.importorskip('panopticapi')
    outcome = check_right(name, data, tmp_path)
    assert errors_of(outcome) == []
    assert outcome.code == 0, outcome.printed

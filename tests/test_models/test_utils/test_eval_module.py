"""The head that shall detect must be there."""

import pytest

from mmext.models.utils.eval_module import EVAL_MODULES, check_eval_module

HEADS = {'num_roi_heads': 1, 'num_bbox_heads': 2, 'has_rpn': True}


@pytest.mark.parametrize(
    ('name', 'index'),
    [('detr', 0), ('one-stage', 0), ('one-stage', 1), ('two-stage', 0)],
)
def test_accepts_heads_that_are_there(name: str, index: int):
    assert name in EVAL_MODULES
    check_eval_module(name, index, **HEADS)


def test_limit_the_query_head_needs_no_other():
    none = {'num_roi_heads': 0, 'num_bbox_heads': 0, 'has_rpn': False}
    check_eval_module('detr', 9, **none)


@pytest.mark.parametrize('name', ['DETR', 'one_stage', None])
def test_rejects_an_unknown_name(name):
    with pytest.raises(
        ValueError, match=r"eval_module must be one of \('detr', 'one-stage'"
    ):
        check_eval_module(name, 0, **HEADS)


@pytest.mark.parametrize(
    ('name', 'index', 'message'),
    [
        ('one-stage', 2, r'one of the 2 bbox_head\(s\) .*one-stage.* got 2'),
        ('one-stage', -1, r'one of the 2 bbox_head\(s\) .* got -1'),
        ('two-stage', 1, r'one of the 1 roi_head\(s\) .*two-stage.* got 1'),
    ],
)
def test_rejects_a_head_that_is_not_there(name: str, index: int, message: str):
    with pytest.raises(ValueError, match='eval_index must be ' + message):
        check_eval_module(name, index, **HEADS)


def test_rejects_two_stages_without_proposals():
    with pytest.raises(
        ValueError, match="rpn_head must be given for eval_module='two-stage'"
    ):
        check_eval_module('two-stage', 0, **{**HEADS, 'has_rpn': False})
    check_eval_module('one-stage', 0, **{**HEADS, 'has_rpn': False})


@pytest.mark.parametrize('name', ['one-stage', 'two-stage'])
def test_rejects_other_classes_for_another_head(name: str):
    with pytest.raises(
        ValueError, match=r"must be 'detr' with test_cfg\.query_head\.class_em"
    ):
        check_eval_module(name, 0, **HEADS, has_test_classes=True)
    check_eval_module('detr', 0, **HEADS, has_test_classes=True)

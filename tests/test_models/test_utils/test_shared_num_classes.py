"""One number of classes: given once, found anywhere, contradicted nowhere."""

import copy

import pytest
from mmengine.config import ConfigDict

from mmext.models.utils.shared_num_classes import share_num_classes

HEADS = {
    'query_head': {'type': 'Query', 'num_queries': 5},
    'roi_head': [
        {
            'type': 'RoI',
            'bbox_head': {'type': 'Box'},
            'mask_head': {'type': 'Mask'},
        }
    ],
    'bbox_head': [{'type': 'ATSS'}, {'type': 'FCOS'}],
}
FILLED = {
    'query_head': {'type': 'Query', 'num_queries': 5, 'num_classes': 7},
    'roi_head': [
        {
            'type': 'RoI',
            'bbox_head': {'type': 'Box', 'num_classes': 7},
            'mask_head': {'type': 'Mask', 'num_classes': 7},
        }
    ],
    'bbox_head': [
        {'type': 'ATSS', 'num_classes': 7},
        {'type': 'FCOS', 'num_classes': 7},
    ],
}


def test_fills_every_head():
    assert share_num_classes(7, HEADS) == (7, FILLED)
    assert share_num_classes(7, FILLED) == (7, FILLED)


@pytest.mark.parametrize('place', ['query_head', 'roi_head', 'bbox_head'])
def test_takes_the_number_that_one_head_gives(place: str):
    heads = copy.deepcopy(HEADS)
    heads[place] = copy.deepcopy(FILLED[place])
    assert share_num_classes(None, heads) == (7, FILLED)


def test_none_in_a_head_is_filled():
    heads = {'query_head': {'num_classes': None}}
    assert share_num_classes(7, heads)[1]['query_head'] == {'num_classes': 7}


def test_limit_no_auxiliary_heads():
    heads = {'query_head': {}, 'roi_head': [], 'bbox_head': []}
    expected = {**heads, 'query_head': {'num_classes': 1}}
    assert share_num_classes(1, heads) == (1, expected)


def test_does_not_change_inputs():
    heads = ConfigDict(copy.deepcopy(HEADS))
    _, filled = share_num_classes(7, heads)
    filled['roi_head'][0]['bbox_head']['type'] = 'changed'
    filled['bbox_head'].append({})
    filled['query_head']['type'] = 'changed'
    assert heads == HEADS


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'query_head': {'num_classes': 3}}, r"7 and {'query_head': 3}; set"),
        (
            {'roi_head': [{'bbox_head': {'num_classes': 80}}]},
            r"7 and {'roi_head\.bbox_head': 80}",
        ),
        (
            {'bbox_head': [{}, {'num_classes': 0}]},
            r"7 and {'bbox_head\[1\]': 0}",
        ),
        (
            {'roi_head': {'mask_head': {'num_classes': 1}}},
            r"7 and {'roi_head\.mask_head': 1}",
        ),
    ],
)
def test_rejects_another_number(change: dict, message: str):
    with pytest.raises(
        ValueError, match='num_classes must be the same in all.*' + message
    ):
        share_num_classes(7, {**HEADS, **change})


def test_rejects_heads_that_disagree():
    heads = {**FILLED, 'query_head': {'num_classes': 6}}
    with pytest.raises(ValueError, match='must be the same in all heads'):
        share_num_classes(None, heads)


def test_rejects_a_missing_number():
    with pytest.raises(
        ValueError, match='num_classes must be given, got None; set model'
    ):
        share_num_classes(None, HEADS)


@pytest.mark.parametrize('number', [0, -1])
def test_rejects_less_than_one(number: int):
    with pytest.raises(
        ValueError, match=f'num_classes must be at least 1, got {number}'
    ):
        share_num_classes(number, HEADS)

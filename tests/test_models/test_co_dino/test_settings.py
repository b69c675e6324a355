"""Settings of the detector: derived, shared, by head; wrong ones refused."""

import copy
import sys

import pytest
from helpers.tiny_co_dino import build_tiny, tiny_model_cfg
from mmdet.registry import MODELS

from mmext.checks.config.misplaced import find_misplaced_keys
from mmext.checks.config.wrapping import RIGHT_PLACES
from mmext.models import CoDINOClassEmbedHead
from mmext.models.co_dino.settings import (
    TEST_CFG_KEYS,
    TRAIN_CFG_KEYS,
    build_with,
    check_eval_module,
    check_named_cfg,
    per_head,
    share_num_classes,
    with_head_keys,
)

ENCODING = {'type': 'mmdet.SinePositionalEncoding', 'normalize': True}


@pytest.mark.parametrize('value', [6, 5, None])
def test_rejects_a_setting_given_twice(value):
    """Also where both are the same: tomorrow they are not."""
    cfg = {**ENCODING, 'num_feats': value}
    with pytest.raises(
        ValueError,
        match=r'mmdet\.SinePositionalEncoding must not be given num_feats, '
        rf'which the detector sets, got {value}; remove it',
    ):
        build_with(cfg, 'detector', temperature=20, num_feats=6)


def test_a_backbone_of_a_package_that_is_not_there(monkeypatch):
    monkeypatch.setitem(sys.modules, 'mmpretrain', None)
    with pytest.raises(
        ImportError,
        match=r"backbone\.type must be .*, got 'mmpretrain\.ConvNeXt' "
        r"\(.*mmpretrain.*\); run: pip install 'mmext\[mmpretrain\]'",
    ):
        build_tiny(backbone={'type': 'mmpretrain.ConvNeXt', '_delete_': True})


HEADS = {'num_roi_heads': 1, 'num_bbox_heads': 2, 'has_rpn': True}


@pytest.mark.parametrize(
    ('name', 'index', 'changes', 'message'),
    [
        ('DETR', 0, {}, r"eval_module must be one of \('detr', 'one-stage'"),
        (None, 0, {}, r"eval_module must be one of \('detr', 'one-stage'"),
        ('one-stage', 2, {}, r'eval_index .* 2 bbox_head\(s\) .*one-st.* 2'),
        ('one-stage', -1, {}, r'eval_index .* of the 2 bbox_head\(s\) .* -1'),
        ('two-stage', 1, {}, r'eval_index .* 1 roi_head\(s\) .*two-st.* 1'),
        (
            'two-stage',
            0,
            {'has_rpn': False},
            "rpn_head must be given for eval_module='two-stage'",
        ),
        *(
            (
                name,
                0,
                {'has_test_classes': True},
                r"must be 'detr' with test_cfg\.query_head\.class_embeddings",
            )
            for name in ('one-stage', 'two-stage')
        ),
    ],
)
def test_rejects_eval_modules(name, index, changes, message):
    with pytest.raises(ValueError, match=message):
        check_eval_module(name, index, **{**HEADS, **changes})


UNFILLED = {
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
    assert share_num_classes(7, UNFILLED) == (7, FILLED)
    assert share_num_classes(7, FILLED) == (7, FILLED)


@pytest.mark.parametrize('head', ['query_head', 'roi_head', 'bbox_head'])
def test_takes_the_number_that_one_head_gives(head: str):
    heads = copy.deepcopy(UNFILLED)
    heads[head] = copy.deepcopy(FILLED[head])
    assert share_num_classes(None, heads) == (7, FILLED)


@pytest.mark.parametrize(
    ('number', 'change', 'message'),
    [
        (7, {'query_head': {'num_classes': 3}}, r"7 and {'query_head': 3}; "),
        (
            7,
            {'roi_head': [{'bbox_head': {'num_classes': 80}}]},
            r"7 and {'roi_head\.bbox_head': 80}",
        ),
        (
            7,
            {'bbox_head': [{}, {'num_classes': 0}]},
            r"7 and {'bbox_head\[1\]': 0}",
        ),
        (
            7,
            {'roi_head': {'mask_head': {'num_classes': 1}}},
            r"7 and {'roi_head\.mask_head': 1}",
        ),
        (
            None,
            {**FILLED, 'query_head': {'num_classes': 6}},
            'must be the same in all heads',
        ),
        (None, {}, 'num_classes must be given, got None; set model'),
        (0, {}, 'num_classes must be at least 1, got 0'),
        (-1, {}, 'num_classes must be at least 1, got -1'),
    ],
)
def test_rejects_numbers_of_classes(number, change: dict, message: str):
    with pytest.raises(ValueError, match=message):
        share_num_classes(number, {**UNFILLED, **change})


def check_train(cfg):
    return check_named_cfg(cfg, TRAIN_CFG_KEYS, 'train_cfg')


@pytest.mark.parametrize(
    ('cfg', 'message'),
    [
        (
            [{}, {}],
            r' must be a dict keyed by head, got list; .*docs/co_dino\.md',
        ),
        ({'roi_head': 3}, r'\.roi_head must be a dict or a list of dicts'),
        ({'roi_head': [{}, 'x']}, r'\.roi_head must be a dict or a list of'),
        ({'query_head': [{}]}, r'\.query_head must be a dict, got \['),
    ],
)
def test_rejects_settings_that_are_no_dict(cfg, message):
    with pytest.raises(TypeError, match=f'train_cfg{message}'):
        check_train(cfg)


@pytest.mark.parametrize(
    ('cfg', 'message'),
    [
        ({'rcnn': {}}, r"train_cfg must have keys in .*got 'rcnn'; remove it"),
        ({'roi_heads': {}}, r"got 'roi_heads'; did you mean 'roi_head'\?"),
        ({0: {}}, r'train_cfg must have keys in .*got 0; remove it'),
        (
            {'query_head': {'asigner': {}}},
            r"train_cfg\.query_head must have .*; did you mean 'assigner'\?",
        ),
        (
            {'roi_head': [{}, {'nms_pre': 3}]},
            r"train_cfg\.roi_head must have .*got 'nms_pre'; remove it",
        ),
        (
            {'find_unused_parameters': True},
            r"got 'find_unused_parameters'; it belongs at the top level",
        ),
        ({'static_graph': True}, r'it belongs in .*model_wrapper_cfg'),
        (
            {'bbox_head': {'with_cp': False}},
            r"train_cfg\.bbox_head .*got 'with_cp'; it belongs in model\.back",
        ),
    ],
)
def test_rejects_what_nobody_reads(cfg: dict, message: str):
    with pytest.raises(ValueError, match=message):
        check_train(cfg)


@pytest.mark.parametrize('key', RIGHT_PLACES)
def test_names_the_place_that_the_check_of_the_config_names(key: str):
    place = RIGHT_PLACES[key]
    with pytest.raises(ValueError, match=f"got '{key}'; it belongs {place}$"):
        check_train({'bbox_head': {key: True}})
    (misplaced,) = find_misplaced_keys({'model': {'train_cfg': {key: True}}})
    assert misplaced.read_at == place


def test_a_list_has_one_for_each_head():
    given = [{'assigner': 1}, {'assigner': 2}]
    result = per_head(given, 2, 'train_cfg.roi_head')
    assert result == given
    assert result is not given
    assert per_head(tuple(given), 2, 'train_cfg.roi_head') == given


@pytest.mark.parametrize('settings', [[], [{}], [{}, {}, {}]])
def test_rejects_a_list_of_another_length(settings: list):
    with pytest.raises(
        ValueError,
        match=rf'train_cfg\.roi_head must hold one dict per head \(2\), got '
        rf'{len(settings)}',
    ):
        per_head(settings, 2, 'train_cfg.roi_head')


def test_a_kind_of_head_may_read_more():
    plain = {'type': 'mmext.CoDINOHead'}
    embeds = {'type': 'mmext.CoDINOClassEmbedHead'}
    cfg = {'query_head': {'class_embeddings': 'a.npy'}}
    for head in (embeds, {'type': CoDINOClassEmbedHead}):
        known = with_head_keys(TEST_CFG_KEYS, head, 'test_cfg_keys')
        assert check_named_cfg(cfg, known, 'test_cfg') == cfg
        assert known['roi_head'] == TEST_CFG_KEYS['roi_head']
    for head in (plain, {}):
        known = with_head_keys(TEST_CFG_KEYS, head, 'test_cfg_keys')
        assert known == TEST_CFG_KEYS
        with pytest.raises(ValueError, match='ClassEmbedHead reads it, in te'):
            check_named_cfg(cfg, known, 'test_cfg')


@pytest.mark.parametrize(
    ('changes', 'match'),
    [
        (
            {'bbox_head': {'num_classes': 80}},
            r"must be the same in all heads, got 5 and \{'bbox_head': 80\}",
        ),
        (
            {'train_cfg': {'find_unused_parameters': True}},
            'belongs at the top level of the config',
        ),
        (
            {'test_cfg': {'query_head': {'max_per_image': 3}}},
            "did you mean 'max_per_img'",
        ),
        ({'mask_policy': 'lsj'}, 'mask_policy must be one of'),
        (
            {'eval_module': 'one-stage', 'eval_index': 1},
            'eval_index must be one of the 1 bbox_head',
        ),
        (
            {'backbone': {'with_cp': 99}},
            r'backbone.with_cp must be a bool or in \[0, 8\], got 99',
        ),
        (
            {'query_head': {'num_co_heads': 3}},
            'must not be given num_co_heads, which the detector sets',
        ),
        (
            {'query_head': {'positional_encoding': {'num_feats': 8}}},
            'num_feats must be 16',
        ),
    ],
)
def test_detector_rejects_wrong_settings(changes, match):
    with pytest.raises(ValueError, match=match):
        MODELS.build(tiny_model_cfg(**changes))

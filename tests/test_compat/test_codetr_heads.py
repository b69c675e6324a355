"""Translation of heads and of positional settings."""

import copy

import pytest
from reference.codetr_port_config import (
    bbox_head,
    original_model,
    query_head,
    roi_head,
    rpn_head,
    settings_for_test,
    train_cfg,
)

from mmext.compat._codetr_heads import (
    Slots,
    split_slots,
    translate_assigner,
    translate_co_head,
    translate_query_head,
    translate_rpn_head,
)
from mmext.compat._section import Section

COUNTS = {'num_roi': 1, 'num_bbox': 1, 'with_rpn': True}


def query(cfg: dict, num_classes: dict | None = None, **kwargs) -> dict:
    """Translate a query head of two co-heads."""
    settings = {
        'train': None,
        'test': None,
        'num_co_heads': 2,
        'with_co_queries': True,
        'num_classes': {} if num_classes is None else num_classes,
    }
    return translate_query_head(
        Section(cfg, 'model.query_head'), **{**settings, **kwargs}
    )


def co_head(cfg: dict, kind: str, **kwargs) -> dict:
    """Translate a co-head without settings."""
    settings = {'train': None, 'test': None, 'num_classes': {}}
    return translate_co_head(
        Section(cfg, f'model.{kind}[0]'), kind=kind, **{**settings, **kwargs}
    )


def test_splits_by_position():
    cfg = train_cfg()
    slots = split_slots(cfg, 'train_cfg', **COUNTS)
    assert slots.query_head == cfg[0]
    assert slots.rpn_head == cfg[1]['rpn']
    assert slots.rpn_proposal == cfg[1]['rpn_proposal']
    assert slots.roi_head == [cfg[1]['rcnn']]
    assert slots.bbox_head == [cfg[2]]
    slots.query_head.clear()
    assert cfg == train_cfg()


def test_test_settings_have_no_proposals():
    slots = split_slots(settings_for_test(), 'test_cfg', **COUNTS)
    assert slots.rpn_proposal is None
    assert slots.query_head['max_per_img'] == 300


@pytest.mark.parametrize('cfg', [None, [], [None, None]])
def test_no_settings(cfg):
    expected = Slots(None, None, None, [None], [None])
    assert split_slots(cfg, 'train_cfg', **COUNTS) == expected


def test_one_stage_only():
    cfg = [train_cfg()[0], train_cfg()[2]]
    slots = split_slots(
        cfg, 'train_cfg', num_roi=0, num_bbox=1, with_rpn=False
    )
    assert slots == Slots(cfg[0], None, None, [], [cfg[1]])


def test_rpn_only():
    cfg = [None, {'rpn': {'a': 1}}]
    slots = split_slots(cfg, 'train_cfg', num_roi=0, num_bbox=0, with_rpn=True)
    assert slots == Slots(None, {'a': 1}, None, [], [])


def test_rejects_settings_by_name():
    with pytest.raises(TypeError, match=r'model\.train_cfg must be a list'):
        split_slots({'rpn': {}}, 'train_cfg', **COUNTS)


def test_rejects_a_slot_that_is_no_dict():
    with pytest.raises(TypeError, match=r'train_cfg\[1\] must be a dict'):
        split_slots([None, 3], 'train_cfg', **COUNTS)


def test_rejects_an_rpn_in_the_slot_of_atss():
    with pytest.raises(ValueError, match='a slot of its own for the RPN'):
        split_slots(
            train_cfg(), 'train_cfg', num_roi=0, num_bbox=1, with_rpn=True
        )


def test_rejects_slots_that_nothing_reads():
    with pytest.raises(ValueError, match=r'must have 3 entries .* got 4'):
        split_slots([*train_cfg(), {'a': 1}], 'train_cfg', **COUNTS)
    with pytest.raises(ValueError, match=r'train_cfg\[1\] .* got rcnn_2=0'):
        split_slots([None, {'rcnn_2': 0}], 'train_cfg', **COUNTS)


def test_assigner_of_mmdet_2():
    old = original_model()['train_cfg'][0]
    before = copy.deepcopy(old)
    assert translate_assigner(old) == train_cfg()[0]
    assert old == before
    assert translate_assigner(train_cfg()[0]) == train_cfg()[0]
    assert translate_assigner(None) is None
    assert translate_assigner({'a': 1}) == {'a': 1}


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'match_costs': []}, r'assigner must have only .* match_costs=\[\]'),
        ({'iou_cost': None}, None),
    ],
)
def test_rejects_mixed_costs(change, message):
    settings = original_model()['train_cfg'][0]
    settings['assigner'].update(change)
    if message is None:
        del settings['assigner']['iou_cost']
        message = r"train_cfg\[0\]\.assigner must have a key 'iou_cost'"
    with pytest.raises(ValueError, match=message):
        translate_assigner(settings)


def test_query_head_of_both_projects():
    classes: dict = {}
    port = query(query_head(80, 4), classes)
    assert classes == {'model.query_head.num_classes': 80}
    assert port == query(original_model()['query_head'])
    assert port['num_queries'] == 900
    assert port['max_co_queries'] == 300
    assert 'num_classes' not in port


def test_defaults_of_the_port():
    cfg = query_head(80, 4)
    del cfg['positional_encoding'], cfg['num_query']
    head = query(cfg)
    assert head['num_queries'] == 900
    assert 'temperature' not in head['positional_encoding']
    assert head['sync_cls_avg_factor'] is True


@pytest.mark.parametrize('value', [True, False])
def test_keeps_sync_cls_avg_factor(value):
    cfg = {**query_head(80, 4), 'sync_cls_avg_factor': value}
    assert query(cfg)['sync_cls_avg_factor'] is value


def test_filled_dn_cfg_must_repeat_the_head():
    cfg = query_head(7, 4)
    cfg['dn_cfg'].update(
        num_classes=7, num_matching_queries=900, embed_dims=256
    )
    classes: dict = {}
    head = query(cfg, classes)
    assert head['dn_cfg'] == query(query_head(7, 4))['dn_cfg']
    assert classes['model.query_head.dn_cfg.num_classes'] == 7


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'type': 'DINOHead'}, r"query_head\.type must be 'CoDINOHead'"),
        ({'as_two_stage': False}, 'as_two_stage must be True, got False'),
        ({'with_box_refine': False}, 'with_box_refine must be True'),
        ({'mixed_selection': False}, 'mixed_selection must be True'),
        ({'use_zero_padding': True}, 'use_zero_padding must be False'),
        ({'lambda_1': 2}, 'lambda_1 must be 1 or 1.0, got 2; mmext has no'),
        ({'num_reg_fcs': 3}, 'num_reg_fcs must be 2, got 3'),
        ({'share_pred_layer': True}, 'share_pred_layer must be False'),
        ({'num_feature_levels': 4}, 'num_feature_levels must be 5, got 4'),
        ({'embed_dims': 128}, 'embed_dims must be 256, got 128'),
        ({'init_cfg': {}}, r'query_head\.init_cfg must be None'),
        ({'bbox_coder': {}}, r'query_head must have only .* bbox_coder'),
        ({'loss_cls': {'type': 'NoLoss'}}, r"loss_cls\.type .* got 'NoLoss'"),
        ({'train_cfg': {'a': 1}}, r'query_head\.train_cfg must equal the ent'),
        ({'test_cfg': {'a': 1}}, r'query_head\.test_cfg must equal the entry'),
    ],
)
def test_rejects_query_head(change, message):
    with pytest.raises(ValueError, match=message):
        query({**query_head(80, 4), **change})


@pytest.mark.parametrize(
    'key', ['num_classes', 'transformer', 'dn_cfg', 'loss_cls', 'loss_iou']
)
def test_rejects_a_query_head_without(key):
    cfg = query_head(80, 4)
    del cfg[key]
    with pytest.raises(ValueError, match=f"query_head must have a key '{key}"):
        query(cfg)


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'type': 'DnQueryGenerator'}, r'dn_cfg\.type must be'),
        ({'num_matching_queries': 300}, 'must be 900, got 300; the head'),
        ({'hidden_dim': 128}, 'hidden_dim must be 256, got 128'),
        ({'noise_scale': {'label': 0.5}}, r"noise_scale must .* key 'box'"),
        (
            {'noise_scale': {'label': 0.5, 'box': 1.0, 'a': 1}},
            r'noise_scale must have only .* a=1',
        ),
        ({'foo': 1}, r'dn_cfg must have only .* foo=1'),
    ],
)
def test_rejects_dn_cfg(change, message):
    cfg = query_head(80, 4)
    cfg['dn_cfg'].update(change)
    with pytest.raises(ValueError, match=message):
        query(cfg)


def test_rejects_a_transformer_that_is_no_dict():
    with pytest.raises(TypeError, match=r'transformer must be a dict, got 1'):
        query({**query_head(80, 4), 'transformer': 1})


def test_rpn_head_keeps_its_numbers():
    settings = {'a': (1, 2)}
    cfg = {**rpn_head(), 'train_cfg': {'a': [1, 2]}}
    head = translate_rpn_head(
        Section(cfg, 'model.rpn_head'), train=settings, test=None
    )
    assert head['type'] == 'mmdet.RPNHead'
    assert head['loss_bbox'] == {'type': 'mmdet.L1Loss', 'loss_weight': 12.0}
    assert 'train_cfg' not in head


def test_rejects_rpn_head():
    for change, message in (
        ({'train_cfg': {'a': 1}}, r'rpn_head\.train_cfg must equal the entry'),
        ({'type': 'MyRPN'}, r"rpn_head\.type must name .* got 'MyRPN'"),
    ):
        section = Section({**rpn_head(), **change}, 'model.rpn_head')
        with pytest.raises(ValueError, match=message):
            translate_rpn_head(section, train=None, test=None)


def test_co_heads():
    classes: dict = {}
    roi = co_head(roi_head(3), 'roi_head', num_classes=classes)
    atss = co_head(bbox_head(3), 'bbox_head', num_classes=classes)
    assert classes == {
        'model.roi_head[0].bbox_head.num_classes': 3,
        'model.bbox_head[0].num_classes': 3,
    }
    assert roi['type'] == 'mmext.CoStandardRoIHead'
    assert roi['bbox_head']['type'] == 'mmdet.Shared2FCBBoxHead'
    assert roi['bbox_roi_extractor']['roi_layer']['type'] == 'RoIAlign'
    assert atss['type'] == 'mmext.CoATSSHead'
    assert atss['loss_cls']['type'] == 'mmdet.FocalLoss'
    assert 'num_classes' not in atss


@pytest.mark.parametrize(
    ('kind', 'change', 'message'),
    [
        ('roi_head', {'type': 'StandardRoIHead'}, r"\[0\]\.type must be 'CoS"),
        ('roi_head', {'mask_head': {}}, r'roi_head\[0\] must .* mask_head'),
        ('roi_head', {'init_cfg': {}}, r'roi_head\[0\]\.init_cfg must be Non'),
        ('roi_head', {'test_cfg': {'a': 1}}, 'test_cfg must equal the entry'),
        (
            'roi_head',
            {'bbox_head': {'type': 'NoHead'}},
            r"bbox_head\.type must name .* got 'NoHead'",
        ),
        ('bbox_head', {'type': 'ATSSHead'}, r"\[0\]\.type must be 'CoATSSHea"),
        ('bbox_head', {'train_cfg': {'a': 1}}, 'train_cfg must equal the ent'),
    ],
)
def test_rejects_co_head(kind, change, message):
    cfg = roi_head(3) if kind == 'roi_head' else bbox_head(3)
    with pytest.raises(ValueError, match=message):
        co_head({**cfg, **change}, kind)


def test_rejects_a_box_head_that_is_no_dict():
    with pytest.raises(TypeError, match=r'bbox_head must be a dict, got \[\]'):
        co_head({**roi_head(3), 'bbox_head': []}, 'roi_head')

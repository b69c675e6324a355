"""Settings of the detector: derived, shared, by head; wrong ones refused."""

import sys

import pytest
from helpers.tiny_co_dino import build_tiny, tiny_model_cfg
from mmdet.registry import MODELS

ONE_STAGE, TWO_STAGE = (
    {'eval_module': 'one-stage'},
    {'eval_module': 'two-stage'},
)


def test_a_backbone_of_a_package_that_is_not_there(monkeypatch):
    monkeypatch.setitem(sys.modules, 'mmpretrain', None)
    with pytest.raises(
        ImportError,
        match=r"backbone\.type must be .*, got 'mmpretrain\.ConvNeXt' "
        r'\(.*mmpretrain.*\); run: pip install '
        r"('mmext\[mmpretrain\]'|mmpretrain)$",
    ):
        build_tiny(backbone={'type': 'mmpretrain.ConvNeXt', '_delete_': True})


@pytest.mark.parametrize(
    'head',
    [
        {'query_head': {'num_classes': 7}},
        {'roi_head': {'bbox_head': {'num_classes': 7}}},
        {'roi_head': {'mask_head': {'num_classes': 7}}},
        {'bbox_head': {'num_classes': 7}},
        {'num_classes': 7},
    ],
    ids=str,
)
def test_all_heads_take_the_number_of_classes_that_one_has(head):
    cfg = tiny_model_cfg('5scale_r50_instance', **{'num_classes': None} | head)
    model = MODELS.build(cfg)
    roi_head = model.roi_head[0]
    assert model.num_classes == 7
    for part in (
        *(model.query_head, model.bbox_head[0]),
        *(roi_head.bbox_head, roi_head.mask_head),
    ):
        assert part.num_classes == 7


def test_settings_of_heads_may_be_a_list():
    cfg = tiny_model_cfg()
    settings = cfg['train_cfg']['roi_head']
    settings['sampler']['num'] = 77
    cfg['train_cfg']['roi_head'] = [settings]
    assert MODELS.build(cfg).roi_head[0].bbox_sampler.num == 77


def train_cfg(**changes):
    return {'train_cfg': changes}


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        (
            {'query_head': {'num_co_heads': 2}},
            'must not be given num_co_heads, which the detector sets, got 2; '
            'remove it',
        ),
        (
            {'query_head': {'positional_encoding': {'num_feats': 8}}},
            'num_feats must be 16',
        ),
        (
            {'eval_module': 'DETR'},
            r"eval_module must be one of \('detr', 'one-stage'",
        ),
        (
            {**ONE_STAGE, 'eval_index': 1},
            r'eval_index .* the 1 bbox_head\(s\) .*one-stage.* 1',
        ),
        (
            {**ONE_STAGE, 'eval_index': -1},
            r'eval_index .* the 1 bbox_head\(s\) .* -1',
        ),
        (
            {**TWO_STAGE, 'eval_index': 1},
            r'eval_index .* the 1 roi_head\(s\) .*two-stage.* 1',
        ),
        (
            {**TWO_STAGE, 'rpn_head': None},
            "rpn_head must be given for eval_module='two-stage'",
        ),
        (
            {'bbox_head': {'num_classes': 80}},
            r"the same in all heads, got 5 and {'bbox_head': 80}; set model",
        ),
        (
            {'roi_head': {'bbox_head': {'num_classes': 80}}},
            r"got 5 and {'roi_head\.bbox_head': 80}",
        ),
        (
            {'num_classes': None},
            'num_classes must be given, got None; set model',
        ),
        ({'num_classes': 0}, 'must be at least 1, got 0'),
        (
            train_cfg(roi_head=[{}, {}]),
            r'train_cfg\.roi_head must hold one dict per head \(1\), got 2',
        ),
        (
            train_cfg(rcnn={}),
            r"train_cfg must have keys in .*got 'rcnn'; remove it",
        ),
        (
            train_cfg(roi_heads={}),
            r"got 'roi_heads'; did you mean 'roi_head'\?",
        ),
        (
            train_cfg(query_head={'asigner': {}}),
            r"train_cfg\.query_head must have .*; did you mean 'assigner'\?",
        ),
        (
            train_cfg(roi_head=[{'nms_pre': 3}]),
            r"train_cfg\.roi_head must have .*got 'nms_pre'; remove it",
        ),
        (
            {'test_cfg': {'query_head': {'max_per_image': 3}}},
            "did you mean 'max_per_img'",
        ),
        (
            train_cfg(find_unused_parameters=True),
            r"got 'find_unused_parameters'; it belongs at the top level",
        ),
        (train_cfg(static_graph=True), r'it belongs in .*model_wrapper_cfg'),
        (
            train_cfg(bbox_head={'with_cp': False}),
            r"train_cfg\.bbox_head .*got 'with_cp'; it belongs in model\.back",
        ),
        (
            {'mask_policy': 'lsj'},
            r"mask_policy must be one of \('valid', 'canvas'\)",
        ),
        (
            {'backbone': {'with_cp': 99}},
            r'backbone.with_cp must be a bool or in \[0, 8\], got 99',
        ),
        (
            {'query_head': {'transformer': {'decoder': {'with_cp': 3}}}},
            r'decoder\.with_cp must be a bool or in \[0, 2\], got 3',
        ),
    ],
)
def test_wrong_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        MODELS.build(tiny_model_cfg(**changes))


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        (
            {'train_cfg': [{}, {}]},
            'train_cfg must be a dict keyed by head, got list; '
            r'.*co_detr_configs\.md',
        ),
        (
            train_cfg(roi_head=3),
            r'train_cfg\.roi_head must be a dict or a list of dicts',
        ),
        (
            train_cfg(roi_head=[{}, 'x']),
            r'\.roi_head must be a dict or a list of',
        ),
        (train_cfg(query_head=[{}]), r'\.query_head must be a dict, got \['),
    ],
)
def test_settings_that_are_no_dict_are_refused(settings, message):
    with pytest.raises(TypeError, match=message):
        MODELS.build(tiny_model_cfg(**settings))

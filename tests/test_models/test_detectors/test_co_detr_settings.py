"""mmext.CoDETR: wrong settings are refused, with the remedy."""

import pytest
import torch
from mmdet.registry import MODELS
from tiny_co_dino import build_tiny, tiny_model_cfg


@pytest.mark.parametrize(
    ('changes', 'error', 'match'),
    [
        (
            {'bbox_head': {'num_classes': 80}},
            ValueError,
            r"must be the same in all heads, got 5 and \{'bbox_head': 80\}",
        ),
        (
            {'roi_head': {'bbox_head': {'num_classes': 7}}},
            ValueError,
            'roi_head.bbox_head',
        ),
        ({'num_classes': 0}, ValueError, 'at least 1, got 0'),
        (
            {'train_cfg': {'find_unused_parameters': True}},
            ValueError,
            'belongs at the top level of the config',
        ),
        (
            {'test_cfg': {'query_head': {'max_per_image': 3}}},
            ValueError,
            "did you mean 'max_per_img'",
        ),
        ({'mask_policy': 'lsj'}, ValueError, 'mask_policy must be one of'),
        ({'eval_module': 'dino'}, ValueError, 'eval_module must be one of'),
        (
            {'eval_module': 'one-stage', 'eval_index': 1},
            ValueError,
            'eval_index must be one of the 1 bbox_head',
        ),
        (
            {'backbone': {'with_cp': 99}},
            ValueError,
            r'backbone.with_cp must be a bool or in \[0, 8\], got 99',
        ),
        (
            {'query_head': {'num_co_heads': 3}},
            ValueError,
            'must not be given num_co_heads, which the detector sets',
        ),
        (
            {'query_head': {'positional_encoding': {'num_feats': 8}}},
            ValueError,
            'num_feats must be 16',
        ),
    ],
)
def test_rejects_wrong_settings(changes, error, match) -> None:
    with pytest.raises(error, match=match):
        MODELS.build(tiny_model_cfg(**changes))


def test_rejects_positional_train_cfg() -> None:
    cfg = tiny_model_cfg()
    cfg['train_cfg'] = [{}, {}]
    with pytest.raises(TypeError, match='translate_codetr_config'):
        MODELS.build(cfg)


def test_rejects_wrong_number_of_levels() -> None:
    model = build_tiny(neck={'num_outs': 4})
    with pytest.raises(ValueError, match='num_feature_levels=5 maps, got 4'):
        model(torch.randn(1, 3, 64, 64), mode='tensor')

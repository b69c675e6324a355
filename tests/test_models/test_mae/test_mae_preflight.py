"""The verdict of the preflight: no parameter unused, the flag pure cost."""

import pytest
from helpers.tiny_mae import MAEWithHead
from mmengine.config import Config

import mmext
from mmext.checks.findings import Severity
from mmext.testing import assert_ddp_clean

CONFIG = mmext.config_path('mae/mae_vit_mini_shapes.py')


def test_the_flag_is_needless():
    report = assert_ddp_clean(
        CONFIG, cfg_options={'find_unused_parameters': True}
    )
    assert report.task == 'pretraining'
    assert {f.rule for f in report.findings} >= {'DDP005'}
    result = next(f for f in report.findings if f.rule == 'DDP005')
    assert 'every parameter gets a gradient' in result.message


@pytest.mark.slow
@pytest.mark.parametrize(
    'with_cp', [pytest.param(3, marks=pytest.mark.slow), True]
)
def test_checkpoints_are_sound_with_and_without_the_flag(with_cp):
    options = {'model.backbone.with_cp': with_cp, 'model.neck.with_cp': True}
    for flag in (False, True):
        report = assert_ddp_clean(
            CONFIG, cfg_options={**options, 'find_unused_parameters': flag}
        )
        assert not {'DDP001', 'DDP002', 'DDP003', 'DDP004'} & {
            finding.rule for finding in report.findings
        }


def test_an_encoder_with_head_and_mask_token_is_named():
    """As it is in the report: two things that MAE does not run."""

    cfg = Config.fromfile(CONFIG)
    cfg.model.type = MAEWithHead.__name__
    with pytest.raises(AssertionError) as caught:
        assert_ddp_clean(cfg)
    text = str(caught.value)
    assert 'backbone.mask_token, backbone.head (2)' in text
    assert 'DDP stops at the second step' in text
    # The cure is not the flag.
    assert 'requires_grad_(False), or remove it' in text
    assert 'find_unused_parameters' not in text
    # A buffer is no parameter.
    assert 'pos_embed' not in text
    cfg.find_unused_parameters = True
    report = assert_ddp_clean(cfg)
    assert report.worst() is None or report.worst() < Severity.ERROR

"""A derived setting reaches the part, and cannot be given twice."""

import pytest
from mmengine.config import ConfigDict
from torch import nn

from mmext.models.utils.build_with import as_list, build_with

ENCODING = {'type': 'mmdet.SinePositionalEncoding', 'normalize': True}


@pytest.mark.parametrize('kind', [dict, ConfigDict])
def test_builds_with_both_kinds_of_settings(kind: type):
    cfg = kind(ENCODING)
    module = build_with(cfg, 'detector', num_feats=6, temperature=20)
    assert isinstance(module, nn.Module)
    assert (module.num_feats, module.temperature) == (6, 20)
    assert module.normalize
    assert cfg == ENCODING


def test_limit_without_settings():
    module = build_with({**ENCODING, 'num_feats': 4}, 'detector')
    assert module.num_feats == 4


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


def test_one_several_or_none():
    cfg = {'type': 'A'}
    assert as_list(cfg) == [cfg]
    for several in ([cfg, cfg], (cfg, cfg)):
        assert as_list(several) == [cfg, cfg]
        assert as_list(several) is not several
    assert as_list(None) == as_list([]) == []

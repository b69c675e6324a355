"""The gate that other projects put before their configs."""

import pytest
from mmengine.config import Config

import mmext
from mmext.testing import assert_ddp_clean

SMALL = {'batches': ('normal',), 'image_size': (64, 64)}


@pytest.fixture
def path() -> str:
    return mmext.config_path('pidnet/pidnet_small_shapes.py')


@pytest.mark.slow
def test_clean(path):
    report = assert_ddp_clean(path, **SMALL)
    assert report.task == 'semantic'
    assert [batch.kind for batch in report.batches] == ['normal']


@pytest.mark.slow
def test_allowed(path):
    cfg = Config.fromfile(path)
    before = cfg.to_dict()
    wrong = {'model.decode_head.num_classes': 6}
    with pytest.raises(
        AssertionError, match=r'(?s)not sound.*num_classes'
    ) as error:
        assert_ddp_clean(cfg, cfg_options=wrong, **SMALL)
    assert cfg.to_dict() == before
    lines = str(error.value).splitlines()[1:]
    rules = [line.split()[0] for line in lines]
    assert_ddp_clean(path, cfg_options=wrong, allow=rules, **SMALL)


@pytest.mark.slow
def test_no_step(path):
    wrong = {'model.backbone.type': 'NoSuchNet'}
    with pytest.raises(AssertionError, match='NoSuchNet'):
        assert_ddp_clean(path, cfg_options=wrong, **SMALL)

import copy
import uuid

import pytest
import toy_training as toy
from mmengine.config import Config

from mmext.apis.train import prepare_training, run_training


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    toy.quicken(monkeypatch)


@pytest.fixture
def make(tmp_path):
    """Writes a config file with some changes."""
    # MMEngine logs runs of the same name and second into one file.
    return lambda **changes: toy.write(
        tmp_path / 'cfg.py',
        toy.config(experiment_name=uuid.uuid4().hex, **changes),
    )


def test_a_training(make, tmp_path):
    cfg = prepare_training(make(), work_dir=str(tmp_path / 'work'))
    before = copy.deepcopy(cfg.to_dict())
    run_training(cfg)
    assert cfg.to_dict() == before
    assert (tmp_path / 'work' / 'epoch_3.pth').is_file()


def test_resume(make, tmp_path):
    path = make(load_from='weights.pth')
    cfg = prepare_training(path)
    assert (cfg.get('resume', False), cfg.load_from) == (False, 'weights.pth')
    cfg = prepare_training(path, resume='auto')
    assert (cfg.resume, cfg.load_from) == ('auto', 'weights.pth')
    (tmp_path / 'a.pth').touch()
    cfg = prepare_training(path, resume=str(tmp_path / 'a.pth'))
    assert (cfg.resume, cfg.load_from) == (True, str(tmp_path / 'a.pth'))
    cfg = prepare_training(path, resume='s3://bucket/a.pth')
    assert cfg.load_from == 's3://bucket/a.pth'


def test_resume_rejects_absent_file(make):
    with pytest.raises(
        FileNotFoundError,
        match=(r"existing checkpoint, got 'none.pth'; --resume alone takes"),
    ):
        prepare_training(make(), resume='none.pth')


@pytest.mark.parametrize('kind', [None, 'OptimWrapper', 'AmpOptimWrapper'])
def test_amp(make, tmp_path, kind):
    wrapper = dict(optimizer=dict(type='SGD', lr=0.05))
    if kind:
        wrapper['type'] = kind
    cfg = prepare_training(
        make(optim_wrapper=wrapper), amp=True, work_dir=str(tmp_path / 'w')
    )
    assert cfg.optim_wrapper.type == 'AmpOptimWrapper'
    assert cfg.optim_wrapper.loss_scale == 'dynamic'
    run_training(cfg)
    (log,) = (tmp_path / 'w').rglob('*.log')
    assert 'Mixed precision on the CPU: bfloat16' in log.read_text()


def test_amp_keeps_own_loss_scale(make):
    wrapper = dict(
        type='AmpOptimWrapper',
        loss_scale=512.0,
        optimizer=dict(type='SGD', lr=0.05),
    )
    cfg = prepare_training(make(optim_wrapper=wrapper), amp=True)
    assert cfg.optim_wrapper.loss_scale == 512.0


@pytest.mark.parametrize(
    ('wrapper', 'message'),
    [
        (
            dict(type='ApexOptimWrapper'),
            "got 'ApexOptimWrapper'; set up mixed",
        ),
        (None, 'optim_wrapper in the config, got None'),
    ],
)
def test_amp_rejects(make, wrapper, message):
    with pytest.raises(ValueError, match=f'--amp .*{message}'):
        prepare_training(make(optim_wrapper=wrapper), amp=True)


def test_auto_scale_lr(make, tmp_path):
    path = make(auto_scale_lr=dict(base_batch_size=4))
    cfg = prepare_training(
        path, auto_scale_lr=True, work_dir=str(tmp_path / 'w')
    )
    assert cfg.auto_scale_lr.enable
    cfg.custom_hooks = [dict(type='TraceHook', path=str(tmp_path / 'trace'))]
    cfg.param_scheduler = []
    run_training(cfg)
    assert toy.read_trace(tmp_path / 'trace.0')[0]['lr'] == 0.05 * 2 / 4
    assert 'enable' not in prepare_training(path).auto_scale_lr


@pytest.mark.parametrize(
    'setting',
    [
        None,
        dict(),
        dict(enable=True),
        dict(base_batch_size=0),
        dict(base_batch_size='16'),
    ],
)
def test_auto_scale_lr_rejects(make, setting):
    with pytest.raises(
        ValueError,
        match=(r'needs auto_scale_lr.base_batch_size.*add auto_scale_lr=dict'),
    ):
        prepare_training(make(auto_scale_lr=setting), auto_scale_lr=True)


def test_config_object_is_not_changed():
    cfg = Config(toy.config())
    before = copy.deepcopy(cfg.to_dict())
    prepare_training(cfg, amp=True, resume='auto', device='auto')
    assert cfg.to_dict() == before

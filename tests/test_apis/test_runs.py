import copy
import re
import uuid
from types import SimpleNamespace

import pytest
import torch
from helpers import toy_training as toy

from mmext.apis.runs import (
    build_runner,
    prepare_config,
    prepare_test,
    prepare_training,
    run_test,
    run_training,
)
from mmext.engine import PortableRunner
from mmext.utils import tensors


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
    with pytest.raises(FileNotFoundError, match=r"got 'none.pth'; --resume"):
        prepare_training(path, resume='none.pth')


@pytest.mark.parametrize(
    ('kind', 'flags', 'asked'),
    [
        ('OptimWrapper', 'avx512_bf16', None),
        ('AmpOptimWrapper', 'avx512_bf16', None),
        (None, 'avx2', None),
        (None, 'avx2', 'bfloat16'),
    ],
)
def test_amp(make, tmp_path, kind, flags, asked, monkeypatch):
    info = tmp_path / 'cpuinfo'
    info.write_text(f'flags : {flags}')
    monkeypatch.setattr(tensors, '_CPU_INFO', info)
    wrapper = dict(optimizer=dict(type='SGD', lr=0.05))
    if kind:
        wrapper['type'] = kind
    cfg = prepare_training(
        make(optim_wrapper=wrapper),
        amp=True,
        work_dir=str(tmp_path / 'w'),
        cfg_options={'optim_wrapper.dtype': asked} if asked else None,
    )
    assert cfg.optim_wrapper.type == 'AmpOptimWrapper'
    is_slow = kind is None
    expected = None if is_slow and not asked else 'bfloat16'
    assert cfg.optim_wrapper.get('dtype') == expected
    run_training(cfg)
    (log,) = (tmp_path / 'w').rglob('*.log')
    log = log.read_text()
    assert ('Mixed precision on the CPU: bfloat16' in log) == bool(expected)
    figure = re.search(r'a matrix product takes \d+\.\d times as long', log)
    assert bool(figure) == is_slow
    assert ('Training goes on in float32' in log) == (not expected)


@pytest.mark.parametrize('major', [7, 8])
def test_amp_is_bfloat16_on_gpus_that_have_it(make, monkeypatch, major):
    properties = SimpleNamespace(major=major)
    for name, value in (
        ('is_available', True),
        ('device_count', 1),
        ('get_device_properties', properties),
    ):
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    wrapper = prepare_training(make(), amp=True, device='cuda').optim_wrapper
    assert wrapper.get('dtype') == ('bfloat16' if major == 8 else None)
    scale = dict(enabled=False) if major == 8 else 'dynamic'
    assert wrapper.loss_scale == scale
    given = make(optim_wrapper=dict(dtype='float16'))
    wrapper = prepare_training(given, amp=True, device='cuda').optim_wrapper
    assert (wrapper.dtype, wrapper.loss_scale) == ('float16', 'dynamic')


@pytest.mark.parametrize(
    ('kind', 'setting', 'rate'),
    [
        ('SGD', {}, 0.025),
        ('AdamW', {}, 0.05),
        ('AdamW', {'rule': 'linear'}, 0.025),
    ],
)
def test_auto_scale_lr(make, tmp_path, kind, setting, rate):
    path = make(
        optim_wrapper=dict(optimizer=dict(type=kind, lr=0.1)),
        auto_scale_lr=dict(base_batch_size=8, **setting),
    )
    cfg = prepare_training(
        path, auto_scale_lr=True, work_dir=str(tmp_path / 'w')
    )
    assert cfg.auto_scale_lr.enable
    cfg.custom_hooks = [dict(type='TraceHook', path=str(tmp_path / 'trace'))]
    cfg.param_scheduler = []
    run_training(cfg)
    assert toy.read_trace(tmp_path / 'trace.0')[0]['lr'] == rate
    assert 'enable' not in prepare_training(path).auto_scale_lr


NEEDS = r'needs auto_scale_lr.base_batch_size.*add auto_scale_lr=dict'


@pytest.mark.parametrize(
    ('changes', 'options', 'message'),
    [
        (
            dict(optim_wrapper=dict(type='ApexOptimWrapper')),
            dict(amp=True),
            "--amp .*got 'ApexOptimWrapper'; set up mixed",
        ),
        (dict(optim_wrapper=None), dict(amp=True), '--amp .*, got None'),
        (dict(auto_scale_lr=None), dict(auto_scale_lr=True), NEEDS),
        (
            dict(auto_scale_lr=dict(base_batch_size='16')),
            dict(auto_scale_lr=True),
            NEEDS,
        ),
        (dict(), dict(device='tpu'), "got 'tpu'"),
        (dict(), dict(launcher='pytorch'), 'must set RANK'),
    ],
)
def test_refused_arguments(make, changes, options, message, monkeypatch):
    for name in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK'):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match=message):
        prepare_training(make(**changes), **options)


@pytest.fixture
def run_test_make(tmp_path):
    """Writes a config file with some changes."""
    return lambda **changes: toy.write(
        tmp_path / 'cfg.py', toy.config(**{**toy.TEST, **changes})
    )


@pytest.fixture
def checkpoint(tmp_path):
    """Weights that make every output 3, of which the first are 2 + 1."""
    path = tmp_path / 'a.pth'
    torch.save(toy.WEIGHTS, path)
    return str(path)


def test_resume_of_the_config_does_not_count(run_test_make, checkpoint):
    cfg = prepare_test(run_test_make(resume=True), checkpoint)
    assert (cfg.resume, cfg.load_from) == (False, checkpoint)


def test_only_test_data_are_needed(run_test_make, checkpoint):
    loader = toy.loader()
    loader['dataset']['ann_file'] = 'nowhere.json'
    prepare_test(run_test_make(train_dataloader=loader), checkpoint)
    with pytest.raises(FileNotFoundError, match='test data'):
        prepare_test(run_test_make(test_dataloader=loader), checkpoint)


def test_rejects_what_cannot_be_tested(run_test_make, checkpoint):
    none = run_test_make(**dict.fromkeys(toy.TEST))
    with pytest.raises(ValueError, match='config must have test_dataloader'):
        prepare_test(none, checkpoint)


def test_rejects_weights_that_leave_some_random(
    run_test_make, checkpoint, tmp_path
):
    weights = torch.load(checkpoint, weights_only=True)
    weights.pop('linear.bias')
    torch.save(weights, tmp_path / 'part.pth')
    cfg = prepare_test(run_test_make(), str(tmp_path / 'part.pth'))
    with pytest.raises(ValueError, match='must hold all weights of the mode'):
        run_test(cfg)


SPLITS = ('train', 'val')


@pytest.fixture
def path(tmp_path):
    return toy.write(tmp_path / 'folder' / 'some_name.py', toy.config())


def test_work_dir(path):
    cfg = prepare_config(path, splits=SPLITS)
    assert cfg.work_dir == 'work_dirs/some_name'
    cfg = prepare_config(path, splits=SPLITS, work_dir='a')
    assert cfg.work_dir == 'a'
    cfg = prepare_config(path, splits=SPLITS, cfg_options=dict(work_dir='b'))
    assert cfg.work_dir == 'b'


def test_runner_is_ours_unless_the_config_says_otherwise(path, tmp_path):
    cfg = prepare_config(path, splits=SPLITS, work_dir=str(tmp_path / 'a'))
    cfg.pop('runner_type')
    assert type(build_runner(cfg)) is PortableRunner
    assert 'runner_type' not in cfg
    cfg.runner_type = 'Runner'
    assert type(build_runner(cfg)) is not PortableRunner

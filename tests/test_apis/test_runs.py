import pytest
import torch
import toy_training as toy
from torch import distributed as dist

from mmext.apis._runs import build_runner, prepare_config, process_group
from mmext.engine import GracefulExit, PortableRunner

SPLITS = ('train', 'val')


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    toy.quicken(monkeypatch)


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


def test_options(path):
    cfg = prepare_config(
        path,
        splits=SPLITS,
        device='auto',
        cfg_options={'train_dataloader.batch_size': 7},
    )
    assert (cfg.train_dataloader.batch_size, cfg.device) == (7, 'auto')
    assert cfg.launcher == 'none'
    assert prepare_config(path, splits=SPLITS).device == 'cpu'


def test_rejects_absent_config():
    with pytest.raises(FileNotFoundError, match=r'got none.py'):
        prepare_config('none.py', splits=SPLITS)


def test_rejects_absent_data(tmp_path):
    cfg = toy.config()
    cfg['train_dataloader']['dataset']['ann_file'] = 'nowhere.json'
    path = toy.write(tmp_path / 'a.py', cfg)
    with pytest.raises(FileNotFoundError, match='data that does not exist'):
        prepare_config(path, splits=SPLITS)


def test_rejects_device_and_launcher(path, monkeypatch):
    with pytest.raises(ValueError, match="got 'tpu'"):
        prepare_config(path, splits=SPLITS, device='tpu')
    for name in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK'):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match='must set RANK'):
        prepare_config(path, splits=SPLITS, launcher='pytorch')


@pytest.mark.parametrize('launcher', ['pytorch', 'slurm', 'mpi'])
def test_more_processes_than_gpus(path, monkeypatch, launcher):
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 1)
    for name in ('LOCAL_RANK', 'SLURM_LOCALID', 'OMPI_COMM_WORLD_LOCAL_RANK'):
        monkeypatch.setenv(name, '0')
    for name in ('RANK', 'SLURM_PROCID', 'OMPI_COMM_WORLD_RANK'):
        monkeypatch.setenv(name, '0')
    for name in (
        'WORLD_SIZE',
        'LOCAL_WORLD_SIZE',
        'SLURM_NTASKS',
        'SLURM_NTASKS_PER_NODE',
        'OMPI_COMM_WORLD_SIZE',
        'OMPI_COMM_WORLD_LOCAL_SIZE',
    ):
        monkeypatch.setenv(name, '2')
    monkeypatch.setenv('MASTER_ADDR', '127.0.0.1')
    with pytest.raises(
        ValueError, match=(r'got 2 processes and 1 CUDA device.*--device cpu')
    ):
        prepare_config(path, splits=SPLITS, launcher=launcher, device='auto')


def test_runner_is_ours_unless_the_config_says_otherwise(path, tmp_path):
    cfg = prepare_config(path, splits=SPLITS, work_dir=str(tmp_path / 'a'))
    cfg.pop('runner_type')
    assert type(build_runner(cfg)) is PortableRunner
    assert 'runner_type' not in cfg
    cfg.runner_type = 'Runner'
    assert type(build_runner(cfg)) is not PortableRunner


@pytest.mark.parametrize(
    ('error', 'failed'),
    [
        (None, False),
        (GracefulExit(15), False),
        (ValueError('x'), True),
        (KeyboardInterrupt(), True),
    ],
)
def test_process_group_is_left(monkeypatch, error, failed):
    calls = []
    monkeypatch.setattr(
        'mmext.apis._runs.close_process_group',
        lambda **kwargs: calls.append(kwargs),
    )

    def use():
        with process_group():
            if error is not None:
                raise error

    if error is None:
        use()
    else:
        with pytest.raises(type(error)):
            use()
    assert calls == [dict(failed=failed)]
    assert not dist.is_initialized()

import mmengine.device
import pytest
import torch

from mmext.engine import pin_device, resolve_device
from mmext.engine.launcher import LauncherEnv


@pytest.fixture
def gpus(monkeypatch):
    """Pretend that the machine has a number of GPUs."""

    def pretend(count):
        monkeypatch.setattr(torch.cuda, 'is_available', lambda: count > 0)
        monkeypatch.setattr(torch.cuda, 'device_count', lambda: count)

    return pretend


def env(local_rank=0, local_world_size=2, **kwargs):
    return LauncherEnv(
        local_rank, 4, local_rank, local_world_size, 'a', 1, **kwargs
    )


def test_single_process(gpus):
    gpus(0)
    assert resolve_device('auto') == torch.device('cpu')
    assert resolve_device('cpu') == torch.device('cpu')
    gpus(2)
    assert resolve_device('auto') == torch.device('cuda', 0)
    assert resolve_device('cuda') == torch.device('cuda', 0)
    assert resolve_device('cuda:1') == torch.device('cuda', 1)
    assert resolve_device('cpu') == torch.device('cpu')


def test_each_rank_has_its_gpu(gpus):
    gpus(2)
    assert resolve_device('auto', env(1)) == torch.device('cuda', 1)
    assert resolve_device('cpu', env(1)) == torch.device('cpu')
    gpus(0)
    assert resolve_device('auto', env(1)) == torch.device('cpu')


def test_gpu_that_only_this_rank_sees(gpus):
    gpus(1)
    assert resolve_device('auto', env(1, 2, own_device=True)).index == 0


@pytest.mark.parametrize('device', ['gpu', 'cuda:', 'cuda:-1', '', None, 0])
def test_rejects_other_texts(device):
    with pytest.raises(ValueError, match="device must be 'auto', 'cpu'"):
        resolve_device(device)


def test_rejects_cuda_where_there_is_none(gpus, monkeypatch):
    gpus(0)
    monkeypatch.setattr(torch.version, 'cuda', None)
    with pytest.raises(ValueError, match='without CUDA; use --device cpu'):
        resolve_device('cuda')
    monkeypatch.setattr(torch.version, 'cuda', '12.6')
    with pytest.raises(ValueError, match='sees no CUDA device'):
        resolve_device('cuda:0', env())


def test_rejects_index_that_does_not_exist(gpus):
    gpus(2)
    with pytest.raises(ValueError, match="got 'cuda:2', but there are only 2"):
        resolve_device('cuda:2')


@pytest.mark.parametrize('rank', [0, 2])
def test_rejects_more_processes_than_devices(gpus, rank):
    """On every rank, not only on those without one."""
    gpus(2)
    with pytest.raises(ValueError, match='got 3 processes and 2 CUDA'):
        resolve_device('auto', env(rank, 3))


def test_rejects_index_with_a_launcher(gpus):
    gpus(2)
    with pytest.raises(ValueError, match='must have no index'):
        resolve_device('cuda:1', env())


def test_pin_device_holds_mmengine():
    pin_device(torch.device('cpu'))
    assert mmengine.device.get_device() == 'cpu'
    mmengine.device.utils.DEVICE = 'cuda'
    pin_device(torch.device('cpu'))
    assert mmengine.device.get_device() == 'cpu'


def test_pin_device_chooses_the_gpu(monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.cuda, 'set_device', chosen.append)
    pin_device(torch.device('cuda', 1))
    assert chosen == [torch.device('cuda', 1)]
    assert mmengine.device.get_device() == 'cuda'

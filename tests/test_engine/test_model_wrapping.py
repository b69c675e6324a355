import copy

import pytest
import torch
from mmengine.model import MMFullyShardedDataParallel

from mmext.engine import model_wrapper_config

CPU, GPU = torch.device('cpu'), torch.device('cuda', 1)
DDP = dict(type='mmext.DistributedDataParallel')


def test_without_config():
    assert model_wrapper_config(None, CPU) == dict(
        **DDP, broadcast_buffers=False, find_unused_parameters=False
    )
    assert model_wrapper_config(None, GPU, True) == dict(
        **DDP,
        broadcast_buffers=False,
        find_unused_parameters=True,
        device_ids=[1],
    )


def test_top_level_holds_with_a_config_too():
    cfg = dict(static_graph=True, broadcast_buffers=True)
    before = copy.deepcopy(cfg)
    assert model_wrapper_config(cfg, CPU, True) == dict(
        **DDP,
        static_graph=True,
        broadcast_buffers=True,
        find_unused_parameters=True,
    )
    assert cfg == before


def test_cpu_has_no_device_ids():
    cfg = dict(**DDP, device_ids=[0], output_device=0)
    result = model_wrapper_config(cfg, CPU)
    assert not {'device_ids', 'output_device'} & set(result)
    assert model_wrapper_config(cfg, GPU)['device_ids'] == [0]


def test_other_wrappers_are_left_alone():
    cfg = dict(type=MMFullyShardedDataParallel, use_orig_params=True)
    assert model_wrapper_config(cfg, GPU, True) == cfg


def test_rejects_contradiction():
    with pytest.raises(ValueError, match='got True at the top level and Fals'):
        model_wrapper_config(dict(find_unused_parameters=False), CPU, True)


def test_rejects_unknown_type():
    with pytest.raises(KeyError, match="got 'NoSuchWrapper'"):
        model_wrapper_config(dict(type='NoSuchWrapper'), CPU)

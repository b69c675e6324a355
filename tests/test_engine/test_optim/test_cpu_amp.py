import pytest
import torch
from helpers import toy_training as toy
from torch import nn

from mmext.engine.optim.cpu_amp import CpuAmpOptimWrapper, cpu_amp_cfg

SGD = dict(type='SGD', lr=0.01)


def wrapper(**kwargs):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, CpuAmpOptimWrapper(optimizer=optimizer, **kwargs)


@pytest.mark.parametrize('dtype', ['float16', torch.float16])
def test_rejects_float16(dtype):
    with pytest.raises(ValueError, match="must be 'bfloat16' on a CPU, got"):
        cpu_amp_cfg(dict(type='AmpOptimWrapper', dtype=dtype))


def test_loads_the_state_of_a_scaled_training():
    _, optim = wrapper()
    state = optim.state_dict()
    state['loss_scaler'] = dict(scale=512.0)
    optim.load_state_dict(state)
    assert 'loss_scaler' in state


def test_runner_uses_it_for_any_config(tmp_path):
    # Without dtype, a CPU without instructions for it goes on in float32.
    optim = dict(type='AmpOptimWrapper', dtype='bfloat16', optimizer=SGD)
    optim['loss_scale'] = 'dynamic'
    runner = toy.build(tmp_path, optim_wrapper=optim)
    runner.train()
    assert type(runner.optim_wrapper) is CpuAmpOptimWrapper
    plain = toy.train(tmp_path / 'plain', optim_wrapper=dict(optimizer=SGD))
    amp = toy.read_trace(tmp_path / 'trace.0')
    first = [trace[0]['loss'] for trace in (amp, plain)]
    assert first[0] == pytest.approx(first[1], rel=0.05)
    assert first[0] != first[1]


@pytest.mark.parametrize('size', [(1, 1), (1, 4), (2, 1), (5, 6)])
@pytest.mark.parametrize('kernel', [1, 3, 5])
def test_gradients_of_weights_that_meet_only_padding(size, kernel):
    """PyTorch leaves them as the memory was, here NaN."""
    torch.manual_seed(0)
    model = nn.Conv2d(16, 32, kernel, stride=2, padding=kernel // 2)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    optim = CpuAmpOptimWrapper(optimizer=sgd)
    data = torch.randn(2, 16, *size)
    model(data).square().sum().backward()
    expected = model.weight.grad.clone()
    for _ in range(20):
        model.weight.grad = None
        spoilt = torch.full((4 * model.weight.numel(),), torch.nan)
        del spoilt
        with optim.optim_context(model):
            model(data).float().square().sum().backward()
        torch.testing.assert_close(
            model.weight.grad, expected, rtol=0.05, atol=0.2
        )
    assert len(model._forward_hooks) == 1
    model.weight.requires_grad_(False)
    with optim.optim_context(model):
        model(input=data).float().sum().backward()

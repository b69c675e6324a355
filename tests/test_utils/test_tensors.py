"""Types of the arithmetic, and what the decorator switches off."""

import numpy as np
import pytest
import torch
from helpers.torch_versions import cpu_autocast

from mmext.utils import tensors
from mmext.utils.tensors import (
    exact,
    float32_region,
    has_bfloat16,
    to_device,
    to_float32,
    wide_type,
    widen,
)


@pytest.mark.parametrize(
    ('dtype', 'wide'),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
        (torch.int64, torch.float32),
    ],
)
def test_widen(dtype, wide):
    x = torch.ones(2, dtype=dtype)
    assert wide_type(x) == widen(x).dtype == wide
    assert (widen(x) is x) == (dtype == wide)


def test_exact_runs_without_autocast_and_autograd(device):
    @exact
    def product(a, b, *, negate=False):
        """Multiply."""
        return -(a @ b) if negate else a @ b

    x = torch.randn(3, 3, requires_grad=True, device=device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        result = product(x, x, negate=True)
        assert (x @ x).dtype == torch.bfloat16
        assert torch.is_grad_enabled()
    assert result.dtype == torch.float32
    assert not result.requires_grad
    assert torch.equal(product(a=x, b=x), -result)
    assert (product.__name__, product.__doc__) == ('product', 'Multiply.')


HALVES = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize('dtype', HALVES)
def test_region_computes_in_float32(dtype: torch.dtype, device: torch.device):
    x = torch.full((2, 2), 300.0, device=device)
    if device.type == 'cpu':
        cpu_autocast(dtype)
    with torch.autocast(device.type, dtype):
        assert (x @ x).dtype == dtype
        with float32_region(x):
            assert (x @ x).dtype == torch.float32
            assert (x @ x).tolist() == [[180000.0] * 2] * 2
        assert (x @ x).dtype == dtype, 'autocast must be back on'


@pytest.mark.parametrize('dtype', HALVES)
def test_casts_halves_everywhere(dtype: torch.dtype):
    half = torch.tensor([1.5, 2.0], dtype=dtype)
    given = {'a': [half, (half, 3)], 'b': {'c': half}, 'd': 'text', 'e': None}
    result = to_float32(given)
    assert result.keys() == given.keys()
    assert type(result['a']) is list
    assert type(result['a'][1]) is tuple
    for tensor in (result['a'][0], result['a'][1][0], result['b']['c']):
        assert tensor.dtype == torch.float32
        assert tensor.tolist() == [1.5, 2.0]
    assert (result['a'][1][1], result['d'], result['e']) == (3, 'text', None)
    assert half.dtype == given['b']['c'].dtype == dtype


@pytest.mark.parametrize(
    ('flags', 'has'),
    [
        ('flags : fpu avx512f avx512_bf16 sse', True),
        ('flags : fpu amx_bf16 amx_tile', True),
        ('Features : fp asimd bf16', True),
        ('flags : fpu avx512f avx512_vnni', False),
        (None, False),
    ],
)
def test_cpus_that_compute_in_bfloat16(flags, has, tmp_path, monkeypatch):
    info = tmp_path / 'cpuinfo'
    if flags is not None:
        info.write_text(f'processor : 0\n{flags}\n')
    monkeypatch.setattr(tensors, '_CPU_INFO', info)
    assert has_bfloat16(torch.device('cpu')) == has
    assert not has_bfloat16(torch.device('meta'))


@pytest.mark.parametrize('dtype', ['int64', 'float32'])
def test_arrays_are_copied_whatever_device_is_the_default(dtype):
    values = np.arange(6).reshape(2, 3).astype(dtype)
    with torch.device('meta'):
        copy = to_device(values, torch.device('cpu'))
    assert copy.tolist() == values.tolist()
    assert str(copy.dtype) == f'torch.{dtype}'
    copy.zero_()
    assert values.max() == 5

"""Deformable attention against a recorded run and mmcv's PyTorch function."""

import pytest
import torch
from mmcv.ops.multi_scale_deform_attn import (
    MultiScaleDeformableAttnFunction,
    multi_scale_deformable_attn_pytorch,
)
from reference.op_checks import assert_same, values_and_grads
from torch import Tensor

from mmext.ops.ms_deform_attn import attend_level

SHAPES = torch.tensor([[6, 8], [3, 4], [1, 2]])


def make_inputs(queries: int = 7, *, images: int = 2) -> dict[str, Tensor]:
    """Locations reach past the maps on every side."""
    pixels = int(SHAPES.prod(1).sum())
    return {
        'value': torch.randn(images, pixels, 3, 4),
        'location': torch.rand(images, queries, 3, 3, 2, 2) * 1.6 - 0.3,
        'weight': torch.rand(images, queries, 3, 3, 2),
    }


def attend(
    value: Tensor, location: Tensor, weight: Tensor, shapes: Tensor = SHAPES
) -> Tensor:
    shapes = shapes.to(value.device)
    ends = shapes.prod(1).cumsum(0)
    starts = torch.cat([ends.new_zeros(1), ends[:-1]])
    return MultiScaleDeformableAttnFunction.apply(
        value, shapes, starts, location, weight, 64
    )


def mmcv_attend(value: Tensor, location: Tensor, weight: Tensor) -> Tensor:
    return multi_scale_deformable_attn_pytorch(
        value, SHAPES.to(value.device), location, weight
    )


def test_matches_recorded_run(oracle, device):
    call = oracle('ms_deform_attn')
    names = {'value': 'value', 'loc': 'location', 'attn': 'weight'}
    actual = values_and_grads(
        lambda **inputs: attend(**inputs, shapes=call['inputs']['shapes']),
        {new: call['inputs'][old].to(device) for old, new in names.items()},
        call['grads']['_cotangent'].to(device),
    )
    expected = {new: call['grads'][old] for old, new in names.items()}
    assert_same(actual, {'output': call['outputs'][0], **expected}, atol=1e-4)


def test_matches_mmcv_pytorch(device):
    inputs = {
        key: x.to(device, torch.float64) for key, x in make_inputs().items()
    }
    actual = values_and_grads(attend, inputs)
    expected = values_and_grads(mmcv_attend, inputs)
    assert_same(actual, expected, rtol=1e-9, atol=1e-9)


def test_gradcheck():
    inputs = make_inputs(2, images=1)
    leaves = [x.double().requires_grad_() for x in inputs.values()]
    assert torch.autograd.gradcheck(attend, leaves)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half(dtype, device):
    inputs = {key: x.to(device, dtype) for key, x in make_inputs().items()}
    half = values_and_grads(attend, inputs)
    full = values_and_grads(
        attend, {key: x.float() for key, x in inputs.items()}
    )
    assert {x.dtype for x in half.values()} == {dtype}
    assert all(x.isfinite().all() for x in half.values())
    assert_same(half, {'output': full['output']}, rtol=2e-2, atol=2e-2)


def test_autocast_changes_nothing(device):
    inputs = {key: x.to(device) for key, x in make_inputs().items()}
    with torch.autocast(device.type, dtype=torch.bfloat16):
        actual = attend(**inputs)
    assert torch.equal(actual, attend(**inputs))


def test_not_contiguous():
    inputs = make_inputs()
    turned = {
        key: x.movedim(0, -1).contiguous().movedim(-1, 0)
        for key, x in inputs.items()
    }
    assert_same(
        values_and_grads(attend, turned), values_and_grads(attend, inputs)
    )


def test_no_queries():
    actual = values_and_grads(attend, make_inputs(0))
    assert actual['output'].shape == (2, 0, 12)
    assert not actual['value'].any()


def test_locations_that_are_no_numbers_spoil_their_query_only():
    inputs = make_inputs()
    expected = attend(**inputs)[:, 1:]
    inputs['location'][:, 0] = torch.inf
    assert torch.equal(attend(**inputs)[:, 1:], expected)


def test_attend_level_of_a_constant_map():
    value = torch.full((1, 6, 2, 3), 5.0)
    location = torch.full((1, 4, 2, 2, 2), 0.5)
    weight = torch.rand(1, 4, 2, 2)
    out = attend_level(value, (2, 3), location, weight)
    expected = 5 * weight.sum(-1).repeat_interleave(3, -1)
    torch.testing.assert_close(out, expected)

"""RoIPool against a plain loop; mmcv has no CPU kernel to compare with."""

import pytest
import torch
from mmcv.ops import RoIPool, roi_pool
from reference import slow_ops
from reference.op_checks import assert_same, values_and_grads

from mmext.ops.roi_pool import bin_edges, roi_pool_forward

# Inside, over the edges, outside, a pixel, reversed, a corner, the whole map.
ROIS = torch.tensor(
    [
        [0, 4, 8, 40, 30],
        [1, -20, -13, 15, 11],
        [0, 60, 50, 140, 120],
        [1, 300, 300, 340, 350],
        [1, 20, 20, 20, 20],
        [0, 30, 30, 20, 40],
        [1, 10.2, 10.3, 10.9, 11.1],
        [0, 0, 0, 87, 71],
    ]
)


@pytest.mark.parametrize('bins', [(3, 2), (7, 7)])
@pytest.mark.parametrize('scale', [0.25, 0.5])
def test_matches_plain_loop(scale, bins, device):
    # Distinct values: with equal ones the gradient could go to either.
    maps = torch.randperm(2 * 2 * 18 * 22).view(2, 2, 18, 22) / 10 - 50
    actual = values_and_grads(
        lambda input: roi_pool(input, ROIS.to(device), bins, scale),
        {'input': maps.to(device)},
    )
    expected = values_and_grads(
        lambda input: slow_ops.roi_pool(input, ROIS, bins, scale),
        {'input': maps},
    )
    assert_same(actual, expected)


def test_one_bin_is_the_maximum():
    maps = torch.randn(1, 3, 5, 6)
    pooled = RoIPool(1, 1.0)(maps, torch.tensor([[0.0, 0, 0, 5, 4]]))
    assert torch.equal(pooled.flatten(), maps.amax((0, 2, 3)))


def test_argmax_is_the_first_of_equal_pixels_and_minus_one_of_none():
    maps = torch.zeros(1, 1, 4, 4)
    rois = torch.tensor([[0.0, 1, 1, 2, 2], [0, 9, 9, 9, 9], [0, 3, 3, 1, 3]])
    output = torch.full((3, 1, 1, 1), 7.0)
    argmax = torch.full((3, 1, 1, 1), 7, dtype=torch.int)
    output[2] = 0
    roi_pool_forward(maps, rois, output, argmax, 1, 1, 1.0)
    assert argmax.flatten().tolist() == [5, -1, -1]
    assert output.flatten().tolist() == [0, 0, 0]


def test_chunks_do_not_change_the_result(monkeypatch):
    maps = {'input': torch.randn(2, 3, 18, 22)}

    def run():
        return values_and_grads(
            lambda input: roi_pool(input, ROIS, (3, 2), 0.25), maps
        )

    whole = run()
    monkeypatch.setattr('mmext.ops.roi_pool._CHUNK', 1)
    assert_same(run(), whole, rtol=0, atol=0)


def test_no_regions():
    actual = values_and_grads(
        lambda input: roi_pool(input, ROIS[:0], 2, 0.25),
        {'input': torch.randn(2, 3, 8, 8)},
    )
    assert actual['output'].shape == (0, 3, 2, 2)
    assert not actual['input'].any()


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half(dtype, device):
    maps = torch.randn(2, 3, 18, 22, device=device).to(dtype)
    actual = values_and_grads(
        lambda input: roi_pool(input, ROIS.to(device), 3, 0.25),
        {'input': maps},
    )
    full = roi_pool(maps.float(), ROIS.to(device), 3, 0.25)
    assert torch.equal(actual['output'].float(), full)
    assert actual['input'].dtype == dtype
    assert actual['input'].isfinite().all()


def test_not_contiguous():
    maps = torch.randn(2, 22, 3, 18).permute(0, 2, 3, 1)
    grad = torch.randn(2, 3, len(ROIS), 3).permute(2, 1, 0, 3)
    actual, expected = (
        values_and_grads(
            lambda input: roi_pool(input, ROIS, (2, 3), 0.25),
            {'input': x},
            grad,
        )
        for x in (maps, maps.contiguous())
    )
    assert_same(actual, expected, rtol=0, atol=0)


def test_rejects_rois_outside_the_batch():
    rois = torch.tensor([[3.0, 0, 0, 4, 4]])
    with pytest.raises(ValueError, match=r'rois must be finite .*\[0, 2\)'):
        roi_pool(torch.zeros(2, 1, 4, 4), rois, 2)


def test_gradcheck():
    maps = torch.randperm(2 * 6 * 7).double().view(2, 1, 6, 7)
    assert torch.autograd.gradcheck(
        lambda x: roi_pool(x, ROIS[[0, 1, 6]].double(), 2, 0.25),
        (maps.requires_grad_(),),
    )


def test_bin_edges_stay_on_the_map():
    low, high = torch.tensor([-3.0, 5.0]), torch.tensor([3.0, 20.0])
    first, last = bin_edges(low, high, 3, size=8)
    assert first.tolist() == [[0, 0, 1], [5, 8, 8]]
    assert last.tolist() == [[0, 1, 3], [8, 8, 8]]

"""The matrix of a bilinear resize against ``F.interpolate``."""

import itertools

import pytest
import torch
from torch.nn import functional as F

from mmext.models.losses import _resize_matrix
from mmext.models.losses._resize_matrix import ResizeAxis

SIZES = [(1, 1), (1, 5), (5, 1), (7, 7), (3, 12), (10, 33), (33, 10), (90, 91)]
CASES = list(
    itertools.product(SIZES, (False, True), (torch.float32, torch.float64))
)


def reference(sources, results, align_corners, dtype) -> torch.Tensor:
    """The whole matrix, from PyTorch."""
    eye = torch.eye(sources, dtype=dtype)[None]
    resized = F.interpolate(
        eye, size=results, mode='linear', align_corners=align_corners
    )
    return resized[0].t()


@pytest.mark.parametrize(('sides', 'align_corners', 'dtype'), CASES)
def test_pieces_are_the_matrix_of_torch(sides, align_corners, dtype):
    wanted = reference(*sides, align_corners, dtype)
    axis = ResizeAxis(*sides, align_corners, dtype, 'cpu')
    for longest in (1, 4, 1000):
        found = torch.zeros_like(wanted)
        reached = 0
        for piece in axis.pieces(longest):
            assert piece.start == reached
            assert piece.stop - piece.start <= longest
            reached = piece.stop
            place = (
                slice(piece.start, piece.stop),
                slice(piece.low, piece.high),
            )
            found[place] = piece.weight
        assert reached == sides[1]
        torch.testing.assert_close(found, wanted, atol=3e-7, rtol=0)


@pytest.mark.parametrize(('sides', 'align_corners', 'dtype'), CASES)
def test_taps_are_the_matrix_of_torch(sides, align_corners, dtype):
    axis = ResizeAxis(*sides, align_corners, dtype, 'cpu')
    sources, weights = axis.taps()
    found = torch.zeros(sides[1], sides[0], dtype=dtype)
    found.scatter_add_(1, sources.long().t(), weights.t())
    wanted = reference(*sides, align_corners, dtype)
    torch.testing.assert_close(found, wanted, atol=3e-7, rtol=0)
    assert (weights.sum(0) - 1).abs().max() < 1e-6


@pytest.mark.parametrize('devices', [{'cpu'}, set()], ids=['product', 'sum'])
@pytest.mark.parametrize('dim', [0, 1])
@pytest.mark.parametrize(('sides', 'align_corners', 'dtype'), CASES)
def test_resize_and_its_transpose(
    sides, align_corners, dtype, dim, devices, monkeypatch
):
    """Also the way of the devices whose products are not exact."""
    monkeypatch.setattr(_resize_matrix, 'PRODUCT_DEVICES', devices)
    wanted = reference(*sides, align_corners, dtype)
    axis = ResizeAxis(*sides, align_corners, dtype, 'cpu')
    source = torch.randn(sides[0], 3, dtype=dtype)
    result = torch.randn(sides[1], 3, dtype=dtype)
    if dim:
        source, result = source.t().contiguous(), result.t().contiguous()
    resized, grad = torch.full_like(result, 9), torch.ones_like(source)
    for piece in axis.pieces(4):
        results = slice(piece.start, piece.stop)
        sources = slice(piece.low, piece.high)
        if dim:
            results, sources = (slice(None), results), (slice(None), sources)
        piece.resize(source[sources], dim, resized[results])
        piece.add_transposed(result[results], dim, grad[sources])
    expected = wanted @ source if dim == 0 else source @ wanted.t()
    back = wanted.t() @ result if dim == 0 else result @ wanted
    torch.testing.assert_close(resized, expected, atol=5e-6, rtol=0)
    torch.testing.assert_close(grad, back + 1, atol=2e-5, rtol=0)


@pytest.mark.parametrize('align_corners', [False, True])
@pytest.mark.parametrize('sides', SIZES)
def test_span_is_a_bound(sides, align_corners):
    axis = ResizeAxis(*sides, align_corners, torch.float64, 'cpu')
    reads = (reference(*sides, align_corners, torch.float64) != 0).sum(0)
    assert reads.max() <= axis.span <= sides[1]

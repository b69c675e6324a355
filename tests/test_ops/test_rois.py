"""Pixels as a table: which ones, their order, and the way back."""

import pytest
import torch

from mmext.ops._rois import PixelTable, check_rois

SHAPE = torch.Size([2, 3, 6, 5])


def table_of(*windows: tuple[int, tuple, tuple]) -> PixelTable:
    image, first, last = zip(*windows)
    return PixelTable(
        SHAPE, torch.tensor(image), torch.tensor(first), torch.tensor(last)
    )


def test_reads_the_windows_only():
    maps = torch.arange(180.0).view(SHAPE)
    pixels = table_of(
        (0, (0, 0), (1, 1)), (0, (1, 1), (1, 2)), (1, (5, 4), (5, 4))
    )
    assert len(pixels) == 6
    index = torch.tensor([0, 1, 5, 6, 7, 30 + 29])
    assert torch.equal(pixels.rows_of(index), torch.arange(6))
    expected = maps.permute(0, 2, 3, 1).reshape(-1, 3)[index]
    assert torch.equal(pixels.read(maps), expected)


@pytest.mark.parametrize(
    'windows',
    [
        [(0, (0, 0), (4, 4)), (1, (2, 3), (3, 4))],
        [(0, (0, 0), (5, 4)), (1, (0, 0), (5, 4))],
    ],
)
def test_reads_an_image_whole_where_most_is_needed(windows):
    maps = torch.randn(SHAPE)
    pixels = table_of(*windows)
    assert len(pixels) in (34, 60)
    row = pixels.rows_of(torch.arange(30))
    assert torch.equal(pixels.read(maps)[row], maps[0].flatten(1).t())


def test_adds_back_what_it_read():
    pixels = table_of((0, (0, 0), (5, 4)), (1, (2, 1), (3, 2)))
    target = torch.ones(SHAPE, dtype=torch.bfloat16)
    pixels.add_to_(target, pixels.read(torch.full(SHAPE, 2.0)))
    assert (target[0] == 3).all()
    assert (target[1, :, 2:4, 1:3] == 3).all()
    assert target[1].sum() == 90 + 2 * 12


def test_keeps_float64():
    pixels = table_of((0, (0, 0), (1, 1)))
    assert pixels.read(torch.zeros(SHAPE).half()).dtype == torch.float32
    assert pixels.read(torch.zeros(SHAPE).double()).dtype == torch.float64


def test_check_rois_accepts_none_and_good_ones():
    check_rois(torch.zeros(0, 5), images=0)
    check_rois(torch.tensor([[1.0, -5, 2, 3, 4]]), images=2)


@pytest.mark.parametrize(
    'roi', [[2.0, 0, 0, 1, 1], [0.0, 0, torch.inf, 1, 1], [-1.0, 0, 0, 1, 1]]
)
def test_check_rois_rejects(roi):
    with pytest.raises(ValueError, match=r'rois must be finite .*\[0, 2\)'):
        check_rois(torch.tensor([roi]), images=2)

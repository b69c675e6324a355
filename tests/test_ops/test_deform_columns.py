"""Displaced pixels: bilinear corners, orders, checks."""

import pytest
import torch

from mmext.ops._deform_columns import (
    ConvGeometry,
    DeformColumns,
    by_pixel,
    corner_terms,
)

GEOMETRY = ConvGeometry((3, 3), (1, 1), (1, 1), (1, 1), 1, 2)


def test_corner_terms_inside():
    pixels, weights = corner_terms(torch.tensor([1.25, 2.5]), (4, 5))
    assert pixels.tolist() == [7, 8, 12, 13]
    assert weights.tolist() == [0.375, 0.375, 0.125, 0.125]


@pytest.mark.parametrize(
    ('place', 'total'),
    [
        ([-0.25, 0.0], 0.75),
        ([3.5, 4.5], 0.25),
        ([-1.0, 2.0], 0),
        ([2.0, 5.0], 0),
        ([-7.0, 1.0], 0),
        ([torch.nan, 1.0], 0),
        ([1.0, torch.inf], 0),
    ],
)
def test_corner_terms_at_and_beyond_the_border(place, total):
    pixels, weights = corner_terms(torch.tensor(place), (4, 5))
    assert ((pixels >= 0) & (pixels < 20)).all()
    assert weights.sum() == total


def test_corner_terms_have_no_slope_a_pixel_outside():
    """Compiled mmcv says so; a new layer with padding 1 samples there."""
    place = torch.tensor([[-1.0, 1.0], [-0.999, 1.0]], requires_grad=True)
    _, weights = corner_terms(place, (4, 5))
    weights[..., 2].sum().backward()
    assert place.grad[:, 0].tolist() == [0, 1]


def test_by_pixel_order():
    """Fields change fastest, then deformable groups, taps, pixels."""
    images, groups, taps, height, width = 2, 2, 3, 4, 5
    x = torch.arange(images * groups * taps * 2 * height * width).float()
    x = x.view(images, groups * taps * 2, height, width)
    rows = by_pixel(x, taps, groups)
    assert rows.shape == (40, 3, 2, 2)
    pixel = 1 * 20 + 2 * 5 + 3
    assert rows[pixel, 2, 1, 0] == x[1, (1 * 3 + 2) * 2, 2, 3]
    assert rows[pixel, 2, 1, 1] == x[1, (1 * 3 + 2) * 2 + 1, 2, 3]


def test_columns_without_displacement_are_those_of_unfold():
    maps = torch.randn(2, 4, 5, 6)
    columns = DeformColumns(maps, torch.zeros(2, 36, 5, 6), None, GEOMETRY)
    (part,) = columns.chunks()
    sampled = columns.sample(part, *columns.leaves(part))[2]
    unfolded = torch.nn.functional.unfold(maps, 3, padding=1)
    expected = unfolded.view(2, 4, 9, 30).permute(0, 3, 2, 1)
    torch.testing.assert_close(sampled, expected.reshape(60, 9, 4))


def test_rejects_channels_that_do_not_divide():
    with pytest.raises(ValueError, match='deform_groups=2 channels, got 3'):
        DeformColumns(
            torch.zeros(1, 3, 5, 6), torch.zeros(1, 36, 5, 6), None, GEOMETRY
        )


@pytest.mark.parametrize(
    'shape', [(1, 18, 5, 6), (1, 36, 6, 6), (2, 36, 5, 6)]
)
def test_rejects_offset_of_another_shape(shape):
    with pytest.raises(
        ValueError, match=r'offset must have shape \(1, 36, 5, 6\)'
    ):
        DeformColumns(
            torch.zeros(1, 4, 5, 6), torch.zeros(shape), None, GEOMETRY
        )


def test_rejects_mask_of_another_shape():
    with pytest.raises(
        ValueError, match=r'mask must have shape \(1, 18, 5, 6\)'
    ):
        DeformColumns(
            torch.zeros(1, 4, 5, 6),
            torch.zeros(1, 36, 5, 6),
            torch.zeros(1, 9, 5, 6),
            GEOMETRY,
        )

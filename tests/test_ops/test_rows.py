"""Sums of table rows against matrix products; pixels as such rows."""

import pytest
import torch

from mmext.ops._rows import PixelTable, add_rows_, sum_rows


def matrix_of(index, weight, rows):
    matrix = weight.new_zeros(len(index), rows)
    for b, (columns, values) in enumerate(zip(index, weight)):
        for column, value in zip(columns, values):
            matrix[b, column] += value
    return matrix


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_are_products_with_one_matrix(dtype, device):
    index = torch.randint(6, (9, 4))
    weight = torch.randn(9, 4, dtype=dtype)
    table = torch.randn(6, 3, dtype=dtype)
    matrix = matrix_of(index, weight, 6)
    index, weight = index.to(device), weight.to(device)
    summed = sum_rows(table.to(device), index, weight)
    torch.testing.assert_close(summed.cpu(), matrix @ table)

    rows = torch.randn(9, 3, dtype=dtype)
    added = table.to(device, copy=True)
    add_rows_(added, index, weight, rows.to(device))
    torch.testing.assert_close(added.cpu(), table + matrix.t() @ rows)


def test_sum_rows_follows_the_weights():
    index = torch.randint(6, (5, 4))
    weight = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    table = torch.randn(6, 3, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda weight: sum_rows(table, index, weight), (weight,)
    )


@pytest.mark.parametrize('shape', [(0, 4), (5, 0)])
def test_nothing_to_sum(shape):
    index, weight = torch.zeros(shape).long(), torch.zeros(shape)
    table = torch.ones(2, 3)
    summed = sum_rows(table, index, weight)
    assert summed.shape == (shape[0], 3)
    assert not summed.any()
    add_rows_(table, index, weight, torch.ones(shape[0], 3))
    assert (table == 1).all()


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

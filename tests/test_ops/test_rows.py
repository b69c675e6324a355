"""Sums of table rows and their transpose against matrix products."""

import pytest
import torch

from mmext.ops._rows import add_rows_, sum_rows


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

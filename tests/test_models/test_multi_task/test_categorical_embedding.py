"""mmext.CategoricalEmbedding, alone."""

import pytest
import torch

from mmext.models import CategoricalEmbedding
from mmext.registry import MODELS
from mmext.utils import register_all_modules

COLUMNS = dict(colour=3, shape=5)
ROWS = torch.tensor([[0, 4], [2, 0], [1, 1]])


def test_embeddings_are_concatenated_and_go_through_the_layers():
    net = CategoricalEmbedding(COLUMNS, embed_dims=(2, 3), channels=(4, 6))
    tables = [e.weight for e in net.embeddings]
    assert [tuple(t.shape) for t in tables] == [(3, 2), (5, 3)]
    hidden = torch.cat([tables[0][ROWS[:, 0]], tables[1][ROWS[:, 1]]], dim=1)
    for layer in (net.layers[0], net.layers[2]):
        hidden = (hidden @ layer.weight.T + layer.bias).relu()
    (feature,) = net(ROWS)
    assert net.out_channels == (6,)
    torch.testing.assert_close(feature, hidden)
    torch.testing.assert_close(net(ROWS.int())[0], feature)
    feature.sum().backward()
    # The gradient of a category that the batch does not have is zero.
    assert all(p.grad is not None for p in net.parameters())
    assert not net.embeddings[1].weight.grad[2].any()


def test_without_layers_and_names():
    net = CategoricalEmbedding([3, 5], embed_dims=4, channels=())
    assert net.out_channels == (8,)
    assert net(ROWS)[0].shape == (3, 8)
    assert list(net.state_dict()) == [
        'embeddings.0.weight',
        'embeddings.1.weight',
    ]


@pytest.mark.parametrize(
    ('value', 'said'),
    [
        (5, r"inputs\[1, 1\]: column 'shape' holds 5, .* range 0 \.\.\. 4"),
        (-1, r"column 'shape' holds -1, .* \(1 values of this batch"),
    ],
)
def test_a_category_out_of_range_is_named(value, said):
    rows = ROWS.clone()
    rows[1, 1] = value
    with pytest.raises(IndexError, match=said):
        CategoricalEmbedding(COLUMNS)(rows)


@pytest.mark.parametrize(
    ('rows', 'kind', 'said'),
    [
        (ROWS.float(), TypeError, 'int64 or int32, got torch.float32'),
        (ROWS[:, :1], ValueError, r"must be \(N, 2\), .*'colour', 'shape'"),
        (ROWS[0], ValueError, r'got \(2,\)'),
    ],
)
def test_inputs_of_another_kind(rows, kind, said):
    with pytest.raises(kind, match=said):
        CategoricalEmbedding(COLUMNS)(rows)


@pytest.mark.parametrize(
    ('options', 'said'),
    [
        (dict(num_categories=[]), 'at least one'),
        (dict(num_categories=[3, 0]), r'num_categories must .* got \[3, 0\]'),
        (dict(embed_dims=(2,)), 'for 2 columns'),
        (dict(embed_dims=0), r'embed_dims must all be .* got \[0, 0\]'),
        (dict(channels=(0,)), 'channels must all be at least 1'),
    ],
)
def test_bad_arguments(options, said):
    register_all_modules(False)
    with pytest.raises(ValueError, match=said):
        MODELS.build(
            dict(type='mmext.CategoricalEmbedding', num_categories=(3, 5))
            | options
        )

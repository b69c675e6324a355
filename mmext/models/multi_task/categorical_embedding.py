"""Embeddings of categorical columns, as a backbone."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from mmengine.model import BaseModule
from torch import Tensor, nn

from ...registry import MODELS
from .mixture import linear_layers


@MODELS.register_module()
class CategoricalEmbedding(BaseModule):
    """Backbone for tables: an embedding for each column, then linear layers.

    The embeddings are concatenated. As a backbone they run once for each
    batch: an embedding that is computed once before the loop over batches is
    not trained (the first backward pass frees its graph, and with
    ``retain_graph=True`` no later step uses the changed weights).

    Args:
        num_categories: Categories of each column, by its name or in the order
            of the columns; at least 1 each. A column holds
            ``0 ... categories - 1``.
        embed_dims: Width of the embeddings, one number or one for each column.
        channels: Outputs of the linear layers, each with ReLU; may be empty.
        dropout: Probability in [0, 1) behind each linear layer.
        init_cfg: Initialization, as of any ``BaseModule``.

    Raises:
        ValueError: If there is no column, a number of categories or a width is
            below 1, or there is not one width for each column.
    """

    feature_dims = 2
    """Dimensions of the features: vectors of each sample."""

    def __init__(
        self,
        num_categories: Mapping[str, int] | Sequence[int],
        embed_dims: int | Sequence[int] = 16,
        channels: Sequence[int] = (64,),
        dropout: float = 0.0,
        init_cfg: Any = None,
    ) -> None:
        super().__init__(init_cfg)
        if not isinstance(num_categories, Mapping):
            num_categories = dict(enumerate(num_categories))
        self.columns = tuple(num_categories)
        sizes = tuple(num_categories.values())
        widths = (
            (embed_dims,) * len(sizes)
            if isinstance(embed_dims, int)
            else tuple(embed_dims)
        )
        for name, values in (
            ('num_categories', sizes),
            ('embed_dims', widths),
            ('channels', channels),
        ):
            if any(value < 1 for value in values):
                raise ValueError(
                    f'{name} must all be at least 1, got {list(values)}'
                )
        if not sizes or len(sizes) != len(widths):
            raise ValueError(
                'embed_dims must be one number, or one for each of the '
                f'columns in num_categories (at least one), got {embed_dims} '
                f'for {len(sizes)} columns'
            )
        self.embeddings = nn.ModuleList(
            nn.Embedding(size, width) for size, width in zip(sizes, widths)
        )
        self.layers = linear_layers(sum(widths), channels, dropout)
        self.out_channels = tuple([sum(widths), *channels][-1:])
        self.register_buffer(
            'num_categories', torch.tensor(sizes), persistent=False
        )

    def forward(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """Vectors for rows of categories.

        ``inputs``: ``(N, F)`` int64 or int32, one column for each embedding.
        Returns one feature, ``(N, C)`` with ``C = out_channels[0]``.

        Raises:
            TypeError: If the inputs are not integers.
            ValueError: If they have another shape.
            IndexError: If a category is out of range; names row, column, value
                and range. On a GPU the check waits for it.
        """
        if inputs.dtype not in (torch.int64, torch.int32):
            raise TypeError(
                'inputs of CategoricalEmbedding must be categories, int64 or '
                f'int32, got {inputs.dtype}'
            )
        if inputs.dim() != 2 or inputs.shape[1] != len(self.columns):
            raise ValueError(
                f'inputs must be (N, {len(self.columns)}), one column for '
                f'each of {list(self.columns)}, got {tuple(inputs.shape)}'
            )
        self._check_range(inputs)
        embedded = [
            embedding(inputs[:, column])
            for column, embedding in enumerate(self.embeddings)
        ]
        return (self.layers(torch.cat(embedded, dim=1)),)

    def _check_range(self, inputs: Tensor) -> None:
        outside = (inputs < 0) | (inputs >= self.num_categories)
        if not outside.any():
            return
        row, column = outside.nonzero()[0].tolist()
        raise IndexError(
            f'inputs[{row}, {column}]: column {self.columns[column]!r} holds '
            f'{int(inputs[row, column])}, which is out of its range 0 ... '
            f'{int(self.num_categories[column]) - 1} '
            f'({int(outside.sum())} values of this batch are out of range); '
            'give unknown categories a number of their own and count it in '
            'num_categories'
        )

"""Encoder of CO-DINO: deformable self-attention over all levels.

Shape letters: B images, S tokens of all levels, C channels, L levels.
"""

from collections.abc import Sequence

import torch
from mmengine.model import BaseModule
from torch import Tensor, nn

from ..checkpointing.checkpoint import checkpoint_modules
from .attention import DeformableAttention
from .feed_forward import FeedForward


def encoder_reference_points(
    spatial_shapes: list[tuple[int, int]], valid_ratios: Tensor
) -> Tensor:
    """Centre of every token, seen from every level.

    ``valid_ratios``: ``(B, L, 2)`` float32, valid share of width and height.
    Returns ``(B, S, L, 2)`` float32, x y, normalised to the padded map: a
    token centre relative to its own level's valid area, times the valid ratio
    of the level that is looked at.
    """
    points = []
    device = valid_ratios.device
    for level, (height, width) in enumerate(spatial_shapes):
        y, x = torch.meshgrid(
            torch.arange(height, device=device) + 0.5,
            torch.arange(width, device=device) + 0.5,
            indexing='ij',
        )
        ratio_x, ratio_y = valid_ratios[:, level].split(1, 1)
        # Without a tensor of the two sizes, which would fix those of a trace.
        centre = (
            x.reshape(1, -1) / (ratio_x * width),
            y.reshape(1, -1) / (ratio_y * height),
        )
        points.append(torch.stack(centre, -1))
    return torch.cat(points, 1)[:, :, None] * valid_ratios[:, None]


class CoDINOEncoderLayer(BaseModule):
    """Deformable self-attention, norm, feed-forward, norm.

    ``dropout``: Probability in [0, 1), used in both parts.

    Source:
        State-dict names of the public port's ``BaseTransformerLayer``
        (``attentions.0``, ``ffns.0``, ``norms.0``, ``norms.1``).
    """

    def __init__(
        self,
        embed_dims: int,
        *,
        num_heads: int,
        num_levels: int,
        num_points: int,
        feedforward_channels: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.attentions = nn.ModuleList(
            [
                DeformableAttention(
                    embed_dims,
                    num_heads=num_heads,
                    num_levels=num_levels,
                    num_points=num_points,
                    dropout=dropout,
                )
            ]
        )
        self.ffns = nn.ModuleList(
            [FeedForward(embed_dims, feedforward_channels, dropout)]
        )
        self.norms = nn.ModuleList(nn.LayerNorm(embed_dims) for _ in range(2))

    def forward(
        self,
        query: Tensor,
        query_pos: Tensor,
        padding_mask: Tensor | None,
        reference_points: Tensor,
        spatial_shapes: Tensor,
        level_start_index: Tensor,
        level_sizes: Sequence[tuple[int, int]] | None = None,
    ) -> Tensor:
        """Refine the tokens; shapes as in :class:`CoDINOEncoder`."""
        query = self.norms[0](
            self.attentions[0](
                query,
                query,
                query_pos=query_pos,
                padding_mask=padding_mask,
                reference_points=reference_points,
                spatial_shapes=spatial_shapes,
                level_start_index=level_start_index,
                level_sizes=level_sizes,
            )
        )
        return self.norms[1](self.ffns[0](query))


class CoDINOEncoder(BaseModule):
    """Stack of :class:`CoDINOEncoderLayer`.

    ``dropout``: Probability in [0, 1).

    Source:
        CO-DETR, arXiv 2211.12860; Deformable DETR, arXiv 2010.04159.
    """

    def __init__(
        self,
        *,
        embed_dims: int = 256,
        num_levels: int = 5,
        num_layers: int = 6,
        num_heads: int = 8,
        num_points: int = 4,
        feedforward_channels: int = 2048,
        dropout: float = 0.0,
        with_cp: bool | int = False,
    ) -> None:
        super().__init__()
        self.num_layers = num_layers
        self.layers = nn.ModuleList(
            CoDINOEncoderLayer(
                embed_dims,
                num_heads=num_heads,
                num_levels=num_levels,
                num_points=num_points,
                feedforward_channels=feedforward_channels,
                dropout=dropout,
            )
            for _ in range(num_layers)
        )
        self.num_checkpointed = checkpoint_modules(
            self.layers, with_cp, 'encoder'
        )

    def forward(
        self,
        tokens: Tensor,
        *,
        pos: Tensor,
        padding_mask: Tensor | None,
        reference_points: Tensor,
        spatial_shapes: Tensor,
        level_start_index: Tensor,
        level_sizes: Sequence[tuple[int, int]] | None = None,
    ) -> Tensor:
        """Encode the flattened maps.

        Args:
            tokens: ``(B, S, C)``.
            pos: ``(B, S, C)``, positional and level embedding.
            padding_mask: ``(B, S)`` bool, True where padding, or None.
            reference_points: ``(B, S, L, 2)``.
            spatial_shapes: ``(L, 2)`` int64.
            level_start_index: ``(L,)`` int64.
            level_sizes: ``spatial_shapes`` as pairs of Python integers.

        Returns:
            ``(B, S, C)``.
        """
        for layer in self.layers:
            tokens = layer(
                tokens,
                pos,
                padding_mask,
                reference_points,
                spatial_shapes,
                level_start_index,
                level_sizes,
            )
        return tokens

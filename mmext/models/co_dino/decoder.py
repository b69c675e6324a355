"""Decoder of CO-DINO: box-refining, look-forward-twice.

Shape letters: B images, T queries of all groups, S tokens, C channels, L
feature levels, D decoder layers.
"""

from collections.abc import Sequence

import torch
from mmdet.models.layers.transformer import (
    coordinate_to_encoding,
    inverse_sigmoid,
)
from mmengine.model import BaseModule
from torch import Tensor, nn

from ...utils.tensors import float32_region, to_float32
from ...utils.torch_compat import attention_mask
from ..checkpointing.checkpoint import checkpoint_modules
from .attention import DeformableAttention
from .feed_forward import FeedForward

# Boxes are refined in logit space; DINO clips at 1e-3 there.
REFERENCE_EPS = 1e-3


class SelfAttention(BaseModule):
    """Multi-head self-attention with residual.

    ``dropout``: Probability in [0, 1) on weights and output.

    Source:
        State-dict names of ``mmcv``'s ``MultiheadAttention`` (``attn.*``).
    """

    def __init__(
        self, embed_dims: int, num_heads: int, dropout: float
    ) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(
            embed_dims, num_heads, dropout, batch_first=True
        )
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        query: Tensor,
        query_pos: Tensor,
        attn_mask: Tensor | None,
        key_padding_mask: Tensor | None,
    ) -> Tensor:
        """Attend among the queries.

        Args:
            query: ``(B, T, C)``.
            query_pos: ``(B, T, C)``, added to query and key.
            attn_mask: ``(T, T)`` bool, True where attention is forbidden.
            key_padding_mask: ``(B, T)`` bool, True where a query is a filler
                that no other may attend to.

        Returns:
            ``(B, T, C)``, residual included.
        """
        located = query + query_pos
        output = self.attn(
            located,
            located,
            query,
            attn_mask=attention_mask(attn_mask),
            key_padding_mask=attention_mask(key_padding_mask),
            need_weights=False,
        )[0]
        return query + self.dropout(output)


class CoDINODecoderLayer(BaseModule):
    """Self-attention, norm, cross-attention, norm, feed-forward, norm.

    ``dropout``: Probability in [0, 1), used in all parts.

    Source:
        State-dict names of the public port's ``DetrTransformerDecoderLayer``
        (``attentions.0.attn``, ``attentions.1``, ``ffns.0``, ``norms.0-2``).
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
                SelfAttention(embed_dims, num_heads, dropout),
                DeformableAttention(
                    embed_dims,
                    num_heads=num_heads,
                    num_levels=num_levels,
                    num_points=num_points,
                    dropout=dropout,
                ),
            ]
        )
        self.ffns = nn.ModuleList(
            [FeedForward(embed_dims, feedforward_channels, dropout)]
        )
        self.norms = nn.ModuleList(nn.LayerNorm(embed_dims) for _ in range(3))

    def forward(
        self,
        query: Tensor,
        query_pos: Tensor,
        memory: Tensor,
        reference_points: Tensor,
        padding_mask: Tensor | None,
        spatial_shapes: Tensor,
        level_start_index: Tensor,
        attn_mask: Tensor | None,
        key_padding_mask: Tensor | None,
        level_sizes: Sequence[tuple[int, int]] | None = None,
    ) -> Tensor:
        """Refine the queries; shapes as in :class:`CoDINODecoder`."""
        query = self.norms[0](
            self.attentions[0](query, query_pos, attn_mask, key_padding_mask)
        )
        query = self.norms[1](
            self.attentions[1](
                query,
                memory,
                query_pos=query_pos,
                padding_mask=padding_mask,
                reference_points=reference_points,
                spatial_shapes=spatial_shapes,
                level_start_index=level_start_index,
                level_sizes=level_sizes,
            )
        )
        return self.norms[2](self.ffns[0](query))


class CoDINODecoder(BaseModule):
    """Stack of :class:`CoDINODecoderLayer` that refines boxes layer by layer.

    ``dropout``: Probability in [0, 1).

    Attributes:
        reference_eps: Where logits of references are clipped.

    Source:
        DINO, arXiv 2203.03605. Same state dict as the public port's
        ``DinoTransformerDecoder``.
    """

    reference_eps = REFERENCE_EPS

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
        self.embed_dims = embed_dims
        self.num_layers = num_layers
        self.layers = nn.ModuleList(
            CoDINODecoderLayer(
                embed_dims,
                num_heads=num_heads,
                num_levels=num_levels,
                num_points=num_points,
                feedforward_channels=feedforward_channels,
                dropout=dropout,
            )
            for _ in range(num_layers)
        )
        self._build_positions()
        self.num_checkpointed = checkpoint_modules(
            self.layers, with_cp, 'decoder'
        )

    def _build_positions(self) -> None:
        """What turns references into positions, and the last norm."""
        width = self.embed_dims
        self.ref_point_head = nn.Sequential(
            nn.Linear(width * 2, width), nn.ReLU(), nn.Linear(width, width)
        )
        self.norm = nn.LayerNorm(width)

    def _query_pos(self, per_level: Tensor, given: Tensor | None) -> Tensor:
        """Positions ``(B, T, C)`` of references ``(B, T, L, 4)``."""
        encoding = coordinate_to_encoding(
            per_level[:, :, 0], num_feats=self.embed_dims // 2
        )
        return self.ref_point_head(
            encoding.to(self.ref_point_head[0].weight.dtype)
        )

    def forward(
        self,
        query: Tensor,
        references: Tensor,
        *,
        memory: Tensor,
        padding_mask: Tensor | None,
        valid_ratios: Tensor,
        spatial_shapes: Tensor,
        level_start_index: Tensor,
        reg_branches: Sequence[nn.Module],
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        level_sizes: Sequence[tuple[int, int]] | None = None,
        query_pos: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """Decode all query groups in one pass.

        Args:
            query: ``(B, T, C)``, content queries.
            references: ``(B, T, 4)`` float32, cx cy w h in [0, 1] of the
                valid image area.
            memory: ``(B, S, C)``, encoder output.
            padding_mask: ``(B, S)`` bool, True where padding, or None.
            valid_ratios: ``(B, L, 2)`` float32.
            spatial_shapes: ``(L, 2)`` int64.
            level_start_index: ``(L,)`` int64.
            reg_branches: At least ``D`` modules that map ``(B, T, C)`` to
                ``(B, T, 4)`` logit offsets.
            attn_mask: ``(T, T)`` bool, True where attention is forbidden.
            key_padding_mask: ``(B, T)`` bool, True where a query is filler.
            level_sizes: ``spatial_shapes`` as pairs of Python integers.
            query_pos: ``(B, T, C)``, for a subclass that is given positions
                instead of computing them from the references.

        Returns:
            Two items: hidden states ``(D, B, T, C)``, normalised; and ``D +
            1`` references ``(B, T, 4)`` float32, the given one first. The
            later ones carry gradient (look forward twice); each layer starts
            from a detached one.
        """
        ratios = torch.cat([valid_ratios, valid_ratios], -1)[:, None]
        hidden, all_references = [], [references]
        for layer, reg_branch in zip(self.layers, reg_branches):
            per_level = references[:, :, None] * ratios
            query = layer(
                query,
                self._query_pos(per_level, query_pos),
                memory,
                per_level,
                padding_mask,
                spatial_shapes,
                level_start_index,
                attn_mask,
                key_padding_mask,
                level_sizes,
            )
            offsets = reg_branch(query)
            with float32_region(query):
                refined = (
                    to_float32(offsets)
                    + inverse_sigmoid(references, eps=self.reference_eps)
                ).sigmoid()
            references = refined.detach()
            hidden.append(self.norm(query))
            all_references.append(refined)
        return torch.stack(hidden), all_references

"""Multi-scale deformable attention with float32 sampling.

Shape letters: B images, N queries, S tokens of all levels, C channels, M
heads, L levels, P points.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from mmcv.ops import MultiScaleDeformableAttention
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...ops import multi_scale_deform_attn
from ...utils.tensors import float32_region, recomputed, to_float32
from ...utils.torch_compat import autocast_dtype, is_compiling
from .feed_forward import is_plain

# From here on queries are few, as a decoder's: values of all tokens, kept for
# each of its layers, are a seventh of what a step keeps, and computing them
# again is a hundredth of its arithmetic.
_TOKENS_PER_QUERY = 4


class DeformableAttention(MultiScaleDeformableAttention):
    """Deformable attention that samples in float32 whatever the autocast.

    Parameters, names and initialisation are mmcv's. The forward differs in
    three things: it is batch-first; offsets, sampling locations and the
    weighted sum are computed in float32 (mmcv computes offsets in half
    precision and casts locations to the dtype of the values, both of which
    misplace the samples, and its kernels have no bfloat16); and an argument
    it does not know is an error.

    ``dropout``: Probability in [0, 1) of the output dropout.

    Source:
        Deformable DETR, arXiv 2010.04159. Same state dict as
        ``mmcv.ops.MultiScaleDeformableAttention``.
    """

    def __init__(
        self,
        embed_dims: int,
        *,
        num_heads: int,
        num_levels: int,
        num_points: int,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(
            embed_dims=embed_dims,
            num_heads=num_heads,
            num_levels=num_levels,
            num_points=num_points,
            dropout=dropout,
            batch_first=True,
        )

    def forward(
        self,
        query: Tensor,
        value: Tensor,
        *,
        query_pos: Tensor,
        padding_mask: Tensor | None,
        reference_points: Tensor,
        spatial_shapes: Tensor,
        level_start_index: Tensor,
        level_sizes: Sequence[tuple[int, int]] | None = None,
    ) -> Tensor:
        """Attend from queries to points of the feature maps.

        Args:
            query: ``(B, N, C)``; also the residual.
            value: ``(B, S, C)``, the flattened maps.
            query_pos: ``(B, N, C)``, added to the query for offsets and
                weights.
            padding_mask: ``(B, S)`` bool, True where a token is padding, or
                None where there is none.
            reference_points: ``(B, N, L, 2)`` x y, or ``(B, N, L, 4)`` cx cy
                w h, normalised to the padded map.
            spatial_shapes: ``(L, 2)`` int64, height and width per level.
            level_start_index: ``(L,)`` int64, first token of each level.
            level_sizes: ``spatial_shapes`` as ``L`` pairs of Python integers;
                spares a GPU being asked for them.

        Returns:
            ``(B, N, C)``, residual included.
        """
        shape = (
            *query.shape[:2],
            self.num_heads,
            self.num_levels,
            self.num_points,
        )
        offsets, weights = self._offsets_and_weights(query, query_pos)
        offsets, weights = offsets.view(*shape, 2), weights.view(shape)
        with float32_region(query):
            locations = self._locations(
                *to_float32((offsets, reference_points)), spatial_shapes
            )
            weights = to_float32(weights).flatten(3).softmax(-1).view(shape)
        attended = (
            value,
            padding_mask,
            spatial_shapes,
            level_start_index,
            locations,
            weights,
            level_sizes,
        )
        if (
            torch.is_grad_enabled()
            and query.shape[1] * _TOKENS_PER_QUERY <= value.shape[1]
            and not is_compiling()
        ):
            output = recomputed(self._attend, *attended)
        else:
            output = self._attend(*attended)
        return self.dropout(self.output_proj(output)) + query

    def _attend(
        self, value: Tensor, padding_mask: Tensor | None, *sampled: Any
    ) -> Tensor:
        """Weighted sums ``(B, N, C)`` of what is sampled of the values."""
        values = self.value_proj(value)
        if padding_mask is not None:
            values = values.masked_fill(padding_mask[..., None], 0.0)
        # Not unflatten, which an export to ONNX writes with the traced sizes.
        by_head = values.view(*value.shape[:2], self.num_heads, -1)
        with float32_region(value):
            output = multi_scale_deform_attn(by_head, *sampled)
        return output.to(values.dtype)

    def _offsets_and_weights(
        self, query: Tensor, query_pos: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What the query and its position give, each ``(B, N, ...)``."""
        layers = self.sampling_offsets, self.attention_weights
        if (
            query.device.type == 'cpu'
            and query.shape == query_pos.shape
            and query.dtype == query_pos.dtype == layers[0].weight.dtype
            and autocast_dtype('cpu') is None
            and not is_compiling()
            and not torch.jit.is_tracing()
            and all(is_plain(layer) for layer in layers)
        ):
            parameters = [(layer.weight, layer.bias) for layer in layers]
            return _OfSum.apply(query, query_pos, *sum(parameters, ()))
        located = query + query_pos
        weights = self.attention_weights(located)
        with float32_region(query):
            # A large box is hundreds of pixels wide and scales its offsets:
            # in half precision they would be off by a good part of a pixel.
            offsets = self.sampling_offsets(
                located.to(self.sampling_offsets.weight.dtype)
            )
        return offsets, weights

    def _locations(
        self, offsets: Tensor, reference_points: Tensor, spatial_shapes: Tensor
    ) -> Tensor:
        """Sampling locations ``(B, N, M, L, P, 2)``, x y in [0, 1]."""
        # One size for each coordinate of a head: arithmetic on two numbers at
        # a time costs several times as much, and so do integers.
        shape = (*reference_points.shape[:2], 1, *offsets.shape[3:])
        at = reference_points[:, :, None, :, None]
        centre = at[..., :2].expand(shape).contiguous()
        if reference_points.shape[-1] == 2:
            sizes = spatial_shapes.flip(-1).to(offsets.dtype)[:, None]
            return centre + offsets / sizes.expand(shape[3:]).contiguous()
        # Offsets are in halves of the box, divided among the points.
        extent = at[..., 2:] * (0.5 / self.num_points)
        return centre + offsets * extent.expand(shape).contiguous()


class _OfSum(torch.autograd.Function):
    """Two linear layers of the sum of two tensors, which is not kept.

    Both are kept anyway, one of them for all layers of the encoder.
    """

    @staticmethod
    def forward(
        ctx: Any,
        one: Tensor,
        other: Tensor,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(one, other, *parameters[::2])
        total = one + other
        return F.linear(total, *parameters[:2]), F.linear(
            total, *parameters[2:]
        )

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: Tensor, second_grad: Tensor
    ) -> tuple[Tensor, ...]:
        one, other, weight, second_weight = ctx.saved_tensors
        total = (one + other).flatten(0, -2)
        grad, second_grad = grad.flatten(0, -2), second_grad.flatten(0, -2)
        grad_total = (grad @ weight).addmm_(second_grad, second_weight)
        grad_total = grad_total.view(one.shape)
        return (
            grad_total,
            grad_total,
            grad.t() @ total,
            grad.sum(0),
            second_grad.t() @ total,
            second_grad.sum(0),
        )

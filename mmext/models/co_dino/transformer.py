"""Transformer of CO-DINO: encoder, proposals, one decoder for all queries.

Shape letters: B images, S tokens of all levels, Q matching queries, T queries
of all groups, C channels, K classes, L feature levels.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from mmcv.ops import MultiScaleDeformableAttention
from mmdet.models.layers.transformer import inverse_sigmoid
from mmengine.model import BaseModule
from torch import Tensor, nn

from ...registry import MODELS
from ...utils.tensors import (
    float32_region,
    forgotten,
    shapes_tensor,
    smaller,
    to_float32,
)
from .decoder import CoDINODecoder
from .encoder import CoDINOEncoder, encoder_reference_points

# A proposal on level l spans 0.05 * 2^l of the valid image area.
PROPOSAL_SCALE = 0.05
PROPOSAL_MARGIN = 0.01


def level_padding_masks(
    batch_img_metas: Sequence[dict] | None, feats: Sequence[Tensor]
) -> tuple[list[Tensor], bool]:
    """Padding masks of every feature level.

    ``batch_img_metas``: Per image ``img_shape`` and ``batch_input_shape``,
    both height and width in pixels, or None if every image fills the canvas;
    ``feats``: Maps ``(B, C, H, W)``. Returns two items: per level a ``(B, H,
    W)`` bool mask, True where the nearest pixel is padding; and whether any
    image is smaller than the canvas.
    """
    if batch_img_metas is None:
        masks = [torch.zeros_like(feat[:, 0], dtype=bool) for feat in feats]
        return masks, False
    height, width = batch_img_metas[0]['batch_input_shape']
    shapes = [tuple(meta['img_shape'][:2]) for meta in batch_img_metas]
    device = feats[0].device
    row = torch.arange(height, device=device)[:, None]
    column = torch.arange(width, device=device)
    padding = torch.stack(
        [
            (row >= valid_height) | (column >= valid_width)
            for valid_height, valid_width in shapes
        ]
    ).float()
    masks = [
        F.interpolate(padding[None], size=feat.shape[-2:])[0].bool()
        for feat in feats
    ]
    return masks, any(shape != (height, width) for shape in shapes)


@dataclass(frozen=True)
class EncodedImage:
    """Encoder output of a batch, with all that the decoder asks for.

    Attributes:
        memory: ``(B, S, C)``.
        padding_mask: ``(B, S)`` bool, True where padding.
        valid_ratios: ``(B, L, 2)`` float32, valid share of width and height.
        shapes: Height and width per level, ``L`` pairs.
        spatial_shapes: The same as an ``(L, 2)`` int64 tensor.
        level_start_index: ``(L,)`` int64.
        has_padding: Whether any token is padding.
    """

    memory: Tensor
    padding_mask: Tensor
    valid_ratios: Tensor
    shapes: list[tuple[int, int]]
    spatial_shapes: Tensor
    level_start_index: Tensor
    has_padding: bool

    @property
    def attention_padding(self) -> Tensor | None:
        """The padding mask, or None where masking would change nothing."""
        return self.padding_mask if self.has_padding else None

    def maps(self) -> list[Tensor]:
        """The memory as ``L`` feature maps ``(B, C, H, W)``."""
        batch, _, channels = self.memory.shape
        # Contiguous: compiled RoIAlign reads its input as if it were.
        levels = self.memory.split([h * w for h, w in self.shapes], 1)
        return [
            level.transpose(1, 2)
            .reshape(batch, channels, height, width)
            .contiguous()
            for level, (height, width) in zip(levels, self.shapes)
        ]


@dataclass(frozen=True)
class Proposals:
    """The encoder's best boxes.

    Attributes:
        scores: ``(B, Q, K)``, class logits with gradient; ``(B, Q, 1)`` if
            one class ranks them.
        boxes: ``(B, Q, 4)`` float32, cx cy w h in [0, 1], with gradient.
        references: The same boxes without gradient.
        tokens: ``(B, Q, C)``, the encoder's tokens that propose them, as the
            branches see them.
        candidates: ``(B, S, K)`` scores and ``(B, S, 4)`` boxes of all
            tokens, where all of them learn; None where the chosen do.
    """

    scores: Tensor
    boxes: Tensor
    references: Tensor
    tokens: Tensor
    candidates: tuple[Tensor, Tensor] | None = None

    @property
    def learned(self) -> tuple[Tensor, Tensor]:
        """Float32 scores and boxes that the losses are of."""
        scores, boxes = self.candidates or (self.scores, self.boxes)
        return to_float32(scores), boxes


def box_sine_encoding(boxes: Tensor, num_feats: int) -> Tensor:
    """Sine encoding of boxes in the order cx, cy, w, h.

    ``boxes``: ``(B, P, 4)`` float32, in [0, 1]. Returns ``(B, P, 4 *
    num_feats)`` float32.

    Source:
        DINO, arXiv 2203.03605; compatible with the public port's
        ``get_proposal_pos_embed``, temperature 10000. (The decoder's own
        encoding puts cy before cx.)
    """
    index = torch.arange(num_feats, dtype=torch.float32, device=boxes.device)
    period = 10000 ** (2 * (index // 2) / num_feats)
    angle = (boxes * (2 * math.pi))[..., None] / period
    return torch.stack(
        (angle[..., 0::2].sin(), angle[..., 1::2].cos()), -1
    ).flatten(2)


def encoder_proposals(encoded: EncodedImage) -> tuple[Tensor, Tensor]:
    """One box per token, and which tokens may propose.

    Returns two items: box logits ``(B, S, 4)`` float32, inf where the token is
    invalid; and a ``(B, S)`` bool mask, True where the token is valid, that
    is, not padding and with all four coordinates in (0.01, 0.99).
    """
    boxes = []
    counts = [height * width for height, width in encoded.shapes]
    paddings = encoded.padding_mask.split(counts, 1)
    for level, (height, width) in enumerate(encoded.shapes):
        count = counts[level]
        padding = paddings[level].view(-1, height, width)
        valid = torch.stack(
            ((~padding[:, 0, :]).sum(1), (~padding[:, :, 0]).sum(1)), -1
        )
        y, x = torch.meshgrid(
            torch.arange(height, dtype=torch.float32, device=valid.device),
            torch.arange(width, dtype=torch.float32, device=valid.device),
            indexing='ij',
        )
        centre = (torch.stack((x, y), -1).view(1, count, 2) + 0.5) / valid[
            :, None
        ]
        size = torch.full_like(centre, PROPOSAL_SCALE * 2.0**level)
        boxes.append(torch.cat((centre, size), -1))
    proposals = torch.cat(boxes, 1)
    inside = (
        (proposals > PROPOSAL_MARGIN) & (proposals < 1 - PROPOSAL_MARGIN)
    ).all(-1)
    usable = inside & ~encoded.padding_mask
    logits = torch.log(proposals / (1 - proposals))
    return logits.masked_fill(~usable[..., None], math.inf), usable


@MODELS.register_module()
class CoDINOTransformer(BaseModule):
    """Encoder, two-stage proposals and decoder of CO-DINO.

    Args:
        embed_dims: ``C``, a multiple of 4.
        num_queries: ``Q``, matching queries.
        num_feature_levels: ``L``.
        num_co_heads: How many auxiliary heads send queries to the decoder.
        with_coord_feat: Add the auxiliary heads' box features to their
            queries (the public configurations do not).
        encoder: Arguments of
            :class:`~mmext.models.co_dino.encoder.CoDINOEncoder` less
            ``embed_dims`` and ``num_levels``.
        decoder: Likewise for
            :class:`~mmext.models.co_dino.decoder.CoDINODecoder`.
        init_cfg: As in mmengine.

    Source:
        CO-DETR, arXiv 2211.12860. Same state dict as the public port's
        ``CoDinoTransformer``.
    """

    decoder_class = CoDINODecoder
    # Of one query, in channels: its content, or its position as well.
    query_parts = 1

    def __init__(
        self,
        *,
        embed_dims: int = 256,
        num_queries: int = 900,
        num_feature_levels: int = 5,
        num_co_heads: int = 2,
        with_coord_feat: bool = False,
        encoder: dict | None = None,
        decoder: dict | None = None,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(init_cfg=init_cfg)
        self.embed_dims = embed_dims
        self.num_queries = num_queries
        self.num_feature_levels = num_feature_levels
        self.num_co_heads = num_co_heads
        self.with_coord_feat = with_coord_feat
        sizes = {'embed_dims': embed_dims, 'num_levels': num_feature_levels}
        self.encoder = CoDINOEncoder(**sizes, **(encoder or {}))
        self.decoder = self.decoder_class(**sizes, **(decoder or {}))
        self.level_embeds = nn.Parameter(
            torch.empty(num_feature_levels, embed_dims)
        )
        self.enc_output = nn.Linear(embed_dims, embed_dims)
        self.enc_output_norm = nn.LayerNorm(embed_dims)
        self.query_embed = nn.Embedding(num_queries, embed_dims)
        width = embed_dims * self.query_parts
        self.aux_pos_trans = self._per_co_head(
            lambda: nn.Linear(embed_dims * 2, width)
        )
        self.aux_pos_trans_norm = self._per_co_head(
            lambda: nn.LayerNorm(width)
        )
        if with_coord_feat:
            self.pos_feats_trans = self._per_co_head(
                lambda: nn.Linear(embed_dims, embed_dims)
            )
            self.pos_feats_norm = self._per_co_head(
                lambda: nn.LayerNorm(embed_dims)
            )
        # Never leave uninitialised memory behind: a model that is built and
        # used without init_weights() is random, not undefined.
        nn.init.normal_(self.level_embeds)

    def _per_co_head(self, build) -> nn.ModuleList:
        return nn.ModuleList(build() for _ in range(self.num_co_heads))

    def init_weights(self) -> None:
        """Initialise as DINO does.

        Xavier uniform for every matrix, the grid of deformable attention,
        and a standard normal for level and query embeddings; then what
        ``init_cfg`` says. As in mmengine, a second call changes nothing.
        """
        if not self.is_init:
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    nn.init.xavier_uniform_(parameter)
            for module in self.modules():
                if isinstance(module, MultiScaleDeformableAttention):
                    module.init_weights()
            nn.init.normal_(self.level_embeds)
            nn.init.normal_(self.query_embed.weight)
        if self.init_cfg:
            super().init_weights()
        self._is_init = True

    def encode(
        self,
        feats: Sequence[Tensor],
        masks: Sequence[Tensor],
        pos_embeds: Sequence[Tensor],
        *,
        has_padding: bool,
    ) -> EncodedImage:
        """Run the encoder.

        Args:
            feats: ``L`` maps ``(B, C, H, W)``.
            masks: ``L`` bool maps ``(B, H, W)``, True where padding.
            pos_embeds: ``L`` maps ``(B, C, H, W)``.
            has_padding: Whether any mask holds a True. The caller knows it
                from the image sizes; asking the device would synchronise.

        Returns:
            The encoded batch.

        Raises:
            ValueError: If the number of maps is not ``num_feature_levels``.
        """
        if len(feats) != self.num_feature_levels:
            raise ValueError(
                f'feats must hold num_feature_levels='
                f'{self.num_feature_levels} maps, got {len(feats)}; set '
                f"the neck's num_outs and the transformer's "
                f'num_feature_levels to the same number'
            )
        shapes = [(feat.shape[-2], feat.shape[-1]) for feat in feats]
        device = feats[0].device
        spatial_shapes = shapes_tensor(shapes, device)
        valid_ratios = torch.stack([_valid_ratio(mask) for mask in masks], 1)
        padding_mask = torch.cat([mask.flatten(1) for mask in masks], 1)
        areas = spatial_shapes.prod(1)
        level_start_index = areas.cumsum(0) - areas
        pos = torch.cat(
            [
                pos.flatten(2).transpose(1, 2).to(embed.dtype) + embed
                for pos, embed in zip(pos_embeds, self.level_embeds)
            ],
            1,
        )
        memory = self.encoder(
            torch.cat([feat.flatten(2).transpose(1, 2) for feat in feats], 1),
            pos=pos,
            padding_mask=padding_mask if has_padding else None,
            reference_points=encoder_reference_points(shapes, valid_ratios),
            spatial_shapes=spatial_shapes,
            level_start_index=level_start_index,
            level_sizes=shapes,
        )
        return EncodedImage(
            memory=memory,
            padding_mask=padding_mask,
            valid_ratios=valid_ratios,
            shapes=shapes,
            spatial_shapes=spatial_shapes,
            level_start_index=level_start_index,
            has_padding=has_padding,
        )

    def propose(
        self,
        encoded: EncodedImage,
        cls_branch: Callable[[Tensor], Tensor],
        reg_branch: Callable[[Tensor], Tensor],
    ) -> Proposals:
        """Pick the ``Q`` tokens with the best class logit.

        With fewer tokens than ``num_queries`` (a small image) all of them
        propose.

        Args:
            encoded: The encoder output.
            cls_branch: Maps ``(B, S, C)`` to class logits ``(B, S, K)``.
            reg_branch: Maps ``(B, S, C)`` to logit offsets ``(B, S, 4)``.

        Returns:
            The proposals, best first.
        """
        logits, usable = encoder_proposals(encoded)
        # All tokens are compared, but only the chosen ones are learned from.
        with forgotten():
            tokens = self._proposing(encoded.memory, usable[..., None])
            best = self._scores(tokens, cls_branch).max(-1).values
        count = smaller(self.num_queries, best.shape[1])
        index = best.topk(count, dim=1).indices[..., None]
        memory, logits, usable = (
            values.gather(1, index.expand(-1, -1, values.shape[-1]))
            for values in (encoded.memory, logits, usable[..., None])
        )
        tokens = self._proposing(memory, usable)
        boxes = (to_float32(reg_branch(tokens)) + logits).sigmoid()
        scores = self._scores(tokens, cls_branch)
        return Proposals(scores, boxes, boxes.detach(), tokens)

    def _proposing(self, memory: Tensor, usable: Tensor) -> Tensor:
        """What the branches see of tokens ``(B, S, C)``.

        ``usable``: ``(B, S, 1)`` bool, whether a token may propose.
        """
        return self.enc_output_norm(
            self.enc_output(memory.masked_fill(~usable, 0.0))
        )

    def _scores(
        self, tokens: Tensor, cls_branch: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Class logits, under autocast in float32."""
        with float32_region(tokens):
            # In half precision, many tokens would have the same score.
            autocast = tokens.dtype != self.enc_output.weight.dtype
            return cls_branch(to_float32(tokens) if autocast else tokens)

    def matching_queries(self, references: Tensor) -> Tensor:
        """The learned queries ``(B, Q, C)`` of references ``(B, Q, 4)``."""
        batch, count = references.shape[:2]
        return self.query_embed.weight[None, :count].expand(batch, -1, -1)

    def co_queries(
        self, boxes: Tensor, feats: Tensor | None, index: int
    ) -> Tensor:
        """Content queries of one auxiliary head.

        Args:
            boxes: ``(B, P, 4)`` float32, cx cy w h in [0, 1].
            feats: ``(B, P, C)``, used only ``with_coord_feat``.
            index: Which auxiliary head.

        Returns:
            ``(B, P, C)``.
        """
        query = self._encode_boxes(boxes, index)
        if self.with_coord_feat:
            query = query + self._encode_feats(feats, index)
        return query

    def _encode_boxes(self, boxes: Tensor, index: int) -> Tensor:
        """What an auxiliary head's boxes give to its queries."""
        # Through the clamped logit and back, as the weights were trained.
        clipped = inverse_sigmoid(boxes).sigmoid()
        encoding = box_sine_encoding(clipped, self.embed_dims // 2)
        return self.aux_pos_trans_norm[index](
            self.aux_pos_trans[index](encoding)
        )

    def _encode_feats(self, feats: Tensor, index: int) -> Tensor:
        """What the features of its boxes give to their content."""
        return self.pos_feats_norm[index](self.pos_feats_trans[index](feats))

    def decode(
        self,
        encoded: EncodedImage,
        query: Tensor,
        references: Tensor,
        reg_branches: Sequence[nn.Module],
        *,
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        query_pos: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """Run the decoder once; arguments and result as in its forward."""
        return self.decoder(
            query,
            references,
            memory=encoded.memory,
            padding_mask=encoded.attention_padding,
            valid_ratios=encoded.valid_ratios,
            spatial_shapes=encoded.spatial_shapes,
            level_start_index=encoded.level_start_index,
            reg_branches=reg_branches,
            attn_mask=attn_mask,
            key_padding_mask=key_padding_mask,
            level_sizes=encoded.shapes,
            query_pos=query_pos,
        )


def _valid_ratio(mask: Tensor) -> Tensor:
    """Valid share of width and height of a ``(B, H, W)`` padding mask."""
    width = (~mask[:, 0, :]).sum(1) / mask.shape[2]
    height = (~mask[:, :, 0]).sum(1) / mask.shape[1]
    return torch.stack((width, height), -1)

"""Co-Deformable-DETR: what it does otherwise than CO-DINO.

Its queries have a position of their own, made once from the proposal or from
the auxiliary head's box; there is no denoising; one class of the encoder ranks
the tokens, all of which learn from the losses of the proposals.

Shape letters: B images, S tokens of all levels, Q matching queries, P queries
of one auxiliary head, T queries of all groups, C channels, K classes, L
feature levels, D decoder layers.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from mmdet.structures import DetDataSample
from mmengine.structures import InstanceData
from torch import Tensor, nn

from ...registry import MODELS
from ...utils.tensors import smaller, to_float32
from .decoder import CoDINODecoder
from .matching import GroundTruth, match_queries, matched_targets
from .query_head import CoDINOHead
from .transformer import (
    CoDINOTransformer,
    EncodedImage,
    Proposals,
    box_sine_encoding,
    encoder_proposals,
)


class CoDeformableDecoder(CoDINODecoder):
    """Decoder whose layers all get the same positions of the queries.

    Source:
        Deformable DETR, arXiv 2010.04159. Same state dict as the public
        ``CoDeformableDetrTransformerDecoder``.
    """

    reference_eps = 1e-5

    def _build_positions(self) -> None:
        """The last norm is that of the last layer."""
        self.norm = nn.Identity()

    def _query_pos(self, per_level: Tensor, given: Tensor | None) -> Tensor:
        """Positions ``(B, T, C)``, the given ones."""
        return given


@MODELS.register_module()
class CoDeformableTransformer(CoDINOTransformer):
    """Encoder, two-stage proposals and decoder of Co-Deformable-DETR.

    Its queries are ``2 * C`` wide, the position first and then the content.

    Args:
        num_queries: ``Q``, matching queries.
        num_feature_levels: ``L``.
        with_coord_feat: Add the auxiliary heads' box features to their
            queries, and a learned number to their positions.
        **kwargs: As of :class:`~mmext.models.CoDINOTransformer`.

    Source:
        CO-DETR, arXiv 2211.12860. Same state dict as the public
        ``CoDeformableDetrTransformer``, with the content queries here, as
        ``query_embed``.
    """

    decoder_class = CoDeformableDecoder
    query_parts = 2

    def __init__(
        self,
        *,
        num_queries: int = 300,
        num_feature_levels: int = 4,
        with_coord_feat: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            num_queries=num_queries,
            num_feature_levels=num_feature_levels,
            with_coord_feat=with_coord_feat,
            **kwargs,
        )
        width = 2 * self.embed_dims
        self.pos_trans = nn.Linear(width, width)
        self.pos_trans_norm = nn.LayerNorm(width)
        if with_coord_feat and self.num_co_heads:
            # One number, not C, per head: so the weights were trained.
            self.head_pos_embed = nn.Embedding(self.num_co_heads, 1)

    def propose(
        self,
        encoded: EncodedImage,
        cls_branch: Callable[[Tensor], Tensor],
        reg_branch: Callable[[Tensor], Tensor],
    ) -> Proposals:
        """Pick the ``Q`` tokens with the best logit of class 0.

        In the losses of the proposals all objects are of class 0. Arguments
        and result as of :class:`~mmext.models.CoDINOTransformer`, with all
        tokens as candidates.
        """
        logits, usable = encoder_proposals(encoded)
        tokens = self._proposing(encoded.memory, usable[..., None])
        scores = self._scores(tokens, cls_branch)
        boxes = (to_float32(reg_branch(tokens)) + logits).sigmoid()
        count = smaller(self.num_queries, scores.shape[1])
        index = scores[..., 0].topk(count, dim=1).indices[..., None]
        chosen = boxes.gather(1, index.expand(-1, -1, 4))
        return Proposals(
            scores[..., :1].gather(1, index),
            chosen,
            chosen.detach(),
            tokens.gather(1, index.expand(-1, -1, tokens.shape[-1])),
            candidates=(scores, boxes),
        )

    def matching_queries(self, references: Tensor) -> Tensor:
        """Queries ``(B, Q, 2 * C)`` of references ``(B, Q, 4)``."""
        encoding = box_sine_encoding(references, self.embed_dims // 2)
        pos = self.pos_trans_norm(
            self.pos_trans(encoding.to(self.pos_trans.weight.dtype))
        )
        content = super().matching_queries(references)
        return torch.cat((pos[..., : self.embed_dims], content.to(pos)), -1)

    def co_queries(
        self, boxes: Tensor, feats: Tensor | None, index: int
    ) -> Tensor:
        """Queries ``(B, P, 2 * C)`` of one auxiliary head.

        Args:
            boxes: ``(B, P, 4)`` float32, cx cy w h in [0, 1].
            feats: ``(B, P, C)``, used only ``with_coord_feat``.
            index: Which auxiliary head.
        """
        query = self._encode_boxes(boxes, index)
        if not self.with_coord_feat:
            return query
        pos, content = query.split(self.embed_dims, -1)
        pos = pos + self.head_pos_embed.weight[index]
        content = content + self._encode_feats(feats, index)
        return torch.cat((pos, content), -1)

    def decode(
        self,
        encoded: EncodedImage,
        query: Tensor,
        references: Tensor,
        reg_branches: Sequence[nn.Module],
        **kwargs: Any,
    ) -> tuple[Tensor, list[Tensor]]:
        """Run the decoder once, on queries ``(B, T, 2 * C)``."""
        query_pos, query = query.split(self.embed_dims, -1)
        return super().decode(
            encoded,
            query,
            references,
            reg_branches,
            query_pos=query_pos,
            **kwargs,
        )


@MODELS.register_module()
class CoDeformDETRHead(CoDINOHead):
    """Deformable DETR head that also trains on positives of auxiliary heads.

    Args:
        num_classes: ``K``.
        transformer: As of :class:`~mmext.models.CoDINOHead`, by default of
            type ``mmext.CoDeformableTransformer``.
        dn_cfg: None; there is no denoising.
        num_queries: ``Q``.
        **kwargs: As of :class:`~mmext.models.CoDINOHead`.

    Raises:
        ValueError: If there is a ``dn_cfg``.

    Source:
        CO-DETR, arXiv 2211.12860. Same state dict as the public head of this
        name, apart from the place of the content queries.
    """

    transformer_type = 'mmext.CoDeformableTransformer'

    def __init__(
        self,
        num_classes: int,
        transformer: dict,
        dn_cfg: None = None,
        *,
        num_queries: int = 300,
        **kwargs: Any,
    ) -> None:
        if dn_cfg is not None:
            raise ValueError(
                f'dn_cfg must be None, got {dn_cfg!r}: Co-Deformable-DETR '
                'has no denoising; set query_head.dn_cfg=None'
            )
        super().__init__(
            num_classes, transformer, dn_cfg, num_queries=num_queries, **kwargs
        )

    def _match(
        self,
        scores: Tensor,
        boxes: Tensor,
        proposals: Proposals,
        truth: GroundTruth,
        batch_data_samples: Sequence[DetDataSample],
        numbers: Tensor | None,
    ) -> tuple:
        """Targets of the matching queries, and of all tokens, of class 0.

        And ``numbers``, on the host.
        """
        objects = []
        for sample in batch_data_samples:
            objects.append(type(sample)(metainfo=sample.metainfo))
            objects[-1].gt_instances = InstanceData(
                bboxes=sample.gt_instances.bboxes,
                labels=torch.zeros_like(sample.gt_instances.labels),
            )
        candidates = [value[None] for value in proposals.learned]
        (matched, proposed), numbers = match_queries(
            self.assigner,
            [(scores, boxes, batch_data_samples), (*candidates, objects)],
            truth.scales,
            numbers,
        )
        classes = self.num_classes
        binary = torch.where(truth.labels < classes, 0, truth.labels)
        return (
            matched_targets('{}', matched, truth, classes),
            matched_targets(
                'enc_{}', proposed, replace(truth, labels=binary), classes
            ),
            numbers,
        )

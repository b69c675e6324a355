"""Query head of CO-DINO: one decoder pass for all groups of queries.

Shape letters: B images, Q matching queries, T queries of all groups, C
channels, K classes, D decoder layers, P queries of one auxiliary head.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from mmcv.ops import batched_nms
from mmdet.models import DINOHead
from mmdet.models.layers.transformer import inverse_sigmoid
from mmdet.registry import MODELS as MMDET_MODELS
from mmdet.structures import DetDataSample
from mmdet.structures.bbox import bbox_cxcywh_to_xyxy
from mmengine.model import BaseModule
from mmengine.structures import InstanceData
from torch import Tensor, nn

from ...registry import MODELS
from ...utils.tensors import float32_region, smaller, to_float32
from .denoising import (
    DenoisingGenerator,
    DenoisingQueries,
    group_attention_mask,
)
from .losses import (
    GroupTargets,
    LayerTargets,
    box_losses,
    class_losses,
    join_targets,
    loss_divisors,
)
from .matching import (
    GroundTruth,
    match_queries,
    matched_targets,
    read_ground_truth,
)
from .positives import CoPositives, CoQueries, make_co_queries
from .settings import build_with
from .transformer import EncodedImage, Proposals, level_padding_masks


def select_detections(
    cls_score: Tensor, boxes: Tensor, max_per_img: int, use_sigmoid: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The best (query, class) pairs of one image or of several.

    ``cls_score``: ``(..., Q, K)`` logits, ``(..., Q, K + 1)`` without
    sigmoid; ``boxes``: ``(..., Q, 4)``. Returns scores ``(..., N)`` in
    descending order, labels ``(..., N)`` int64 and boxes ``(..., N, 4)``.
    """
    if use_sigmoid:
        num_classes = cls_score.shape[-1]
        scores = cls_score.sigmoid().flatten(-2)
    else:
        scores, classes = cls_score.softmax(-1)[..., :-1].max(-1)
    scores, index = scores.topk(smaller(max_per_img, scores.shape[-1]))
    if use_sigmoid:
        labels, index = index % num_classes, index // num_classes
    else:
        labels = classes.gather(-1, index)
    of_box = index[..., None].expand(*index.shape, 4)
    return scores, labels, boxes.gather(-2, of_box)


def image_detections(
    scores: Tensor,
    labels: Tensor,
    boxes: Tensor,
    img_meta: Mapping,
    test_cfg: Mapping,
    *,
    rescale: bool,
) -> InstanceData:
    """Detections of one image.

    Args:
        scores: ``(N,)`` float32, descending.
        labels: ``(N,)`` int64.
        boxes: ``(N, 4)`` float32, cx cy w h in [0, 1].
        img_meta: ``img_shape``, height and width in pixels, which the boxes
            are relative to; ``scale_factor``, width and height, to rescale.
        test_cfg: ``max_per_img``; ``score_thr``: detections with this score
            or less are dropped, 0 keeps all; ``nms``, the config of
            ``mmcv.ops.batched_nms``, or None. Without ``score_thr`` and
            ``nms`` no shape depends on the data, as an export needs it.
        rescale: Give boxes in pixels of the original image.

    Returns:
        ``bboxes`` ``(N, 4)`` xyxy in pixels, clipped to the image;
        ``scores`` ``(N,)`` descending; ``labels`` ``(N,)`` int64.
    """
    height, width = img_meta['img_shape'][:2]
    size = boxes.new_tensor([width, height, width, height])
    boxes = (bbox_cxcywh_to_xyxy(boxes) * size).clamp(min=0).minimum(size)
    if rescale:
        boxes = boxes / boxes.new_tensor(img_meta['scale_factor']).repeat(1, 2)
    results = InstanceData(bboxes=boxes, scores=scores, labels=labels)
    score_thr = test_cfg.get('score_thr', 0)
    if score_thr > 0:
        results = results[scores > score_thr]
    nms = test_cfg.get('nms')
    if nms is None or len(results) == 0:
        return results
    kept, index = batched_nms(
        results.bboxes, results.scores, results.labels, nms
    )
    results = results[index]
    results.scores = kept[:, -1]
    return results[: test_cfg['max_per_img']]


def filler_padding_mask(
    main_size: int,
    fillers: Sequence[Tensor | None],
    co_sizes: Sequence[int],
    batch: int,
    device: torch.device,
) -> Tensor | None:
    """Which queries no other may attend to.

    ``fillers``: Per further group ``(B, P)`` bool, or None for no filler.
    Returns ``(B, T)`` bool, or None if there is no filler. A group that
    consists of fillers only keeps them visible to itself: a query that may
    attend to nothing would be NaN.
    """
    if all(filler is None for filler in fillers):
        return None
    parts = [torch.zeros((batch, main_size), dtype=torch.bool, device=device)]
    for filler, size in zip(fillers, co_sizes):
        if filler is None:
            filler = parts[0].new_zeros((batch, size))
        parts.append(filler & ~filler.all(1, keepdim=True))
    return torch.cat(parts, 1)


@MODELS.register_module()
class CoDINOHead(DINOHead):
    """DINO head that also trains on the positives of auxiliary heads.

    In training, denoising queries, matching queries and the queries of all
    auxiliary heads go through the decoder together, kept apart by a
    block-diagonal self-attention mask.

    Args:
        num_classes: ``K``.
        transformer: Config of the transformer, by default of type
            ``mmext.CoDINOTransformer``, without ``num_queries`` and
            ``num_co_heads``, which are set here.
        dn_cfg: Arguments of
            :class:`~mmext.models.co_dino.denoising.DenoisingGenerator`:
            ``label_noise_scale``, ``box_noise_scale``, ``group_cfg``,
            ``max_boxes``; None for no denoising.
        positional_encoding: Config; its width must be ``C``.
        loss_cls: Config, in the public configurations
            ``mmdet.QualityFocalLoss``, whose targets are IoUs.
        loss_bbox: Config of the loss of normalised cx cy w h.
        loss_iou: Config of the loss of boxes in pixels.
        num_queries: ``Q``.
        max_co_queries: Largest number of queries per auxiliary head.
        num_co_heads: Number of auxiliary heads that send queries; the
            detector sets it.
        with_extra_level: Whether any auxiliary head reads the maps, and so
            the extra level; the detector sets it.
        num_reg_fcs: Hidden layers of the box branches.
        sync_cls_avg_factor: Average the number of positives, which the
            classification losses are divided by, over all ranks.
        train_cfg: ``assigner``.
        test_cfg: ``max_per_img``, ``score_thr`` and ``nms``; without ``nms``
            the selection has no data-dependent shape.
        init_cfg: As in mmengine.

    Raises:
        ValueError: If ``transformer`` gives a number that is set here, or
            if the positional encoding has another width.

    Source:
        CO-DETR, arXiv 2211.12860; state dict of the port's ``CoDINOHead``.
    """

    transformer_type = 'mmext.CoDINOTransformer'

    def __init__(
        self,
        num_classes: int,
        transformer: dict,
        dn_cfg: dict | None,
        *,
        num_queries: int = 900,
        max_co_queries: int = 300,
        num_co_heads: int = 2,
        with_extra_level: bool = True,
        positional_encoding: dict,
        loss_cls: dict,
        loss_bbox: dict,
        loss_iou: dict,
        num_reg_fcs: int = 2,
        sync_cls_avg_factor: bool = True,
        train_cfg: dict | None = None,
        test_cfg: dict | None = None,
        init_cfg: dict | None = None,
    ) -> None:
        transformer = build_with(
            {'type': self.transformer_type, **transformer},
            'head',
            num_queries=num_queries,
            num_co_heads=num_co_heads,
        )
        embed_dims = transformer.embed_dims
        super().__init__(
            num_classes=num_classes,
            embed_dims=embed_dims,
            num_reg_fcs=num_reg_fcs,
            sync_cls_avg_factor=sync_cls_avg_factor,
            num_pred_layer=transformer.decoder.num_layers + 1,
            as_two_stage=True,
            # mmdet may edit the config of the classification loss.
            loss_cls=copy.deepcopy(loss_cls),
            loss_bbox=loss_bbox,
            loss_iou=loss_iou,
            train_cfg=train_cfg,
            test_cfg=test_cfg or {},
            init_cfg=init_cfg,
        )
        self.num_queries = num_queries
        self.max_co_queries = max_co_queries
        self.transformer = transformer
        self.positional_encoding = MMDET_MODELS.build(positional_encoding)
        width = 2 * self.positional_encoding.num_feats
        if width != embed_dims:
            raise ValueError(
                f'positional_encoding.num_feats must be {embed_dims // 2}, '
                f"half of the transformer's embed_dims, got {width // 2}"
            )
        self.downsample = None
        if with_extra_level:
            self.downsample = nn.Sequential(
                nn.Conv2d(embed_dims, embed_dims, 3, stride=2, padding=1),
                nn.GroupNorm(32, embed_dims),
            )
        self.dn_generator = None
        if dn_cfg is not None:
            self.dn_generator = DenoisingGenerator(
                num_classes=num_classes,
                embed_dims=embed_dims,
                num_matching_queries=num_queries,
                **dn_cfg,
            )

    def init_weights(self) -> None:
        """Initialise branches and transformer, then what ``init_cfg`` says."""
        super().init_weights()
        self.transformer.init_weights()
        if self.init_cfg:
            # mmdet's method does not come as far as this.
            BaseModule.init_weights(self)
        self._is_init = True

    def encode(
        self, feats: Sequence[Tensor], batch_img_metas: Sequence[dict] | None
    ) -> EncodedImage:
        """Run the encoder.

        Args:
            feats: Maps ``(B, C, H, W)``, finest first.
            batch_img_metas: Per image ``img_shape`` and
                ``batch_input_shape``; None if all images fill the canvas.

        Returns:
            The encoded batch.
        """
        masks, has_padding = level_padding_masks(batch_img_metas, feats)
        encodings = [self.positional_encoding(mask) for mask in masks]
        return self.transformer.encode(
            feats, masks, encodings, has_padding=has_padding
        )

    def co_feats(self, encoded: EncodedImage) -> list[Tensor]:
        """Maps for the auxiliary heads: the memory and one coarser level."""
        maps = encoded.maps()
        if self.downsample is not None:
            # PyTorch 2.13 has NaN gradients for a strided bfloat16
            # convolution of a 1 x 1 map on CPUs.
            with float32_region(maps[-1]):
                dtype = self.downsample[0].weight.dtype
                maps.append(self.downsample(maps[-1].to(dtype)))
        return maps

    def forward(
        self, hidden_states: Tensor, references: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Predict from the hidden states of every decoder layer.

        Args:
            hidden_states: ``(D, B, T, C)``.
            references: At least ``D`` tensors ``(B, T, 4)``; the ``i``-th is
                what layer ``i`` started from.

        Returns:
            Class logits ``(D, B, T, K)`` and boxes ``(D, B, T, 4)``, cx cy w
            h in [0, 1], both float32.
        """
        scores, boxes = zip(
            *(
                self.predict_layer(i, hidden, references[i])
                for i, hidden in enumerate(hidden_states)
            )
        )
        return torch.stack(scores), torch.stack(boxes)

    def predict_layer(
        self, layer: int, hidden: Tensor, reference: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logits ``(B, T, K)`` and boxes ``(B, T, 4)`` of one layer."""
        scores = self.classify(layer, hidden)
        offsets = self.reg_branches[layer](hidden)
        with float32_region(hidden):
            boxes = to_float32(offsets) + inverse_sigmoid(
                reference, eps=self.transformer.decoder.reference_eps
            )
        return to_float32(scores), boxes.sigmoid()

    def classify(self, layer: int, hidden: Tensor) -> Tensor:
        """Logits ``(..., K)`` of a decoder layer, -1 for the proposals."""
        return self.cls_branches[layer](hidden)

    def propose(self, encoded: EncodedImage) -> Proposals:
        """The encoder's best boxes."""
        return self.transformer.propose(
            encoded, partial(self.classify, -1), self.reg_branches[-1]
        )

    def loss(
        self,
        encoded: EncodedImage,
        batch_data_samples: Sequence[DetDataSample],
        co_positives: Sequence[CoPositives] = (),
        draw: Callable[[Tensor], tuple[Tensor, Callable]] | None = None,
    ) -> dict:
        """All losses of the decoder, from one pass.

        Args:
            encoded: The encoder output.
            batch_data_samples: Samples with ``gt_instances``.
            co_positives: What each auxiliary head assigned, in the order of
                the heads; none trains a plain DINO.
            draw: Gets the detected boxes, see :meth:`_detected`, and gives
                numbers on the device, and a function that gets them on the
                host, where they arrive together with the costs of the
                matching, and gives further losses.

        Returns:
            Scalars: ``loss_cls``, ``loss_bbox``, ``loss_iou`` of the last
            layer, with prefix ``d<i>.`` of the others, ``enc_`` of the
            proposals, ``dn_`` of the denoising part and suffix ``_aux<i>`` of
            the auxiliary heads. Classification is divided by the number of
            positives, boxes by its mean over the ranks, each at least 1.
        """
        truth = read_ground_truth(batch_data_samples, self.num_classes)
        co_queries = make_co_queries(
            co_positives, truth.scales, self.num_classes, self.max_co_queries
        )
        proposals = self.propose(encoded)
        denoising = self.dn_generator and self.dn_generator(truth)
        hidden, references = self._decode_groups(
            encoded, proposals, denoising, co_queries
        )
        scores, boxes = self(hidden, references)
        numbers = finish = None
        with float32_region(scores):
            if draw is not None:
                count = scores.shape[2] - sum(
                    queries.boxes.shape[1] for queries in co_queries
                )
                numbers, finish = draw(
                    self._detected(
                        scores[-1, :, :count], boxes[-1, :, :count], truth
                    )
                )
            decoded, proposed, numbers = self._targets(
                scores,
                boxes,
                proposals,
                denoising,
                co_queries,
                truth,
                batch_data_samples,
                numbers,
            )
            losses = self._losses(scores, boxes, decoded, truth)
            losses |= self._losses(
                *(value[None] for value in proposals.learned), proposed, truth
            )
            losses |= self._further_losses(
                hidden, proposals, decoded, proposed
            )
        return losses if finish is None else losses | finish(numbers)

    @torch.no_grad()
    def _detected(
        self, scores: Tensor, boxes: Tensor, truth: GroundTruth
    ) -> Tensor:
        """Boxes ``(B, R, 4)``, xyxy in pixels, before any NMS.

        Those of ``scores`` ``(B, P, K)`` and ``boxes`` ``(B, P, 4)`` of all
        denoising and matching queries that a prediction would select.
        """
        boxes = bbox_cxcywh_to_xyxy(self.select(scores, boxes)[2])
        size = truth.scales[:, None]
        return (boxes * size).clamp(min=0).minimum(size)

    def _decode_groups(
        self,
        encoded: EncodedImage,
        proposals: Proposals,
        denoising: DenoisingQueries | None,
        co_queries: Sequence[CoQueries],
    ) -> tuple[Tensor, list[Tensor]]:
        """Decode denoising, matching and auxiliary queries together."""
        batch, count = proposals.references.shape[:2]
        sizes = [queries.boxes.shape[1] for queries in co_queries]
        device = proposals.references.device
        queries = [
            self.transformer.matching_queries(proposals.references),
            *(
                self.transformer.co_queries(queries.boxes, queries.feats, i)
                for i, queries in enumerate(co_queries)
            ),
        ]
        references = [
            proposals.references,
            *(queries.boxes for queries in co_queries),
        ]
        num_denoising = num_groups = 0
        if denoising is not None:
            queries.insert(0, denoising.contents)
            references.insert(0, denoising.references)
            num_denoising = denoising.references.shape[1]
            num_groups = denoising.num_groups
        return self.transformer.decode(
            encoded,
            torch.cat(queries, 1),
            torch.cat(references, 1),
            self.reg_branches,
            attn_mask=group_attention_mask(
                num_denoising, num_groups, count, sizes, device
            ),
            key_padding_mask=filler_padding_mask(
                num_denoising + count,
                [queries.fillers for queries in co_queries],
                sizes,
                batch,
                device,
            ),
        )

    def _targets(
        self,
        scores: Tensor,
        boxes: Tensor,
        proposals: Proposals,
        denoising: DenoisingQueries | None,
        co_queries: Sequence[CoQueries],
        truth: GroundTruth,
        batch_data_samples: Sequence[DetDataSample],
        numbers: Tensor | None,
    ) -> tuple[LayerTargets, LayerTargets, list[int]]:
        """Targets of all decoder layers, and of the proposals.

        And ``numbers``, on the host.
        """
        start = 0 if denoising is None else denoising.references.shape[1]
        stop = start + proposals.references.shape[1]
        matching, proposed, numbers = self._match(
            scores[:, :, start:stop],
            boxes[:, :, start:stop],
            proposals,
            truth,
            batch_data_samples,
            numbers,
        )
        groups = [
            *([] if denoising is None else [denoising.targets]),
            matching,
            *(
                queries.targets(f'{{}}_aux{i}')
                for i, queries in enumerate(co_queries)
            ),
        ]
        decoded_by, proposed_by = loss_divisors(
            [groups, [proposed]],
            self.bg_cls_weight,
            average_classes=self.sync_cls_avg_factor,
        )
        return (
            join_targets(groups, boxes, decoded_by),
            join_targets([proposed], proposals.learned[1][None], proposed_by),
            numbers,
        )

    def _match(
        self,
        scores: Tensor,
        boxes: Tensor,
        proposals: Proposals,
        truth: GroundTruth,
        batch_data_samples: Sequence[DetDataSample],
        numbers: Tensor | None,
    ) -> tuple[GroupTargets, GroupTargets, list[int]]:
        """Targets of the matching queries, and of the proposals.

        And ``numbers``, on the host.
        """
        proposed = proposals.learned
        (matched,), numbers = match_queries(
            self.assigner,
            [
                (
                    torch.cat((scores.detach(), proposed[0].detach()[None])),
                    torch.cat((boxes, proposed[1][None])),
                    batch_data_samples,
                )
            ],
            truth.scales,
            numbers,
        )
        matching, proposed = (
            matched_targets(name, index, truth, self.num_classes)
            for name, index in (('{}', matched[:-1]), ('enc_{}', matched[-1:]))
        )
        return matching, proposed, numbers

    def _losses(
        self,
        scores: Tensor,
        boxes: Tensor,
        targets: LayerTargets,
        truth: GroundTruth,
    ) -> dict[str, Tensor]:
        """The three losses of every group in every layer."""
        return class_losses(self.loss_cls, scores, targets) | box_losses(
            self.loss_bbox, self.loss_iou, boxes, targets, truth.scales
        )

    def _further_losses(
        self,
        hidden: Tensor,
        proposals: Proposals,
        decoded: LayerTargets,
        proposed: LayerTargets,
    ) -> dict[str, Tensor]:
        """What a subclass adds, on the same targets."""
        return {}

    def decode_matching(
        self, encoded: EncodedImage
    ) -> tuple[Tensor, list[Tensor]]:
        """Decode the matching queries alone, as in evaluation."""
        references = self.propose(encoded).references
        return self.transformer.decode(
            encoded,
            self.transformer.matching_queries(references),
            references,
            self.reg_branches,
        )

    def detect(self, encoded: EncodedImage) -> tuple[Tensor, Tensor]:
        """Logits ``(B, Q, K)`` and boxes ``(B, Q, 4)`` of the last layer.

        Both float32; boxes are cx cy w h in [0, 1].
        """
        hidden, references = self.decode_matching(encoded)
        last = len(hidden) - 1
        return self.predict_layer(last, hidden[last], references[last])

    def select(
        self, cls_score: Tensor, boxes: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Scores, labels and boxes of the best (query, class) pairs.

        As :func:`select_detections`, ``max_per_img`` of ``test_cfg`` at most.
        """
        return select_detections(
            cls_score,
            boxes,
            self.test_cfg.get('max_per_img', self.num_queries),
            self.loss_cls.use_sigmoid,
        )

    def predict(
        self,
        encoded: EncodedImage,
        batch_data_samples: Sequence[DetDataSample],
        rescale: bool = True,
    ) -> list[InstanceData]:
        """Detect from the last decoder layer.

        Args:
            encoded: The encoder output.
            batch_data_samples: Samples with ``img_shape`` and, to rescale,
                ``scale_factor``.
            rescale: Give boxes in pixels of the original image.

        Returns:
            Per image ``bboxes`` ``(N, 4)`` xyxy in pixels, ``scores`` ``(N,)``
            descending, ``labels`` ``(N,)``; N at most ``max_per_img``. On
            the host after soft-NMS, which runs there.
        """
        scores, boxes = self.detect(encoded)
        with float32_region(scores):
            scores, labels, boxes = self.select(scores, boxes)
            nms = self.test_cfg.get('nms') or {}
            if nms.get('type') == 'soft_nms' and not boxes.is_cpu:
                # mmcv's runs on the host, which waits here for all images.
                columns = scores[..., None], labels[..., None].to(scores)
                packed = torch.cat((boxes, *columns), -1).cpu()
                boxes, scores = packed[..., :4], packed[..., 4]
                labels = packed[..., 5].to(labels.dtype)
            return [
                image_detections(
                    scores[i],
                    labels[i],
                    boxes[i],
                    sample.metainfo,
                    {'max_per_img': self.num_queries, **self.test_cfg},
                    rescale=rescale,
                )
                for i, sample in enumerate(batch_data_samples)
            ]

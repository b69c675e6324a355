"""CO-DETR: a DETR trained together with one- and two-stage heads.

Shape letters: B images, C channels, K classes, Q queries, D decoder layers.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from mmdet.models.detectors.base import BaseDetector
from mmdet.registry import MODELS as MMDET_MODELS
from mmdet.structures import DetDataSample
from mmengine.logging import print_log
from mmengine.model import ModuleList
from mmengine.structures import InstanceData
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ...registry import MODELS
from ...utils.tensors import float32_region, to_float32
from ..checkpointing.checkpoint import (
    checkpoint_modules,
    checkpointable_blocks,
)
from ..losses import LabelRangeMonitor
from .positives import CoPositives
from .public_weights import convert_codetr_state_dict
from .region_proposals import (
    RegionProposals,
    given_proposals,
    propose_and_learn,
)
from .settings import (
    TEST_CFG_KEYS,
    TRAIN_CFG_KEYS,
    as_list,
    build_with,
    check_backbone_host,
    check_eval_module,
    check_named_cfg,
    per_head,
    share_num_classes,
    with_head_keys,
)
from .transformer import EncodedImage

MASK_POLICIES = ('valid', 'canvas')


@MODELS.register_module()
class CoDETR(BaseDetector):
    """Detector with a query head, and auxiliary heads for the training.

    Args:
        backbone: Config, of mmdet or, as ``mmpretrain.NAME``, of mmpretrain.
            ``with_cp`` may be a bool or the number of leading blocks to
            checkpoint; it is never reentrant.
        neck: Config, with one map per feature level of the transformer.
        query_head: Config of the head that detects, such as
            ``mmext.CoDINOHead``.
        rpn_head: Config of the RPN that proposes for ``roi_head``.
        roi_head: Config, or list of configs, of two-stage auxiliary heads.
        bbox_head: Config, or list of configs, of one-stage auxiliary heads.
        mask_head: Config of a head that learns and predicts the masks of
            what the query head detects, such as ``mmext.QueryMaskHead``.
        num_classes: ``K``, for all heads. May be left out if the heads give
            it, all the same.
        train_cfg: Settings by head: ``query_head``, ``rpn_head``,
            ``rpn_proposal``, ``mask_head``, ``roi_head``, ``bbox_head``; the
            last two may hold one dict per head.
        test_cfg: Settings by head: ``query_head``, ``rpn_head``,
            ``mask_head``, ``roi_head``, ``bbox_head``.
        with_co_queries: Send the auxiliary heads' positives through the
            decoder.
        mask_policy: Which part of a padded batch counts as image.
            ``'valid'``: each image's own ``img_shape``, for attention masks,
            box normalisation, denoising and box decoding. ``'canvas'``: the
            whole canvas, as in large-scale-jitter training, where all are of
            one size and masks would cost time and change nothing.
        eval_module: Which head detects in evaluation: ``'detr'``,
            ``'one-stage'`` or ``'two-stage'``.
        eval_index: Which of several auxiliary heads.
        eval_masks: Predict a mask for each detected box, whichever head
            detects it, with ``mask_head``, else with the mask head of the
            first ``roi_head`` that has one; with ``'two-stage'`` with that
            of ``eval_index`` if it has one. No effect without mask heads.
        data_preprocessor: Config, as in mmdet.
        init_cfg: As in mmengine.

    Raises:
        ValueError: If heads disagree on the number of classes, a setting or
            ``mask_policy`` is unknown, or ``eval_module`` names a head that
            is not there.
        TypeError: If ``train_cfg`` or ``test_cfg`` is not a dict by head.
        ImportError: If the backbone is of mmpretrain, which is not installed.

    Source:
        CO-DETR, arXiv 2211.12860. Same state dict as the public port; the
        names of the original project are translated on loading.
    """

    # A subclass whose heads read more may extend these.
    train_cfg_keys: Mapping[str, set[str]] = TRAIN_CFG_KEYS
    test_cfg_keys: Mapping[str, set[str]] = TEST_CFG_KEYS

    def __init__(
        self,
        backbone: dict,
        query_head: dict,
        *,
        neck: dict | None = None,
        rpn_head: dict | None = None,
        roi_head: dict | list[dict] | None = None,
        bbox_head: dict | list[dict] | None = None,
        mask_head: dict | None = None,
        num_classes: int | None = None,
        train_cfg: dict | None = None,
        test_cfg: dict | None = None,
        with_co_queries: bool = True,
        mask_policy: str = 'valid',
        eval_module: str = 'detr',
        eval_index: int = 0,
        eval_masks: bool = True,
        data_preprocessor: dict | None = None,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(
            data_preprocessor=data_preprocessor, init_cfg=init_cfg
        )
        self.train_cfg = check_named_cfg(
            train_cfg, self.train_cfg_keys, 'train_cfg'
        )
        self.test_cfg = check_named_cfg(
            test_cfg,
            with_head_keys(self.test_cfg_keys, query_head, 'test_cfg_keys'),
            'test_cfg',
        )
        if mask_policy not in MASK_POLICIES:
            raise ValueError(
                f'mask_policy must be one of {MASK_POLICIES}, '
                f'got {mask_policy!r}'
            )
        self.mask_policy = mask_policy
        self.with_co_queries = with_co_queries
        self.num_classes, heads = share_num_classes(
            num_classes,
            {
                'query_head': query_head,
                'roi_head': as_list(roi_head),
                'bbox_head': as_list(bbox_head),
                'mask_head': as_list(mask_head),
            },
        )
        self._build_backbone(backbone, neck)
        num_co_heads = len(heads['roi_head']) + len(heads['bbox_head'])
        self.query_head = build_with(
            heads['query_head'],
            'detector',
            num_co_heads=num_co_heads if with_co_queries else 0,
            with_extra_level=num_co_heads > 0 or rpn_head is not None,
            **self._head_cfg('query_head'),
        )
        self.rpn_head = None
        if rpn_head is not None:
            self.rpn_head = build_with(
                rpn_head, 'detector', **self._head_cfg('rpn_head')
            )
        self.roi_head = self._build_heads('roi_head', heads['roi_head'])
        self.bbox_head = self._build_heads('bbox_head', heads['bbox_head'])
        self.mask_head = None
        for cfg in heads['mask_head']:
            self.mask_head = build_with(
                cfg, 'detector', **self._head_cfg('mask_head')
            )
        check_eval_module(
            eval_module,
            eval_index,
            num_roi_heads=len(self.roi_head),
            num_bbox_heads=len(self.bbox_head),
            has_rpn=rpn_head is not None,
            has_test_classes=bool(
                (self.test_cfg.get('query_head') or {}).get('class_embeddings')
            ),
        )
        self.label_range = LabelRangeMonitor(name='gt_instances')
        self.eval_module = eval_module
        self.eval_index = eval_index
        self.eval_masks = eval_masks

    def _build_backbone(self, backbone: dict, neck: dict | None) -> None:
        """Build backbone and neck, and checkpoint blocks."""
        check_backbone_host(backbone)
        backbone = dict(backbone)
        with_cp = backbone.pop('with_cp', False)
        self.backbone = MMDET_MODELS.build(backbone)
        self.neck = None if neck is None else MMDET_MODELS.build(neck)
        blocks = checkpointable_blocks(self.backbone)
        if with_cp and not blocks:
            raise ValueError(
                f'backbone.with_cp must be left out, got {with_cp!r}: '
                f'{type(self.backbone).__name__} has no blocks with a with_cp '
                'of their own; name what is to be checkpointed in '
                "custom_hooks=[dict(type='mmext.ActivationCheckpointHook', "
                'modules=[...])]'
            )
        count = checkpoint_modules(blocks, with_cp, 'backbone')
        self._num_checkpointed = {'backbone': (count, len(blocks))}

    def _head_cfg(self, kind: str) -> dict:
        """Train and test settings of a kind of head."""
        return {
            'train_cfg': self.train_cfg.get(kind),
            'test_cfg': self.test_cfg.get(kind),
        }

    def _build_heads(self, kind: str, cfgs: Sequence[dict]) -> ModuleList:
        """Build all auxiliary heads of one kind."""
        settings = {
            name: per_head(value, len(cfgs), f'{name}.{kind}')
            for name, value in self._head_cfg(kind).items()
        }
        # MMEngine's list: init_weights() does not go into PyTorch's.
        return ModuleList(
            build_with(
                cfg,
                'detector',
                **{name: values[i] for name, values in settings.items()},
            )
            for i, cfg in enumerate(cfgs)
        )

    @property
    def with_bbox(self) -> bool:
        """Whether there is any auxiliary head."""
        return bool(len(self.roi_head) or len(self.bbox_head))

    @property
    def with_mask(self) -> bool:
        """Whether a head predicts masks."""
        return self.mask_head is not None or any(
            head.with_mask for head in self.roi_head
        )

    @property
    def with_shared_head(self) -> bool:
        """Whether an auxiliary head has a shared head."""
        return any(head.with_shared_head for head in self.roi_head)

    def checkpointed_layers(self) -> dict[str, tuple[int, int]]:
        """Per part ``(checkpointed, all)`` layers or blocks."""
        counts = dict(self._num_checkpointed)
        transformer = self.query_head.transformer
        for name in ('encoder', 'decoder'):
            part = getattr(transformer, name)
            counts[name] = (part.num_checkpointed, part.num_layers)
        return counts

    def init_weights(self) -> None:
        """Initialise all parts, and log what is checkpointed."""
        super().init_weights()
        parts = self.checkpointed_layers().items()
        wrapped = ', '.join(f'{k} {n} of {total}' for k, (n, total) in parts)
        print_log(
            f'Activation checkpointing (non-reentrant): {wrapped} layers',
            logger='current',
        )

    def _load_from_state_dict(
        self, state_dict: dict, prefix: str, *args: Any
    ) -> None:
        """Load, after translating the names of the original project."""
        own = {
            key[len(prefix) :]: state_dict.pop(key)
            for key in list(state_dict)
            if key.startswith(prefix)
        }
        renamed = convert_codetr_state_dict(own, own_keys=self.state_dict())
        for key, value in renamed.items():
            state_dict[f'{prefix}{key}'] = value
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extract_feat(self, batch_inputs: Tensor) -> Sequence[Tensor]:
        """Feature maps of images ``(B, 3, H, W)``, finest first."""
        # A model of another type, by .half() or .double(), takes any images.
        dtype = self.query_head.transformer.level_embeds.dtype
        feats = self.backbone(batch_inputs.to(dtype))
        return feats if self.neck is None else self.neck(feats)

    def encode(
        self,
        batch_inputs: Tensor,
        batch_data_samples: Sequence[DetDataSample] | None = None,
    ) -> EncodedImage:
        """Backbone, neck and encoder.

        Without samples, all images fill the canvas, and ``torch.export``
        keeps their number and their size variable.
        """
        metas = None
        if batch_data_samples is not None:
            metas = [sample.metainfo for sample in batch_data_samples]
        return self.query_head.encode(self.extract_feat(batch_inputs), metas)

    def loss(
        self, batch_inputs: Tensor, batch_data_samples: Sequence[DetDataSample]
    ) -> dict:
        """Losses of all heads.

        Args:
            batch_inputs: ``(B, 3, H, W)``, normalised.
            batch_data_samples: Samples with ``gt_instances``; not edited.

        Returns:
            The query head's losses; the ``mask_head``'s, ``loss_mask`` and
            ``loss_mask_iou``; ``loss_rpn_cls`` and ``loss_rpn_bbox``; and
            the auxiliary heads', with the index of the head as suffix,
            two-stage heads first.

        Raises:
            LabelRangeError: If a label is not a class: on a CPU at once,
                else from :class:`mmext.LabelRangeHook` or in a later step.
        """
        samples = self._with_mask_policy(
            self._with_labels_in_range(batch_data_samples)
        )
        encoded = self.encode(batch_inputs, samples)
        feats = self.query_head.co_feats(encoded)
        losses, positives = self._co_head_losses(feats, samples)
        draw = None
        if self.mask_head is not None:
            draw = partial(self.mask_head.draw, feats, samples)
        results = self.query_head.loss(encoded, samples, positives, draw)
        return {**results, **losses}

    def _with_labels_in_range(
        self, samples: Sequence[DetDataSample]
    ) -> Sequence[DetDataSample]:
        """Samples with labels that no kernel of a GPU trips over."""
        labels = [sample.gt_instances.labels for sample in samples]
        padded = pad_sequence(labels, True)
        valid = self.label_range.check(padded, self.num_classes, None)
        if padded.device.type == 'cpu':
            return samples
        safe = []
        for sample, row, old in zip(samples, padded * valid, labels):
            instances = InstanceData(**dict(sample.gt_instances.items()))
            instances.labels = row[: len(old)]
            copied = sample.new()
            copied.gt_instances = instances
            safe.append(copied)
        return safe

    def _with_mask_policy(
        self, data_samples: Sequence[DetDataSample]
    ) -> list[DetDataSample]:
        """Samples whose ``img_shape`` is what the policy counts as image."""
        if self.mask_policy == 'valid':
            return list(data_samples)
        results = []
        for sample in data_samples:
            if 'batch_input_shape' not in sample.metainfo:
                raise ValueError(
                    "data_samples must carry 'batch_input_shape' for "
                    "mask_policy='canvas', got metainfo keys "
                    f'{sorted(sample.metainfo)}; use DetDataPreprocessor'
                )
            shape = sample.batch_input_shape
            metainfo = {**sample.metainfo, 'img_shape': shape}
            results.append(sample.new(metainfo=metainfo))
        return results

    def _co_head_losses(
        self, feats: Sequence[Tensor], samples: Sequence[DetDataSample]
    ) -> tuple[dict, list[CoPositives]]:
        """Losses and positives of the auxiliary heads."""
        losses: dict = {}
        results = []
        transformer = self.query_head.transformer
        with_feats = self.with_co_queries and transformer.with_coord_feat
        if len(self.roi_head) or self.rpn_head is not None:
            proposals, losses = self._propose(feats, samples)
            results += [
                head.loss_and_positives(
                    feats, proposals, samples, with_feats=with_feats
                )
                for head in self.roi_head
            ]
        results += [
            head.loss_and_positives(feats, samples, with_feats=with_feats)
            for head in self.bbox_head
        ]
        for i, (head_losses, _) in enumerate(results):
            losses.update(
                {f'{key}{i}': value for key, value in head_losses.items()}
            )
        positives = [positive for _, positive in results]
        return losses, positives if self.with_co_queries else []

    def _propose(
        self, feats: Sequence[Tensor], samples: Sequence[DetDataSample]
    ) -> tuple[RegionProposals, dict]:
        """Proposals, and the RPN's losses."""
        if self.rpn_head is None:
            return given_proposals(samples), {}
        cfg = self.train_cfg.get('rpn_proposal', self.rpn_head.test_cfg)
        return propose_and_learn(self.rpn_head, feats, samples, cfg)

    def predict(
        self,
        batch_inputs: Tensor,
        batch_data_samples: Sequence[DetDataSample],
        rescale: bool = True,
    ) -> list[DetDataSample]:
        """Detect with the head that ``eval_module`` names.

        Args:
            batch_inputs: ``(B, 3, H, W)``, normalised.
            batch_data_samples: Samples with ``img_shape`` and, to rescale,
                ``scale_factor``.
            rescale: Give boxes in pixels of the original image.

        Returns:
            The samples with ``pred_instances``: ``bboxes`` ``(N, 4)`` xyxy,
            ``scores`` ``(N,)``, ``labels`` ``(N,)``, and ``masks`` ``(N, H,
            W)`` bool if there is a mask head and ``eval_masks`` is on, with
            ``rescale`` as large as the original image; of ``mask_head`` with
            ``mask_scores`` ``(N,)`` if it predicts IoUs.
        """
        if (
            self.eval_module != 'detr'
            and getattr(self.query_head, 'test_class_embeddings', None)
            is not None
        ):
            raise ValueError(
                "eval_module must be 'detr' where set_class_embeddings() "
                f'chose other classes, got {self.eval_module!r}, whose head '
                'does not know them; call set_class_embeddings(None)'
            )
        samples = self._with_mask_policy(batch_data_samples)
        encoded = self.encode(batch_inputs, samples)
        masks = self.mask_branch()
        # Masks are pooled in the resized image; they rescale the boxes.
        scale = rescale and masks is None
        if self.eval_module == 'detr':
            results = self.query_head.predict(encoded, samples, scale)
        elif self.eval_module == 'one-stage':
            results = self.bbox_head[self.eval_index].predict(
                self.query_head.co_feats(encoded), samples, rescale=scale
            )
        else:
            results = self._predict_two_stage(encoded, samples, scale)
        if masks is not None:
            feats = self.query_head.co_feats(encoded)
            metas = [sample.metainfo for sample in samples]
            results = masks.predict_mask(feats, metas, results, rescale)
        device = batch_inputs.device
        results = [item.to(device, non_blocking=True) for item in results]
        return self.add_pred_to_datasample(batch_data_samples, results)

    def mask_branch(self) -> nn.Module | None:
        """The head that predicts masks of detected boxes, or None."""
        heads = list(self.roi_head) if self.eval_masks else []
        if self.eval_masks and self.mask_head is not None:
            return self.mask_head
        if heads and self.eval_module == 'two-stage':
            heads.insert(0, heads[self.eval_index])
        return next((head for head in heads if head.with_mask), None)

    def _predict_two_stage(
        self,
        encoded: EncodedImage,
        samples: Sequence[DetDataSample],
        rescale: bool,
    ) -> list[InstanceData]:
        """Proposals, then the boxes of the R-CNN head."""
        feats = self.query_head.co_feats(encoded)
        metas = [sample.metainfo for sample in samples]
        outs = to_float32(self.rpn_head(feats))
        with float32_region(feats[0]):
            proposals = self.rpn_head.predict_by_feat(
                *outs, batch_img_metas=metas, rescale=False
            )
        head = self.roi_head[self.eval_index]
        return head.predict_bbox(
            feats, metas, proposals, head.test_cfg, rescale=rescale
        )

    def _forward(
        self,
        batch_inputs: Tensor,
        batch_data_samples: Sequence[DetDataSample] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Raw predictions of the query head.

        ``batch_inputs``: ``(B, 3, H, W)``. Returns class logits ``(D, B, Q,
        K)`` and boxes ``(D, B, Q, 4)``, cx cy w h in [0, 1].
        """
        samples = batch_data_samples
        if samples is not None:
            samples = self._with_mask_policy(samples)
        return self.query_head(
            *self.query_head.decode_matching(
                self.encode(batch_inputs, samples)
            )
        )

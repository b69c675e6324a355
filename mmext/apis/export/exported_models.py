"""Models as functions of pictures alone, which another program can run.

Shape letters: B images, H height, W width, Q queries, K classes, N
detections.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from mmcv.ops import RoIAlign
from mmdet.models.roi_heads.mask_heads import FCNMaskHead
from mmdet.models.roi_heads.roi_extractors import SingleRoIExtractor
from mmdet.structures import DetDataSample
from mmdet.structures.bbox import bbox2roi, bbox_cxcywh_to_xyxy
from mmengine.structures import InstanceData
from mmseg.models import EncoderDecoder
from mmseg.structures import SegDataSample
from torch import Tensor, nn

from ...models import CoDETR
from .traced_parts import attend_in_windows, pool_boxes

BOX_TOLERANCE = 1e-2
"""Pixels that a coordinate may differ by."""

SCORE_TOLERANCE = 1e-4
"""How much a probability may differ."""

MASK_TOLERANCE = 1e-3
"""How much the probability of a pixel may differ, in boxes that differ."""

# Of sides in pixels: PIDNet adds maps of H // 8 rows to maps of an eighth of
# the rows, and Swin pads sides that it cannot halve by numbers of Python.
_BACKBONE_DIVISORS = {'PIDNet': 8, 'SwinTransformer': 32}

Arrays = Mapping[str, Tensor]


class ExportError(RuntimeError):
    """A file that does not compute what the model does."""


class ExportableModel(nn.Module, ABC):
    """A model in eval mode, called with pictures and nothing else.

    Args:
        model: The model; not changed.
        select: Choose the result (detections, classes of pixels) inside;
            else all scores are given.

    Attributes:
        outputs: Names of what the call returns.
        variable: Axes of them, besides the first, whose size depends on the
            pictures, and what they are.
        left_out: What the model's own prediction does and this does not.
        completion: What :func:`~mmext.apis.run_onnx` needs to do it.
    """

    outputs: tuple[str, ...]
    variable: dict[int, str]
    task: str

    def __init__(self, model: nn.Module, select: bool) -> None:
        super().__init__()
        self.model = model
        self.select = select
        self.left_out: list[str] = []
        self.completion: dict[str, Any] = {}

    def normalize(self, images: Tensor) -> Tensor:
        """What the data preprocessor makes of RGB pictures in [0, 255]."""
        preprocessor = self.model.data_preprocessor
        if not preprocessor._channel_conversion:
            # The loader's order, which is blue green red.
            images = images.flip(1)
        if preprocessor._enable_normalize:
            images = (images - preprocessor.mean) / preprocessor.std
        return images

    @property
    def size_divisor(self) -> int:
        """Heights and widths are multiples of it."""
        backbone = self.model.backbone
        return math.lcm(
            self.model.data_preprocessor.pad_size_divisor,
            _BACKBONE_DIVISORS.get(type(backbone).__name__, 1),
        )

    @contextmanager
    def traceable(self) -> Iterator[None]:
        """Inside, a graph keeps the number and the size of pictures open."""
        kinds = {
            type(part)
            for part in self.model.modules()
            if type(part).__name__ == 'ShiftWindowMSA'
        }
        with ExitStack() as stack:
            for kind in kinds:
                patched = patch.object(kind, 'forward', attend_in_windows)
                stack.enter_context(patched)
            yield

    def batch(self, images: Tensor, sample_type: type) -> dict:
        """A batch as a data loader gives it, of RGB pictures."""
        size = tuple(images.shape[-2:])
        metainfo = {
            'img_shape': size,
            'ori_shape': size,
            'scale_factor': (1.0, 1.0),
        }
        return {
            'inputs': list(images.flip(1).to(torch.uint8)),
            'data_samples': [sample_type(metainfo=metainfo) for _ in images],
        }

    @abstractmethod
    def predict(self, images: Tensor) -> Arrays:
        """What the model itself predicts, under the names of the outputs.

        ``images``: ``(B, 3, H, W)`` float32, RGB, whole numbers.
        """

    @abstractmethod
    def differences(
        self, computed: Arrays, expected: Arrays
    ) -> dict[str, float]:
        """Largest differences of ``'boxes'`` in pixels, ``'scores'``, masks.

        A class that should be another one counts as infinity.
        """

    def is_tied(self, images: Tensor) -> bool:
        """Whether rounding may change what the model finds in pictures."""
        return False


class ExportableDetector(ExportableModel):
    """CO-DINO as ``images`` -> ``boxes``, ``scores``, ``labels``.

    ``images``: ``(B, 3, H, W)`` float32, RGB, in [0, 255]; all fill their
    batch. ``boxes``: ``(B, N, 4)`` xyxy in pixels, inside the image;
    ``scores``: ``(B, N)`` descending; ``labels``: ``(B, N)`` int64. Without
    ``select``: boxes ``(B, Q, 4)`` and scores ``(B, Q, K)``. Without NMS,
    without masks, and without a threshold of scores in any case.

    Raises:
        ValueError: If another head than the query head detects.
    """

    task = 'detection'

    def __init__(self, model: CoDETR, select: bool = True) -> None:
        super().__init__(model, select)
        if model.eval_module != 'detr':
            raise ValueError(
                "eval_module must be 'detr' for an export, got "
                f'{model.eval_module!r}; give --cfg-options '
                'model.eval_module=detr'
            )
        self.outputs = ('boxes', 'scores') + (('labels',) if select else ())
        self.variable = {1: 'detections' if select else 'queries'}
        test_cfg = model.query_head.test_cfg
        self.max_per_img = test_cfg.get(
            'max_per_img', model.query_head.num_queries
        )
        for key, default in {'nms': None, 'score_thr': 0}.items():
            self.completion[key] = test_cfg.get(key, default)
            if test_cfg.get(key):
                self.left_out.append(f'{key} {test_cfg[key]}')

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Detect; see the class."""
        return self._detect(self.model.encode(self.normalize(images)), images)

    def _detect(self, encoded: Any, images: Tensor) -> tuple[Tensor, ...]:
        head = self.model.query_head
        logits, boxes = head.detect(encoded)
        if not self.select:
            return self._in_pixels(boxes, images), self._probabilities(logits)
        scores, labels, boxes = head.select(logits, boxes)
        return self._in_pixels(boxes, images), scores, labels

    def _probabilities(self, logits: Tensor) -> Tensor:
        """``(..., K)``, without the background."""
        if self.model.query_head.loss_cls.use_sigmoid:
            return logits.sigmoid()
        return logits.softmax(-1)[..., :-1]

    def _in_pixels(self, boxes: Tensor, images: Tensor) -> Tensor:
        """Normalised cx cy w h as xyxy; a traced size stays variable."""
        height, width = images.shape[-2:]
        sides = bbox_cxcywh_to_xyxy(boxes).clamp(0, 1).unbind(-1)
        sizes = width, height, width, height
        return torch.stack([a * b for a, b in zip(sides, sizes)], -1)

    @contextmanager
    def _plain_selection(self) -> Iterator[None]:
        """Without NMS, threshold and masks, inside."""
        head = self.model.query_head
        before, masks = head.test_cfg, self.model.eval_masks
        head.test_cfg = {**before, 'nms': None, 'score_thr': 0}
        self.model.eval_masks = False
        try:
            yield
        finally:
            head.test_cfg, self.model.eval_masks = before, masks

    def predict(self, images: Tensor) -> Arrays:
        """See the base class."""
        batch = self.batch(images, DetDataSample)
        if self.select:
            with self._plain_selection():
                samples = self.model.test_step(batch)
            return _stacked([sample.pred_instances for sample in samples])
        batch = self.model.data_preprocessor(batch, False)
        logits, boxes = self.model(**batch, mode='tensor')
        return {
            'boxes': self._in_pixels(boxes[-1], images),
            'scores': self._probabilities(logits[-1]),
        }

    def differences(
        self, computed: Arrays, expected: Arrays
    ) -> dict[str, float]:
        """See the base class; detections are paired by label and score."""
        scores = (computed['scores'] - expected['scores']).abs().max()
        if not self.select:
            boxes = (computed['boxes'] - expected['boxes']).abs().max()
            return {'boxes': float(boxes), 'scores': float(scores)}
        # Equally good ones may be in any order, and the last ones give way
        # to others that are as good; all are there if none had to.
        ends = expected['scores'][:, -1:] + 2 * SCORE_TOLERANCE
        is_cut = expected['scores'].shape[1] == self.max_per_img
        worst = {'boxes': 0.0, 'scores': float(scores)}
        for i in range(len(ends)):
            one, other = (
                {name: value[i] for name, value in arrays.items()}
                for arrays in (computed, expected)
            )
            apart = _distances(one, other)
            compared = [
                ('boxes', apart.amin(1), one),
                ('boxes', apart.amin(0), other),
            ]
            if 'masks' in one:
                pairs = other['masks'][apart.argmin(1)]
                between = (one['masks'] - pairs).abs().flatten(1).amax(1)
                compared.append(('masks', between, one))
            for name, nearest, given in compared:
                sure = (given['scores'] > ends[i]) | (not is_cut)
                before = worst.get(name, 0.0)
                worst[name] = max(before, *nearest[sure].tolist(), 0.0)
        return worst

    def is_tied(self, images: Tensor) -> bool:
        """Whether two of the proposals have nearly the same score.

        Rounding then decides which of them goes first and gets the learned
        query of that place.
        """
        batch = self.batch(images, DetDataSample)
        data = self.model.data_preprocessor(batch, False)
        proposals = self.model.query_head.propose(
            self.model.encode(data['inputs'])
        )
        best = proposals.scores.amax(-1)
        return bool((best.diff(dim=1).abs() < 1e-5).any())


def _stacked(computed: Sequence[InstanceData]) -> dict[str, Tensor]:
    """Detections of pictures that have as many."""
    return {
        'boxes': torch.stack([item.bboxes for item in computed]),
        'scores': torch.stack([item.scores for item in computed]),
        'labels': torch.stack([item.labels for item in computed]),
    }


def _distances(one: Arrays, other: Arrays) -> Tensor:
    """Largest difference of coordinates ``(N, M)``, inf if never a pair."""
    apart = (one['boxes'][:, None] - other['boxes']).abs().amax(-1)
    scores = (one['scores'][:, None] - other['scores']).abs()
    strangers = one['labels'][:, None] != other['labels']
    return apart.masked_fill(
        strangers | (scores > SCORE_TOLERANCE), float('inf')
    )


class ExportableMaskDetector(ExportableDetector):
    """CO-DINO with a mask head: ``masks`` beside boxes, scores and labels.

    ``masks``: ``(B, N, S, S)`` float32, the probability that a pixel of the
    box belongs to the object; the box is divided into S rows and columns.
    Needs an exporter that knows ONNX's ``RoiAlign``.

    Raises:
        ValueError: If the mask head or what pools for it has no counterpart
            in ONNX.
    """

    def __init__(self, model: CoDETR) -> None:
        super().__init__(model, select=True)
        _check_mask_head(self.head)
        self.outputs += ('masks',)
        threshold = self.head.test_cfg['mask_thr_binary']
        self.completion['mask_threshold'] = threshold

    @property
    def head(self) -> nn.Module:
        """The head of ``roi_head`` that has the masks."""
        return self.model.mask_branch()

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Detect; see the class."""
        encoded = self.model.encode(self.normalize(images))
        boxes, scores, labels = self._detect(encoded, images)
        feats = self.model.query_head.co_feats(encoded)
        pooled = pool_boxes(self.head.mask_roi_extractor, feats, boxes)
        if self.head.with_shared_head:
            pooled = self.head.shared_head(pooled)
        masks = self._of_labels(self.head.mask_head(pooled), labels)
        return boxes, scores, labels, masks

    def _of_labels(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Probabilities ``(B, N, S, S)`` of logits ``(B * N, K, S, S)``."""
        logits = logits.unflatten(0, labels.shape)
        if self.head.mask_head.class_agnostic:
            return logits[:, :, 0].sigmoid()
        index = labels[..., None, None, None]
        index = index.expand(-1, -1, 1, *logits.shape[-2:])
        return logits.gather(2, index)[:, :, 0].sigmoid()

    def predict(self, images: Tensor) -> Arrays:
        """See the base class; pooled by mmdet, of the boxes of the model."""
        data = self.model.data_preprocessor(
            self.batch(images, DetDataSample), False
        )
        inputs, samples = data['inputs'], data['data_samples']
        head = self.model.query_head
        with self._plain_selection():
            encoded = self.model.encode(inputs, samples)
            computed = _stacked(head.predict(encoded, samples, False))
        logits = self.head._mask_forward(
            head.co_feats(encoded), bbox2roi(list(computed['boxes']))
        )['mask_preds']
        masks = self._of_labels(logits, computed['labels'])
        return {**computed, 'masks': masks}


def _check_mask_head(head: nn.Module) -> None:
    """Raise ValueError if a graph of ONNX cannot do what the head does."""
    wanted = {
        'mask_head': (head.mask_head, FCNMaskHead),
        'mask_roi_extractor': (head.mask_roi_extractor, SingleRoIExtractor),
    }
    for name, (part, kind) in wanted.items():
        if type(part) is not kind:
            raise ValueError(
                f'roi_head.{name} must be {kind.__name__} for an export with '
                f'masks, got {type(part).__name__}; give --cfg-options '
                'model.eval_masks=False to export the boxes alone'
            )
    for layer in head.mask_roi_extractor.roi_layers:
        if (
            not isinstance(layer, RoIAlign)
            or layer.pool_mode != 'avg'
            or not layer.aligned
        ):
            raise ValueError(
                'roi_layer of mask_roi_extractor must be RoIAlign with '
                "pool_mode 'avg' and aligned=True for an export with masks, "
                f'got {layer}; give --cfg-options model.eval_masks=False to '
                'export the boxes alone'
            )


class ExportableSegmentor(ExportableModel):
    """A segmentor of mmseg as ``images`` -> ``labels``, ``scores``.

    ``images``: ``(B, 3, H, W)`` float32, RGB, in [0, 255]. ``labels``: ``(B,
    H, W)`` int64; ``scores``: ``(B, H, W)``, their probability. Without
    ``select``: scores ``(B, K, H, W)``, the probabilities of all classes.

    Raises:
        ValueError: If pictures are to be predicted in parts, or there is one
            channel only.
    """

    task = 'segmentation'

    def __init__(self, model: EncoderDecoder, select: bool = True) -> None:
        super().__init__(model, select)
        mode = model.test_cfg.get('mode', 'whole')
        if mode != 'whole':
            raise ValueError(
                f"test_cfg.mode must be 'whole' for an export, got {mode!r}; "
                'give --cfg-options model.test_cfg.mode=whole'
            )
        if model.out_channels == 1:
            raise ValueError(
                'decode_head.out_channels must be at least 2 for an export, '
                'got 1; train with a channel for each class'
            )
        self.outputs = ('labels', 'scores') if select else ('scores',)
        axes = (1, 2) if select else (2, 3)
        self.variable = dict(zip(axes, ('height', 'width')))
        preprocessor = model.data_preprocessor
        padding = torch.full((3, 1, 1), float(preprocessor.pad_val))
        if preprocessor._enable_normalize:
            padding = padding * preprocessor.std + preprocessor.mean
        order = -1 if preprocessor._channel_conversion else 1
        self.completion = {
            'align_corners': model.align_corners,
            # What becomes the padding of the model, blue green red.
            'padding': padding.flatten().tolist()[::order],
        }

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Classify the pixels; see the class."""
        logits = self.model(self.normalize(images), mode='tensor')
        logits = F.interpolate(
            logits,
            images.shape[-2:],
            mode='bilinear',
            align_corners=self.model.align_corners,
        )
        scores = logits.softmax(1)
        if not self.select:
            return (scores,)
        scores, labels = scores.max(1)
        return labels, scores

    def predict(self, images: Tensor) -> Arrays:
        """See the base class; always the scores of all classes."""
        samples = self.model.test_step(self.batch(images, SegDataSample))
        logits = [sample.seg_logits.data for sample in samples]
        return {'scores': torch.stack(logits).softmax(1)}

    def differences(
        self, computed: Arrays, expected: Arrays
    ) -> dict[str, float]:
        """See the base class; of equally good classes any will do."""
        of_class = expected['scores']
        if not self.select:
            scores = (computed['scores'] - of_class).abs()
            return {'scores': float(scores.max())}
        best = of_class.amax(1)
        labels = computed['labels'][:, None]
        scores = (computed['scores'] - best).abs().max()
        missed = best - of_class.gather(1, labels)[:, 0]
        return {'scores': float(torch.maximum(scores, missed.max()))}


def make_exportable(
    model: nn.Module, select: bool = True, masks: bool = True
) -> ExportableModel:
    """The model as a function of pictures alone.

    Args:
        model: From :func:`~mmext.apis.load_detector`, in eval mode.
        select: See :class:`ExportableModel`.
        masks: Give the masks of detected boxes if the model does; needs
            ``select``, else they are left out.

    Raises:
        ValueError: If it is neither a CO-DINO nor a segmentor of mmseg, or a
            setting of it has no place in an export.
    """
    if isinstance(model, CoDETR):
        if model.mask_branch() is None:
            return ExportableDetector(model, select)
        if select and masks:
            return ExportableMaskDetector(model)
        detector = ExportableDetector(model, select)
        detector.left_out.append(
            'masks of the boxes, which --onnx without --all-scores has'
        )
        return detector
    if isinstance(model, EncoderDecoder):
        return ExportableSegmentor(model, select)
    raise ValueError(
        'the model must be a CO-DINO (mmext.CoDETR) or a segmentor of mmseg '
        f'(EncoderDecoder), got {type(model).__name__}; other models cannot '
        'be exported'
    )

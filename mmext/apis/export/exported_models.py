"""Models as functions of pictures alone, which another program can run.

Shape letters: B images, H height, W width, Q queries, K classes, N
detections.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from mmdet.structures import DetDataSample
from mmdet.structures.bbox import bbox_cxcywh_to_xyxy
from mmseg.models import EncoderDecoder
from mmseg.structures import SegDataSample
from torch import Tensor, nn

from ...models import CoDETR

BOX_TOLERANCE = 1e-2
"""Pixels that a coordinate may differ by."""

SCORE_TOLERANCE = 1e-4
"""How much a probability may differ."""

# Of sides in pixels: PIDNet adds maps of H // 8 rows to maps of an eighth of
# the rows, and Swin pads sides that it cannot halve by numbers of Python.
_BACKBONE_DIVISORS = {'PIDNet': 8, 'SwinTransformer': 32}

Arrays = Mapping[str, Tensor]


class ExportError(RuntimeError):
    """A file that does not compute what the model does."""


def attend_in_windows(
    attention: nn.Module, query: Tensor, hw_shape: tuple[int, int]
) -> Tensor:
    """``forward`` of Swin's ``ShiftWindowMSA``, for any number and size.

    Args:
        attention: Of mmdet or mmseg.
        query: ``(B, H * W, C)``.
        hw_shape: H and W.

    Returns:
        ``(B, H * W, C)``.
    """
    side, shift = attention.window_size, attention.shift_size
    (batch, _, channels), (height, width) = query.shape, hw_shape
    # Rests are filled and cut off even where there are none.
    rows, columns = (n + (side - n % side) % side for n in hw_shape)
    maps = query.view(batch, height, width, channels)
    maps = F.pad(maps, (0, 0, 0, columns - width, 0, rows - height))
    mask = None
    if shift:
        maps = maps.roll((-shift, -shift), (1, 2))
        # Pixels that come from another border are strangers.
        of_row, of_column = (
            (location >= number - side).int()
            + (location >= number - shift).int()
            for number in (rows, columns)
            for location in [torch.arange(number, device=query.device)]
        )
        parts = 3 * of_row[:, None] + of_column
        parts = attention.window_partition(parts[None, ..., None])
        parts = parts.view(-1, side**2)
        strangers = parts[:, None] != parts[..., None]
        mask = strangers.to(query.dtype) * -100.0
    windows = attention.window_partition(maps).view(-1, side**2, channels)
    grid = attention.w_msa(windows, mask=mask).view(
        -1, rows // side, columns // side, side, side, channels
    )
    maps = grid.permute(0, 1, 3, 2, 4, 5).reshape(-1, rows, columns, channels)
    if shift:
        maps = maps.roll((shift, shift), (1, 2))
    maps = maps[:, :height, :width].reshape(batch, -1, channels)
    return attention.drop(maps)


def attend_in_filled_windows(
    attention: nn.Module,
    x: Tensor,
    window: tuple[int, int],
    table: tuple[Tensor, Tensor],
) -> Tensor:
    """``forward`` of the attention of EVA02ViT, for any number and size.

    Zeros fill the windows, as in the public module, even where there are none.
    """
    height, width = x.shape[1:3]
    fill = [(s - n % s) % s for n, s in zip((height, width), window)]
    pad = (0, fill[1], 0, fill[0])
    x = F.pad(x, (0, 0, *pad))
    table = tuple(F.pad(t, (0, 0, 0, 0, *pad)) for t in table)
    x = attention.attend(*attention.project(x, table), window)
    return attention.proj(x[:, :height, :width].flatten(3))


# Attentions that cut windows by numbers of Python.
_ATTENTIONS = {
    'ShiftWindowMSA': attend_in_windows,
    'RotaryAttention': attend_in_filled_windows,
}


class ExportableModel(nn.Module, ABC):
    """A model in eval mode, called with pictures and nothing else.

    Args:
        model: The model; not changed.

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

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
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
            if type(part).__name__ in _ATTENTIONS
        }
        with ExitStack() as stack:
            for kind in kinds:
                forward = _ATTENTIONS[kind.__name__]
                stack.enter_context(patch.object(kind, 'forward', forward))
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
        """Largest differences of ``'boxes'`` in pixels and ``'scores'``.

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
    NMS and without a threshold of scores.

    Raises:
        ValueError: If another head than the query head detects, or the model
            gives masks.
    """

    task = 'detection'
    outputs = ('boxes', 'scores', 'labels')
    variable = {1: 'detections'}

    def __init__(self, model: CoDETR) -> None:
        super().__init__(model)
        if model.eval_module != 'detr':
            raise ValueError(
                "eval_module must be 'detr' for an export, got "
                f'{model.eval_module!r}; give --cfg-options '
                'model.eval_module=detr'
            )
        if model.mask_branch() is not None:
            raise ValueError(
                'masks of objects cannot be exported, only their boxes, and '
                'the classes of a segmentor, got a CO-DINO with masks; give '
                '--cfg-options model.eval_masks=False to export its boxes'
            )
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
        head = self.model.query_head
        encoded = self.model.encode(self.normalize(images))
        scores, labels, boxes = head.select(*head.detect(encoded))
        # Normalised cx cy w h as xyxy; a traced size stays variable.
        height, width = images.shape[-2:]
        sides = bbox_cxcywh_to_xyxy(boxes).clamp(0, 1).unbind(-1)
        sizes = width, height, width, height
        boxes = torch.stack([a * b for a, b in zip(sides, sizes)], -1)
        return boxes, scores, labels

    def predict(self, images: Tensor) -> Arrays:
        """See the base class; without NMS and threshold."""
        head = self.model.query_head
        test_cfg = {**head.test_cfg, 'nms': None, 'score_thr': 0}
        with patch.object(head, 'test_cfg', test_cfg):
            samples = self.model.test_step(self.batch(images, DetDataSample))
        objects = [sample.pred_instances for sample in samples]
        return {
            'boxes': torch.stack([item.bboxes for item in objects]),
            'scores': torch.stack([item.scores for item in objects]),
            'labels': torch.stack([item.labels for item in objects]),
        }

    def differences(
        self, computed: Arrays, expected: Arrays
    ) -> dict[str, float]:
        """See the base class; detections are paired by label and score."""
        scores = (computed['scores'] - expected['scores']).abs().max()
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
            for nearest, given in (
                (apart.amin(1), one),
                (apart.amin(0), other),
            ):
                sure = (given['scores'] > ends[i]) | (not is_cut)
                worst['boxes'] = max(
                    worst['boxes'], *nearest[sure].tolist(), 0.0
                )
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


def _distances(one: Arrays, other: Arrays) -> Tensor:
    """Largest difference of coordinates ``(N, M)``, inf if never a pair."""
    apart = (one['boxes'][:, None] - other['boxes']).abs().amax(-1)
    scores = (one['scores'][:, None] - other['scores']).abs()
    strangers = one['labels'][:, None] != other['labels']
    return apart.masked_fill(
        strangers | (scores > SCORE_TOLERANCE), float('inf')
    )


class ExportableSegmentor(ExportableModel):
    """A segmentor of mmseg as ``images`` -> ``labels``, ``scores``.

    ``images``: ``(B, 3, H, W)`` float32, RGB, in [0, 255]. ``labels``: ``(B,
    H, W)`` int64; ``scores``: ``(B, H, W)``, their probability.

    Raises:
        ValueError: If pictures are to be predicted in parts, or there is one
            channel only.
    """

    task = 'segmentation'
    outputs = ('labels', 'scores')
    variable = {1: 'height', 2: 'width'}

    def __init__(self, model: EncoderDecoder) -> None:
        super().__init__(model)
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
        scores, labels = logits.softmax(1).max(1)
        return labels, scores

    def predict(self, images: Tensor) -> Arrays:
        """See the base class; the scores of all classes."""
        samples = self.model.test_step(self.batch(images, SegDataSample))
        logits = [sample.seg_logits.data for sample in samples]
        return {'scores': torch.stack(logits).softmax(1)}

    def differences(
        self, computed: Arrays, expected: Arrays
    ) -> dict[str, float]:
        """See the base class; of equally good classes any will do."""
        of_class = expected['scores']
        best = of_class.amax(1)
        labels = computed['labels'][:, None]
        scores = (computed['scores'] - best).abs().max()
        missed = best - of_class.gather(1, labels)[:, 0]
        return {'scores': float(torch.maximum(scores, missed.max()))}


def make_exportable(model: nn.Module) -> ExportableModel:
    """A model in eval mode as a function of pictures alone."""
    if isinstance(model, CoDETR):
        return ExportableDetector(model)
    if isinstance(model, EncoderDecoder):
        return ExportableSegmentor(model)
    raise ValueError(
        'the model must be a CO-DINO (mmext.CoDETR) or a segmentor of mmseg '
        f'(EncoderDecoder), got {type(model).__name__}; other models cannot '
        'be exported'
    )

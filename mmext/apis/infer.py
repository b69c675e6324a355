"""Run a detector on image files."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
from mmengine.dataset import pseudo_collate
from mmengine.registry import TRANSFORMS, DefaultScope
from PIL import Image, UnidentifiedImageError
from torch import nn

from .detector import inference_pipeline

__all__ = ['Detections', 'UnreadableImageError', 'infer_images']

# What loaders raise for a file that is not a whole image.
_LOAD_ERRORS = (AssertionError, OSError, ValueError, cv2.error)


class UnreadableImageError(ValueError):
    """A file that is no image or only a part of one."""


@dataclass(frozen=True)
class Detections:
    """What a detector found in one image, best first.

    Args:
        path: The image file.
        image: ``(H, W, 3)``, uint8, red green blue, as the pipeline loaded
            it.
        boxes: ``(N, 4)``, float32, x1 y1 x2 y2 in pixels of ``image``.
        scores: ``(N,)``, float32, in [0, 1].
        labels: ``(N,)``, int64, indices of the class names.
        masks: ``(N, H, W)``, bool, from models that segment instances.
    """

    path: Path
    image: np.ndarray
    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    masks: np.ndarray | None = None


def _scope_of(model: nn.Module) -> AbstractContextManager:
    """The scope in which names without a prefix in the config are found."""
    scope = model.cfg.get('default_scope', 'mmdet')
    return DefaultScope.overwrite_default_scope(scope)


def _refuse_cut_off(path: Path) -> None:
    """Raise for a file that breaks off; cv2 fills the rest with grey."""
    try:
        with Image.open(path) as picture:
            picture.load()
    except (UnidentifiedImageError, Image.DecompressionBombError):
        # Kinds and sizes that only the pipeline's loader may know.
        return


def _as_rgb(image: np.ndarray) -> np.ndarray:
    """A loader's array, BGR or grey, of any type, as RGB uint8."""
    if image.dtype != np.uint8:
        image = image.clip(0, 255).astype(np.uint8)
    if image.ndim == 2 or image.shape[2] == 1:
        return cv2.cvtColor(image, cv2.COLOR_GRAY2RGB)
    return np.ascontiguousarray(image[..., 2::-1])


def _prepare(
    path: Path, index: int, transforms: Sequence[Callable]
) -> tuple[dict, np.ndarray]:
    """Input of the model for a file, and the image as it was loaded."""
    results = {'img_path': str(path), 'img_id': index}
    shown = None
    for transform in transforms:
        if shown is not None:
            results = transform(results)
            continue
        try:
            _refuse_cut_off(path)
            results = transform(results)
        except _LOAD_ERRORS as error:
            what = ' '.join(f'{type(error).__name__}: {error}'.split())
            raise UnreadableImageError(
                f'image must be a whole image file, got {path} ({what}); '
                'repair or remove it'
            ) from error
        if results is not None and 'img' in results:
            shown = _as_rgb(results['img'])
    if shown is None:
        raise ValueError(
            'pipeline must load an image first, got one that puts no img '
            f'into the results of {path}'
        )
    return results, shown


def _to_detections(
    path: Path, image: np.ndarray, sample: object, score_thr: float
) -> Detections:
    """Numbers of one data sample, best first, from the threshold up."""
    found = getattr(sample, 'pred_instances', None)
    if found is None or 'scores' not in found:
        raise ValueError(
            'model must predict instances with scores, got '
            f'{type(sample).__name__} without pred_instances.scores'
        )
    found = found.detach().cpu()
    scores = found.scores.float()
    boxes = found.bboxes
    boxes = getattr(boxes, 'tensor', boxes).float()
    if not (scores.isfinite().all() and boxes.isfinite().all()):
        raise ValueError(
            f'model must predict finite numbers, got NaN or inf for {path}; '
            'the weights are broken, use an earlier checkpoint'
        )
    order = scores.argsort(descending=True, stable=True)
    order = order[scores[order] >= score_thr]
    masks = found.get('masks')
    if masks is not None:
        masks = np.asarray(masks)[order.numpy()].astype(bool)
    return Detections(
        path=path,
        image=image,
        boxes=boxes[order].numpy(),
        scores=scores[order].numpy(),
        labels=found.labels[order].numpy(),
        masks=masks,
    )


def _run(
    model: nn.Module,
    batch: Sequence[tuple[Path, dict, np.ndarray]],
    score_thr: float,
) -> Iterator[Detections]:
    if not batch:
        return
    with torch.no_grad(), _scope_of(model):
        samples = model.test_step(
            pseudo_collate([results for _, results, _ in batch])
        )
    for (path, _, image), sample in zip(batch, samples):
        yield _to_detections(path, image, sample, score_thr)


def infer_images(
    model: nn.Module,
    images: Sequence[str | Path],
    *,
    score_thr: float = 0.3,
    batch_size: int = 1,
    on_unreadable: Callable[[Path, UnreadableImageError], None] | None = None,
) -> Iterator[Detections]:
    """Detect objects in image files, one after the other.

    The images are prepared by the test pipeline of the model's config, less
    what loads annotations. Results come in the order of ``images``, while
    the later ones are still to be computed, so any number of images fits
    into memory.

    Args:
        model: From :func:`~mmext.apis.load_detector`.
        images: Image files.
        score_thr: Objects of a lower score are left out, in [0, 1].
        batch_size: How many images go through the model at once. Those of
            different sizes are padded.
        on_unreadable: Called with the path and the error for a file that is
            no image or only a part of one, which is then left out. Without
            it the error is raised.

    Yields:
        What was found in each image.

    Raises:
        UnreadableImageError: If a file is no whole image, without
            ``on_unreadable``.
        ValueError: If ``score_thr`` or
            ``batch_size`` is out of range, the model is in training mode, or
            it predicts numbers that are not finite or no instances at all.
    """
    if not 0 <= score_thr <= 1:
        raise ValueError(f'score_thr must be in [0, 1], got {score_thr}')
    if batch_size < 1:
        raise ValueError(f'batch_size must be at least 1, got {batch_size}')
    if model.training:
        raise ValueError(
            'model must be in eval mode, got one in training mode; call '
            'model.eval() first'
        )
    return _infer(model, images, score_thr, batch_size, on_unreadable)


def _infer(
    model: nn.Module,
    images: Sequence[str | Path],
    score_thr: float,
    batch_size: int,
    on_unreadable: Callable[[Path, UnreadableImageError], None] | None,
) -> Iterator[Detections]:
    with _scope_of(model):
        transforms = [
            TRANSFORMS.build(step) for step in inference_pipeline(model.cfg)
        ]
    batch = []
    for index, path in enumerate(map(Path, images)):
        try:
            results, image = _prepare(path, index, transforms)
        except UnreadableImageError as error:
            if on_unreadable is None:
                raise
            on_unreadable(path, error)
            continue
        batch.append((path, results, image))
        if len(batch) == batch_size:
            yield from _run(model, batch, score_thr)
            batch = []
    yield from _run(model, batch, score_thr)

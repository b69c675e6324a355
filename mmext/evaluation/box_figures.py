"""Figures of a detector: average precision, errors, confusion, calibration.

Each number comes from a library: precision and recall from COCO's evaluation
(faster-coco-eval where it is installed, else pycocotools), pairs of boxes from
``scipy.optimize.linear_sum_assignment``, bins of scores from
``numpy.histogram``. All but the first are installed with MMDetection.
"""

import contextlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from mmdet.structures.bbox import bbox_overlaps
from pycocotools import mask as coco_mask
from scipy.optimize import linear_sum_assignment

ERROR_KINDS = ('missed', 'doubled', 'confused', 'invented')
_SIZES = ('', '_s', '_m', '_l')
_IOUS = ('', '_50', '_75')


@dataclass(frozen=True)
class Truth:
    """Annotated objects of one picture.

    Args:
        boxes: ``(N, 4)``, x1 y1 x2 y2 in pixels of the picture.
        labels: ``(N,)``, indices of the classes.
        ignored: ``(N,)``, bool: crowds and difficult objects, which count
            neither if they are found nor if they are not.
    """

    boxes: np.ndarray
    labels: np.ndarray
    ignored: np.ndarray


@dataclass(frozen=True)
class Found:
    """Predicted objects of one picture.

    Args:
        boxes: ``(N, 4)``, x1 y1 x2 y2 in pixels of the picture.
        labels: ``(N,)``, indices of the classes.
        scores: ``(N,)``, in [0, 1].
    """

    boxes: np.ndarray
    labels: np.ndarray
    scores: np.ndarray

    def at_least(self, score: float) -> 'Found':
        """Objects of that score and better."""
        return self._chosen(self.scores >= score)

    def _chosen(self, chosen: np.ndarray) -> 'Found':
        return Found(
            self.boxes[chosen], self.labels[chosen], self.scores[chosen]
        )


@dataclass(frozen=True)
class BoxError:
    """One thing that is wrong.

    Args:
        kind: Of ``ERROR_KINDS``.
        box: x1 y1 x2 y2: the predicted one, of a missed object the annotated
            one.
        label: Its class.
        score: Of the predicted box; None for a missed object.
        truth_box: The annotated object that a doubled or confused box is of.
        truth_label: The class of that object.
    """

    kind: str
    box: tuple[float, ...]
    label: int
    score: float | None = None
    truth_box: tuple[float, ...] | None = None
    truth_label: int | None = None


@dataclass(frozen=True)
class JudgedBoxes:
    """What :func:`judge_boxes` makes of a picture.

    Args:
        errors: Missed objects first, then by falling score.
        truth: The objects that count.
        found: The boxes that count.
        right: ``(M,)``, which of ``found`` are right.
        pairs: ``(label of the truth, predicted label)`` of each box and each
            missed object; None in the place of the label that is not there.
            A doubled box has no truth of its own.
    """

    truth: Truth
    found: Found
    right: np.ndarray
    errors: tuple[BoxError, ...]
    pairs: tuple[tuple[int | None, int | None], ...] = field(repr=False)


def _overlaps(one: np.ndarray, other: np.ndarray, mode: str) -> np.ndarray:
    """``(N, M)``, of boxes ``(N, 4)`` and ``(M, 4)``."""
    boxes = (torch.from_numpy(item).double() for item in (one, other))
    return bbox_overlaps(*boxes, mode=mode).numpy()


def judge_boxes(
    truth: Truth, found: Found, *, iou_thr: float = 0.5
) -> JudgedBoxes:
    """Say of each box whether it is right, and of each object if it is found.

    Boxes and objects are paired one to one so that as many boxes as possible
    meet an object of their class; of several boxes on one object the best
    score wins. Each box is then

    * right: its object is of its class, with ``iou_thr`` at least;
    * confused: its object is of another class;
    * doubled: it has no object, and lies on one that another box has;
    * invented: it lies on no object.

    An object without a box is missed. Boxes without an object that lie, with
    half of their area, in an ignored object do not count.

    Args:
        truth: The annotation.
        found: The prediction; all boxes of it are judged.
        iou_thr: From which intersection over union a box lies on an object,
            in (0, 1].

    Raises:
        ValueError: If a box is not finite, or a score not in [0, 1].
    """
    fine = (found.scores >= 0) & (found.scores <= 1)
    if not (fine.all() and np.isfinite(found.boxes).all()):
        raise ValueError(
            'found must have finite boxes and scores in [0, 1], got others; '
            'if they are NaN the weights are broken: use an earlier '
            'checkpoint'
        )
    covered = _overlaps(found.boxes, truth.boxes[truth.ignored], 'iof')
    kept = ~truth.ignored
    truth = Truth(truth.boxes[kept], truth.labels[kept], truth.ignored[kept])
    overlaps = _overlaps(found.boxes, truth.boxes, 'iou')
    near = overlaps >= iou_thr
    same = found.labels[:, None] == truth.labels[None]
    worth = 1000 * same + 1 + found.scores[:, None] + overlaps / 100
    rows, columns = linear_sum_assignment(near * worth, maximize=True)
    met = near[rows, columns]
    owner = np.full(len(found.labels), -1)
    owner[rows[met]] = columns[met]
    counted = (owner >= 0) | ~(covered >= 0.5).any(1)
    found, owner = found._chosen(counted), owner[counted]
    return _judged(truth, found, owner, overlaps[counted], iou_thr)


def _judged(
    truth: Truth,
    found: Found,
    owner: np.ndarray,
    overlaps: np.ndarray,
    iou_thr: float,
) -> JudgedBoxes:
    """Sort boxes by kind; ``owner`` is the object of each, or -1."""
    missed = sorted(set(range(len(truth.labels))) - set(owner.tolist()))
    boxes, true_boxes = found.boxes.tolist(), truth.boxes.tolist()
    labels, true_labels = found.labels.tolist(), truth.labels.tolist()
    errors = [
        BoxError('missed', tuple(true_boxes[n]), true_labels[n])
        for n in missed
    ]
    pairs = [(true_labels[n], None) for n in missed]
    right = np.zeros(len(labels), bool)
    for n in np.argsort(-found.scores, kind='stable').tolist():
        other = int(owner[n])
        pairs.append((None if other < 0 else true_labels[other], labels[n]))
        if other >= 0 and true_labels[other] == labels[n]:
            right[n] = True
            continue
        kind = 'confused'
        if other < 0:
            lies_on = overlaps[n].max(initial=0) >= iou_thr
            kind = 'doubled' if lies_on else 'invented'
            other = int(overlaps[n].argmax()) if lies_on else -1
        errors.append(
            BoxError(
                kind,
                tuple(boxes[n]),
                labels[n],
                float(found.scores[n]),
                None if other < 0 else tuple(true_boxes[other]),
                None if other < 0 else true_labels[other],
            )
        )
    return JudgedBoxes(truth, found, right, tuple(errors), tuple(pairs))


def _tools() -> tuple[Any, Any]:
    """COCO's data and evaluation, by the faster package that is there."""
    if find_spec('faster_coco_eval') is None:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    else:
        from faster_coco_eval import COCO
        from faster_coco_eval import COCOeval_faster as COCOeval
    return COCO, COCOeval


def _mean(values: np.ndarray) -> float | None:
    """Mean of what is known; COCO writes -1 for what is not."""
    values = values[values > -1]
    return float(values.mean()) if values.size else None


def _class_figures(evaluation: Mapping[str, Any], k: int) -> dict[str, Any]:
    """AP by IoU and size, AR, and the score of the best F1, of a class."""
    # IoU, recall, size: with the most boxes per picture, as MMDetection does.
    precision = evaluation['precision'][:, :, k, :, -1]
    recalls = np.linspace(0, 1, precision.shape[1])
    figures = {
        f'AP{name}': _mean(precision[own, :, 0])
        for name, own in zip(_IOUS, (slice(None), 0, 5))
    }
    figures |= {
        f'AP{name}': _mean(precision[:, :, n])
        for n, name in enumerate(_SIZES)
        if n
    }
    figures['AR'] = _mean(evaluation['recall'][:, k, 0, -1])
    at_half = precision[0, :, 0]
    known = (at_half > -1).all()
    sums = np.maximum(at_half + recalls, 1e-12)
    f1 = 2 * at_half * recalls / sums
    best = int(f1.argmax())
    found = bool(known and f1[best] > 0)
    scores = evaluation['scores'][0, :, k, 0, -1]
    figures['F1'] = float(f1[best]) if found else None
    figures['F1_score'] = float(scores[best]) if found else None
    figures['precision'] = at_half.tolist() if known else None
    return figures


def _area(row: Mapping[str, Any]) -> float:
    """Pixels of a predicted mask, or of a box."""
    if 'segmentation' in row:
        return float(coco_mask.area(row['segmentation']))
    return row['bbox'][2] * row['bbox'][3]


def average_precision(
    truth: Mapping[str, Any],
    found: Sequence[Mapping[str, Any]],
    cat_ids: Sequence[int],
    *,
    max_dets: Sequence[int] = (100, 300, 1000),
) -> tuple[dict[str, float | None], list[dict[str, Any]]]:
    """COCO's figures, of all classes and of each.

    Args:
        truth: ``images``, ``categories`` and ``annotations`` as in a COCO
            file.
        found: Predictions as in a COCO file: ``image_id``, ``category_id``,
            ``bbox`` as x y width height, ``score``. With ``segmentation``,
            run lengths, masks are compared instead of boxes.
        cat_ids: The categories, in the order of the classes.
        max_dets: Three limits of boxes per picture, as ``proposal_nums`` of
            ``mmdet.CocoMetric``, whose figures they are.

    Returns:
        * ``mAP``, ``mAP_50``, ``mAP_75``, ``mAP_s``, ``mAP_m``, ``mAP_l``, in
          [0, 1], None where there is no object;
        * for each class ``AP`` and the same suffixes, ``AR``; ``precision``
          at IoU 0.5 for the recalls 0, 0.01, ... 1; ``F1``, the best on that
          curve, and ``F1_score``, the score from which boxes have to be kept
          to get it.
    """
    kind, evaluator = _tools()
    rows = [
        {**item, 'id': n, 'iscrowd': 0, 'area': _area(item)}
        for n, item in enumerate(found, 1)
    ]
    # Ids of VOC's pictures are names, which the faster package does not take.
    numbers = {image['id']: n for n, image in enumerate(truth['images'])}
    images = [{**item, 'id': numbers[item['id']]} for item in truth['images']]
    masks = bool(found) and 'segmentation' in found[0]
    shared = {'images': images, 'categories': truth['categories']}
    data = []
    with contextlib.redirect_stdout(io.StringIO()):
        for annotations in (truth.get('annotations') or [], rows):
            part = kind()
            part.dataset = {
                **shared,
                'annotations': [
                    {**annotation, 'image_id': numbers[annotation['image_id']]}
                    for annotation in annotations
                    if annotation['image_id'] in numbers
                ],
            }
            part.createIndex()
            data.append(part)
        run = evaluator(*data, 'segm' if masks else 'bbox')
        run.params.catIds = list(cat_ids)
        run.params.imgIds = list(numbers.values())
        run.params.maxDets = list(max_dets)
        run.evaluate()
        run.accumulate()
        run.summarize()
    sizes = len(run.params.iouThrs), len(run.params.recThrs), len(cat_ids)
    evaluation = {
        'precision': np.reshape(run.eval['precision'], (*sizes, 4, -1)),
        'scores': np.reshape(run.eval['scores'], (*sizes, 4, -1)),
        'recall': np.reshape(run.eval['recall'], (*sizes[::2], 4, -1)),
    }
    names = [f'mAP{name}' for name in (*_IOUS, *_SIZES[1:])]
    totals = {
        name: float(value) if value > -1 else None
        for name, value in zip(names, run.stats)
    }
    return totals, [_class_figures(evaluation, k) for k in range(len(cat_ids))]


def calibration(
    scores: np.ndarray, right: np.ndarray, *, num_bins: int = 10
) -> dict[str, Any]:
    """How far a score is the share of boxes that are right.

    Args:
        scores: ``(N,)``, of the boxes of all pictures, in [0, 1].
        right: ``(N,)``, bool, whether each is right.
        num_bins: Scores are put into so many equal parts of [0, 1].

    Returns:
        ``bins``, each with ``low``, ``high``, ``count``, ``score`` (the mean)
        and ``right`` (the share); ``error``, the expected calibration error:
        the mean of ``abs(score - right)``, weighted by ``count``. What has no
        box is None.
    """
    edges = np.linspace(0, 1, num_bins + 1)
    counts, *sums = (
        np.histogram(scores, edges, weights=item)[0]
        for item in (None, scores, right.astype(float))
    )
    bins = list(_bins(edges, counts, *sums))
    error = None
    if len(scores):
        error = float(np.abs(sums[0] - sums[1]).sum() / len(scores))
    return {'bins': bins, 'error': error}


def _bins(
    edges: np.ndarray,
    counts: np.ndarray,
    scores: np.ndarray,
    right: np.ndarray,
) -> Iterator[dict[str, Any]]:
    for n, count in enumerate(counts.astype(int).tolist()):
        yield {
            'low': float(edges[n]),
            'high': float(edges[n + 1]),
            'count': count,
            'score': float(scores[n] / count) if count else None,
            'right': float(right[n] / count) if count else None,
        }

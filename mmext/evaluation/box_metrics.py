"""Metrics of a detector: COCO's, kinds of errors, calibration.

Each number comes from a library: precision and recall from COCO's evaluation
(faster-coco-eval where it is installed, else pycocotools), pairs of boxes from
``scipy.optimize.linear_sum_assignment``, bins of scores from
``numpy.histogram``. All but the first are installed with MMDetection.
"""

import contextlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from numbers import Integral
from typing import Any

import numpy as np
import torch
from mmdet.evaluation import CocoMetric as HostCocoMetric
from mmdet.evaluation import FasterCocoMetric
from mmdet.structures.bbox import bbox_overlaps
from mmengine.structures import InstanceData
from scipy.optimize import linear_sum_assignment

from ..registry import METRICS

ERROR_KINDS = (
    'missed',
    'duplicate',
    'classification',
    'localization',
    'both',
    'background',
)
"""Kinds of errors, as TIDE (Bolya et al., 2020) names them."""

# TIDE's limit, below which a box is on no object.
_BACKGROUND_IOU = 0.1
_SIZES = ('', '_s', '_m', '_l')
_IOUS = ('', '_50', '_75')


@dataclass(frozen=True)
class BoxError:
    """One error of a detector.

    Args:
        kind: Of ``ERROR_KINDS``.
        box: x1 y1 x2 y2: the predicted box, or the missed object.
        label: Its class.
        score: Of the predicted box; None for a missed object.
        truth_box: The object that the predicted box is on, if any.
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
    """Result of :func:`judge_boxes` for one picture.

    Args:
        pred: The predicted boxes that count.
        right: ``(M,)``, bool, which of ``pred`` are right.
        errors: Missed objects first, then by falling score.
        pairs: ``(label of the object, predicted label)`` of each box and each
            missed object; None for the label that is not there. A box of
            another kind than ``'classification'`` has no object.
    """

    pred: InstanceData
    right: np.ndarray
    errors: tuple[BoxError, ...]
    pairs: tuple[tuple[int | None, int | None], ...] = field(repr=False)


def judge_boxes(
    gt: InstanceData, pred: InstanceData, *, iou_thr: float = 0.5
) -> JudgedBoxes:
    """Find the kind of error of each predicted box, and the missed objects.

    Boxes and objects are paired one to one so that as many boxes as possible
    are paired with an object of their class; of several boxes on one object
    the best score wins. A box with an object of its class is right. The IoU
    tells the kind of any other box:

    * classification: its object is of another class;
    * duplicate: it has no object, and at least ``iou_thr`` with one that
      another box has;
    * localization: from 0.1 to ``iou_thr`` with an object of its class;
    * both: the same, with objects of other classes only;
    * background: less than 0.1 with all objects.

    An object without a box is missed, also where a box is near it. Boxes
    without an object that lie, with half of their area, in an ignored object
    do not count.

    Args:
        gt: The annotation: arrays ``bboxes``, ``(N, 4)``, x1 y1 x2 y2 in
            pixels, ``labels``, ``(N,)``, and ``ignored``, ``(N,)``, bool, for
            crowds and difficult objects, which never count.
        pred: The prediction: arrays ``bboxes``, ``(M, 4)``, ``labels`` and
            ``scores``, ``(M,)``, in [0, 1].
        iou_thr: Smallest IoU of a box and its object, in (0.1, 1].

    Raises:
        ValueError: If a box is not finite, or a score not in [0, 1].
    """
    fine = (pred.scores >= 0) & (pred.scores <= 1)
    if not (fine.all() and np.isfinite(pred.bboxes).all()):
        raise ValueError(
            'pred must have finite boxes and scores in [0, 1], got others; if '
            'they are NaN the weights are broken: use an earlier checkpoint'
        )
    covered = _overlaps(pred, gt[gt.ignored], 'iof')
    gt = gt[~gt.ignored]
    overlaps = _overlaps(pred, gt, 'iou')
    near = overlaps >= iou_thr
    same = pred.labels[:, None] == gt.labels[None]
    worth = 1000 * same + 1 + pred.scores[:, None] + overlaps / 100
    rows, columns = linear_sum_assignment(near * worth, maximize=True)
    met = near[rows, columns]
    owner = np.full(len(pred.labels), -1)
    owner[rows[met]] = columns[met]
    counted = (owner >= 0) | ~(covered >= 0.5).any(1)
    pred, owner = pred[counted], owner[counted]
    overlaps, same = overlaps[counted], same[counted]

    missed = sorted(set(range(len(gt.labels))) - set(owner.tolist()))
    boxes, true_boxes = pred.bboxes.tolist(), gt.bboxes.tolist()
    labels, true_labels = pred.labels.tolist(), gt.labels.tolist()
    errors = [
        BoxError('missed', tuple(true_boxes[n]), true_labels[n])
        for n in missed
    ]
    pairs = [(true_labels[n], None) for n in missed]
    right = np.zeros(len(labels), bool)
    for n in np.argsort(-pred.scores, kind='stable').tolist():
        other = int(owner[n])
        pairs.append((None if other < 0 else true_labels[other], labels[n]))
        if other >= 0 and true_labels[other] == labels[n]:
            right[n] = True
            continue
        kind = 'classification'
        if other < 0:
            of_class = np.where(same[n], overlaps[n], 0)
            kind = 'background'
            for name, values, limit in (
                ('duplicate', overlaps[n], iou_thr),
                ('localization', of_class, _BACKGROUND_IOU),
                ('both', overlaps[n], _BACKGROUND_IOU),
            ):
                if values.max(initial=0) >= limit:
                    kind, other = name, int(values.argmax())
                    break
        errors.append(
            BoxError(
                kind,
                tuple(boxes[n]),
                labels[n],
                float(pred.scores[n]),
                None if other < 0 else tuple(true_boxes[other]),
                None if other < 0 else true_labels[other],
            )
        )
    return JudgedBoxes(pred, right, tuple(errors), tuple(pairs))


def _overlaps(one: InstanceData, other: InstanceData, mode: str) -> np.ndarray:
    boxes = (torch.from_numpy(item.bboxes).double() for item in (one, other))
    return bbox_overlaps(*boxes, mode=mode).numpy()


def _mean(values: np.ndarray) -> float | None:
    """Mean of what is known; COCO writes -1 for what is not."""
    values = values[values > -1]
    return float(values.mean()) if values.size else None


def _class_metrics(evaluation: Mapping[str, Any], k: int) -> dict[str, Any]:
    """AP by IoU and size, AR, and the score of the best F1, of a class."""
    # IoU, recall, size: with the most boxes per picture, as MMDetection does.
    precision = evaluation['precision'][:, :, k, :, -1]
    recalls = np.linspace(0, 1, precision.shape[1])
    metrics = {
        f'AP{name}': _mean(precision[own, :, 0])
        for name, own in zip(_IOUS, (slice(None), 0, 5))
    }
    metrics |= {
        f'AP{name}': _mean(precision[:, :, n])
        for n, name in enumerate(_SIZES)
        if n
    }
    metrics['AR'] = _mean(evaluation['recall'][:, k, 0, -1])
    at_half = precision[0, :, 0]
    known = (at_half > -1).all()
    f1 = 2 * at_half * recalls / np.maximum(at_half + recalls, 1e-12)
    best = int(f1.argmax())
    has_f1 = bool(known and f1[best] > 0)
    scores = evaluation['scores'][0, :, k, 0, -1]
    metrics['F1'] = float(f1[best]) if has_f1 else None
    metrics['F1_score'] = float(scores[best]) if has_f1 else None
    metrics['precision'] = at_half.tolist() if known else None
    return metrics


def average_precision(
    truth: Mapping[str, Any],
    predictions: Sequence[Mapping[str, Any]],
    cat_ids: Sequence[int],
    *,
    max_dets: Sequence[int] = (100, 300, 1000),
) -> tuple[dict[str, float | None], list[dict[str, Any]]]:
    """COCO's metrics, of all classes and of each.

    Args:
        truth: ``images``, ``categories`` and ``annotations`` as in a COCO
            file.
        predictions: As in a COCO file: ``image_id``, ``category_id``,
            ``bbox`` as x y width height, ``score``.
        cat_ids: The categories, in the order of the classes.
        max_dets: Three limits of boxes per picture, as ``proposal_nums`` of
            ``mmdet.CocoMetric``, whose metrics they are.

    Returns:
        * ``mAP``, ``mAP_50``, ``mAP_75``, ``mAP_s``, ``mAP_m``, ``mAP_l``, in
          [0, 1], None where there is no object;
        * for each class ``AP`` and the same suffixes, ``AR``; ``precision``
          at IoU 0.5 for the recalls 0, 0.01, ... 1; ``F1``, the best on that
          curve, and ``F1_score``, the score from which boxes have to be kept
          to get it.
    """
    if find_spec('faster_coco_eval') is None:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    else:
        from faster_coco_eval import COCO
        from faster_coco_eval import COCOeval_faster as COCOeval
    rows = [
        {
            **item,
            'id': n,
            'iscrowd': 0,
            'area': item['bbox'][2] * item['bbox'][3],
        }
        for n, item in enumerate(predictions, 1)
    ]
    # Ids of VOC's pictures are names, which the faster package does not take.
    numbers = {image['id']: n for n, image in enumerate(truth['images'])}
    images = [{**item, 'id': numbers[item['id']]} for item in truth['images']]
    data = []
    with contextlib.redirect_stdout(io.StringIO()):
        for annotations in (truth.get('annotations') or [], rows):
            part = COCO()
            part.dataset = {
                'images': images,
                'categories': truth['categories'],
                'annotations': [
                    {**annotation, 'image_id': numbers[annotation['image_id']]}
                    for annotation in annotations
                    if annotation['image_id'] in numbers
                ],
            }
            part.createIndex()
            data.append(part)
        run = COCOeval(*data, 'bbox')
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
    by_class = [_class_metrics(evaluation, k) for k in range(len(cat_ids))]
    return totals, by_class


def calibration(scores: np.ndarray, right: np.ndarray) -> dict[str, Any]:
    """Compare scores with the share of boxes that are right, in ten bins.

    Args:
        scores: ``(N,)``, of the boxes of all pictures, in [0, 1].
        right: ``(N,)``, bool, whether each is right.

    Returns:
        ``bins``, each with ``low``, ``high``, ``count``, ``score`` (the mean)
        and ``right`` (the share); ``error``, the expected calibration error:
        the mean of ``abs(score - right)``, weighted by ``count``. What has no
        box is None.
    """
    edges = np.linspace(0, 1, 11)
    counts, score_sums, right_sums = (
        np.histogram(scores, edges, weights=item)[0]
        for item in (None, scores, right.astype(float))
    )
    bins = [
        {
            'low': float(edges[n]),
            'high': float(edges[n + 1]),
            'count': count,
            'score': float(score_sums[n] / count) if count else None,
            'right': float(right_sums[n] / count) if count else None,
        }
        for n, count in enumerate(counts.astype(int).tolist())
    ]
    error = None
    if len(scores):
        error = float(np.abs(score_sums - right_sums).sum() / len(scores))
    return {'bins': bins, 'error': error}


@METRICS.register_module()
class CocoMetric(HostCocoMetric):
    """MMDetection's ``CocoMetric``, in 0.3 of the time where it can be.

    With the package ``faster-coco-eval`` (``pip install
    'mmext[faster_coco_eval]'``), metrics are computed as MMDetection's
    ``FasterCocoMetric`` does, by compiled code; without it, with
    ``use_mp_eval``, and where an id is no whole number, as names of VOC's
    pictures are none, by pycocotools. Both give the same numbers.

    Takes all arguments of ``mmdet.CocoMetric``, and reads the same samples:
    without ``ann_file``, the ground truth is their ``instances``, where
    ``FasterCocoMetric`` wants ``gt_instances``, which pipelines of a
    validation change with the picture.
    """

    def compute_metrics(self, results: list) -> dict[str, float]:
        """Metrics by name, as ``mmdet.CocoMetric`` gives them."""
        ids = [item['img_id'] for item, _ in results]
        if self._coco_api is not None:
            ids += [*self._coco_api.cats, *self._coco_api.anns]
        compute = HostCocoMetric.compute_metrics
        if (
            not self.use_mp_eval
            and find_spec('faster_coco_eval') is not None
            and all(isinstance(item, Integral) for item in ids)
        ):
            compute = FasterCocoMetric.compute_metrics
        # Of what pycocotools prints, the table is of use.
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            metrics = compute(self, results)
        for line in printed.getvalue().splitlines():
            if line.startswith(' Average'):
                print(line)
        # `save_best='auto'` takes the first, which is not that of a class.
        names = sorted(metrics, key=lambda name: name.endswith('_precision'))
        return {name: metrics[name] for name in names}

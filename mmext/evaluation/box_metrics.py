"""Metrics of a detector: COCO's, kinds of errors, calibration.

Precision and recall come from COCO's evaluation (faster-coco-eval where it is
installed, else pycocotools), bins of scores from ``numpy.histogram``. Errors
are those of TIDE (Bolya et al., ECCV 2020), as its package ``tidecv`` finds
them.
"""

import contextlib
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from numbers import Integral
from typing import Any

import numpy as np
import torch
from mmdet import evaluation as host
from mmdet.structures.bbox import bbox_overlaps
from mmengine.structures import InstanceData
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from ..registry import METRICS

ERROR_KINDS = (
    'classification',
    'localization',
    'both',
    'duplicate',
    'background',
    'missed',
)
"""Kinds of errors, as TIDE names and orders them."""

# TIDE's limits: below the first a box is on no object; of a picture, it takes
# so many boxes.
_BACKGROUND_IOU = 0.1
_MAX_BOXES = 100
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
        gt: The ``N`` objects that count.
        pred: The ``M`` predicted boxes, by falling score, with ``kinds``:
            ``'right'``, or of ``ERROR_KINDS``; ``owners``, indices of the
            objects that boxes are on, or -1, and ``truths``, their labels;
            ``counted``, bool, which boxes are not in an ignored object.
    """

    gt: InstanceData
    pred: InstanceData

    def best(self, num: int) -> 'JudgedBoxes':
        """The same of so many boxes, those of the best scores."""
        return JudgedBoxes(self.gt, self.pred[:num])

    @cached_property
    def right(self) -> np.ndarray:
        """``(M,)``, bool, which boxes are right."""
        return self.pred.kinds == 'right'

    @cached_property
    def unmet(self) -> np.ndarray:
        """``(N,)``, bool, which objects have no right box."""
        met = self.pred.owners[self.right]
        return ~np.isin(np.arange(len(self.gt.labels)), met)

    def first(self, *kinds: str) -> np.ndarray:
        """``(M,)``, bool: of these errors, the first of each unmet object."""
        owners = self.pred.owners
        rows = np.flatnonzero(np.isin(self.pred.kinds, kinds))
        rows = rows[self.unmet[owners[rows]]]
        rows = rows[np.unique(owners[rows], return_index=True)[1]]
        return np.isin(np.arange(len(owners)), rows)

    @cached_property
    def cured(self) -> np.ndarray:
        """``(M,)``, bool: boxes that are right without their error."""
        return self.first('classification', 'localization')

    @cached_property
    def missed(self) -> np.ndarray:
        """``(N,)``, bool: objects that no box is right or cured for."""
        near = self.pred.owners[self.cured]
        return self.unmet & ~np.isin(np.arange(len(self.unmet)), near)

    @cached_property
    def errors(self) -> tuple[BoxError, ...]:
        """Missed objects first, then by falling score."""
        boxes = [tuple(box) for box in self.gt.bboxes.tolist()]
        labels = self.gt.labels.tolist()
        errors = [
            BoxError('missed', boxes[n], labels[n])
            for n in np.flatnonzero(self.missed)
        ]
        pred = self.pred[self.pred.counted & ~self.right]
        rows = (pred.kinds, pred.bboxes, pred.labels, pred.scores, pred.owners)
        for kind, box, *rest, owner in zip(*(row.tolist() for row in rows)):
            on = (boxes[owner], labels[owner]) if owner >= 0 else ()
            errors.append(BoxError(kind, tuple(box), *rest, *on))
        return tuple(errors)

    @property
    def pairs(self) -> np.ndarray:
        """Label of the object and of the box; -1 for one that is not there.

        Each object and each box once: that of a right box, or of an error of
        class alone, if it is the first of its object.
        """
        pred, labels = self.pred, self.gt.labels
        has = self.right | (self.first('classification') & pred.counted)
        boxes = np.where(has, pred.truths, -1), pred.labels
        alone = np.delete(labels, pred.owners[has])
        rest = alone, np.full(len(alone), -1)
        return np.vstack((np.stack(boxes, 1)[pred.counted], np.stack(rest, 1)))


def judge_boxes(
    gt: InstanceData,
    pred: InstanceData,
    *,
    iou_thr: float = 0.5,
    open_labels: Sequence[int] = (),
) -> JudgedBoxes:
    """Find the kind of error of each predicted box, as TIDE does.

    By falling score, a box gets that object of its class which it meets best,
    if no other box has it and their IoU is at least ``iou_thr``; it is right.
    Any other is of the first of these kinds: a localization error, with an IoU
    from 0.1 to ``iou_thr`` with one of its class; a classification error, with
    ``iou_thr`` or more with one of another class; a duplicate, with as much
    with one of its class; background, with at most 0.1 with all; or both.

    Boxes that are not right and lie, with more than ``iou_thr`` of their area,
    in an ignored object of their class do not count.

    Args:
        gt: The annotation: arrays ``bboxes``, ``(N, 4)``, x1 y1 x2 y2 in
            pixels, ``labels``, ``(N,)``, and ``ignored``, ``(N,)``, bool, for
            crowds and difficult objects, which never count.
        pred: The prediction: arrays ``bboxes``, ``(M, 4)``, ``labels`` and
            ``scores``, ``(M,)``, in [0, 1].
        iou_thr: Smallest IoU of a box and its object, in (0.1, 1].
        open_labels: Classes of which objects may lack an annotation: a box
            without an object of its class does not count.

    Raises:
        ValueError: If a box is not finite, or a score not in [0, 1].
    """
    fine = (pred.scores >= 0) & (pred.scores <= 1)
    if not (fine.all() and np.isfinite(pred.bboxes).all()):
        raise ValueError(
            'pred must have finite boxes and scores in [0, 1], got others; if '
            'they are NaN the weights are broken: use an earlier checkpoint'
        )
    pred = pred[np.argsort(-pred.scores, kind='stable')]
    crowd, gt = gt[gt.ignored], gt[~gt.ignored]
    covered = _overlaps(pred, crowd, 'iof') > iou_thr
    covered &= pred.labels[:, None] == crowd.labels
    # With a column for no object, so that each box has a largest IoU.
    overlaps = np.pad(_overlaps(pred, gt, 'iou'), ((0, 0), (0, 1)))
    same = pred.labels[:, None] == np.append(gt.labels, -1)
    of_class, of_others = overlaps * same, overlaps * ~same
    free = of_class.copy()
    right = np.zeros(len(free), bool)
    owners = of_class.argmax(1)
    highest = of_class.max(1)
    for n in np.flatnonzero(highest >= iou_thr):
        best = free[n].argmax()
        if free[n, best] >= iou_thr:
            right[n], owners[n] = True, best
            free[:, best] = 0
    cases = {
        'right': (right, owners),
        'localization': (
            (highest >= _BACKGROUND_IOU) & (highest <= iou_thr),
            owners,
        ),
        'classification': (of_others.max(1) >= iou_thr, of_others.argmax(1)),
        'duplicate': (highest >= iou_thr, owners),
        'background': (overlaps.max(1) <= _BACKGROUND_IOU, -1),
    }
    conditions, values = zip(*cases.values())
    pred.kinds = np.select(conditions, [*cases], 'both')
    pred.owners = np.select(conditions, values, overlaps.argmax(1))
    pred.truths = np.append(gt.labels, -1)[pred.owners]
    pred.counted = right | ~(
        covered.any(1) | np.isin(pred.labels, open_labels)
    )
    return JudgedBoxes(gt, pred)


def _mean_ap(
    scores: np.ndarray,
    labels: np.ndarray,
    right: np.ndarray,
    sizes: np.ndarray,
) -> float:
    """AP by TIDE: the mean of the classes that have objects or boxes."""
    order = np.lexsort((-scores, labels))
    ends = np.bincount(labels, minlength=len(sizes)).cumsum()
    values = []
    for hits, size in zip(np.split(right[order], ends[:-1]), sizes):
        if not (len(hits) or size):
            continue
        true_positives = hits.cumsum()
        precision = true_positives / np.arange(1, len(hits) + 1)
        precision = np.maximum.accumulate(precision[::-1])[::-1]
        at = np.searchsorted(
            true_positives / max(size, 1), np.arange(101) / 100
        )
        values.append(precision[at[at < len(hits)]].sum() / 101)
    return float(sum(values) / max(len(values), 1))


def lost_precision(
    judged: Sequence[JudgedBoxes], num_classes: int
) -> dict[str, float]:
    """The AP that errors cost at the IoU of ``judged``, as TIDE has it.

    It is what the AP gains where one kind of error is mended and all others
    stay: boxes get the class or the place of their object, if they are the
    first of an object without a right one, else they are dropped, as those of
    the other kinds are; missed objects are no longer asked for.

    Args:
        judged: One for each picture, of all boxes; the 100 best are taken.
        num_classes: The number of classes.

    Returns:
        A value in [0, 1] for each of ``ERROR_KINDS``, and for ``'false
        positive'``, the gain if all wrong boxes had the score 0, and ``'false
        negative'``, the gain if objects without a right box did not count.
    """
    judged = [item.best(_MAX_BOXES) for item in judged]
    pred = InstanceData.cat([item.pred for item in judged])
    right = pred.kinds == 'right'
    cured = np.concatenate([item.cured for item in judged])
    objects, missed, unmet = (
        np.bincount(np.concatenate(labels), minlength=num_classes)
        for labels in (
            [item.gt.labels for item in judged],
            [item.gt.labels[item.missed] for item in judged],
            [item.gt.labels[item.unmet] for item in judged],
        )
    )
    # Of equal scores TIDE takes errors first, but not for what it starts from.
    order = np.argsort(right, kind='stable')

    def mended(kind: str, scores: np.ndarray, objects: np.ndarray) -> float:
        own = pred.kinds == kind
        rows = order[np.where(own, cured, pred.counted)[order]]
        labels = np.where(own & cured, pred.truths, pred.labels)
        hits = right | (own & cured)
        return _mean_ap(scores[rows], labels[rows], hits[rows], objects)

    own = pred.counted
    base = _mean_ap(pred.scores[own], pred.labels[own], right[own], objects)
    lost = {}
    for kind in ERROR_KINDS:
        rest = objects - missed * (kind == 'missed')
        lost[kind] = max(mended(kind, pred.scores, rest) - base, 0.0)
    all_ahead = right.astype(float)
    return lost | {
        'false positive': mended('', all_ahead, objects) - base,
        'false negative': mended('', pred.scores, objects - unmet) - base,
    }


def _overlaps(one: InstanceData, other: InstanceData, mode: str) -> np.ndarray:
    boxes = (torch.from_numpy(item.bboxes).double() for item in (one, other))
    return bbox_overlaps(*boxes, mode=mode).numpy()


def _mean(values: np.ndarray) -> float | None:
    """Mean of what is known; COCO writes -1 for what is not."""
    values = values[values > -1]
    return float(values.mean()) if values.size else None


def class_metrics(evaluation: Mapping[str, Any], k: int) -> dict[str, Any]:
    """AP by IoU and size, AR by size, and the best F1, of a class."""
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
    metrics |= {
        f'AR{name}': _mean(evaluation['recall'][:, k, n, -1])
        for n, name in enumerate(_SIZES)
    }
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


def complete_truth(truth: COCO, name: str) -> None:
    """Set ``iscrowd`` to 0 where it is missing, as MMDetection's loaders do.

    Raises:
        ValueError: If an annotation of ``name`` has no ``area``.
    """
    for own, annotation in truth.anns.items():
        if annotation.get('iscrowd') is None:
            annotation['iscrowd'] = 0
        if annotation.get('area') is None:
            raise ValueError(
                f'{name} must have an area for each annotation, by which '
                'COCO tells small objects from large ones, got none for the '
                f'annotation with the id {own!r}; mmext validate_labels '
                '--coco FILE --fix DIR writes the areas of outlines or boxes'
            )


def _takes_faster(ids: Iterable) -> bool:
    """Whether faster-coco-eval is installed and all ids are whole numbers."""
    return find_spec('faster_coco_eval') is not None and all(
        isinstance(own, Integral) for own in ids
    )


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
            file; an annotation without ``iscrowd`` is not a crowd.
        predictions: As in a COCO file: ``image_id``, ``category_id``,
            ``bbox`` as x y width height, ``score``.
        cat_ids: The categories, in the order of the classes.
        max_dets: Three limits of boxes per picture, as ``proposal_nums`` of
            ``mmdet.CocoMetric``, whose metrics they are.

    Returns:
        * ``mAP``, ``mAP_50``, ``mAP_75``, ``mAP_s``, ``mAP_m``, ``mAP_l``, in
          [0, 1], None where there is no object;
        * for each class ``AP`` and the same suffixes, ``AR``, ``AR_s``,
          ``AR_m``, ``AR_l``; ``precision`` at IoU 0.5 for the recalls 0,
          0.01, ... 1; ``F1``, the best on that curve, and ``F1_score``, the
          score from which boxes have to be kept to get it.

    Raises:
        ValueError: If an annotation has no ``area``.
    """
    # Ids of VOC's images are names, which faster-coco-eval does not take.
    # Equal scores go by the order of the ids.
    ids = sorted(image['id'] for image in truth['images'])
    numbers = {own: n for n, own in enumerate(ids)}
    data, found, kind = COCO(), COCO(), COCOeval
    data.dataset = {
        'images': [{**it, 'id': numbers[it['id']]} for it in truth['images']],
        'categories': truth['categories'],
        'annotations': [
            {**item, 'image_id': numbers[item['image_id']]}
            for item in truth.get('annotations') or ()
            if item['image_id'] in numbers
        ],
    }
    rows = [
        {**item, 'image_id': numbers[item['image_id']]} for item in predictions
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        data.createIndex()
        complete_truth(data, 'truth')
        if rows:
            found = data.loadRes(rows)
        if _takes_faster((*data.cats, *data.anns)):
            from faster_coco_eval import COCOeval_faster as kind
        run = kind(data, found, 'bbox')
        run.params.catIds = list(cat_ids)
        run.params.maxDets = list(max_dets)
        run.evaluate()
        run.accumulate()
        run.summarize()
    names = [f'mAP{name}' for name in (*_IOUS, *_SIZES[1:])]
    totals = {
        name: float(value) if value > -1 else None
        for name, value in zip(names, run.stats)
    }
    # The arrays are sorted by category id.
    order = np.searchsorted(run.params.catIds, cat_ids)
    return totals, [class_metrics(run.eval, k) for k in order]


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
    # Limits have the precision of the scores, as 0.7 is less in float32.
    edges = np.arange(11, dtype=scores.dtype) / 10
    counts, score_sums, right_sums = (
        np.histogram(scores, edges, weights=item)[0]
        for item in (None, scores.astype(float), right.astype(float))
    )
    bins = [
        {
            'low': n / 10,
            'high': (n + 1) / 10,
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


# MMDetection 3.3.0 has no FasterCocoMetric: there pycocotools computes.
_FasterCocoMetric = getattr(host, 'FasterCocoMetric', host.CocoMetric)


@METRICS.register_module()
class CocoMetric(host.CocoMetric):
    """MMDetection's ``CocoMetric``, in 0.3 of the time where it can be.

    With the package ``faster-coco-eval`` (``pip install
    'mmext[faster_coco_eval]'``), metrics are computed as MMDetection's
    ``FasterCocoMetric`` does, by compiled code; without it, with
    ``use_mp_eval``, and where an id is not a whole number, such as the names
    of VOC's images, by pycocotools. Both give the same numbers.

    Takes all arguments of ``mmdet.CocoMetric``, and reads the same samples:
    without ``ann_file``, the ground truth is their ``instances``, where
    ``FasterCocoMetric`` wants ``gt_instances``, which pipelines of a
    validation change with the picture. Unlike MMDetection's, it gives each
    class its own values with ``classwise`` where the categories of
    ``ann_file`` are not sorted by id, and an annotation without ``iscrowd``
    is not a crowd.

    Raises:
        ValueError: If an annotation of ``ann_file`` has no ``area``.
    """

    def __init__(self, ann_file: str | None = None, *args: Any, **kwargs: Any):
        super().__init__(ann_file, *args, **kwargs)
        if self._coco_api is not None:
            complete_truth(self._coco_api, f'ann_file {ann_file!r}')

    def compute_metrics(self, results: list) -> dict[str, float]:
        """Metrics by name, as ``mmdet.CocoMetric`` gives them."""
        ids = [item['img_id'] for item, _ in results]
        classes, coco = self.dataset_meta['classes'], self._coco_api
        cat_ids = [*range(len(classes))]
        if coco is not None:
            ids += [*coco.cats, *coco.anns]
            cat_ids = coco.getCatIds(catNms=classes)
        # COCO's arrays are sorted by category id, and MMDetection reads them
        # in the order of cat_ids: it gets sorted ones, and labels to match.
        self.cat_ids = sorted(cat_ids)
        ranks = np.searchsorted(self.cat_ids, cat_ids)
        results = [
            (item, {**pred, 'labels': ranks[pred['labels']]})
            for item, pred in results
        ]
        compute = host.CocoMetric.compute_metrics
        if not self.use_mp_eval and _takes_faster(ids):
            compute = _FasterCocoMetric.compute_metrics
        # Of what pycocotools prints, the table is of use.
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            metrics = compute(self, results)
        self.cat_ids = cat_ids
        for line in printed.getvalue().splitlines():
            if line.startswith(' Average'):
                print(line)
        # `save_best='auto'` takes the first, which is not that of a class.
        names = sorted(metrics, key=lambda name: name.endswith('_precision'))
        return {name: metrics[name] for name in names}

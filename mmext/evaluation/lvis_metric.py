"""LVIS's average precision, computed by pycocotools.

The package ``lvis`` does not run with NumPy 1.24 or newer, and visits every
category in every image: 24 million pairs of LVIS's validation set, of which
the annotations speak of one in a hundred.
"""

import contextlib
import io
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from typing import Any

import numpy as np
from mmengine.logging import MMLogger
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from terminaltables import AsciiTable

from ..registry import METRICS
from .box_metrics import (
    CocoMetric,
    average_precision,
    class_metrics,
    complete_truth,
)

_METRICS = ('bbox', 'segm', 'proposal')
_FREQUENCIES = 'rcf'


def known_categories(truth: COCO) -> dict[int, set[int]]:
    """By image, the categories that have objects or are known to be absent."""
    known = defaultdict(set)
    for own, image in truth.imgs.items():
        known[own].update(image['neg_category_ids'])
    for note in truth.anns.values():
        known[note['image_id']].add(note['category_id'])
    return known


def lvis_average_precision(
    truth: COCO,
    predictions: Sequence[Mapping[str, Any]],
    cat_ids: Sequence[int],
    *,
    iou_type: str = 'bbox',
    max_dets: int = 300,
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """LVIS's metrics, of all categories and of each.

    They are COCO's but for three things (Gupta et al., 2019): a prediction
    counts only where its category has objects or is known to be absent
    (``neg_category_ids`` of the image); one without an object does not count
    where not all objects are annotated (``not_exhaustive_category_ids``); and
    an image has ``max_dets`` predictions of all categories together.

    Args:
        truth: An LVIS file.
        predictions: As in a COCO file: ``image_id``, ``category_id``,
            ``score``, and ``bbox`` as x y width height or, for masks,
            ``segmentation`` as RLE.
        cat_ids: The categories that are evaluated.
        iou_type: ``'bbox'`` or ``'segm'``.
        max_dets: So many predictions per image, by falling score.

    Returns:
        * ``AP``, ``AP50``, ``AP75``, ``APs``, ``APm``, ``APl``; ``APr``,
          ``APc``, ``APf`` of rare, common and frequent categories;
          ``AR@300``, ``ARs@300``, ... with ``max_dets``. All in [0, 1], -1
          where there is no object.
        * for each of ``cat_ids`` what :func:`average_precision` gives.

    Raises:
        ValueError: If an annotation has no ``area``.
    """
    complete_truth(truth, 'truth')
    known = known_categories(truth)
    images = defaultdict(list)
    for own, categories in known.items():
        for item in categories:
            images[item].append(own)
    counted = _counted(truth, predictions, known, iou_type, max_dets)
    by_class = []
    with contextlib.redirect_stdout(io.StringIO()):
        for item in cat_ids:
            run = COCOeval(truth, counted, iou_type)
            run.params.catIds = [item]
            run.params.imgIds = images[item]
            run.params.maxDets = [max_dets]
            run.evaluate()
            for pair in filter(None, run.evalImgs):
                image = truth.imgs[pair['image_id']]
                if item in image['not_exhaustive_category_ids']:
                    pair['dtIgnore'] = np.logical_or(
                        pair['dtIgnore'], pair['dtMatches'] == 0
                    )
            run.accumulate()
            by_class.append(class_metrics(run.eval, 0))
    kinds = [truth.cats[item]['frequency'] for item in cat_ids]
    totals = {
        **{
            name.replace('_', ''): _mean(by_class, name)
            for name in ('AP', 'AP_50', 'AP_75', 'AP_s', 'AP_m', 'AP_l')
        },
        **{
            f'AP{kind}': _mean(compress(by_class, np.equal(kinds, kind)), 'AP')
            for kind in _FREQUENCIES
        },
        **_recalls(by_class, max_dets),
    }
    return totals, by_class


def _proposal_recall(
    truth: COCO, predictions: Sequence[Mapping[str, Any]], max_dets: int
) -> dict[str, float]:
    """Average recall by size, whatever the category of a box or an object."""
    data = {
        'images': truth.dataset['images'],
        'categories': [{'id': 1}],
        'annotations': [
            {**note, 'category_id': 1} for note in truth.anns.values()
        ],
    }
    rows = [{**item, 'category_id': 1} for item in predictions]
    _, by_class = average_precision(data, rows, [1], max_dets=[max_dets] * 3)
    return _recalls(by_class, max_dets)


def _recalls(
    by_class: Sequence[Mapping[str, Any]], max_dets: int
) -> dict[str, float]:
    """Average recall by size of the objects, as LVIS names it."""
    return {
        f'{name.replace("_", "")}@{max_dets}': _mean(by_class, name)
        for name in ('AR', 'AR_s', 'AR_m', 'AR_l')
    }


def _mean(by_class: Iterable[Mapping[str, Any]], name: str) -> float:
    """Mean of the classes that have the metric, -1 if none has it."""
    values = [row[name] for row in by_class if row[name] is not None]
    return float(np.mean(values)) if values else -1.0


def _counted(
    truth: COCO,
    predictions: Sequence[Mapping[str, Any]],
    known: Mapping[int, set[int]],
    iou_type: str,
    max_dets: int,
) -> COCO:
    """The best predictions of each image, those of unknown categories out."""
    # With both, pycocotools takes the area of the box for that of the mask.
    unused = {'bbox': 'segmentation', 'segm': 'bbox'}[iou_type]
    by_image = defaultdict(list)
    for item in predictions:
        by_image[item['image_id']].append(item)
    notes = []
    for own, items in by_image.items():
        # Stable, as LVIS's is: of equal scores the first ones stay.
        items = sorted(items, key=lambda item: -item['score'])[:max_dets]
        notes += [
            {key: value for key, value in item.items() if key != unused}
            for item in items
            if item['category_id'] in known[own]
        ]
    with contextlib.redirect_stdout(io.StringIO()):
        return truth.loadRes(notes) if notes else COCO()


@METRICS.register_module()
class LVISMetric(CocoMetric):
    """LVIS's metrics, without the package ``lvis``.

    ``bbox_AP``, ``bbox_APr``, ... as ``mmdet.LVISMetric`` names them, and
    with ``classwise`` one ``<name>_precision`` per category; see
    :func:`lvis_average_precision`. For ``'proposal'`` average
    recall, ``AR@300``, ``ARs@300``, ``ARm@300``, ``ARl@300`` with
    ``max_dets``, of boxes whatever their category.

    Args:
        ann_file: An LVIS file, with ``neg_category_ids`` and
            ``not_exhaustive_category_ids`` of each image and ``frequency`` of
            each category.
        metric: ``'bbox'``, ``'segm'``, ``'proposal'``, or several of them.
        max_dets: Predictions per image that count.
        **kwargs: Of ``mmdet.CocoMetric``.

    Raises:
        ValueError: If ``metric`` is another, ``ann_file`` not of LVIS, or an
            annotation has no ``area``.
    """

    default_prefix = 'lvis'

    def __init__(
        self,
        ann_file: str,
        metric: str | Sequence[str] = 'bbox',
        *,
        max_dets: int = 300,
        **kwargs: Any,
    ):
        metric = [metric] if isinstance(metric, str) else list(metric)
        if not set(metric) <= set(_METRICS):
            raise ValueError(f'metric must be of {_METRICS}, got {metric}')
        super().__init__(ann_file, metric, **kwargs)
        self.max_dets = max_dets
        for kind, keys in (
            ('images', ('neg_category_ids', 'not_exhaustive_category_ids')),
            ('categories', ('frequency',)),
        ):
            for item in self._coco_api.dataset[kind]:
                missing = [key for key in keys if key not in item]
                if missing:
                    raise ValueError(
                        f'ann_file must be of LVIS, got {ann_file!r}, whose '
                        f'{kind} lack {missing}; use mmext.CocoMetric for '
                        'a COCO file'
                    )

    def compute_metrics(self, results: list) -> dict[str, float]:
        """Metrics by name."""
        logger = MMLogger.get_current_instance()
        predictions = [pred for _, pred in results]
        categories = self._coco_api.cats
        if self.cat_ids is None:
            # Of mmext.LVISV1Dataset; MMDetection's has all of the file, in
            # its order.
            self.cat_ids = (self.dataset_meta or {}).get(
                'cat_ids', list(categories)
            )
        if self.outfile_prefix is not None:
            self.results2json(predictions, self.outfile_prefix)
        if self.format_only:
            logger.info(f'results are saved in {self.outfile_prefix}*')
            return {}
        metrics, by_name = {}, {}
        for metric in self.metrics:
            rows = self._rows(predictions, metric)
            start, by_class = f'{metric}_', []
            if metric == 'proposal':
                start = ''
                totals = _proposal_recall(self._coco_api, rows, self.max_dets)
            else:
                totals, by_class = lvis_average_precision(
                    self._coco_api,
                    rows,
                    self.cat_ids,
                    iou_type=metric,
                    max_dets=self.max_dets,
                )
            table = [list(totals), [f'{v:.3f}' for v in totals.values()]]
            logger.info(f'LVIS, {metric}\n{AsciiTable(table).table}')
            wanted = self.metric_items or totals
            metrics |= {
                f'{start}{key}': round(value, 3)
                for key, value in totals.items()
                if key in wanted
            }
            if self.classwise:
                prefix = '' if len(self.metrics) == 1 else f'{metric}_'
                by_name |= {
                    f'{prefix}{categories[item]["name"]}_precision': round(
                        -1.0 if row['AP'] is None else row['AP'], 3
                    )
                    for item, row in zip(self.cat_ids, by_class)
                }
        return metrics | by_name

    def _rows(
        self, predictions: Sequence[Mapping[str, Any]], metric: str
    ) -> list[dict[str, Any]]:
        """Predictions as in a COCO file."""
        rows = []
        for pred in predictions:
            scores = pred['scores']
            if metric == 'segm':
                scores = pred.get('mask_scores', scores)
            for n, label in enumerate(pred['labels']):
                row = {
                    'image_id': pred['img_id'],
                    'category_id': self.cat_ids[label],
                    'score': float(scores[n]),
                }
                if metric == 'segm':
                    row['segmentation'] = pred['masks'][n]
                else:
                    row['bbox'] = self.xyxy2xywh(pred['bboxes'][n])
                rows.append(row)
        return rows

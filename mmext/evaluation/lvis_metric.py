"""LVIS's average precision, computed by pycocotools.

The package ``lvis`` does not run with NumPy 1.24 or newer, and visits every
category in every image: 24 million pairs of LVIS's validation set, of which
the annotations speak of one in a hundred.
"""

import contextlib
import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from mmdet.evaluation import CocoMetric as HostCocoMetric
from mmengine.logging import MMLogger
from pycocotools import mask as masks
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from terminaltables import AsciiTable

from ..registry import METRICS
from .box_metrics import class_metrics

_METRICS = ('bbox', 'segm')
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
    """
    known = known_categories(truth)
    images = defaultdict(list)
    for own, categories in known.items():
        for item in categories:
            images[item].append(own)
    for note in truth.anns.values():
        note.setdefault('iscrowd', 0)
    counted = _counted(truth, predictions, known, iou_type, max_dets)
    precision, recall, by_class = [], [], []
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
            precision.append(run.eval['precision'][:, :, 0, :, 0])
            recall.append(run.eval['recall'][:, 0, :, 0])
            by_class.append(class_metrics(run.eval, 0))
    # Category, IoU, recall, size; and category, IoU, size.
    precision, recall = np.stack(precision), np.stack(recall)
    kinds = [truth.cats[item]['frequency'] for item in cat_ids]
    totals = {
        'AP': _mean(precision[..., 0]),
        'AP50': _mean(precision[:, 0, :, 0]),
        'AP75': _mean(precision[:, 5, :, 0]),
        **{
            f'AP{size}': _mean(precision[..., n])
            for n, size in enumerate('sml', 1)
        },
        **{
            f'AP{kind}': _mean(precision[np.equal(kinds, kind)][..., 0])
            for kind in _FREQUENCIES
        },
        f'AR@{max_dets}': _mean(recall[..., 0]),
        **{
            f'AR{size}@{max_dets}': _mean(recall[..., n])
            for n, size in enumerate('sml', 1)
        },
    }
    return totals, by_class


def _mean(values: np.ndarray) -> float:
    """Mean of what is known, -1 if nothing is."""
    values = values[values > -1]
    return float(values.mean()) if values.size else -1.0


def _counted(
    truth: COCO,
    predictions: Sequence[Mapping[str, Any]],
    known: Mapping[int, set[int]],
    iou_type: str,
    max_dets: int,
) -> COCO:
    """The best predictions of each image, those of unknown categories out."""
    by_image = defaultdict(list)
    for item in predictions:
        by_image[item['image_id']].append(item)
    notes = []
    for own, items in by_image.items():
        # Stable, as LVIS's is: of equal scores the first ones stay.
        items = sorted(items, key=lambda item: -item['score'])[:max_dets]
        for item in items:
            if item['category_id'] not in known[own]:
                continue
            if iou_type == 'bbox':
                area = item['bbox'][2] * item['bbox'][3]
            else:
                area = float(masks.area(item['segmentation']))
            notes.append(
                {**item, 'id': len(notes) + 1, 'area': area, 'iscrowd': 0}
            )
    counted = COCO()
    counted.dataset = {**truth.dataset, 'annotations': notes}
    with contextlib.redirect_stdout(io.StringIO()):
        counted.createIndex()
    return counted


@METRICS.register_module()
class LVISMetric(HostCocoMetric):
    """LVIS's metrics, without the package ``lvis``.

    ``bbox_AP``, ``bbox_APr``, ... as ``mmdet.LVISMetric`` names them, and
    with ``classwise`` one ``<name>_precision`` per category; see
    :func:`lvis_average_precision`.

    Args:
        ann_file: An LVIS file, with ``neg_category_ids`` and
            ``not_exhaustive_category_ids`` of each image and ``frequency`` of
            each category.
        metric: ``'bbox'``, ``'segm'`` or both.
        max_dets: Predictions per image that count.
        **kwargs: Of ``mmdet.CocoMetric``.

    Raises:
        ValueError: If ``metric`` is another, or ``ann_file`` not of LVIS.
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
            # Of mmext.LVISV1Dataset; MMDetection's has all of the file.
            self.cat_ids = (self.dataset_meta or {}).get(
                'cat_ids', sorted(categories)
            )
        if self.outfile_prefix is not None:
            self.results2json(predictions, self.outfile_prefix)
        if self.format_only:
            logger.info(f'results are saved in {self.outfile_prefix}*')
            return {}
        metrics, by_name = {}, {}
        for metric in self.metrics:
            totals, by_class = lvis_average_precision(
                self._coco_api,
                self._rows(predictions, metric),
                self.cat_ids,
                iou_type=metric,
                max_dets=self.max_dets,
            )
            table = [list(totals), [f'{v:.3f}' for v in totals.values()]]
            logger.info(f'LVIS, {metric}\n{AsciiTable(table).table}')
            wanted = self.metric_items or totals
            metrics |= {
                f'{metric}_{key}': round(value, 3)
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
                if metric == 'bbox':
                    row['bbox'] = self.xyxy2xywh(pred['bboxes'][n])
                else:
                    row['segmentation'] = pred['masks'][n]
                rows.append(row)
        return rows

"""Report of a test: metrics as JSON, and a page that shows them."""

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmdet.evaluation import CocoMetric
from mmengine.evaluator import BaseMetric
from mmengine.structures import InstanceData
from mmseg.evaluation import IoUMetric
from scipy.sparse import coo_matrix

from ...checks.findings import to_json_line
from ...evaluation import (
    ERROR_KINDS,
    JudgedBoxes,
    LVISMetric,
    average_precision,
    calibration,
    judge_boxes,
    known_categories,
    lost_precision,
    lvis_average_precision,
)
from ...utils.files import atomic_path
from .page import report_page

NUM_PICTURES = 24
"""So many of the worst pictures are drawn."""

_IOU_THR = 0.5
_FREQUENCIES = {'r': 'rare', 'c': 'common', 'f': 'frequent'}


class ReportMetric(BaseMetric):
    """Keeps of each picture what a report needs; computes no metric itself.

    Of detectors the boxes, of segmentors the matrix of pixels and, of the
    worst pictures of each process, both maps. After an evaluation the main
    process has them all as ``gathered``, in the order of the data set.

    Args:
        ignore_index: Label of pixels that do not count.
    """

    def __init__(self, ignore_index: int = 255):
        super().__init__(prefix='report')
        self._ignored = ignore_index
        self.gathered: list[dict[str, Any]] = []
        self._worst: list[tuple[float, int]] = []

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Keep the predictions of a batch.

        Raises:
            ValueError: If there are neither boxes with scores nor a map of
                classes, or no ``img_path``.
        """
        if not self.results:
            self._worst = []
        for sample in data_samples:
            if 'img_path' not in sample:
                raise ValueError(
                    'a report needs img_path in the data samples, got '
                    f'{sorted(sample)}; add it to meta_keys of the last '
                    'transform of the test pipeline'
                )
            pred = sample.get('pred_instances') or {}
            if 'bboxes' in pred and 'scores' in pred:
                self._keep_boxes(sample, pred)
            elif 'pred_sem_seg' in sample and 'gt_sem_seg' in sample:
                self._keep_maps(sample)
            else:
                raise ValueError(
                    'a report needs predictions with pred_instances (boxes '
                    'and scores), or pred_sem_seg and gt_sem_seg, got a '
                    f'sample with {sorted(sample)}; leave --report out'
                )

    def _keep_boxes(self, sample: Mapping, pred: Mapping) -> None:
        boxes = pred['bboxes']
        self.results.append(
            {
                'img_path': sample['img_path'],
                'img_id': sample.get('img_id'),
                'size': tuple(sample['ori_shape'][:2]),
                'pred': InstanceData(
                    bboxes=getattr(boxes, 'tensor', boxes)
                    .float()
                    .cpu()
                    .numpy(),
                    labels=pred['labels'].cpu().numpy(),
                    scores=pred['scores'].float().cpu().numpy(),
                ),
            }
        )

    def _keep_maps(self, sample: Mapping[str, Any]) -> None:
        """The matrix of a picture, its maps as long as it is of the worst."""
        pred, truth = (
            sample[name]['data'].squeeze().cpu().long()
            for name in ('pred_sem_seg', 'gt_sem_seg')
        )
        num = len(self.dataset_meta['classes'])
        counted = truth != self._ignored
        pairs = truth[counted] * num + pred[counted]
        counts = torch.bincount(pairs, minlength=num**2).view(num, num)
        total = int(counts.sum())
        wrong = (total - int(counts.trace())) / max(total, 1)
        self.results.append(
            {
                'img_path': sample['img_path'],
                'counts': coo_matrix(counts.numpy()),
                'wrong': wrong,
                'maps': tuple(
                    item.numpy().astype('u2') for item in (truth, pred)
                ),
            }
        )
        heapq.heappush(self._worst, (wrong, len(self.results) - 1))
        if len(self._worst) > NUM_PICTURES:
            _, index = heapq.heappop(self._worst)
            self.results[index]['maps'] = None

    def compute_metrics(self, results: list) -> dict[str, float]:
        """No metrics; on the main process, what all processes kept."""
        self.gathered = results
        return {}


def _read_objects(dataset: Any, paths: Sequence[str]) -> list[InstanceData]:
    """Annotations of pictures, which are all those of the data set."""
    indices: dict[str, list[int]] = {}
    infos = [dataset.get_data_info(n) for n in range(len(dataset))]
    for index, info in enumerate(infos):
        indices.setdefault(info['img_path'], []).append(index)
    gts = []
    for path in paths:
        instances = infos[indices[path].pop(0)].get('instances')
        if instances is None:
            raise ValueError(
                f'{type(dataset).__name__} must give instances, got none for '
                f'{path}: there is nothing to compare with; leave --report out'
            )
        boxes = np.array([item['bbox'] for item in instances], np.float32)
        labels = [item['bbox_label'] for item in instances]
        ignored = [bool(item.get('ignore_flag')) for item in instances]
        gts.append(
            InstanceData(
                bboxes=boxes.reshape(-1, 4),
                labels=np.array(labels, int),
                ignored=np.array(ignored, bool),
            )
        )
    return gts


def _sides(box: Sequence[float]) -> list[float]:
    """Corners as x, y, width and height, as COCO has them."""
    x1, y1, x2, y2 = (float(value) for value in box)
    return [x1, y1, x2 - x1, y2 - y1]


def _coco_truth(
    records: Sequence[Mapping],
    gts: Sequence[InstanceData],
    classes: Sequence[str],
    evaluator: CocoMetric | None,
) -> tuple[dict, list[int], list]:
    """COCO's data, its categories by class, and the picture of each record.

    That of the metric, if it is COCO's: its file has areas of outlines.
    """
    if evaluator is not None:
        data = evaluator._coco_api.dataset
        ids = [record['img_id'] for record in records]
        return data, list(evaluator.cat_ids), ids
    images = [
        {'id': n, 'height': item['size'][0], 'width': item['size'][1]}
        for n, item in enumerate(records)
    ]
    annotations = [
        {
            'image_id': n,
            'category_id': int(label),
            'bbox': _sides(box),
            'area': float(np.prod(box[2:] - box[:2])),
            'iscrowd': int(ignored),
        }
        for n, gt in enumerate(gts)
        for box, label, ignored in zip(gt.bboxes, gt.labels, gt.ignored)
    ]
    data = {
        'images': images,
        'categories': [{'id': n, 'name': k} for n, k in enumerate(classes)],
        'annotations': [
            {'id': n, **item} for n, item in enumerate(annotations, 1)
        ],
    }
    return data, list(range(len(classes))), list(range(len(records)))


def _cells(matrix: np.ndarray, classes: Sequence[str]) -> dict[str, list]:
    """Names, and row, column and count of each cell that is not empty."""
    locations = np.nonzero(matrix)
    cells = np.column_stack([*locations, matrix[locations]])
    return {'classes': list(classes), 'cells': cells.tolist()}


def _box_metrics(
    records: Sequence[Mapping],
    gts: Sequence[InstanceData],
    classes: Sequence[str],
    evaluator: CocoMetric | None,
) -> tuple[dict, list[dict]]:
    """COCO's metrics of boxes, or LVIS's, of all classes and of each."""
    data, cat_ids, image_ids = _coco_truth(records, gts, classes, evaluator)
    rows = [
        {
            'image_id': image_id,
            'category_id': cat_ids[label],
            'bbox': _sides(box),
            'score': float(score),
        }
        for image_id, record in zip(image_ids, records)
        for box, label, score in zip(
            *(record['pred'][key] for key in ('bboxes', 'labels', 'scores'))
        )
    ]
    if isinstance(evaluator, LVISMetric):
        totals, by_class = lvis_average_precision(
            evaluator._coco_api, rows, cat_ids, max_dets=evaluator.max_dets
        )
        totals = {
            name: None if value == -1 else value
            for name, value in totals.items()
            if name.startswith('AP')
        }
        kinds = [evaluator._coco_api.cats[own]['frequency'] for own in cat_ids]
        return totals, [
            {'frequency': _FREQUENCIES[kind], **row}
            for kind, row in zip(kinds, by_class)
        ]
    limits = {} if evaluator is None else {'max_dets': evaluator.proposal_nums}
    return average_precision(data, rows, cat_ids, **limits)


def _count_as_lvis(
    records: Sequence[Mapping], metric: LVISMetric
) -> Iterator[tuple[InstanceData, list[int]]]:
    """By picture the boxes that count, and classes not all annotated."""
    truth = metric._coco_api
    known = known_categories(truth)
    labels = {own: n for n, own in enumerate(metric.cat_ids)}
    for record in records:
        own, pred = record['img_id'], record['pred']
        best = np.argsort(-pred.scores, kind='stable')[: metric.max_dets]
        ids = np.array(metric.cat_ids)[pred.labels[best]]
        lacking = truth.imgs[own]['not_exhaustive_category_ids']
        yield (
            pred[best[np.isin(ids, list(known[own]))]],
            [labels[item] for item in lacking if item in labels],
        )


def _judge_detector(
    records: Sequence[Mapping],
    dataset: Any,
    classes: Sequence[str],
    evaluators: Sequence[BaseMetric],
    score_thr: float,
) -> tuple[dict[str, Any], list[tuple]]:
    """The report, and what is needed to draw the worst pictures."""
    gts = _read_objects(dataset, [item['img_path'] for item in records])
    coco = (
        item
        for item in evaluators
        # mmdet.LVISMetric is one, and has no file of COCO.
        if isinstance(item, CocoMetric) and item._coco_api is not None
    )
    evaluator = next(coco, None)
    totals, by_class = _box_metrics(records, gts, classes, evaluator)
    counted = ((record['pred'], ()) for record in records)
    if isinstance(evaluator, LVISMetric):
        counted = _count_as_lvis(records, evaluator)
    judged = [
        judge_boxes(gt, pred, iou_thr=_IOU_THR, open_labels=lacking)
        for gt, (pred, lacking) in zip(gts, counted)
    ]
    lost = lost_precision(judged, len(classes))
    boxes = InstanceData.cat([item.pred for item in judged])
    boxes = boxes[boxes.counted]
    judged = [
        item.best(np.count_nonzero(item.pred.scores >= score_thr))
        for item in judged
    ]
    # Rows are objects, columns predictions, the background is last.
    matrix = np.zeros((len(classes) + 1,) * 2, int)
    errors = Counter()
    for item in judged:
        np.add.at(matrix, tuple(item.pairs.T), 1)
        for error in item.errors:
            of_object = error.kind == 'classification'
            label = error.truth_label if of_object else error.label
            errors[error.kind, label] += 1
    per_class = []
    for label, (name, metrics) in enumerate(zip(classes, by_class)):
        if (curve := metrics['precision']) is not None:
            metrics['precision'] = np.round(curve, 4).tolist()
        per_class.append(
            {'class': name, 'objects': int(matrix[label].sum())}
            | metrics
            | {'right': int(matrix[label, label])}
            | {kind: errors[kind, label] for kind in ERROR_KINDS}
        )
    order = sorted(
        (n for n, item in enumerate(judged) if item.errors),
        key=lambda n: (-len(judged[n].errors), records[n]['img_path']),
    )
    pictures = []
    for n in order:
        rows = []
        for error in judged[n].errors:
            row = asdict(error)
            truth = row.pop('truth_label')
            row['class'] = classes[row.pop('label')]
            row['truth_class'] = None if truth is None else classes[truth]
            for name in ('box', 'truth_box'):
                if row[name] is not None:
                    row[name] = [round(value, 3) for value in row[name]]
            rows.append(row)
        counts = _error_counts([judged[n]])
        path = records[n]['img_path']
        pictures.append({'image': path, **counts, 'errors': rows})
    report = {
        'score_thr': score_thr,
        'iou_thr': _IOU_THR,
        'summary': totals,
        'counts': _error_counts(judged),
        'lost_AP_50': lost,
        'per_class': per_class,
        'recalls': [n / 100 for n in range(101)],
        'calibration': calibration(boxes.scores, boxes.kinds == 'right'),
        'confusion': _cells(matrix, [*classes, 'background']),
        'pictures': pictures,
    }
    shown = [
        (records[n]['img_path'], records[n]['size'], judged[n])
        for n in order[:NUM_PICTURES]
    ]
    return report, shown


def _error_counts(judged: Sequence[JudgedBoxes]) -> dict[str, int]:
    kinds = Counter(error.kind for item in judged for error in item.errors)
    return {'right': int(sum(item.right.sum() for item in judged))} | {
        kind: kinds[kind] for kind in ERROR_KINDS
    }


def _judge_segmentor(
    records: Sequence[Mapping], classes: Sequence[str]
) -> tuple[dict[str, Any], list[tuple]]:
    """The report, and what is needed to draw the worst pictures."""
    matrix = sum(record['counts'] for record in records).toarray()
    counts = torch.from_numpy(matrix).double()
    right, pred, truth = counts.diag(), counts.sum(0), counts.sum(1)
    areas = right, pred + truth - right, pred, truth
    by_class = IoUMetric.total_area_to_metrics(*areas, ['mIoU', 'mFscore'])
    accuracy = float(by_class.pop('aAcc'))
    by_class.pop('Acc')
    per_class = [
        {'class': name, 'pixels': int(truth[n])}
        | {key: float(values[n]) for key, values in by_class.items()}
        for n, name in enumerate(classes)
    ]
    order = sorted(
        (n for n, item in enumerate(records) if item['wrong']),
        key=lambda n: (-records[n]['wrong'], records[n]['img_path']),
    )
    report = {
        'summary': {
            'mIoU': float(np.nanmean(by_class['IoU'])),
            'mAcc': float(np.nanmean(by_class['Recall'])),
            'aAcc': accuracy,
        },
        'per_class': per_class,
        'confusion': _cells(matrix, classes),
        'pictures': [
            {'image': records[n]['img_path'], 'wrong': records[n]['wrong']}
            for n in order
        ],
    }
    shown = [
        (records[n]['img_path'], records[n]['counts'], records[n]['maps'])
        for n in order[:NUM_PICTURES]
    ]
    return report, shown


def write_report(
    folder: str | Path,
    metric: ReportMetric,
    dataset: Any,
    *,
    metrics: Mapping[str, float],
    evaluators: Sequence[BaseMetric] = (),
    score_thr: float = 0.3,
    about: Mapping[str, str] | None = None,
) -> tuple[Path, Path]:
    """Write ``report.json`` and ``report.html`` into a folder.

    Both are written whole or not at all, and take the place of older ones.

    Args:
        folder: Made if missing.
        metric: Has gathered the predictions of a test.
        dataset: The data set of the test, of MMEngine's kind.
        metrics: What the test's own metrics gave.
        evaluators: These metrics; with COCO's among them its annotation file
            is the truth of the average precision.
        score_thr: Boxes of a lower score count as not found, in all but the
            average precision, the curves and the calibration.
        about: What to say of the run, such as the config.

    Returns:
        The two files: JSON, page.

    Raises:
        ValueError: If a box is not finite, a score not in [0, 1], or the data
            set has no annotations.
    """
    records = metric.gathered
    classes = [str(name) for name in metric.dataset_meta['classes']]
    detector = 'pred' in records[0]
    if detector:
        report, shown = _judge_detector(
            records, dataset, classes, evaluators, score_thr
        )
    else:
        report, shown = _judge_segmentor(records, classes)
    report = {
        'task': 'detection' if detector else 'segmentation',
        **(about or {}),
        'images': len(records),
        'metrics': {
            name: np.asarray(value).tolist() for name, value in metrics.items()
        },
        **report,
    }
    palette = metric.dataset_meta.get('palette')
    contents = {
        'report.json': to_json_line(report) + b'\n',
        'report.html': report_page(report, shown, classes, palette),
    }
    for name, content in contents.items():
        with atomic_path(Path(folder, name)) as temporary:
            temporary.write_bytes(content)
    return tuple(Path(folder, name) for name in contents)

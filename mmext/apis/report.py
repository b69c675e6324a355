"""Judge what a test predicted: figures as JSON, and a page that shows them."""

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmdet.evaluation import CocoMetric
from mmdet.structures.mask import encode_mask_results
from mmengine.evaluator import BaseMetric
from mmseg.evaluation import IoUMetric
from scipy.sparse import coo_matrix

from ..checks.findings import to_json_line
from ..evaluation import (
    ERROR_KINDS,
    Found,
    JudgedBoxes,
    Truth,
    average_precision,
    calibration,
    judge_boxes,
)
from ..utils.files import atomic_path
from .report_page import report_page

NUM_PICTURES = 24
"""So many of the worst pictures are drawn."""

_IOU_THR = 0.5
_BACKGROUND = 'background'


class ReportMetric(BaseMetric):
    """Keeps of each picture what a report needs; gives no figure itself.

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
            found = sample.get('pred_instances') or {}
            if 'bboxes' in found and 'scores' in found:
                self.results.append(_kept_boxes(sample))
            elif 'pred_sem_seg' in sample and 'gt_sem_seg' in sample:
                self._keep_maps(sample)
            else:
                raise ValueError(
                    'a report needs predictions with pred_instances (boxes '
                    'and scores), or pred_sem_seg and gt_sem_seg, got a '
                    f'sample with {sorted(sample)}; leave --report out'
                )

    def _keep_maps(self, sample: Mapping[str, Any]) -> None:
        """The matrix of a picture, its maps as long as it is of the worst."""
        found, truth = (
            sample[name]['data'].squeeze().cpu().long()
            for name in ('pred_sem_seg', 'gt_sem_seg')
        )
        num = len(self.dataset_meta['classes'])
        counted = truth != self._ignored
        pairs = truth[counted] * num + found[counted]
        counts = torch.bincount(pairs, minlength=num**2).view(num, num)
        total = max(int(counts.sum()), 1)
        wrong = 1 - int(counts.trace()) / total
        record = {
            'img_path': sample['img_path'],
            'counts': coo_matrix(counts.numpy()),
            'wrong': wrong,
            'maps': tuple(
                item.numpy().astype('u2') for item in (truth, found)
            ),
        }
        self.results.append(record)
        heapq.heappush(self._worst, (wrong, len(self.results) - 1))
        if len(self._worst) > NUM_PICTURES:
            _, index = heapq.heappop(self._worst)
            self.results[index]['maps'] = None

    def compute_metrics(self, results: list) -> dict[str, float]:
        """No figures; on the main process, what all processes kept."""
        self.gathered = results
        return {}


def _kept_boxes(sample: Mapping[str, Any]) -> dict[str, Any]:
    found = sample['pred_instances']
    boxes = found['bboxes']
    boxes = getattr(boxes, 'tensor', boxes)
    masks = found.get('masks')
    if isinstance(masks, torch.Tensor):
        masks = encode_mask_results(masks.cpu().numpy())
    return {
        'img_path': sample['img_path'],
        'img_id': sample.get('img_id'),
        'size': tuple(sample['ori_shape'][:2]),
        'found': Found(
            boxes.float().cpu().numpy(),
            found['labels'].cpu().numpy(),
            found['scores'].float().cpu().numpy(),
        ),
        'masks': masks,
        # Of some models a score of its own.
        'mask_scores': found.get('mask_scores', found['scores']).tolist(),
    }


def _read_truth(dataset: Any, paths: Sequence[str]) -> list[Truth]:
    """Annotations of pictures, which are all those of the data set."""
    places: dict[str, list[int]] = {}
    infos = [dataset.get_data_info(n) for n in range(len(dataset))]
    for index, info in enumerate(infos):
        places.setdefault(info['img_path'], []).append(index)
    truths = []
    for path in paths:
        instances = infos[places[path].pop(0)].get('instances')
        if instances is None:
            raise ValueError(
                f'{type(dataset).__name__} must give instances, got none for '
                f'{path}: there is nothing to compare with; leave --report out'
            )
        boxes = np.array(
            [instance['bbox'] for instance in instances], np.float32
        )
        truths.append(
            Truth(
                boxes.reshape(-1, 4),
                np.array(
                    [instance['bbox_label'] for instance in instances], int
                ),
                np.array(
                    [
                        bool(instance.get('ignore_flag'))
                        for instance in instances
                    ],
                    bool,
                ),
            )
        )
    return truths


def _sides(box: Sequence[float]) -> list[float]:
    """Corners as x, y, width and height, as COCO has them."""
    x1, y1, x2, y2 = (float(value) for value in box)
    return [x1, y1, x2 - x1, y2 - y1]


def _coco_truth(
    records: Sequence[Mapping],
    truths: Sequence[Truth],
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
    annotations = [
        {
            'image_id': n,
            'category_id': int(label),
            'bbox': _sides(box),
            'area': float(np.prod(box[2:] - box[:2])),
            'iscrowd': int(ignored),
        }
        for n, truth in enumerate(truths)
        for box, label, ignored in zip(
            truth.boxes, truth.labels, truth.ignored
        )
    ]
    data = {
        'images': [
            {'id': n, 'height': item['size'][0], 'width': item['size'][1]}
            for n, item in enumerate(records)
        ],
        'categories': [
            {'id': n, 'name': name} for n, name in enumerate(classes)
        ],
        'annotations': [
            {'id': n, **item} for n, item in enumerate(annotations, 1)
        ],
    }
    return data, list(range(len(classes))), list(range(len(records)))


def _confusion(
    pairs: Sequence[tuple[int | None, int | None]], classes: Sequence[str]
) -> np.ndarray:
    """``(K + 1, K + 1)``: rows are truth, columns found, background last."""
    num = len(classes) + 1
    flat = [
        num * (num - 1 if true is None else true)
        + (num - 1 if found is None else found)
        for true, found in pairs
    ]
    counts = torch.bincount(
        torch.tensor(flat, dtype=torch.long), minlength=num**2
    )
    return counts.view(num, num).numpy()


def _cells(matrix: np.ndarray, classes: Sequence[str]) -> dict[str, list]:
    """Names, and row, column and count of each cell that is not empty."""
    places = np.nonzero(matrix)
    cells = np.column_stack([*places, matrix[places]])
    return {'classes': list(classes), 'cells': cells.tolist()}


def _error_counts(judged: JudgedBoxes) -> dict[str, int]:
    kinds = Counter(error.kind for error in judged.errors)
    return {'right': int(judged.right.sum())} | {
        kind: kinds[kind] for kind in ERROR_KINDS
    }


def _error_row(error: Any, classes: Sequence[str]) -> dict[str, Any]:
    row = asdict(error)
    label, truth = row.pop('label'), row.pop('truth_label')
    row['class'] = classes[label]
    row['truth_class'] = None if truth is None else classes[truth]
    for name in ('box', 'truth_box'):
        if row[name] is not None:
            row[name] = [round(value, 3) for value in row[name]]
    return row


def _box_figures(
    records: Sequence[Mapping],
    truths: Sequence[Truth],
    classes: Sequence[str],
    evaluator: CocoMetric | None,
) -> tuple[dict, list[dict]]:
    """COCO's figures, of all classes and of each; masks', if they count."""
    data, cat_ids, image_ids = _coco_truth(records, truths, classes, evaluator)
    rows = [
        {
            'image_id': image_id,
            'category_id': cat_ids[label],
            'bbox': _sides(box),
            'score': float(score),
        }
        for image_id, record in zip(image_ids, records)
        for box, label, score in zip(
            record['found'].boxes,
            record['found'].labels,
            record['found'].scores,
        )
    ]
    limits = {}
    if evaluator is not None:
        limits['max_dets'] = evaluator.proposal_nums
    totals, by_class = average_precision(data, rows, cat_ids, **limits)
    if evaluator is None or 'segm' not in evaluator.metrics:
        return totals, by_class
    masks = [mask for record in records for mask in record['masks']]
    scores = [score for record in records for score in record['mask_scores']]
    rows = [
        {**row, 'segmentation': mask, 'score': score}
        for row, mask, score in zip(rows, masks, scores)
    ]
    of_masks, mask_by_class = average_precision(data, rows, cat_ids, **limits)
    totals |= {f'mask_{name}': value for name, value in of_masks.items()}
    for figures, of_mask in zip(by_class, mask_by_class):
        for name in ('AP', 'AP_50', 'AP_75'):
            figures[f'mask_{name}'] = of_mask[name]
    return totals, by_class


def _judge_detector(
    records: Sequence[Mapping],
    dataset: Any,
    classes: Sequence[str],
    evaluators: Sequence[BaseMetric],
    score_thr: float,
) -> tuple[dict[str, Any], list[tuple]]:
    """The report, and what is needed to draw the worst pictures."""
    truths = _read_truth(dataset, [item['img_path'] for item in records])
    coco = (
        evaluator
        for evaluator in evaluators
        if isinstance(evaluator, CocoMetric)
    )
    totals, by_class = _box_figures(records, truths, classes, next(coco, None))
    judged, scores, right = [], [np.zeros(0)], [np.zeros(0, bool)]
    for truth, record in zip(truths, records):
        found = record['found']
        everything = judge_boxes(truth, found, iou_thr=_IOU_THR)
        scores.append(everything.found.scores)
        right.append(everything.right)
        judged.append(
            judge_boxes(truth, found.at_least(score_thr), iou_thr=_IOU_THR)
        )
    matrix = _confusion([p for item in judged for p in item.pairs], classes)
    errors = Counter(
        (
            error.kind,
            error.truth_label if error.kind == 'confused' else error.label,
        )
        for item in judged
        for error in item.errors
    )
    counts = Counter()
    for item in judged:
        counts.update(_error_counts(item))
    per_class = []
    for label, (name, figures) in enumerate(zip(classes, by_class)):
        if (curve := figures['precision']) is not None:
            figures['precision'] = np.round(curve, 4).tolist()
        per_class.append(
            {'class': name, 'objects': int(matrix[label].sum())}
            | figures
            | {'right': int(matrix[label, label])}
            | {kind: errors[kind, label] for kind in ERROR_KINDS}
        )
    order = sorted(
        (n for n, item in enumerate(judged) if item.errors),
        key=lambda n: (-len(judged[n].errors), records[n]['img_path']),
    )
    report = {
        'score_thr': score_thr,
        'iou_thr': _IOU_THR,
        'figures': totals,
        'counts': dict(counts),
        'per_class': per_class,
        'recalls': [n / 100 for n in range(101)],
        'calibration': calibration(
            np.concatenate(scores), np.concatenate(right)
        ),
        'confusion': _cells(matrix, [*classes, _BACKGROUND]),
        'pictures': [
            {
                'image': records[n]['img_path'],
                **_error_counts(judged[n]),
                'errors': [
                    _error_row(error, classes) for error in judged[n].errors
                ],
            }
            for n in order
        ],
    }
    shown = [
        (records[n]['img_path'], records[n]['size'], judged[n])
        for n in order[:NUM_PICTURES]
    ]
    return report, shown


def _judge_segmentor(
    records: Sequence[Mapping], classes: Sequence[str]
) -> tuple[dict[str, Any], list[tuple]]:
    """The report, and what is needed to draw the worst pictures."""
    matrix = sum(record['counts'] for record in records).toarray()
    counts = torch.from_numpy(matrix).double()
    right, found, truth = counts.diag(), counts.sum(0), counts.sum(1)
    areas = right, found + truth - right, found, truth
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
        'figures': {
            'mIoU': float(np.nanmean(by_class['IoU'])),
            'mAcc': float(np.nanmean(by_class['Recall'])),
            'aAcc': accuracy,
        },
        'per_class': per_class,
        'confusion': _cells(matrix, classes),
        'pictures': [
            {
                'image': records[n]['img_path'],
                'wrong': records[n]['wrong'],
            }
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
    detector = 'found' in records[0]
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

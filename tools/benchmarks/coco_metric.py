"""Time of COCO's metrics: mmext.CocoMetric beside MMDetection's.

Annotations and predictions are made up: 80 classes, 7 objects and 100 detected
boxes an image, as a detector of COCO has them. Timed is what an evaluation
does after the last batch, with the seconds of a processor; both must give the
same numbers. Needs faster-coco-eval, without which ours is MMDetection's.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from statistics import median

import numpy as np
import torch

import mmext.utils.quiet_hosts  # noqa: F401  (first: it is quiet then)

# isort: split
from benchmark_parts import positive
from mmdet.evaluation import CocoMetric as HostCocoMetric
from mmengine.logging import MMLogger

from mmext.evaluation import CocoMetric
from mmext.utils.cli import ToolParser, run_tool

CLASSES = [f'class {index}' for index in range(80)]
OBJECTS, GUESSES = 7, 100
SIZE = (480, 640)


def boxes(rng: np.random.Generator, number: int) -> np.ndarray:
    """Left, top, width and height of boxes: ``(number, 4)``, in pixels."""
    sides = rng.uniform(8, 200, (number, 2))
    return np.hstack((rng.uniform(0, 400, (number, 2)), sides))


def write_truth(path: Path, images: int, rng: np.random.Generator) -> None:
    """An annotation file in COCO's format."""
    annotations = [
        {
            'id': index + 1,
            'image_id': index // OBJECTS,
            'category_id': int(rng.integers(len(CLASSES))),
            'bbox': box.tolist(),
            'area': float(box[2] * box[3]),
            'iscrowd': 0,
        }
        for index, box in enumerate(boxes(rng, images * OBJECTS))
    ]
    height, width = SIZE
    pictures = [
        {'id': index, 'height': height, 'width': width}
        for index in range(images)
    ]
    names = [{'id': i, 'name': name} for i, name in enumerate(CLASSES)]
    content = {
        'info': {},
        'images': pictures,
        'annotations': annotations,
        'categories': names,
    }
    path.write_text(json.dumps(content))


def predictions(path: Path, rng: np.random.Generator) -> list[dict]:
    """Samples with boxes near those of the file, and others."""
    truth: dict[int, list[dict]] = {}
    for annotation in json.loads(path.read_text())['annotations']:
        truth.setdefault(annotation['image_id'], []).append(annotation)
    samples = []
    for index, objects in truth.items():
        near = np.array([item['bbox'] for item in objects])
        near = near * rng.normal(1, 0.08, near.shape)
        guess = np.vstack((near, boxes(rng, GUESSES - len(near))))
        guess[:, 2:] += guess[:, :2]
        labels = rng.integers(len(CLASSES), size=GUESSES)
        labels[: len(near)] = [item['category_id'] for item in objects]
        results = {
            'bboxes': torch.from_numpy(guess),
            'scores': torch.from_numpy(rng.random(GUESSES)),
            'labels': torch.from_numpy(labels),
        }
        samples.append(
            {'img_id': index, 'ori_shape': SIZE, 'pred_instances': results}
        )
    return samples


def evaluate(
    kind: type, path: Path, samples: Sequence[dict]
) -> tuple[float, dict]:
    """CPU time in seconds, and the metrics."""
    metric = kind(ann_file=str(path))
    metric.dataset_meta = {'classes': CLASSES}
    metric.process({}, samples)
    start = time.process_time()
    metrics = metric.evaluate(len(samples))
    return time.process_time() - start, metrics


def run(options: argparse.Namespace) -> None:
    """Measure both in turns, and print a line."""
    MMLogger.get_current_instance().setLevel('ERROR')
    rng = np.random.default_rng(0)
    times: dict[type, list[float]] = {CocoMetric: [], HostCocoMetric: []}
    results = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, 'truth.json')
        write_truth(path, options.images, rng)
        samples = predictions(path, rng)
        for _ in range(options.repeats):
            for kind, own in times.items():
                with redirect_stdout(StringIO()):
                    seconds, metric = evaluate(kind, path, samples)
                own.append(seconds)
                results.append(metric)
    if any(metric != results[0] for metric in results):
        raise RuntimeError(f'metrics must be the same, got {results}')
    ours, theirs = (median(own) for own in times.values())
    print(
        f'{options.images} images: ours {ours:.2f} s, theirs {theirs:.2f} s, '
        f'ratio {ours / theirs:.2f}, mAP {results[0]["coco/bbox_mAP"]} of both'
    )


def main(args: Sequence[str] | None = None) -> int:
    """Run the benchmark from a command line."""
    parser = ToolParser(description=__doc__)
    add = parser.add_argument
    add('--images', type=positive, default=1000, help='default: %(default)s')
    add('--repeats', type=positive, default=5, help='default: %(default)s')
    options = parser.parse_args(args)
    if find_spec('faster_coco_eval') is None:
        parser.error('this needs faster-coco-eval: pip install it')
    run(options)
    return 0


if __name__ == '__main__':
    run_tool(main)

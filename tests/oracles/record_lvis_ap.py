"""Record LVIS's AP of made-up predictions by the package ``lvis`` 0.5.3.

    pip install --target FOLDER --no-deps lvis==0.5.3
    PYTHONPATH=FOLDER python tests/oracles/record_lvis_ap.py

It wants ``numpy.float`` and OpenCV. Figures go to ``lvis_ap.pt``, with the
data that they are of.
"""

from copy import deepcopy
from pathlib import Path

import numpy as np
import torch
from pycocotools import mask as masks

SIZE = 200
NUM_CLASSES = 12
NUM_IMAGES = 40
PER_IMAGE = 25


def outline(box):
    """An octagon in a box, as a polygon."""
    left, top, width, height = box
    points = [(0.3, 0), (0.7, 0), (1, 0.3), (1, 0.7)]
    points += [(1 - x, 1 - y) for x, y in points]
    return [
        float(value)
        for x, y in points
        for value in (left + x * width, top + y * height)
    ]


def encoded(box):
    """The same as RLE."""
    rle = masks.merge(masks.frPyObjects([outline(box)], SIZE, SIZE))
    return {'size': [SIZE, SIZE], 'counts': rle['counts'].decode()}


def made_up(rng):
    """An LVIS file and 1,000 predictions, scores of many of them equal."""
    images, notes, rows = [], [], []
    for own in range(1, NUM_IMAGES + 1):
        there = rng.choice(NUM_CLASSES, 3, replace=False) + 1
        absent = np.setdiff1d(np.arange(1, NUM_CLASSES + 1), there)
        images.append(
            {
                'id': own,
                'width': SIZE,
                'height': SIZE,
                'coco_url': f'http://images.cocodataset.org/val/{own}.jpg',
                'neg_category_ids': rng.choice(absent, 3, False).tolist(),
                'not_exhaustive_category_ids': there[:1].tolist(),
            }
        )
        near = []
        for category in np.repeat(there, rng.integers(1, 4, 3)).tolist():
            side = rng.uniform(8, 130, 2)
            box = [*rng.uniform(0, SIZE - side), *side]
            notes.append(
                {
                    'id': len(notes) + 1,
                    'image_id': own,
                    'category_id': category,
                    'bbox': [float(value) for value in box],
                    'segmentation': [outline(box)],
                    'area': float(masks.area(encoded(box))),
                }
            )
            shift = rng.normal(0, 0.06, (2, 4)) * [*side, *side]
            near += [(category, box + item) for item in shift]
        while len(near) < PER_IMAGE:
            side = rng.uniform(8, 130, 2)
            box = np.array([*rng.uniform(0, SIZE - side), *side])
            near.append((int(rng.integers(1, NUM_CLASSES + 1)), box))
        for n in rng.permutation(len(near))[:PER_IMAGE]:
            category, box = near[n]
            rows.append(
                {
                    'image_id': own,
                    'category_id': category,
                    'bbox': [float(value) for value in box],
                    'segmentation': encoded(box),
                    'score': round(float(rng.uniform()), 2),
                }
            )
    kinds = [
        {'id': n, 'name': f'kind {n}', 'frequency': 'rcf'[n % 3]}
        for n in range(1, NUM_CLASSES + 1)
    ]
    return {'images': images, 'annotations': notes, 'categories': kinds}, rows


def main():
    np.float = float
    from lvis import LVIS, LVISEval, LVISResults

    truth, rows = made_up(np.random.default_rng(37))
    figures = {}
    # All predictions, and the twelve best of an image.
    for limit in (300, 12):
        for kind, other in (('bbox', 'segmentation'), ('segm', 'bbox')):
            own = [deepcopy(item) for item in rows]
            for item in own:
                del item[other]
            data = LVIS.__new__(LVIS)
            data.logger = LVIS.__init__.__globals__['logging'].getLogger()
            data.dataset = deepcopy(truth)
            data._create_index()
            run = LVISEval(data, LVISResults(data, own, limit), kind)
            run.params.max_dets = limit
            run.run()
            figures[f'{kind} {limit}'] = {
                name: float(value) for name, value in run.results.items()
            }
    content = {'truth': truth, 'predictions': rows, 'figures': figures}
    torch.save(content, Path(__file__).with_name('lvis_ap.pt'))
    for name, values in figures.items():
        print(name, values)


if __name__ == '__main__':
    main()

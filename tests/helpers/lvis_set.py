"""A tiny LVIS data set: pictures, and files as LVIS has them."""

import numpy as np
from mmengine.fileio import dump
from PIL import Image

CLASSES = ('rare', 'usual', 'absent', 'many')
SIZE = 96


def write_lvis(root, pictures=6):
    """Write ``val2017`` and ``annotations.json``; the file's path."""
    rng = np.random.default_rng(0)
    (root / 'val2017').mkdir(parents=True)
    images, notes = [], []
    for own in range(1, pictures + 1):
        name = f'{own:012}.jpg'
        noise = rng.integers(0, 255, (SIZE, SIZE, 3), np.uint8)
        Image.fromarray(noise).save(root / 'val2017' / name)
        images.append(
            {
                'id': own,
                'width': SIZE,
                'height': SIZE,
                'coco_url': f'http://images.cocodataset.org/val2017/{name}',
                'neg_category_ids': [7],
                'not_exhaustive_category_ids': [9],
            }
        )
        # The first class in one picture of all.
        for category in (9, 9, 5) if own > 1 else (3, 9):
            x, y, width, height = rng.uniform(8, 40, 4).tolist()
            x2, y2 = x + width, y + height
            notes.append(
                {
                    'id': len(notes) + 1,
                    'image_id': own,
                    'category_id': category,
                    'bbox': [x, y, width, height],
                    'segmentation': [[x, y, x2, y, x2, y2, x, y2]],
                    'area': width * height,
                }
            )
    kinds = [
        {'id': own, 'name': name, 'frequency': kind, 'image_count': count}
        for own, name, kind, count in zip(
            (3, 5, 7, 9), CLASSES, 'rccf', (1, 60, 11, 900)
        )
    ]
    content = {'images': images, 'annotations': notes, 'categories': kinds}
    dump(content, root / 'annotations.json')
    return str(root / 'annotations.json')

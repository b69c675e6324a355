"""A tiny LVIS data set: pictures, and files as LVIS has them."""

import numpy as np
from mmengine import Config
from mmengine.fileio import dump
from PIL import Image

import mmext

from .reduce_config import reduce_model

CLASSES = ('rare', 'usual', 'absent', 'many')
COUNTS = (1, 60, 11, 900)
SIZE = 96


def write_lvis(root, pictures=6, split='val'):
    """Write the pictures and the annotations of a split; the file's path."""
    rng = np.random.default_rng(len(split))
    folder = root / f'{split}2017'
    folder.mkdir(parents=True)
    images, notes = [], []
    for own in range(1, pictures + 1):
        name = f'{own:012}.jpg'
        noise = rng.integers(0, 255, (SIZE, SIZE, 3), np.uint8)
        Image.fromarray(noise).save(folder / name)
        images.append(
            {
                'id': own,
                'width': SIZE,
                'height': SIZE,
                'coco_url': 'http://images.cocodataset.org/'
                f'{split}2017/{name}',
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
            (3, 5, 7, 9), CLASSES, 'rccf', COUNTS
        )
    ]
    content = {'images': images, 'annotations': notes, 'categories': kinds}
    path = root / f'annotations/lvis_v1_{split}.json'
    path.parent.mkdir(exist_ok=True)
    dump(content, path)
    return str(path)


def write_config(folder):
    """The LVIS config of R50, its model and its data small; its path."""
    data = folder / 'data'
    write_lvis(data, pictures=7, split='train')
    write_lvis(data)
    cfg = Config.fromfile(
        mmext.config_path('co_dino/co_dino_5scale_r50_8xb2_1x_lvis.py')
    )
    model = reduce_model(cfg.model.to_dict())
    model['num_classes'] = len(CLASSES)
    # No weights are loaded.
    model['backbone'].update(frozen_stages=-1, norm_eval=False)
    model['query_head']['loss_cls'].update(
        class_counts=list(COUNTS), num_sampled=3
    )
    cfg.merge_from_dict({'model': {'_delete_': True, **model}})
    cfg.data_root = str(data)
    cfg.test_pipeline[1].scale = (SIZE, SIZE)
    cfg.train_pipeline[3] = cfg.test_pipeline[1]
    cfg.train_dataloader.dataset.oversample_thr = 0.5
    steps = {'train': cfg.train_pipeline, 'val': cfg.test_pipeline}
    for split in ('train', 'val', 'test'):
        loader = cfg[f'{split}_dataloader']
        loader.update(num_workers=0, persistent_workers=False)
        dataset = loader.dataset.get('dataset', loader.dataset)
        dataset.metainfo = {'classes': CLASSES}
        dataset.pipeline = steps.get(split, cfg.test_pipeline)
    path = folder / 'config.py'
    cfg.dump(str(path))
    return str(path)

"""One set of boxes in several forms: Pascal VOC's, rewritten as others."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

_SPLITS = ('train', 'val')


def voc_objects(root: Path, stem: str) -> tuple[list, tuple[int, int]]:
    """Names and boxes of a picture, from 0 on; and its width and height."""
    tree = ElementTree.parse(root / 'Annotations' / f'{stem}.xml')
    objects = []
    for item in tree.iterfind('object'):
        ends = item.find('bndbox')
        sides = (ends.findtext(s) for s in ('xmin', 'ymin', 'xmax', 'ymax'))
        objects.append(
            (item.findtext('name'), [int(side) - 1 for side in sides])
        )
    size = tree.find('size')
    return objects, (int(size.findtext('width')), int(size.findtext('height')))


def _stems(root: Path, split: str) -> list[str]:
    return (root / f'ImageSets/Main/{split}.txt').read_text().split()


def _link(root: Path, stem: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    os.symlink(root / f'JPEGImages/{stem}.jpg', folder / f'{stem}.jpg')


def _records(root: Path, stems: Sequence[str], categories: dict) -> dict:
    images, notes = [], []
    for number, stem in enumerate(stems, 1):
        objects, (width, height) = voc_objects(root, stem)
        images.append(
            {
                'id': number,
                'file_name': f'{stem}.jpg',
                'width': width,
                'height': height,
            }
        )
        for name, (x1, y1, x2, y2) in objects:
            notes.append(
                {
                    'id': len(notes) + 1,
                    'image_id': number,
                    'category_id': categories[name],
                    'bbox': [x1, y1, x2 - x1, y2 - y1],
                    'area': (x2 - x1) * (y2 - y1),
                    'iscrowd': 0,
                }
            )
    return {'images': images, 'annotations': notes}


def to_coco(root: Path, out: Path, classes: Sequence[str]) -> Path:
    """COCO's layout."""
    numbers = {name: number for number, name in enumerate(classes, 1)}
    kinds = [{'id': i, 'name': name} for name, i in numbers.items()]
    (out / 'annotations').mkdir(parents=True)
    for split in _SPLITS:
        stems = _stems(root, split)
        for stem in stems:
            _link(root, stem, out / f'{split}2017')
        content = _records(root, stems, numbers) | {'categories': kinds}
        path = out / f'annotations/instances_{split}2017.json'
        path.write_text(json.dumps(content))
    return out


def to_roboflow(root: Path, out: Path, classes: Sequence[str]) -> Path:
    """COCO's form as Roboflow writes it: category 0 is that of the others."""
    numbers = {name: number for number, name in enumerate(classes, 1)}
    kinds = [{'id': 0, 'name': 'all', 'supercategory': 'none'}]
    kinds += [
        {'id': i, 'name': name, 'supercategory': 'all'}
        for name, i in numbers.items()
    ]
    for split, folder in zip(_SPLITS, ('train', 'valid')):
        stems = _stems(root, split)
        for stem in stems:
            _link(root, stem, out / folder)
        content = _records(root, stems, numbers) | {'categories': kinds}
        path = out / folder / '_annotations.coco.json'
        path.write_text(json.dumps(content))
    return out


def to_yolo(root: Path, out: Path, classes: Sequence[str]) -> Path:
    """YOLO's layout, with ``../`` before the splits, as Roboflow has it."""
    for split, folder in zip(_SPLITS, ('train', 'valid')):
        (out / folder / 'labels').mkdir(parents=True)
        for stem in _stems(root, split):
            _link(root, stem, out / folder / 'images')
            objects, (width, height) = voc_objects(root, stem)
            lines = [
                f'{classes.index(name)} {(x1 + x2) / 2 / width} '
                f'{(y1 + y2) / 2 / height} {(x2 - x1) / width} '
                f'{(y2 - y1) / height}\n'
                for name, (x1, y1, x2, y2) in objects
            ]
            path = out / folder / 'labels' / f'{stem}.txt'
            path.write_text(''.join(lines))
    names = dict(enumerate(classes))
    (out / 'data.yaml').write_text(
        'train: ../train/images\nval: ../valid/images\n'
        f'test: ../test/images\nnc: {len(classes)}\nnames: {names}\n'
    )
    return out


CONVERTERS = {'coco': to_coco, 'roboflow': to_roboflow, 'yolo': to_yolo}

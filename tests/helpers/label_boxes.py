"""Clean annotation files of boxes, as COCO, Pascal VOC and YOLO have them."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

# One of each class: left, top, width, height, in an image of 48 x 36.
BOXES = ((4, 5, 12, 9), (20, 6, 15, 11), (8, 20, 30, 10))


def coco_records(
    names: Sequence[str], classes: Sequence[str], size: tuple[int, int]
) -> dict:
    """An annotation file of three objects in each image.

    Args:
        names: Of image files.
        classes: As many as there are boxes.
        size: Width and height of all images.
    """
    images, notes = [], []
    for index, name in enumerate(names):
        images.append(
            {
                'id': 100 + index,
                'file_name': name,
                'width': size[0],
                'height': size[1],
            }
        )
        for category, (left, top, wide, high) in enumerate(BOXES, 1):
            left += index
            right, low = left + wide, top + high
            notes.append(
                {
                    'id': 1000 + len(notes),
                    'image_id': 100 + index,
                    'category_id': category,
                    'bbox': [left, top, wide, high],
                    'area': wide * high,
                    'iscrowd': 0,
                    'segmentation': [
                        [left, top, right, top, right, low, left, low]
                    ],
                }
            )
    categories = [
        {'id': number, 'name': name} for number, name in enumerate(classes, 1)
    ]
    return {'images': images, 'annotations': notes, 'categories': categories}


def openmmlab_records(coco: dict) -> dict:
    """The same objects in the format of OpenMMLab."""
    instances: dict[int, list[dict]] = {}
    for note in coco['annotations']:
        left, top, wide, high = note['bbox']
        instances.setdefault(note['image_id'], []).append(
            {
                'bbox': [left, top, left + wide, top + high],
                'bbox_label': note['category_id'] - 1,
                'ignore_flag': 0,
            }
        )
    return {
        'metainfo': {
            'classes': [image['name'] for image in coco['categories']]
        },
        'data_list': [
            {
                'img_path': image['file_name'],
                'width': image['width'],
                'height': image['height'],
                'instances': instances[image['id']],
            }
            for image in coco['images']
        ],
    }


def voc_text(
    name: str, index: int, classes: Sequence[str], size: tuple[int, int]
) -> str:
    """An annotation file of three objects."""
    objects = ''.join(
        f'<object><name>{kind}</name><difficult>0</difficult><bndbox>'
        f'<xmin>{left + index}</xmin><ymin>{top}</ymin>'
        f'<xmax>{left + index + wide}</xmax><ymax>{top + high}</ymax>'
        '</bndbox></object>'
        for kind, (left, top, wide, high) in zip(classes, BOXES)
    )
    return (
        f'<annotation><filename>{name}</filename><size>'
        f'<width>{size[0]}</width><height>{size[1]}</height>'
        f'<depth>3</depth></size>{objects}</annotation>'
    )


def yolo_text(index: int, size: tuple[int, int]) -> str:
    """A label file of three objects."""
    lines = []
    for label, (left, top, wide, high) in enumerate(BOXES):
        x, y = left + index + wide / 2, top + high / 2
        width, height = size
        sides = (x / width, y / height, wide / width, high / height)
        lines.append(f'{label} ' + ' '.join(f'{side!r}' for side in sides))
    return '\n'.join(lines) + '\n'


def edit_json(path: Path, change: Callable[[dict], Any]) -> None:
    """Change what a JSON file says; NaN and Infinity may be written."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def edit_xml(path: Path, change: Callable[[ElementTree.Element], Any]) -> None:
    """Change what an XML file says."""
    tree = ElementTree.parse(path)
    change(tree.getroot())
    tree.write(path)

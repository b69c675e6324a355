"""Sets of boxes in three formats, right or with a fault that all boxes have.

A set is written as COCO, Pascal VOC or YOLO, with grey images. ``WRONG`` has,
for each format, the faults: what is written in place of the right numbers.
"""

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from PIL import Image

from helpers.toy_ranks import load_tool

Box = tuple[float, float, float, float]
# Gives four numbers from x1, y1, x2, y2 and the size of the image.
Writer = Callable[[float, float, float, float, int, int], tuple]
CLASSES = ('Platelets', 'RBC', 'WBC')


@dataclass
class BoxSet:
    """Images of a set: their sizes, and boxes with their labels."""

    images: list[tuple[tuple[int, int], list[tuple[int, Box]]]] = field(
        default_factory=list
    )

    def __len__(self) -> int:
        return sum(len(boxes) for _, boxes in self.images)

    def first(self, number: int) -> 'BoxSet':
        """A set of the first boxes, each image with one."""
        rows = [(size, [box]) for size, boxes in self.images for box in boxes]
        return BoxSet(rows[:number])

    def leaving(self, share: float) -> 'BoxSet':
        """The set with a share of the boxes moved over a border."""
        rng, images = random.Random(7), []
        for size, boxes in self.images:
            moved = []
            for label, box in boxes:
                if rng.random() < share:
                    box = _moved(box, size, rng)
                moved.append((label, box))
            images.append((size, moved))
        return BoxSet(images)


def _moved(box: Box, size: tuple[int, int], rng: random.Random) -> Box:
    """A box of which up to half lies outside, on a side by chance."""
    sides, axis = list(box), rng.randrange(2)
    length = sides[axis + 2] - sides[axis]
    out = max(2, rng.uniform(0.1, 0.5) * length)
    begin = -out if rng.random() < 0.5 else size[axis] - length + out
    sides[axis], sides[axis + 2] = begin, begin + length
    return tuple(sides)


def bccd(root: Path, number: int = 80) -> BoxSet:
    """Blood cells, as the annotation files of Pascal VOC have them."""
    names = (root / 'ImageSets/Main/train.txt').read_text().split()
    images = []
    for name in names[:number]:
        tree = ElementTree.parse(root / f'Annotations/{name}.xml')
        size = [int(tree.find(f'size/{s}').text) for s in ('width', 'height')]
        boxes = []
        for item in tree.iterfind('object'):
            x1, y1, x2, y2 = (int(side.text) for side in item.find('bndbox'))
            # Pixels from 1 on, the last of which is inside.
            box = x1 - 1, y1 - 1, x2, y2
            boxes.append((CLASSES.index(item.find('name').text), box))
        images.append((tuple(size), boxes))
    return BoxSet(images)


def shapes(root: Path) -> BoxSet:
    """Our generated shapes, in images of 120 x 80."""
    argv = ['--out', root, '--num-train', 150, '--num-val', 2]
    argv += ['--image-size', 120, 80, '--min-objects', 3, '--seed', 5]
    load_tool('make_shapes_dataset').main([*map(str, argv)])
    content = json.loads((root / 'annotations/train.json').read_text())
    boxes = {image['id']: [] for image in content['images']}
    for note in content['annotations']:
        x, y, w, h = note['bbox']
        label = (note['category_id'] - 1) % len(CLASSES)
        boxes[note['image_id']].append((label, (x, y, x + w, y + h)))
    return BoxSet([((120, 80), own) for own in boxes.values()])


def _drawn(
    seed: int, sizes: list[tuple[int, int]], draw: Callable, number: int
) -> BoxSet:
    """Objects at random, clipped at the borders of their images."""
    rng, images = random.Random(seed), []
    for index in range(number):
        size = width, height = sizes[index % len(sizes)]
        boxes = []
        for _ in range(rng.randint(4, 12)):
            x, y, w, h = draw(rng)
            x1, x2 = max(x - w / 2, 0) * width, min(x + w / 2, 1) * width
            y1, y2 = max(y - h / 2, 0) * height, min(y + h / 2, 1) * height
            box = round(x1), round(y1), round(x2), round(y2)
            if min(box[2] - box[0], box[3] - box[1]) >= 3:
                boxes.append((rng.randrange(len(CLASSES)), box))
        images.append((size, boxes))
    return BoxSet(images)


def street() -> BoxSet:
    """Upright and wide images, objects of all sizes on their lower part."""

    def draw(rng: random.Random) -> tuple:
        y = rng.uniform(0.05, 1)
        scale = 0.04 + 0.25 * y * rng.random()
        return rng.random(), y, scale, scale * rng.uniform(0.6, 2)

    return _drawn(1, [(640, 360), (360, 640), (960, 540)], draw, 90)


def colonies() -> BoxSet:
    """Round objects of about one size, everywhere in the images."""

    def draw(rng: random.Random) -> tuple:
        scale = rng.uniform(0.08, 0.14)
        return rng.random(), rng.random(), scale, 1.25 * scale

    return _drawn(2, [(500, 400)], draw, 120)


def _fractions(write: Writer) -> Writer:
    def written(x1, y1, x2, y2, width, height):
        a, b, c, d = write(x1, y1, x2, y2, width, height)
        return a / width, b / height, c / width, d / height

    return written


def _corners(x1, y1, x2, y2, *_):
    return x1, y1, x2, y2


def _left_top(x1, y1, x2, y2, *_):
    return x1, y1, x2 - x1, y2 - y1


def _centre(x1, y1, x2, y2, *_):
    return (x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1


def _changed(write: Writer, change: Callable) -> Writer:
    return lambda *args: tuple(change(*write(*args)))


def _swapped(a, b, c, d):
    return b, a, d, c


def _double(*numbers):
    return [2 * number for number in numbers]


def _half(*numbers):
    return [number / 2 for number in numbers]


def _from_one(a, b, c, d):
    return a + 1, b + 1, c, d


RIGHT = {'coco': _left_top, 'voc': _corners, 'yolo': _fractions(_centre)}
# Name of a fault, as a finding begins it -> what writes it.
WRONG: dict[str, dict[str, Writer]] = {
    'coco': {
        'corners (x1, y1, x2, y2)': _corners,
        'centre and size': _centre,
        '(left, top, width, height) in fractions': _fractions(_left_top),
        'corners (x1, y1, x2, y2) in fractions': _fractions(_corners),
        'centre and size (cx, cy, width, height) in f': _fractions(_centre),
        'x and y swapped': _changed(_left_top, _swapped),
        'one-based pixels': _changed(_left_top, _from_one),
        'pixels of an image of double': _changed(_left_top, _double),
        'pixels of an image of half': _changed(_left_top, _half),
    },
    'voc': {
        '(left, top, width, height)': _left_top,
        'centre and size': _centre,
        '(left, top, width, height) in fractions': _fractions(_left_top),
        'corners (x1, y1, x2, y2) in fractions': _fractions(_corners),
        'centre and size (cx, cy, width, height) in f': _fractions(_centre),
        'x and y swapped': _changed(_corners, _swapped),
        'pixels of an image of double': _changed(_corners, _double),
        'pixels of an image of half': _changed(_corners, _half),
    },
    'yolo': {
        'corners (x1, y1, x2, y2) in fractions': _fractions(_corners),
        '(left, top, width, height) in fractions': _fractions(_left_top),
        'centre and size (cx, cy, width, height) in pixels': _centre,
        'corners (x1, y1, x2, y2) in pixels': _corners,
        '(left, top, width, height) in pixels': _left_top,
    },
}


def write(
    boxes: BoxSet,
    form: str,
    root: Path,
    writer: Writer | None = None,
    *,
    offset: int = 0,
) -> dict[str, Path]:
    """Write a set; what the tool is to be called with.

    Args:
        boxes: The set.
        form: ``'coco'``, ``'voc'`` or ``'yolo'``.
        root: Folder to make.
        writer: Gives the numbers of a box, by default the right ones.
        offset: Is added to category ids or labels.
    """
    writer = writer or RIGHT[form]
    folder = root / ('images/train' if form != 'voc' else 'JPEGImages')
    folder.mkdir(parents=True)
    content = {'images': [], 'annotations': [], 'categories': []}
    grey: dict[tuple[int, int], Path] = {}
    for index, (size, own) in enumerate(boxes.images):
        path = folder / f'{index}.jpg'
        if size in grey:
            path.hardlink_to(grey[size])
        else:
            Image.new('RGB', size, (90, 99, 90)).save(path)
            grey[size] = path
        rows = [(label, writer(*box, *size)) for label, box in own]
        if form == 'voc':
            target = root / f'Annotations/{index}.xml'
            text = _voc_text(path.name, size, rows)
        elif form == 'yolo':
            target = root / f'labels/train/{index}.txt'
            text = ''.join(
                f'{label + offset} {" ".join(map(repr, numbers))}\n'
                for label, numbers in rows
            )
        if form != 'coco':
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        image = {'id': index, 'file_name': path.name}
        content['images'].append(image | dict(zip(('width', 'height'), size)))
        for (label, numbers), (_, (x1, y1, x2, y2)) in zip(rows, own):
            content['annotations'].append(
                {
                    'id': 1 + len(content['annotations']),
                    'image_id': index,
                    'category_id': 1 + label + offset,
                    'bbox': list(numbers),
                    'area': (x2 - x1) * (y2 - y1),
                    'iscrowd': 0,
                }
            )
    if form == 'coco':
        for number, name in enumerate(CLASSES, 1):
            content['categories'].append({'id': number, 'name': name})
        (root / 'train.json').write_text(json.dumps(content))
        return {'coco': root / 'train.json', 'images': folder}
    if form == 'yolo':
        text = f'train: images/train\nnames: {[*CLASSES]}\n'
        (root / 'data.yaml').write_text(text)
    return {form: root}


def _voc_text(name: str, size: tuple[int, int], rows: list) -> str:
    objects = ''.join(
        f'<object><name>{CLASSES[label]}</name><bndbox>'
        + ''.join(
            f'<{side}>{number!r}</{side}>'
            for side, number in zip(('xmin', 'ymin', 'xmax', 'ymax'), numbers)
        )
        + '</bndbox></object>'
        for label, numbers in rows
    )
    return (
        f'<annotation><filename>{name}</filename><size><width>{size[0]}'
        f'</width><height>{size[1]}</height><depth>3</depth></size>{objects}'
        '</annotation>'
    )


def lines_of(remedy: str) -> list[str]:
    """The lines that convert, as a remedy says them."""
    return re.findall(r'[\w, ]+ = [^;=]+?(?=, or |; | \(W and|$)', remedy)


def convert(form: str, root: Path, line: str) -> None:
    """Follow a remedy: run its line for each object of a set."""
    code = compile(line.strip(), 'remedy', 'exec')

    def run(**names):
        exec(code, {}, names)
        return names

    if form == 'coco':
        path = root / 'train.json'
        content = json.loads(path.read_text())
        sizes = {image['id']: image for image in content['images']}
        for note in content['annotations']:
            size = sizes[note['image_id']]
            names = dict(zip('xywh', note['bbox']))
            names |= {'W': size['width'], 'H': size['height']}
            names = run(category_id=note['category_id'], **names)
            note['bbox'] = [names[name] for name in 'xywh']
            note['category_id'] = names['category_id']
        path.write_text(json.dumps(content))
    for path in root.glob('Annotations/*.xml'):
        tree = ElementTree.parse(path)
        size = {
            s[0].upper(): int(tree.find(f'size/{s}').text)
            for s in ('width', 'height')
        }
        for box in tree.iter('bndbox'):
            names = run(**{side.tag: float(side.text) for side in box}, **size)
            for side in box:
                side.text = repr(names[side.tag])
        tree.write(path)
    for path in root.glob('labels/train/*.txt'):
        with Image.open(root / f'images/train/{path.stem}.jpg') as image:
            size = dict(zip('WH', image.size))
        text = ''
        for columns in map(str.split, path.read_text().splitlines()):
            names = dict(zip('xywh', map(float, columns[1:])))
            names = run(label=int(columns[0]), **names, **size)
            sides = ' '.join(repr(names[name]) for name in 'xywh')
            text += f'{names["label"]} {sides}\n'
        path.write_text(text)

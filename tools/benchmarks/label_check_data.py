"""What the benchmark of the label check reads: generated files."""

import json
import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

KINDS = ('grey', 'palette', 'noise')
NUM_CLASSES = 19
IGNORED = 255
SMALL = 16
# Files of a folder of small files.
FOLDER = 1000
_SIZE = (640, 480)
_CATEGORIES = 80


def draw_street(
    rng: np.random.Generator, height: int, width: int
) -> np.ndarray:
    """A label map with a road, buildings, sky, and objects with outlines.

    Its values change about as often as in the label maps of CamVid, seven
    times in a thousand pixels at 2048 x 1024.

    Args:
        rng: Random numbers.
        height: In pixels.
        width: In pixels.

    Returns:
        ``(height, width)``, uint8: 0 to 18, and 255 at the bottom.

    Examples:
        >>> drawn = draw_street(np.random.default_rng(0), 64, 128)
        >>> drawn.shape, int(drawn[-1, 0])
        ((64, 128), 255)
    """
    label_map = np.zeros((height, width), np.uint8)
    label_map[: height // 2] = 2
    label_map[: height // 4] = 10
    for _ in range(120):
        corners = int(rng.integers(6, 14))
        centre = rng.uniform((0, height / 5), (width, height))
        angle = np.sort(rng.uniform(0, 2 * np.pi, corners))
        radius = rng.uniform(0.004, 0.04) * width
        radius = radius * rng.uniform(0.7, 1.3, corners)
        shape = np.stack((np.cos(angle), np.sin(angle)), 1) * radius[:, None]
        value = int(rng.integers(NUM_CLASSES))
        cv2.fillPoly(label_map, [(centre + shape).astype(np.int32)], value)
    label_map[height - max(1, height // 12) :] = IGNORED
    return label_map


def write_maps(
    folder: Path,
    kind: str,
    count: int,
    size: tuple[int, int],
    rng: np.random.Generator,
) -> list[str]:
    """Write label maps as PNG files.

    Args:
        folder: Made here.
        kind: Of :data:`KINDS`; noise has all classes, without order.
        count: Files.
        size: Height and width in pixels.
        rng: Random numbers.

    Returns:
        Their paths.
    """
    folder.mkdir()
    paths = []
    for number in range(count):
        if kind == 'noise':
            label_map = rng.integers(0, NUM_CLASSES, size, np.uint8)
        else:
            label_map = draw_street(rng, *size)
        image = Image.fromarray(label_map)
        if kind == 'palette':
            image.putpalette(rng.integers(0, 256, 768).tolist())
        path = folder / f'{number:06}.png'
        image.save(path)
        paths.append(str(path))
    return paths


def _png(pixels: np.ndarray) -> bytes:
    """A small file, written a hundred times faster than by Pillow."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack('>I', zlib.crc32(kind + data))
        return struct.pack('>I', len(data)) + kind + data + check

    height, width = pixels.shape
    rows = np.zeros((height, width + 1), np.uint8)
    rows[:, 1:] = pixels
    head = struct.pack('>IIBBBBB', width, height, 8, 0, 0, 0, 0)
    return (
        b'\x89PNG\r\n\x1a\n'
        + chunk(b'IHDR', head)
        + chunk(b'IDAT', zlib.compress(rows.tobytes(), 1))
        + chunk(b'IEND', b'')
    )


def write_pairs(folder: Path, count: int, rng: np.random.Generator) -> None:
    """Write small label maps and images, no two images alike.

    Args:
        folder: Gets ``masks`` and ``images``, with folders of a thousand
            files each.
        count: Of each.
        rng: Random numbers.
    """
    for number in range(count):
        name = f'{number // FOLDER:05}/{number:08}.png'
        coarse = rng.integers(0, NUM_CLASSES, (2, 2), np.uint8)
        mask = coarse.repeat(SMALL // 2, 0).repeat(SMALL // 2, 1)
        image = rng.integers(0, 256, (SMALL, SMALL), np.uint8)
        for kind, pixels in (('masks', mask), ('images', image)):
            path = folder / kind / name
            if number % FOLDER == 0:
                path.parent.mkdir(parents=True)
            path.write_bytes(_png(pixels))


def write_coco(path: Path, count: int, rng: np.random.Generator) -> None:
    """Write annotations with polygons, all in order.

    Args:
        path: Of the file.
        count: Annotations; seven for each image, on average.
        rng: Random numbers.
    """
    width, height = _SIZE
    num_images = count // 7 + 1
    points = rng.integers(6, 36, count)
    images = rng.integers(0, num_images, count).tolist()
    kinds = rng.integers(0, _CATEGORIES, count).tolist()
    annotations = []
    for number in range(count):
        angle = np.linspace(0, 2 * np.pi, points[number], endpoint=False)
        radius = rng.uniform(5, 50) * rng.uniform(0.6, 1, len(angle))
        x = (rng.uniform(60, width - 60) + radius * np.cos(angle)).round(2)
        y = (rng.uniform(60, height - 60) + radius * np.sin(angle)).round(2)
        left, top = x.min(), y.min()
        sides = left, top, x.max() - left, y.max() - top
        area = abs(x @ np.roll(y, 1) - y @ np.roll(x, 1)) / 2
        annotations.append(
            {
                'segmentation': [np.stack((x, y), 1).reshape(-1).tolist()],
                'area': round(float(area), 4),
                'iscrowd': 0,
                'image_id': images[number],
                'bbox': [round(float(side), 2) for side in sides],
                'category_id': kinds[number],
                'id': number + 1,
            }
        )
    content = {
        'info': {'description': 'generated'},
        'images': [
            {
                'file_name': f'{number:012}.jpg',
                'height': height,
                'width': width,
                'id': number,
            }
            for number in range(num_images)
        ],
        'annotations': annotations,
        'categories': [
            {'id': number, 'name': f'class {number}'}
            for number in range(_CATEGORIES)
        ],
    }
    path.write_text(json.dumps(content))

"""Public data sets as they are unpacked, a few samples of each, all right.

Folders, names and formats are those that the set's own site and the hosts'
configs have, so that the hosts' configs read them by ``data_root`` alone.
Nothing is wrong with any of them.
"""

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mmdet
import mmseg
import numpy as np
from PIL import Image
from pycocotools import mask as coco_masks

from helpers.label_sets import noise
from helpers.toy_ranks import load_tool

SIZE = (64, 48)
RIGHT: dict[str, Callable[[Path], 'Right']] = {}


@dataclass
class Right:
    """A right set, and the ways in which it is checked.

    Attributes:
        configs: Of the hosts; each is a way.
        options: What to put over them.
        settings: Of the tool, besides the config.
        bare: Settings of the tool without a config; each is a way.
    """

    configs: Sequence[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    bare: Sequence[Mapping[str, Any]] = ()


def right_set(make: Callable[[Path], Right]) -> Callable[[Path], Right]:
    """Enter a function that writes a right set into ``RIGHT``."""
    RIGHT[make.__name__] = make
    return make


def check(
    root: Path, config: str | Path = '', options: Mapping = {}, **settings
) -> tuple[int, dict]:
    """Run the tool; its exit code and what its report says.

    Args:
        root: Where its files go.
        config: Of a host, such as ``'mmdet::htc/...'``, or a file; empty for
            a check without a config.
        options: Settings to put over the config.
        **settings: Options of the tool.
    """
    argv = []
    if config:
        argv.append(str(host_path(config)))
    if options:
        argv.append('--cfg-options')
        argv += [f'{key}={value!r}' for key, value in options.items()]
    out = root / 'right_report.json'
    fixed = {
        'workers': 1,
        'store': root / 'right_facts.sqlite',
        'json': out,
    }
    for name, value in {**fixed, **settings}.items():
        values = value if isinstance(value, list) else [value]
        values = [] if value is True else values
        argv += [f'--{name.replace("_", "-")}', *map(str, values)]
    code = load_tool('validate_labels').main(argv)
    return code, json.loads(out.read_bytes())


def host_path(config: str | Path) -> Path:
    """Path of a config; of a host by ``'mmseg::folder/name.py'``."""
    host, _, name = str(config).rpartition('::')
    if not host:
        return Path(config)
    package = {'mmdet': mmdet, 'mmseg': mmseg}[host]
    return Path(package.__file__).parent / '.mim/configs' / name


def picture(path: Path, size: tuple[int, int] = SIZE) -> None:
    """Write an image that is like no other of its data set."""
    path.parent.mkdir(parents=True, exist_ok=True)
    seed = zlib.crc32('/'.join(path.parts[-3:]).encode())
    noise([seed], *size[::-1]).save(path)


def label_map(
    path: Path,
    values: Sequence[int],
    dtype: type = np.uint8,
    palette: bool = False,
    size: tuple[int, int] = SIZE,
) -> None:
    """Write a label map: a column for each value."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = np.linspace(0, len(values), size[0], endpoint=False).astype(int)
    pixels = np.array(values)[columns][None].repeat(size[1], 0)
    image = Image.fromarray(pixels.astype(dtype))
    if palette:
        image.putpalette([0, 9, 7] * 256)
    image.save(path)


def categories_of(names: Sequence[str], **more: Sequence) -> list[dict]:
    """Categories with ids that have gaps, as those of COCO."""
    return [
        {
            'id': 1 + i + i // 11,
            'name': name,
            **{key: values[i] for key, values in more.items()},
        }
        for i, name in enumerate(names)
    ]


def _polygon(box: Sequence[float]) -> list[list[float]]:
    x, y, w, h = box
    return [[x, y, x + w, y, x + w, y + h, x, y + h]]


def _bitmap(box: Sequence[float]) -> np.ndarray:
    x, y, w, h = map(int, box)
    bitmap = np.zeros(SIZE[::-1], np.uint8)
    bitmap[y : y + h, x : x + w] = 1
    return bitmap


def plain_rle(box: Sequence[float]) -> dict:
    """Run lengths that are not compressed, as those of COCO's crowds."""
    flat = _bitmap(box).T.reshape(-1)
    ends = np.flatnonzero(np.diff(flat)) + 1
    counts = np.diff([0, *ends.tolist(), flat.size]).tolist()
    return {'size': list(SIZE[::-1]), 'counts': counts}


def packed_rle(box: Sequence[float]) -> dict:
    """Run lengths as pycocotools packs them."""
    rle = coco_masks.encode(np.asfortranarray(_bitmap(box)))
    return {'size': list(rle['size']), 'counts': rle['counts'].decode()}


def coco_file(
    path: Path,
    names: Sequence[str],
    kinds: Sequence[dict],
    *,
    folder: Path | None = None,
    objects: int = 3,
    shape: Callable | None = _polygon,
    of_image: Callable[[str], dict] = lambda name: {'file_name': name},
    **more: Any,
) -> dict:
    """Write an annotation file in COCO's format, and its images.

    Args:
        path: Of the file.
        names: Of the images.
        kinds: Categories; objects have the first ones.
        folder: Of the images; None to write none.
        objects: Of each image.
        shape: Gives the segmentation of a box; None for none.
        of_image: Gives what the file says of an image besides its size.
        **more: Keys of each annotation.
    """
    images, notes = [], []
    for number, name in enumerate(names):
        if folder is not None:
            picture(folder / name)
        images.append(
            {
                'id': 391895 + number,
                'width': SIZE[0],
                'height': SIZE[1],
                'license': 3,
                'date_captured': '2013-11-14 11:18:45',
                **of_image(name),
            }
        )
        for index in range(objects):
            box = [3.0 + 17 * index, 4.0 + number, 15.0, 20.0]
            note = {
                'id': 1768 + len(notes),
                'image_id': 391895 + number,
                'category_id': kinds[index]['id'],
                'bbox': box,
                'area': 300.0,
                'iscrowd': 0,
                **more,
            }
            if shape is not None:
                note['segmentation'] = shape(box)
            notes.append(note)
    content = {
        'info': {'year': 2017},
        'licenses': [],
        'images': images,
        'annotations': notes,
        'categories': list(kinds),
    }
    write_json(path, content)
    return content


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file in a folder that may have to be made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def numbers(first: int, count: int, end: str = '.jpg') -> list[str]:
    """Names of images as those of COCO."""
    return [f'{first + i:012d}{end}' for i in range(count)]

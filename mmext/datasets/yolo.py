"""Pictures with labels in YOLO's form."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from mmdet.datasets.base_det_dataset import BaseDetDataset
from PIL import Image

from ..registry import DATASETS
from ..utils.files import open_regular
from .box_limits import MIN_SIZE, is_finite
from .yolo_labels import read_yolo_labels, yolo_label_path, yolo_pictures

_EXIF_ORIENTATION = 0x0112
_QUARTER_TURNS = (5, 6, 7, 8)
_MAX_LISTED = 5


@DATASETS.register_module()
class YOLODataset(BaseDetDataset):
    """Pictures with a label file each, as :mod:`~.yolo_labels` has them.

    The number of a class is its index in ``metainfo['classes']``. A picture
    without a label file has no objects. A box that is narrower or lower than
    a pixel is ignored (``ignore_flag``), as ``mmdet.XMLDataset`` does with
    ``bbox_min_size=1``. Fractions are of the picture as EXIF turns it.

    Args:
        ann_file: Folder of pictures, or a text file with a path a line, see
            :func:`~mmext.datasets.yolo_pictures`; relative to ``data_root``.
        data_root: What the paths of such a file are relative to, too.
        metainfo: ``dict(classes=names)``, all those of ``data.yaml``.
        filter_cfg: ``filter_empty_gt`` and ``min_size`` leave pictures out,
            unless ``test_mode`` is set: those without objects, and those
            with a side below that many pixels.
        kpt_shape: That of ``data.yaml`` if lines have key points behind the
            box, such as ``(17, 3)``; they are not used.
        **kwargs: As of mmdet's ``BaseDetDataset``.

    Raises:
        FileNotFoundError: If ``ann_file`` or a picture is missing.
        ValueError: If there is no picture, or a label file has a line that
            cannot be read, coordinates that are no fractions of the picture,
            or a class without a name. All files are read first, and the
            first five problems are named with their lines.
    """

    def __init__(
        self, *args: Any, kpt_shape: Sequence[int] = (), **kwargs: Any
    ) -> None:
        self.kpt_shape = tuple(kpt_shape)
        super().__init__(*args, **kwargs)

    def list_files(self) -> list[tuple[str, str]]:
        """Path of each picture and of its label file, which may be missing."""
        folder = self.data_prefix.get('img_path') or self.data_root or ''
        pictures = yolo_pictures(self.ann_file, folder)
        return [(path, yolo_label_path(path)) for path in pictures]

    def load_data_list(self) -> list[dict]:
        """Read all label files; see the class for errors."""
        files = self.list_files()
        if not files:
            raise ValueError(
                f'ann_file must have pictures, got none in {self.ann_file!r}'
            )
        problems: list[str] = []
        data_list = [
            self._read(number, picture, labels, problems)
            for number, (picture, labels) in enumerate(files)
        ]
        if problems:
            more = len(problems) - _MAX_LISTED
            raise ValueError(
                'label files must have lines of a class and fractions of the '
                f'picture, got {len(problems)} others:\n  '
                + '\n  '.join(problems[:_MAX_LISTED])
                + (f'\n  and {more} more' if more > 0 else '')
                + '\ntools/validate_labels.py CONFIG lists all of them'
            )
        return data_list

    def _read(
        self, number: int, picture: str, labels: str, problems: list[str]
    ) -> dict[str, Any]:
        """What is known of a picture; adds what is wrong."""
        width, height = _size(picture)
        boxes, wrong = read_yolo_labels(_text(labels), self.kpt_shape)
        classes = self.metainfo.get('classes') or ()
        problems += [f'{labels}:{item.line}: {item.message}' for item in wrong]
        named = {item.line for item in wrong}
        instances = []
        for line, label, box in boxes:
            if label >= len(classes):
                problems.append(
                    f'{labels}:{line}: the class must be below '
                    f'{len(classes)}, the number of names, got {label}'
                )
            elif not is_finite(box):
                if line not in named:
                    problems.append(f'{labels}:{line}: a side is not finite')
            else:
                # float32 is what is trained with. Whole pixels become whole
                # again, where their fractions were written in full.
                pixels = np.multiply(box, (width, height, width, height))
                x1, y1, x2, y2 = sides = np.float32(pixels).tolist()
                instances.append(
                    {
                        'bbox': sides,
                        'bbox_label': label,
                        'ignore_flag': int(min(x2 - x1, y2 - y1) < MIN_SIZE),
                    }
                )
        return {
            'img_id': number,
            'img_path': picture,
            'width': width,
            'height': height,
            'instances': instances,
        }

    def filter_data(self) -> list[dict]:
        """Leave pictures out, as ``mmdet.XMLDataset`` does."""
        wanted = {} if self.test_mode else self.filter_cfg or {}
        least = wanted.get('min_size', 0)
        return [
            info
            for info in self.data_list
            if min(info['width'], info['height']) >= least
            and (info['instances'] or not wanted.get('filter_empty_gt'))
        ]


def _size(picture: str) -> tuple[int, int]:
    """Width and height as loaders turn it; no pixel is decoded."""
    with open_regular(picture) as file, Image.open(file) as image:
        width, height = image.size
        turned = image.getexif().get(_EXIF_ORIENTATION) in _QUARTER_TURNS
    return (height, width) if turned else (width, height)


def _text(labels: str) -> str:
    """What a label file holds; nothing where there is none."""
    try:
        with open_regular(labels, 'utf-8') as file:
            return file.read()
    except FileNotFoundError:
        return ''
    except UnicodeDecodeError as error:
        raise ValueError(f'{labels} must be text: {error}') from error

"""YOLO's labels: where their files are, and what the lines in them say.

A picture has a text file of its own, with one object a line: the number of
its class, then the centre, the width and the height of its box, or the
corners of its outline, as fractions of the picture. Lines of poses have key
points behind the box, which are not used. ``data.yaml`` names the classes and
the splits. The layout is that of https://docs.ultralytics.com/datasets/detect,
which Roboflow and others write, too.
"""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from ..utils.files import load_yaml, open_regular

PICTURE_SUFFIXES = (
    *('.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp'),
)
# Programs that write labels round, so that a box at the border may end behind
# it by so much. Pixels in place of fractions are far beyond.
_TOLERANCE = 0.01
_NUM_OF_BOX = 5  # columns
_MIN_OF_OUTLINE = 7
_NAN_BOX = (math.nan,) * 4
# Numbers beyond it are not kept: facts of the label check hold 64 bits.
_MAX_LABEL = (1 << 31) - 1
_SPLITS = {'train': ('train',), 'val': ('val', 'valid'), 'test': ('test',)}


class YoloBox(NamedTuple):
    """An object of a label file.

    Attributes:
        line: Of the file, counted from 1.
        label: Number of its class, at least 0.
        box: ``x1, y1, x2, y2`` as fractions of the picture's width and
            height, or whatever else the numbers of the line are; around the
            corners where the line has an outline.
    """

    line: int
    label: int
    box: tuple[float, float, float, float]


class YoloProblem(NamedTuple):
    """What is wrong with a line of a label file.

    Attributes:
        line: Of the file, counted from 1.
        kind: ``'form'`` for a line that cannot be read, ``'range'`` for
            coordinates that are no fractions.
        message: What is wrong.
    """

    line: int
    kind: str
    message: str


class YoloData(NamedTuple):
    """What ``data.yaml`` says.

    Attributes:
        root: Folder that holds the pictures.
        names: Of the classes, by their numbers.
        splits: Of ``'train'``, ``'val'`` and ``'test'`` those that are
            there, each with its folders of pictures or lists of them.
        kpt_shape: Key points of an object, and numbers of each, 2 or 3;
            empty without key points.
    """

    root: Path
    names: tuple[str, ...]
    splits: dict[str, tuple[Path, ...]]
    kpt_shape: tuple[int, ...] = ()


def read_yolo_labels(
    text: str, kpt_shape: Sequence[int] = ()
) -> tuple[list[YoloBox], list[YoloProblem]]:
    """Read a label file; nothing is raised for wrong lines.

    Args:
        text: What the file holds. An empty line says nothing.
        kpt_shape: Of the key points that each line has behind its box, see
            :class:`YoloData`; empty for lines of boxes or outlines.

    Returns:
        The objects, and what is wrong. A line with a problem of the kind
        ``'form'`` gives no object.

    Examples:
        >>> read_yolo_labels('2 0.5 0.5 0.25 0.5')[0][0].box
        (0.375, 0.25, 0.625, 0.75)
    """
    boxes, problems = [], []
    for number, line in enumerate(text.splitlines(), 1):
        columns = line.split()
        if not columns:
            continue
        try:
            label, values = _numbers(columns, kpt_shape)
        except ValueError as error:
            problems.append(YoloProblem(number, 'form', str(error)))
            continue
        outside = [
            value
            for value in values
            if not -_TOLERANCE <= value <= 1 + _TOLERANCE
            and math.isfinite(value)
        ]
        boxes.append(YoloBox(number, label, _box(values)))
        if outside:
            message = (
                'coordinates must be fractions of the picture, in [0, 1], '
                f'got {outside[0]:g}'
            )
            problems.append(YoloProblem(number, 'range', message))
    return boxes, problems


def _numbers(
    columns: Sequence[str], kpt_shape: Sequence[int]
) -> tuple[int, list[float]]:
    """Class and coordinates of a line; ValueError says what is wrong."""
    count = len(columns)
    if kpt_shape:
        wanted = _NUM_OF_BOX + math.prod(kpt_shape)
        if count != wanted:
            raise ValueError(
                f'a line must have {wanted} columns (class, box, and key '
                f'points of kpt_shape {list(kpt_shape)}), got {count} columns'
            )
    elif count != _NUM_OF_BOX and (count < _MIN_OF_OUTLINE or count % 2 == 0):
        raise ValueError(
            'a line must have 5 columns (class, x and y of the centre, width, '
            'height), or a class and the corners of an outline, at least 3, '
            f'got {count} columns'
        )
    numbers = []
    for column in columns:
        try:
            numbers.append(float(column))
        except ValueError:
            raise ValueError(
                f'a column must be a number, got {column!r}'
            ) from None
    label, *values = numbers
    if not 0 <= label <= _MAX_LABEL or not label.is_integer():
        raise ValueError(
            f'the class must be a whole number from 0 on, got {columns[0]!r}'
        )
    return int(label), values[: _NUM_OF_BOX - 1] if kpt_shape else values


def _box(values: Sequence[float]) -> tuple[float, float, float, float]:
    """The box of a line, or the one around its outline."""
    if len(values) == _NUM_OF_BOX - 1:
        x, y, width, height = values
        return x - width / 2, y - height / 2, x + width / 2, y + height / 2
    if not all(map(math.isfinite, values)):
        return _NAN_BOX
    xs, ys = values[::2], values[1::2]
    return min(xs), min(ys), max(xs), max(ys)


def yolo_label_path(picture: str) -> str:
    """Path of the label file of a picture.

    The last folder ``images`` of the path is ``labels`` there; without one,
    the file lies beside the picture.

    Examples:
        >>> yolo_label_path('data/images/train/a.jpg')
        'data/labels/train/a.txt'
        >>> yolo_label_path('data/a.b.png')
        'data/a.b.txt'
    """
    folder, name = os.path.split(picture)
    parts = folder.split(os.sep)
    if 'images' in parts:
        parts[len(parts) - 1 - parts[::-1].index('images')] = 'labels'
    return os.path.join(os.sep.join(parts), f'{os.path.splitext(name)[0]}.txt')


def yolo_pictures(source: str, folder: str = '') -> list[str]:
    """Paths of the pictures of a split.

    Args:
        source: Folder of pictures, with all folders in it; or a text file
            with one path a line. Such a path is relative to the text file
            where it starts with ``./``, else to ``folder``; Darknet's
            ``data/`` in front is taken away where there is no such file.
        folder: Of the paths of a text file.

    Returns:
        Of a folder in the order of names, of a text file in that of its
        lines.

    Raises:
        FileNotFoundError: If there is neither.
    """
    if os.path.isdir(source):
        pictures = []
        for parent, folders, names in os.walk(source):
            # In this order os.walk goes on.
            folders.sort()
            pictures += [
                os.path.join(parent, name)
                for name in sorted(names)
                if name.lower().endswith(PICTURE_SUFFIXES)
            ]
        return pictures
    if not os.path.isfile(source):
        raise FileNotFoundError(
            'the pictures of a split must be a folder or a text file with '
            f'their paths, got {source!r}'
        )
    with open_regular(source, 'utf-8') as file:
        lines = file.read().splitlines()
    parent = os.path.dirname(source)
    pictures = []
    for line in filter(None, map(str.strip, lines)):
        picture = os.path.join(folder, line)
        if line.startswith('./'):
            picture = os.path.join(parent, line[2:])
        elif line.startswith('data/') and not os.path.exists(picture):
            picture = os.path.join(folder, line[len('data/') :])
        pictures.append(picture)
    return pictures


def find_yolo_data(path: str | Path, classes: Sequence[str] = ()) -> YoloData:
    """Find the splits and the classes of a set.

    Args:
        path: ``data.yaml``, or a folder: with one YAML file that has
            ``names``, or with ``images`` and ``labels``, which may be in
            ``train`` and ``val`` or have such folders in them, or ``train``
            and ``val`` may be lists, ``train.txt``; or Darknet's, with
            ``obj.names`` and ``train.txt``, labels beside pictures.
        classes: Names in the order of labels; empty for those of the YAML
            file, or of ``classes.txt``, ``labels/classes.txt`` or
            ``*.names``, a line each.

    Returns:
        The set; without any split, all pictures are ``'train'``.

    In a YAML file, splits are relative to its ``path``, and without one to
    its folder. Where a split starts with ``../`` and is not there, it is
    looked for without, as Roboflow's files need it. A file that names no
    split has those of the folders beside it.

    Raises:
        FileNotFoundError: If there is no such file or folder, or no pictures
            where a YAML file has those of ``train`` or ``val``. Those of
            ``test`` may be missing, as sets are often shared without.
        ValueError: If a folder is no such set or has several YAML files, if
            the file is no YAML, or if names are missing or others than
            ``nc`` says, or if ``kpt_shape`` is wrong.
    """
    path = Path(path)
    if path.is_dir():
        files = [
            file
            for file in sorted(path.glob('*.y*ml'))
            if 'names' in _read_yaml(file)
        ]
        if len(files) > 1:
            raise ValueError(
                f'{path} must have one YAML file with names, got '
                f'{[file.name for file in files]}; name the file instead'
            )
        if not files:
            return _bare_data(path, tuple(classes))
        path = files[0]
    data = _read_data_yaml(path)
    return data._replace(names=tuple(classes)) if classes else data


def _bare_splits(root: Path) -> dict[str, tuple[Path, ...]]:
    """Splits by the names of folders and lists."""
    splits = {}
    for split, names in _SPLITS.items():
        for name in names:
            paths = root / 'images' / name, root / name / 'images'
            for path in (*paths, root / f'{name}.txt'):
                if path.exists():
                    splits.setdefault(split, (path,))
    if not splits and (root / 'images').is_dir():
        splits['train'] = (root / 'images',)
    return splits


def _bare_data(root: Path, classes: tuple[str, ...]) -> YoloData:
    """A folder without a YAML file."""
    splits = _bare_splits(root)
    darknet = [file.name for file in root.glob('*.names')]
    if not (darknet or any(root.glob('**/labels'))) or not splits:
        raise ValueError(
            f'{root} must be a set in the layout of YOLO, with data.yaml, '
            'with the folders images and labels, or with *.names and '
            'train.txt of Darknet, got '
            f'{sorted(entry.name for entry in root.iterdir())[:10]}'
        )
    for name in ('classes.txt', 'labels/classes.txt', *darknet):
        file = root / name
        if not classes and file.is_file():
            with open_regular(file, 'utf-8') as lines:
                classes = tuple(filter(None, map(str.strip, lines)))
    if not classes:
        raise ValueError(
            f'the classes of {root} must have names, got neither data.yaml '
            'nor classes.txt; give them with --classes, in the order of '
            'their numbers'
        )
    return YoloData(root, classes, splits)


def _read_yaml(path: Path) -> Mapping:
    try:
        with open_regular(path) as file:
            content = load_yaml(file.read())
    except (yaml.YAMLError, ValueError) as error:
        text = ' '.join(str(error).split())
        raise ValueError(f'{path} must be YAML: {text}') from error
    return content if isinstance(content, Mapping) else {}


def _read_data_yaml(path: Path) -> YoloData:
    content = _read_yaml(path)
    root = Path(path.parent, str(content.get('path') or ''))
    if not root.is_dir():
        root = path.parent
    splits = {}
    for split, keys in _SPLITS.items():
        given = next((content[key] for key in keys if content.get(key)), None)
        if given is None:
            continue
        parts = given if isinstance(given, list) else [given]
        paths = []
        for part in map(str, parts):
            choices = [root / part, path.parent / part]
            if part.startswith('../'):
                choices.append(path.parent / part[3:])
            exist = [choice for choice in choices if choice.exists()]
            paths.append([*exist, choices[0]][0])
        missing = [str(part) for part in paths if not part.exists()]
        if not missing:
            splits[split] = tuple(paths)
        elif split != 'test':
            raise FileNotFoundError(
                f'{split} of {path} must lead to pictures, got {given!r}, '
                f'and there is no {missing[0]}; correct it, or its key path'
            )
    names = _names(path, content)
    match content.get('kpt_shape', []):
        case [] | [int(), 2 | 3] as kpt_shape:
            return YoloData(
                root, names, splits or _bare_splits(root), tuple(kpt_shape)
            )
        case wrong:
            raise ValueError(
                f'kpt_shape of {path} must be the number of key points, then '
                f'2 or 3, such as [17, 3], got {wrong!r}'
            )


def _names(path: Path, content: Mapping) -> tuple[str, ...]:
    names = content.get('names')
    if isinstance(names, Mapping):
        if sorted(names, key=str) != sorted(range(len(names)), key=str):
            raise ValueError(
                f'names of {path} must be numbered from 0 on, got '
                f'{sorted(names, key=str)}'
            )
        names = [names[number] for number in range(len(names))]
    if not isinstance(names, list) or not names:
        raise ValueError(
            f'names of {path} must be the names of the classes, got {names!r}'
        )
    count = content.get('nc', len(names))
    if count != len(names):
        raise ValueError(
            f'nc of {path} must be the number of names, {len(names)}, got '
            f'{count!r}'
        )
    return tuple(map(str, names))

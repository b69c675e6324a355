"""Pictures and masks: in folders beside each other, or in the same."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

import numpy as np
from PIL import Image

from ...checks.labels.sources import read_voc_list
from ...datasets import PICTURE_SUFFIXES
from .data_splits import (
    SPLITS,
    DataFolder,
    DataSplit,
    Tree,
    by_split,
    split_of,
)

_MAX_MASKS = 500
_MASK_END, _CITY_END = '_mask', '_leftImg8bit'
_LISTS = 'ImageSets/Segmentation'
# Files that name the classes of masks, and the line of a number.
_NAMES = {
    'classes.txt': '(.+)',
    'labelmap.txt': '([^:]+):.*',
    'label_colors.txt': r'\d+\s+\d+\s+\d+\s+(.+)',
    '_classes.csv': r'{}\s*,\s*(.+)',
}
_HEAD = re.compile('# |Pixel Value')
# Formats of Datumaro that have colours by such files.
_COLOURED = {'labelmap.txt': 'voc_segmentation', 'label_colors.txt': 'camvid'}
_MASK_WORDS = re.compile('mask|annot|label|segm|^ann|^seg|^gt')


def find_masks(
    root: Path, tree: Tree, classes: tuple[str, ...], ignore_index: int
) -> DataFolder | None:
    """Pictures and masks whose names begin alike; None without any.

    Args:
        root: The folder.
        tree: What it holds.
        classes: Names in the order of labels; empty for those of the data.
        ignore_index: Value that is of no class, beside 255.

    Raises:
        ValueError: If what is found cannot be trained on as it is.
    """
    pairs = _mask_folders(tree)
    if not pairs:
        _refuse_prefixes(root, tree)
        return None
    splits = {
        split: _mask_split(root, tree, own)
        for split, own in by_split(pairs, 'the folders of masks', root).items()
    }
    lists = {
        split_of(name) or 'train': f'{_LISTS}/{name}'
        for name in tree.get(_LISTS, ())
        if name in ('default.txt', *(f'{split}.txt' for split in SPLITS))
    }
    if len(pairs) == 1 and 'train' in lists:
        own = splits['train'].dataset
        for split in sorted(lists, key=SPLITS.index):
            names = map(str.strip, read_voc_list(root / lists[split]))
            dataset = {**own, 'ann_file': lists[split]}
            splits[split] = DataSplit([*filter(None, names)], dataset)
    kind = {'type': 'mmseg.BaseSegDataset'}
    data = DataFolder('masks', root, classes, splits, kind)
    data.classes = _mask_classes(data, {ignore_index, 255})
    return data


def _is_of_masks(folder: str, objects: bool = True) -> bool:
    """By its name; those of VOC's objects lie beside those of classes."""
    words = re.findall('[a-z]+', folder.lower())
    if not objects and 'segmentationobject' in words:
        return False
    return any(map(_MASK_WORDS.search, words))


def _class_masks(tree: Tree) -> list[str]:
    """Folders of masks of classes."""
    return [folder for folder in tree if _is_of_masks(folder, objects=False)]


def _pictures(tree: Tree, folder: str) -> dict[str, str]:
    """Suffix of each picture of a folder, by its name without it."""
    parts = map(os.path.splitext, tree[folder])
    return {n: end for n, end in parts if end.lower() in PICTURE_SUFFIXES}


def _mask_folders(tree: Tree) -> list[tuple[str, str]]:
    """Folders of pictures and of their masks, which may be the same."""
    pictures = {folder: {*_pictures(tree, folder)} for folder in tree}
    pairs = [
        (folder, folder)
        for folder, names in pictures.items()
        if any(f'{name}{_MASK_END}' in names for name in names)
    ]
    for masks in [] if pairs else _class_masks(tree):
        fitting = []
        for folder, names in pictures.items():
            alike = split_of(folder) == split_of(masks)
            if alike and not _is_of_masks(folder):
                own, end = _ends(names, pictures[masks])
                stems = {name.removesuffix(own) + end for name in names}
                same = os.path.basename(folder) == os.path.basename(masks)
                fitting.append((len(stems & pictures[masks]), same, folder))
        number, _, images = max(fitting, default=(0, False, ''))
        if number:
            pairs.append((images, masks))
    return pairs


def _ends(images: set[str], masks: set[str]) -> tuple[str, str]:
    """What names of images and of masks have behind what they share."""
    own = ''
    if images and all(name.endswith(_CITY_END) for name in images):
        own = _CITY_END
    for name in sorted(images):
        name = name.removesuffix(own)
        ends = [m[len(name) :] for m in masks if m.startswith(name)]
        if ends:
            # Cityscapes has masks of several kinds.
            return own, min(ends, key=lambda e: ('TrainIds' not in e, len(e)))
    return own, ''


def _refuse_prefixes(root: Path, tree: Tree) -> None:
    """Raise if names of images and masks differ in how they begin."""
    parts = {
        folder: {re.sub(r'^\D+', '', n): n for n in _pictures(tree, folder)}
        for folder in tree
    }
    for masks in _class_masks(tree):
        for images in tree:
            tail = max(parts[masks].keys() & parts[images], default='')
            alike = split_of(images) == split_of(masks)
            if tail and alike and not _is_of_masks(images):
                one, other = parts[masks][tail], parts[images][tail]
                old, new = one.removesuffix(tail), other.removesuffix(tail)
                folder = root / masks
                raise ValueError(
                    f'masks must have the names of their images, got {one} in '
                    f'{folder} for {other} in {root / images}; rename them: '
                    f'cd {quote(str(folder))} && for f in {old}*; do mv "$f" '
                    f'"{new}${{f#{old}}}"; done'
                )


def _mask_split(
    root: Path, tree: Tree, pairs: Sequence[tuple[str, str]]
) -> DataSplit:
    """The samples of folders; of several, those that are alike in two."""
    common = set(pairs)
    while len(common) > 1:
        if any(i.split('/')[-1] != m.split('/')[-1] for i, m in common):
            raise ValueError(
                f'a split must have one folder of masks, got {sorted(common)} '
                f'in {root}; move the others out of DATA'
            )
        common = {(os.path.dirname(i), os.path.dirname(m)) for i, m in common}
    ((images, masks),) = common
    names: list[str] = []
    suffixes: tuple[set[str], set[str]] = set(), set()
    for one, other in pairs:
        own, partners = _pictures(tree, one), _pictures(tree, other)
        ends = '', _MASK_END
        if one == other:
            own = {n: s for n, s in own.items() if not n.endswith(_MASK_END)}
        else:
            ends = _ends({*own}, {*partners})
        below = f'{one}/'[len(images) + bool(images) :]
        for stem in sorted(own):
            name = stem.removesuffix(ends[0])
            names.append(f'{below}{name}')
            suffixes[0].add(ends[0] + own[stem])
            if name + ends[1] in partners:
                suffixes[1].add(ends[1] + partners[name + ends[1]])
    for folder, kinds in zip((images, masks), suffixes):
        if len(kinds) > 1:
            raise ValueError(
                f'files of {folder} must have one suffix, as '
                f'mmseg.BaseSegDataset reads no others, got {sorted(kinds)}'
            )
    (image_end,), (mask_end,) = suffixes
    if re.match('_gt(Fine|Coarse)_(?!labelTrainIds)', mask_end):
        raise ValueError(
            f'masks in {root / masks} must be *_labelTrainIds.png, with the '
            f'numbers that are trained, got none beside *{mask_end}; make '
            'them: pip install cityscapesscripts && CITYSCAPES_DATASET='
            f'{quote(str(root))} csCreateTrainIdLabelImgs'
        )
    # A folder is read with all folders in it.
    seen = sum(
        name.endswith(image_end)
        for folder, files in tree.items()
        if not images or f'{folder}/'.startswith(f'{images}/')
        for name in files
    )
    dataset = {
        'data_prefix': {'img_path': images, 'seg_map_path': masks},
        'img_suffix': image_end,
        'seg_map_suffix': mask_end,
    }
    return DataSplit(names, dataset, whole=seen == len(names))


def _mask_classes(data: DataFolder, no_class: set[int]) -> tuple[str, ...]:
    """Names that are given or in a file, or numbers of values in masks."""
    train = data.splits['train'].dataset
    folder = data.root / train['data_prefix']['seg_map_path']
    names = data.classes or _class_names(data, folder)
    values: set[int] = set()
    for name in data.splits['train'].names[:_MAX_MASKS]:
        path = folder / f'{name}{train["seg_map_suffix"]}'
        if path.is_file():
            with Image.open(path) as mask:
                if mask.mode not in ('1', 'L', 'P', 'I', 'I;16'):
                    _refuse_colours(data.root, path, mask)
                if names:
                    return names
                values.update(np.unique(np.asarray(mask)).tolist())
    values -= no_class
    if not values:
        raise ValueError(f'masks of {folder} must have classes, got none')
    number = int(max(values)) + 1
    data.notes.append(
        f'the {number} classes have no names; give them with --classes, or '
        f'in {data.root / "classes.txt"}, a line each'
    )
    return tuple(f'class {value}' for value in range(number))


def _class_names(data: DataFolder, folder: Path) -> tuple[str, ...]:
    """Names of a file, in the order of labels; empty without one."""
    for name, pattern in _NAMES.items():
        path = (folder if name == '_classes.csv' else data.root) / name
        if not path.is_file():
            continue
        lines = map(str.strip, path.read_text(encoding='utf-8').splitlines())
        lines = [line for line in lines if line and not _HEAD.match(line)]
        matches = [
            re.fullmatch(pattern.format(number), line)
            for number, line in enumerate(lines)
        ]
        if None in matches:
            wrong = lines[matches.index(None)]
            raise ValueError(f'{path} must name a class a line, got {wrong!r}')
        return tuple(match[1].strip() for match in matches)
    if data.splits['train'].dataset['img_suffix'] == f'{_CITY_END}.png':
        # Not at the top: this loads torch.
        from mmseg.utils import get_classes

        return tuple(get_classes('cityscapes'))
    return ()


def _refuse_colours(root: Path, path: Path, mask: Image.Image) -> None:
    """Say how a mask with several channels becomes one."""
    remedy = 'save the number of the class, from 0 on, for each colour'
    form = [f for n, f in _COLOURED.items() if (root / n).is_file()]
    if form:
        remedy = (
            "Datumaro does that: pip install 'datumaro[cli]' && datum convert "
            f'-if {form[0]} -i {quote(str(root))} -f {form[0]} -o NEW '
            '-- --save-media --apply-colormap 0'
        )
    elif mask.mode == 'RGB' and not np.ptp(np.asarray(mask), axis=2).any():
        remedy = (
            'as all channels are equal, tools/validate_labels.py --masks '
            f'{quote(str(path.parent))} --num-classes N --fix NEW writes one'
        )
    raise ValueError(
        f'{path} must have one number a pixel, the class, got colours of the '
        f'mode {mask.mode}; {remedy}'
    )

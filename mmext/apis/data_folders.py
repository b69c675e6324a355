"""What a folder of pictures and labels is, and its splits.

A folder is looked at as far as it takes to know its form: COCO's, that of
Roboflow, Pascal VOC's, YOLO's, or pictures with masks, in folders beside each
other or in the same. Nothing in it is changed; where a split has to be made,
it becomes a list beside the config.
"""

import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
from PIL import Image

from ..checks.labels.sources import (
    CocoFile,
    coco_task,
    holds_key,
    read_coco,
    read_voc,
    read_voc_list,
)
from ..datasets import PICTURE_SUFFIXES, find_yolo_data, yolo_pictures
from ..utils.files import open_regular

SPLITS = ('train', 'val', 'test')
Tree = dict[str, list[str]]


@dataclass
class DataSplit:
    """The samples of a split.

    Attributes:
        names: Of the samples, as a list of the data set has them; of COCO
            the file names of the images.
        dataset: What a data set needs to read the split, besides
            :attr:`DataFolder.dataset`; paths are relative to the root.
        whole: ``dataset`` reads these samples and no others. Otherwise a
            list of the names has to be its ``ann_file``.
        coco: What COCO's annotation file of the split holds.
    """

    names: list[str]
    dataset: dict[str, Any] = field(default_factory=dict)
    whole: bool = True
    coco: CocoFile | None = None


@dataclass
class DataFolder:
    """A folder of pictures and labels.

    Attributes:
        form: ``'coco'``, ``'voc'``, ``'yolo'`` or ``'masks'``.
        root: What paths are relative to.
        classes: Names in the order of labels.
        splits: Of ``'train'``, ``'val'`` and ``'test'`` those that are
            there.
        dataset: What all data sets have.
        notes: What was found out that a user may not expect.
        masks: Objects have masks, too.
    """

    form: str
    root: Path
    classes: tuple[str, ...]
    splits: dict[str, DataSplit]
    dataset: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    masks: bool = False


def make_val_split(data: DataFolder, fraction: float) -> None:
    """Take a part of the training samples for validation, if there is none.

    ``data`` is changed in place. The choice is random, and the same for the
    same names; it has at least one sample.
    """
    if not 0 < fraction < 1:
        raise ValueError(
            f'--val-fraction must be above 0 and below 1, got {fraction}'
        )
    if 'val' in data.splits:
        return
    train = data.splits['train']
    names = sorted(train.names)
    if len(names) < 2:
        raise ValueError(
            f'a split needs at least 2 pictures, got {len(names)} in '
            f'{data.root}'
        )
    number = min(max(round(len(names) * fraction), 1), len(names) - 1)
    chosen = set(random.Random(0).sample(names, number))
    for split in ('train', 'val'):
        own = [n for n in names if (n in chosen) == (split == 'val')]
        data.splits[split] = replace(
            train, names=own, dataset=dict(train.dataset), whole=False
        )
    data.notes.append(
        f'no split for validation was found: {number} of {len(names)} '
        'training pictures were chosen at random'
    )


def split_of(path: str) -> str:
    """Split that a path is named after; the last word counts."""
    words = re.findall('[a-z]+', path.lower())
    for word in reversed(words):
        for split in SPLITS:
            if word.startswith(split):
                return split
    return ''


def by_split(paths: Iterable[Any], what: str, root: Path) -> dict[str, list]:
    """Paths, or tuples of some, by split; those without one are to train."""
    results: dict[str, list] = {}
    for path in paths:
        results.setdefault(split_of(str(path)) or 'train', []).append(path)
    if 'train' not in results:
        raise ValueError(
            f'{what} in {root} must have a split for training, got '
            f'{sorted(results)} only'
        )
    return {split: results[split] for split in SPLITS if split in results}


# Below the folder that is given.
_MAX_DEPTH = 4
_MAX_JSON = 50


def find_data(
    path: str | Path,
    *,
    semantic: bool,
    classes: Sequence[str] = (),
    ignore_index: int = 255,
) -> DataFolder:
    """Recognise a folder, or the ``data.yaml`` of YOLO.

    ``semantic`` looks for masks, otherwise for boxes. ``classes`` are names
    in the order of labels, empty for those of the data; ``ignore_index`` is
    the value of masks that is of no class.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(
            f'DATA must be a folder of pictures and labels, got {str(path)!r}'
        )
    if path.is_file() and path.suffix not in ('.yaml', '.yml'):
        raise ValueError(
            f'DATA must be a folder, or data.yaml of YOLO, got {str(path)!r}'
        )
    root = path if path.is_dir() else path.parent
    tree = _list_tree(root)
    names = map(os.path.split, tree)
    kits = sorted(parent for parent, name in names if name == 'ImageSets')
    if len(kits) > 1:
        raise ValueError(
            f'DATA must have one folder with ImageSets, got {kits} in {root}; '
            'name one of them'
        )
    if kits and kits[0]:
        # What is below VOCdevkit.
        root = root / kits[0]
        tree = _list_tree(root)
    forms: dict[str, Callable] = {
        "COCO's (*.json)": _find_coco,
        "Pascal VOC's (*.xml)": _find_voc,
        "YOLO's (data.yaml, or images and labels)": partial(_find_yolo, path),
    }
    if semantic:
        find = partial(find_masks, ignore_index=ignore_index)
        forms = {'pictures and masks': find}
    for find in forms.values():
        misplaced = find(root, tree, tuple(classes))
        if misplaced is not None:
            return misplaced
    held = Counter(
        Path(n).suffix or n for names in tree.values() for n in names
    )
    target, more = 'voc_segmentation', ''
    if not semantic:
        target = 'coco_instances'
        more = (
            'folders of masks need a base that segments, such as '
            'mmext::pidnet/pidnet_s_2xb6_120k_cityscapes.py; '
        )
    raise ValueError(
        f'DATA must have one of the forms {", ".join(forms)}, got {path}, '
        f'which holds {dict(held.most_common(6))}; see docs/your_data.md; '
        f'{more}Datumaro converts others: {_datum_convert(root, target)}'
    )


def _datum_convert(root: Path, target: str, source: str = '') -> str:
    """A command of Datumaro, which finds out the form of a folder itself."""
    colours = '' if target == 'coco_instances' else ' --apply-colormap 0'
    return (
        f"pip install 'datumaro[cli]' && datum convert {source}-i "
        f'{quote(str(root))} -f {target} -o NEW -- --save-media{colours}'
    )


def _list_tree(root: Path) -> Tree:
    """Files of a folder and those in it, by folder relative to the root."""
    tree: Tree = {}
    for parent, folders, names in os.walk(root, followlinks=True):
        below = os.path.relpath(parent, root)
        below = '' if below == '.' else below.replace(os.sep, '/')
        folders[:] = sorted(n for n in folders if not n.startswith('.'))
        if below.count('/') + bool(below) >= _MAX_DEPTH:
            folders.clear()
        tree[below] = sorted(names)
    return tree


def _with_suffix(names: Sequence[str], suffixes: Any) -> list[str]:
    return [name for name in names if name.lower().endswith(suffixes)]


def _read_coco(path: Path) -> CocoFile | None:
    """An annotation file of boxes; None for another JSON file.

    What is wrong with its boxes is for the label check to say.
    """
    with open_regular(path) as file:
        if holds_key(file):
            return None
        file.seek(0)
        content = file.read()
    coco = read_coco(content)
    wrong = {error.location: error.message for error in coco.errors}
    # In UTF-16 there is a 0 beside each of these characters.
    if wrong.get('', '').startswith('malformed') and (
        b'"annotations"' in content.replace(b'\0', b'')
    ):
        raise ValueError(
            f'{path} must be JSON in UTF-8 without a byte-order mark, as the '
            f'loader reads it, got {wrong[""]}'
        )
    keys = {'', 'images', 'annotations', 'categories'}
    return None if keys & wrong.keys() else coco


def _find_coco(
    root: Path, tree: Tree, classes: tuple[str, ...]
) -> DataFolder | None:
    """COCO's annotation files, Roboflow's ``_annotations.coco.json``, too."""
    jsons = [
        os.path.join(folder, name)
        for folder, names in tree.items()
        for name in _with_suffix(names, '.json')
    ]
    if not jsons or len(jsons) > _MAX_JSON:
        return None
    files = {name: _read_coco(root / name) for name in jsons}
    names = [name for name, file in files.items() if file]
    if not names:
        return None
    splits = by_split(names, 'the annotation files', root)
    parts: dict[str, DataSplit] = {}
    kind = {'type': 'mmdet.CocoDataset'}
    data = DataFolder('coco', root, classes, parts, kind)
    for split, names in splits.items():
        if len(names) > 1:
            # As of COCO itself, which has files of other labels, too.
            names = [n for n in names if 'instances' in n] or names
        if len(names) > 1:
            raise ValueError(
                f'{split} must have one annotation file, got {names} in '
                f'{root}; move the others out of DATA, or put them together'
            )
        file = files[names[0]]
        folder = _folder_of_images(root, tree, names[0], file)
        with open_regular(root / names[0]) as text:
            named = holds_key(text, 'file_name')
        parts[split] = DataSplit(
            [*file.images.file_name],
            {
                'ann_file': names[0].replace(os.sep, '/'),
                'data_prefix': {'img': folder and f'{folder}/'},
            },
            whole=named,
            coco=file,
        )
        if not named:
            data.notes.append(
                f'images of {root / names[0]} have no file_name but the URL '
                "of LVIS: a copy has both; COCO's metric counts what LVIS "
                'does not judge'
            )
    used = [part.coco for part in parts.values()]
    data.masks = 'instance' in map(coco_task, used)
    if not classes:
        data.classes = _coco_classes(used, data.notes)
    for part in parts.values():
        names = dict.fromkeys(part.coco.categories.name)
        own = [name for name in names if name in data.classes]
        # The loader numbers labels in the order of the file.
        if own != list(data.classes[: len(own)]):
            part.whole = False
            data.notes.append(
                f'the categories of {root / part.dataset["ann_file"]} are in '
                'the order '
                f'{", ".join(own)}, by which labels would be numbered: a copy '
                'has them in that of the classes'
            )
    return data


def _coco_classes(files: list[CocoFile], notes: list[str]) -> tuple:
    """Names of categories, in the order of the file of the training.

    Roboflow's files begin with a category 0 that stands for all others and
    that no box has.
    """
    used = {i for file in files for i in file.annotations.category_id.tolist()}
    names, kinds = [], files[0].categories
    for number, name in zip(kinds.id.tolist(), kinds.name):
        if number == 0 and 0 not in used and len(used):
            notes.append(
                f'category 0, {name!r}, has no box and is left out, '
                "as in Roboflow's files it is the group of the others"
            )
        else:
            names.append(name)
    return tuple(names)


def _folder_of_images(
    root: Path, tree: Tree, json_file: str, file: CocoFile
) -> str:
    """Folder that the file names of an annotation file are relative to."""
    names = file.images.file_name
    if not names:
        raise ValueError(f'{root / json_file} must have images, got none')
    split = split_of(json_file)
    own = os.path.dirname(json_file)
    folders = sorted(
        tree, key=lambda f: (f != own, split_of(f) != split, f.count('/'), f)
    )
    for folder in folders:
        if all(
            (root / folder / name).is_file() for name in (names[0], names[-1])
        ):
            return folder
    raise ValueError(
        f'the images of {root / json_file} must be in {root}, got none of '
        f'the name {names[0]!r} in a folder of it'
    )


def _find_voc(
    root: Path, tree: Tree, classes: tuple[str, ...]
) -> DataFolder | None:
    """Pascal VOC's layout, or folders of XML files named after splits."""
    folders = [
        folder
        for folder, names in tree.items()
        for name in _with_suffix(names, '.xml')[:1]
        if not _is_cvat(root / folder / name)
    ]
    if not folders:
        return None
    data = DataFolder('voc', root, classes, {}, {'type': 'mmdet.XMLDataset'})
    main = 'ImageSets/Main'
    lists = [s for s in SPLITS if f'{s}.txt' in tree.get(main, ())]
    if len(folders) == 1 and 'train' in lists:
        splits = dict.fromkeys(lists, folders)
    else:
        splits, lists = by_split(folders, 'the folders of XML files', root), []
    for split, own in splits.items():
        if len(own) > 1:
            raise ValueError(
                f'{split} must have one folder of XML files, got {own} in '
                f'{root}'
            )
        dataset = _voc_folders(root, tree, own[0])
        names = _with_suffix(tree[own[0]], '.xml')
        if lists:
            dataset['ann_file'] = f'{main}/{split}.txt'
            lines = read_voc_list(root / dataset['ann_file'])
            names = [f'{name}.xml' for name in lines if name.strip()]
        names = [os.path.splitext(name)[0] for name in names]
        data.splits[split] = DataSplit(names, dataset, whole=bool(lists))
    data.classes = classes or _voc_classes(data)
    return data


def _is_cvat(path: Path) -> bool:
    """Whether an XML file is in the format of CVAT."""
    with open_regular(path) as file:
        return b'<annotations>' in file.read()


def _voc_folders(root: Path, tree: Tree, xml_folder: str) -> dict:
    """Where the images and the XML files of a split are."""
    stem = os.path.splitext(_with_suffix(tree[xml_folder], '.xml')[0])[0]
    parent = os.path.dirname(xml_folder)
    seen = ''
    for folder in (
        xml_folder,
        *(os.path.join(parent, n) for n in ('JPEGImages', 'images', '')),
    ):
        folder = folder.rstrip('/')
        for suffix in PICTURE_SUFFIXES:
            if f'{stem}{suffix}' in tree.get(folder, ()):
                if suffix == '.jpg':
                    return {
                        'data_prefix': {'sub_data_root': ''},
                        'img_subdir': folder,
                        'ann_subdir': xml_folder,
                    }
                seen = f'{folder}/{stem}{suffix}'
    raise ValueError(
        'pictures of XML files must be .jpg, as mmdet.XMLDataset reads no '
        f'others, got {seen or "none"} for {xml_folder}/{stem}.xml in {root}; '
        'save them as .jpg beside the XML files, or in JPEGImages'
    )


def _voc_classes(data: DataFolder) -> tuple[str, ...]:
    """Names of all objects, in the order of the alphabet."""
    names = set()
    for split in data.splits.values():
        for stem in split.names:
            path = data.root / split.dataset['ann_subdir'] / f'{stem}.xml'
            with open_regular(path) as content:
                file = read_voc(content.read())
            names.update(box.class_name for box in file.boxes)
            # What is wrong with an object is for the label check to say.
            if file.error and not file.errors:
                raise ValueError(
                    f'{path} must be an XML file, got {file.error.text}; '
                    f'tools/validate_labels.py --voc {data.root} lists all '
                    'that is wrong'
                )
    names.discard('')
    if not names:
        raise ValueError(f'the XML files of {data.root} must have objects')
    data.notes.append(
        'Pascal VOC has no order of classes: it is that of the alphabet; '
        '--classes gives another'
    )
    return tuple(sorted(names))


def _find_yolo(
    path: Path, root: Path, tree: Tree, classes: tuple[str, ...]
) -> DataFolder | None:
    """YOLO's layout, by ``data.yaml`` or by folders."""
    labels = any(
        _with_suffix(names, '.txt') and 'labels' in folder.split('/')
        for folder, names in tree.items()
    )
    given = _with_suffix(tree[''], ('.yaml', '.yml', '.names'))
    if path.is_dir() and not labels and not given:
        return None
    yolo = find_yolo_data(path, classes)
    data = DataFolder(
        'yolo', yolo.root, yolo.names, {}, {'type': 'mmext.YOLODataset'}
    )
    if yolo.kpt_shape:
        data.dataset['kpt_shape'] = yolo.kpt_shape
        data.notes.append(
            f'key points (kpt_shape {list(yolo.kpt_shape)}) are not used: '
            'only the boxes of the lines are'
        )
    for split in by_split(yolo.splits, 'the pictures of YOLO', yolo.root):
        parts = yolo.splits[split]
        names = [
            os.path.relpath(picture, yolo.root)
            for part in parts
            for picture in yolo_pictures(str(part), str(yolo.root))
        ]
        if not names:
            raise ValueError(
                f'{split} of {path} must have pictures, got none in '
                f'{list(map(str, parts))}'
            )
        own = os.path.relpath(parts[0], yolo.root)
        whole = len(parts) == 1
        dataset = {'ann_file': own} if whole else {}
        data.splits[split] = DataSplit(names, dataset, whole)
    return data


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

    ``ignore_index`` is of no class, and so is 255.
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
        if path.exists():
            with open_regular(path) as file, Image.open(file) as mask:
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
        command = _datum_convert(root, form[0], f'-if {form[0]} ')
        remedy = f'Datumaro does that: {command}'
    elif mask.mode == 'RGB' and not np.ptp(np.asarray(mask), axis=2).any():
        remedy = (
            'as all channels are equal, tools/validate_labels.py --masks '
            f'{quote(str(path.parent))} --num-classes N --fix NEW writes one'
        )
    raise ValueError(
        f'{path} must have one number a pixel, the class, got colours of the '
        f'mode {mask.mode}; {remedy}'
    )

"""What a folder of pictures and labels is, and its splits.

A folder is looked at as far as it takes to know its form: COCO's, that of
Roboflow, Pascal VOC's, YOLO's, or pictures with masks. Nothing in it is
changed; where a split has to be made, it becomes a list beside the config.
"""

import json
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import numpy as np
from PIL import Image

from ..datasets import PICTURE_SUFFIXES, find_yolo_data, yolo_pictures
from ..label_check.sources import read_voc_list

__all__ = ['FORMS', 'DataFolder', 'DataSplit', 'find_data', 'make_val_split']

# Below the folder that is given.
_MAX_DEPTH = 4
_MAX_JSON = 50
_MAX_MASKS = 500
_SPLITS = ('train', 'val', 'test')
_MASK_WORDS = re.compile('mask|annot|label|segm|^ann|^seg|^gt')
_NO_CLASS = 255
_Tree = dict[str, list[str]]


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
    """

    names: list[str]
    dataset: dict[str, Any] = field(default_factory=dict)
    whole: bool = True


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


def find_data(
    path: str | Path, *, semantic: bool, classes: Sequence[str] = ()
) -> DataFolder:
    """Recognise a folder.

    Args:
        path: The folder; of YOLO also its ``data.yaml``.
        semantic: Look for masks; otherwise for boxes.
        classes: Names in the order of labels; empty for those of the data.

    Raises:
        FileNotFoundError: If there is no such folder.
        ValueError: If it has none of the forms, or what has one cannot be
            used; the message says what was looked for.
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
    forms = FORMS[semantic]
    for find in forms.values():
        found = find(path, tree, tuple(classes))
        if found is not None:
            return found
    held = Counter(
        Path(n).suffix or n for names in tree.values() for n in names
    )
    raise ValueError(
        f'DATA must have one of the forms {", ".join(forms)}, got {path}, '
        f'which holds {dict(held.most_common(6))}; see docs/your_data.md'
        + (
            ''
            if semantic
            else '. Folders of masks need a base that segments, such as '
            'mmext::pidnet/pidnet_s_2xb6_120k_cityscapes.py'
        )
    )


def make_val_split(data: DataFolder, fraction: float, seed: int) -> None:
    """Take a part of the training samples for validation, if there is none.

    Args:
        data: Changed in place.
        fraction: Part of the samples, above 0 and below 1; at least one.
        seed: The same seed gives the same split of the same names.

    Raises:
        ValueError: If the fraction is not in that range, or there are fewer
            than two samples.
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
    chosen = set(random.Random(seed).sample(names, number))
    for split in ('train', 'val'):
        data.splits[split] = DataSplit(
            [name for name in names if (name in chosen) == (split == 'val')],
            dict(train.dataset),
            whole=False,
        )
    data.notes.append(
        f'no split for validation was found: {number} of {len(names)} '
        f'training pictures were chosen by the seed {seed}'
    )


def _list_tree(root: Path) -> _Tree:
    """Files of a folder and those in it, by folder relative to the root."""
    tree: _Tree = {}
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


def _split_of(path: str) -> str:
    """Split that a path is named after; the last word counts."""
    words = re.findall('[a-z]+', path.lower())
    for word in reversed(words):
        for split in _SPLITS:
            if word.startswith(split):
                return split
    return ''


def _by_split(paths: Sequence[str]) -> dict[str, list[str]]:
    """Paths of each split; those without one are for training."""
    found: dict[str, list[str]] = {}
    for path in paths:
        found.setdefault(_split_of(path) or 'train', []).append(path)
    return {split: found[split] for split in _SPLITS if split in found}


def _need_train(found: Mapping[str, Any], what: str, root: Path) -> None:
    if 'train' not in found:
        raise ValueError(
            f'{what} in {root} must have a split for training, got '
            f'{sorted(found)} only'
        )


class _Image(msgspec.Struct):
    id: Any
    file_name: str


class _Category(msgspec.Struct):
    id: Any
    name: str


class _Note(msgspec.Struct):
    category_id: Any = None
    segmentation: Any = None
    segments_info: Any = None


class _Coco(msgspec.Struct):
    images: list[_Image]
    categories: list[_Category]
    annotations: list[_Note]


def _read_coco(path: Path) -> _Coco | None:
    """An annotation file of boxes; None for another JSON file.

    What is wrong with its boxes is for the label check to say.
    """
    content = path.read_bytes()
    try:
        file = msgspec.json.decode(content, type=_Coco)
    except msgspec.ValidationError:
        return None
    except msgspec.DecodeError:
        # NaN and Infinity are no JSON, and Python's writer writes them.
        try:
            file = msgspec.convert(json.loads(content), _Coco)
        except ValueError:
            return None
    panoptic = any(note.segments_info for note in file.annotations)
    return None if panoptic else file


def _find_coco(
    path: Path, tree: _Tree, classes: tuple[str, ...]
) -> DataFolder | None:
    """COCO's annotation files, Roboflow's ``_annotations.coco.json``, too."""
    jsons = [
        os.path.join(folder, name)
        for folder, names in tree.items()
        for name in _with_suffix(names, '.json')
    ]
    if not jsons or len(jsons) > _MAX_JSON:
        return None
    root = path if path.is_dir() else path.parent
    files = {name: _read_coco(root / name) for name in jsons}
    splits = _by_split([name for name, file in files.items() if file])
    if not splits:
        return None
    _need_train(splits, 'the annotation files', root)
    found, used = {}, {}
    for split, names in splits.items():
        if len(names) > 1:
            # As of COCO itself, which has files of other labels, too.
            names = [n for n in names if 'instances' in n] or names
        if len(names) > 1:
            raise ValueError(
                f'{split} must have one annotation file, got {names} in '
                f'{root}; move the others out of DATA, or put them together'
            )
        file = used[names[0]] = files[names[0]]
        folder = _folder_of_images(root, tree, names[0], file)
        found[split] = DataSplit(
            [image.file_name for image in file.images],
            {
                'ann_file': names[0].replace(os.sep, '/'),
                'data_prefix': {'img': folder and f'{folder}/'},
            },
        )
    data = DataFolder(
        'coco', root, classes, found, {'type': 'mmdet.CocoDataset'}
    )
    data.masks = any(
        note.segmentation
        for file in used.values()
        for note in file.annotations
    )
    if not classes:
        data.classes = _coco_classes(list(used.values()), data.notes)
    return data


def _coco_classes(files: Sequence[_Coco], notes: list[str]) -> tuple[str, ...]:
    """Names of categories, in the order of the file of the training.

    Roboflow's files begin with a category 0 that stands for all others and
    that no box has.
    """
    used = {note.category_id for file in files for note in file.annotations}
    names = []
    for category in files[0].categories:
        if category.id == 0 and 0 not in used and len(used):
            notes.append(
                f'category 0, {category.name!r}, has no box and is left out, '
                "as in Roboflow's files it is the group of the others"
            )
        else:
            names.append(category.name)
    return tuple(names)


def _folder_of_images(
    root: Path, tree: _Tree, json_file: str, file: _Coco
) -> str:
    """Folder that the file names of an annotation file are relative to."""
    names = [image.file_name for image in file.images]
    if not names:
        raise ValueError(f'{root / json_file} must have images, got none')
    split = _split_of(json_file)
    own = os.path.dirname(json_file)
    folders = sorted(
        tree, key=lambda f: (f != own, _split_of(f) != split, f.count('/'), f)
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
    path: Path, tree: _Tree, classes: tuple[str, ...]
) -> DataFolder | None:
    """Pascal VOC's layout, or folders of XML files named after splits."""
    root = path if path.is_dir() else path.parent
    folders = [f for f, names in tree.items() if _with_suffix(names, '.xml')]
    if not folders:
        return None
    data = DataFolder('voc', root, classes, {}, {'type': 'mmdet.XMLDataset'})
    lists = {
        _split_of(name): f'ImageSets/Main/{name}'
        for name in _with_suffix(tree.get('ImageSets/Main', ()), '.txt')
        if name in ('train.txt', 'val.txt', 'test.txt')
    }
    if len(folders) == 1 and 'train' in lists:
        own = _voc_folders(root, tree, folders[0])
        for split in _SPLITS:
            if split in lists:
                names = read_voc_list(root / lists[split])
                data.splits[split] = DataSplit(
                    [name for name in names if name.strip()],
                    {**own, 'ann_file': lists[split]},
                )
    else:
        splits = _by_split(folders)
        _need_train(splits, 'the folders of XML files', root)
        for split, own in splits.items():
            if len(own) > 1:
                raise ValueError(
                    f'{split} must have one folder of XML files, got {own} '
                    f'in {root}'
                )
            names = _with_suffix(tree[own[0]], '.xml')
            data.splits[split] = DataSplit(
                [os.path.splitext(name)[0] for name in names],
                _voc_folders(root, tree, own[0]),
                whole=False,
            )
    data.classes = classes or _voc_classes(data)
    return data


def _voc_folders(root: Path, tree: _Tree, xml_folder: str) -> dict:
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
            try:
                found = ElementTree.parse(path).iterfind('object/name')
                names.update(name.text for name in found if name.text)
            except (ElementTree.ParseError, FileNotFoundError) as error:
                raise ValueError(
                    f'{path} must be an XML file, got {error}; '
                    f'tools/validate_labels.py --voc {data.root} lists all '
                    'that is wrong'
                ) from error
    if not names:
        raise ValueError(f'the XML files of {data.root} must have objects')
    data.notes.append(
        'Pascal VOC has no order of classes: it is that of the alphabet; '
        '--classes gives another'
    )
    return tuple(sorted(names))


def _find_yolo(
    path: Path, tree: _Tree, classes: tuple[str, ...]
) -> DataFolder | None:
    """YOLO's layout, by ``data.yaml`` or by folders."""
    labels = any(
        _with_suffix(names, '.txt') and 'labels' in folder.split('/')
        for folder, names in tree.items()
    )
    yamls = _with_suffix(tree[''], ('.yaml', '.yml'))
    if path.is_dir() and not labels and not yamls:
        return None
    found = find_yolo_data(path, classes)
    _need_train(found.splits, 'the pictures of YOLO', found.root)
    data = DataFolder(
        'yolo', found.root, found.names, {}, {'type': 'mmext.YOLODataset'}
    )
    for split, parts in found.splits.items():
        names = [
            os.path.relpath(picture, found.root)
            for part in parts
            for picture in yolo_pictures(str(part), str(found.root))
        ]
        if not names:
            raise ValueError(
                f'{split} of {path} must have pictures, got none in '
                f'{list(map(str, parts))}'
            )
        own = os.path.relpath(parts[0], found.root)
        whole = len(parts) == 1
        dataset = {'ann_file': own} if whole else {}
        data.splits[split] = DataSplit(names, dataset, whole)
    return data


def _find_masks(
    path: Path, tree: _Tree, classes: tuple[str, ...]
) -> DataFolder | None:
    """Folders of pictures, each beside one of masks of the same names."""
    root = path if path.is_dir() else path.parent
    pairs = list(_mask_folders(tree))
    if not pairs:
        return None
    splits = _by_split([f'{images}/{masks}' for images, masks in pairs])
    folders = dict(zip((f'{i}/{m}' for i, m in pairs), pairs))
    _need_train(splits, 'the folders of masks', root)
    data = DataFolder(
        'masks', root, classes, {}, {'type': 'mmseg.BaseSegDataset'}
    )
    for split, own in splits.items():
        if len(own) > 1:
            raise ValueError(
                f'{split} must have one folder of masks, got {own} in {root}'
            )
        data.splits[split] = _mask_split(tree, *folders[own[0]])
    if not classes:
        data.classes = _mask_classes(data, root / 'classes.txt')
    return data


def _is_of_masks(folder: str) -> bool:
    words = re.findall('[a-z]+', folder.lower())
    return any(map(_MASK_WORDS.search, words))


def _mask_folders(tree: _Tree) -> Iterator[tuple[str, str]]:
    """Folders of pictures and of their masks."""
    pictures = {
        folder: {
            os.path.splitext(n)[0]
            for n in _with_suffix(names, PICTURE_SUFFIXES)
        }
        for folder, names in tree.items()
    }
    for masks in tree:
        if not _is_of_masks(masks) or not pictures[masks]:
            continue
        fitting = [
            (len(_partners(pictures[folder], pictures[masks])), folder)
            for folder in tree
            if not _is_of_masks(folder)
            and pictures[folder]
            and _split_of(folder) == _split_of(masks)
        ]
        fitting = [each for each in fitting if each[0]]
        if fitting:
            yield max(fitting)[1], masks


def _partners(images: set[str], masks: set[str]) -> set[str]:
    """Images that have a mask, whose name may go on."""
    ends = _mask_end(images, masks)
    return {name for name in images if name + ends in masks}


def _mask_end(images: set[str], masks: set[str]) -> str:
    """What the names of masks have behind those of their images."""
    for name in sorted(images):
        ends = [m[len(name) :] for m in masks if m.startswith(name)]
        if ends:
            return min(ends, key=len)
    return ''


def _mask_split(tree: _Tree, images: str, masks: str) -> DataSplit:
    found = {
        folder: _with_suffix(tree[folder], PICTURE_SUFFIXES)
        for folder in (images, masks)
    }
    suffixes = {
        folder: sorted({os.path.splitext(name)[1] for name in names})
        for folder, names in found.items()
    }
    for folder, own in suffixes.items():
        if len(own) > 1:
            raise ValueError(
                f'files of {folder} must have one suffix, as '
                f'mmseg.BaseSegDataset reads no others, got {own}'
            )
    stems = {
        folder: {os.path.splitext(name)[0] for name in names}
        for folder, names in found.items()
    }
    end = _mask_end(stems[images], stems[masks])
    return DataSplit(
        sorted(stems[images]),
        {
            'data_prefix': {'img_path': images, 'seg_map_path': masks},
            'img_suffix': suffixes[images][0],
            'seg_map_suffix': end + suffixes[masks][0],
        },
    )


def _mask_classes(data: DataFolder, file: Path) -> tuple[str, ...]:
    """Names of a file, or numbers of the values in the training masks."""
    if file.is_file():
        lines = file.read_text(encoding='utf-8').splitlines()
        return tuple(line.strip() for line in lines if line.strip())
    train = data.splits['train']
    folder = data.root / train.dataset['data_prefix']['seg_map_path']
    values: set[int] = set()
    for name in train.names[:_MAX_MASKS]:
        path = folder / f'{name}{train.dataset["seg_map_suffix"]}'
        if path.is_file():
            with Image.open(path) as mask:
                if mask.mode not in ('1', 'L', 'P', 'I', 'I;16'):
                    raise ValueError(
                        f'{path} must have one number a pixel, the class, got '
                        f'colours of the mode {mask.mode}'
                    )
                values.update(np.unique(np.asarray(mask)).tolist())
    values.discard(_NO_CLASS)
    if not values:
        raise ValueError(f'masks of {folder} must have classes, got none')
    number = int(max(values)) + 1
    data.notes.append(
        f'the {number} classes have no names; give them with --classes, or '
        f'in {file}, a line each'
    )
    return tuple(f'class {value}' for value in range(number))


# By whether masks are wanted; the first that fits is taken.
FORMS: dict[bool, dict[str, Callable]] = {
    False: {
        "COCO's (*.json)": _find_coco,
        "Pascal VOC's (*.xml)": _find_voc,
        "YOLO's (data.yaml, or images and labels)": _find_yolo,
    },
    True: {'pictures and masks in folders': _find_masks},
}

"""What a folder of pictures and labels is.

A folder is looked at as far as it takes to know its form: COCO's, that of
Roboflow, Pascal VOC's, YOLO's, or pictures with masks. Nothing in it is
changed; where a split has to be made, it becomes a list beside the config.
"""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ...checks.labels.sources import (
    CocoFile,
    coco_task,
    holds_key,
    read_coco,
    read_voc,
    read_voc_list,
)
from ...datasets import PICTURE_SUFFIXES, find_yolo_data, yolo_pictures
from .data_splits import (
    SPLITS,
    DataFolder,
    DataSplit,
    Tree,
    by_split,
    split_of,
)
from .mask_folders import find_masks

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
    """Recognise a folder.

    Args:
        path: The folder; of YOLO also its ``data.yaml``.
        semantic: Look for masks; otherwise for boxes.
        classes: Names in the order of labels; empty for those of the data.
        ignore_index: Value of masks that is of no class.

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
    with path.open('rb') as file:
        if holds_key(file):
            return None
        file.seek(0)
        coco = read_coco(file.read())
    wrong = {error.location for error in coco.errors}
    keys = {'', 'images', 'annotations', 'categories'}
    return None if wrong & keys else coco


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
        with (root / names[0]).open('rb') as text:
            if not holds_key(text, 'file_name'):
                raise ValueError(
                    f'images of {root / names[0]} must have a file_name, got '
                    'none, as in the files of LVIS; add it to each image'
                )
        parts[split] = DataSplit(
            [*file.images.file_name],
            {
                'ann_file': names[0].replace(os.sep, '/'),
                'data_prefix': {'img': folder and f'{folder}/'},
            },
            coco=file,
        )
    kind = {'type': 'mmdet.CocoDataset'}
    data = DataFolder('coco', root, classes, parts, kind)
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
    folders = [f for f, names in tree.items() if _with_suffix(names, '.xml')]
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
            file = read_voc(path.read_bytes())
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

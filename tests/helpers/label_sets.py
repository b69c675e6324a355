"""Clean data sets on a disk, one of each kind that the label checker reads.

Nothing is wrong with them: each class occurs, none is rare, no two images
are alike, and the config agrees with itself. So whatever a check finds was
put there afterwards.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from PIL import Image

from helpers.label_boxes import (
    coco_records,
    openmmlab_records,
    voc_text,
    yolo_text,
)
from helpers.toy_ranks import load_tool
from mmext.checks.labels.report import Report

CLASSES = ('road', 'car', 'sky')
SIZES = {'train': 6, 'val': 4}
# 3 x 4 blocks of the size that JPEG compresses by.
_BLOCK = 8
_ROWS, _COLUMNS = 3, 4
# Width and height of images with boxes.
_BOX_SIZE = (48, 36)
# Of CLASSES, in panoptic sets.
_NUM_THINGS = 2


@dataclass
class DataSet:
    """A data set on a disk, and how it is checked.

    Attributes:
        root: Its folder.
        kind: Key of ``CLEAN``.
        config: Content of its config; empty if it is checked without.
        settings: Of the check, besides the config.
        stored: Value in label maps of each class.
    """

    root: Path
    kind: str
    config: dict = field(default_factory=dict)
    settings: dict = field(default_factory=dict)
    stored: tuple[int, ...] = ()

    def image(self, index: int, split: str = 'train') -> Path:
        """Path of an image."""
        return self._only('images', split, index)

    def mask(self, index: int, split: str = 'train') -> Path:
        """Path of a label map."""
        return self._only('masks', split, index)

    def annotation(self, index: int = 0, split: str = 'train') -> Path:
        """Path of a JSON file, or of the XML or text file of an image."""
        if (self.root / f'{split}.json').is_file():
            return self.root / f'{split}.json'
        if (self.root / 'labels').is_dir():
            return self.root / 'labels' / split / f'{index}.txt'
        return self.root / 'Annotations' / f'{split}_{index}.xml'

    def _only(self, folder: str, split: str, index: int) -> Path:
        name = f'{split}/{index}.*'
        if not (self.root / folder).is_dir():
            folder, name = 'JPEGImages', f'{split}_{index}.*'
        (path,) = (self.root / folder).glob(name)
        return path

    def pixels(self, index: int, split: str = 'train') -> np.ndarray:
        """What a label map holds."""
        return np.array(Image.open(self.mask(index, split)))

    def argv(self, **more) -> list[str]:
        """Arguments of the tool; a config is written to a file."""
        settings = {
            'workers': 1,
            'store': self.root / 'facts.sqlite',
            'json': self.root / 'report.json',
            **self.settings,
            **more,
        }
        argv = []
        if self.config:
            path = self.root / 'config.py'
            lines = (f'{key} = {self.config[key]!r}\n' for key in self.config)
            path.write_text(''.join(lines))
            argv.append(str(path))
        for name, value in settings.items():
            values = [] if value is True else value
            values = values if isinstance(values, list) else [values]
            argv += [f'--{name.replace("_", "-")}', *map(str, values)]
        return argv

    def report(self) -> Report:
        """What the tool has written."""
        return _report((self.root / 'report.json').read_bytes())

    def check(self, **more) -> tuple[int, Report]:
        """Run the tool in this process; its exit code and its report."""
        code = load_tool('validate_labels').main(self.argv(**more))
        return code, self.report()


def _report(content: bytes) -> Report:
    """The report of a JSON file; places as text, in the keys of locations."""
    form = msgspec.json.decode(content)
    for group in form['groups']:
        for example in group.get('examples', ()):
            location = {'file': 'file', 'position': 'key'}
            example['location'] = {
                name: example.pop(old)
                for old, name in location.items()
                if old in example
            }
    return msgspec.convert(form, Report)


def noise(seed: Sequence[int], height: int, width: int) -> Image.Image:
    """An RGB image that is like no other."""
    random = np.random.default_rng(seed)
    cells = random.integers(0, 256, (8, 9, 3), dtype=np.uint8)
    return Image.fromarray(cells).resize((width, height), Image.BILINEAR)


def _blocks(values: Sequence[int], seed: Sequence[int], dtype) -> np.ndarray:
    """A label map of blocks, each value as often as the others."""
    number = _ROWS * _COLUMNS
    cells = np.resize(np.array(values, dtype), number)
    np.random.default_rng(seed).shuffle(cells)
    grid = cells.reshape(_ROWS, _COLUMNS)
    return grid.repeat(_BLOCK, 0).repeat(_BLOCK, 1)


def _write_masks(
    root: Path,
    values: Sequence[int],
    dtype=np.uint8,
    palette: bool = False,
    suffix: str = '.png',
) -> None:
    height, width = _ROWS * _BLOCK, _COLUMNS * _BLOCK
    for number, (split, size) in enumerate(SIZES.items()):
        for name in ('images', 'masks'):
            (root / name / split).mkdir(parents=True)
        for index in range(size):
            image = noise((number, index), height, width)
            image.save(root / 'images' / split / f'{index}{suffix}')
            mask = Image.fromarray(_blocks(values, (number, index), dtype))
            if palette:
                mask.putpalette([0, 9, 7] * 256)
            mask.save(root / 'masks' / split / f'{index}.png')


def _model(num_classes: int, ignore: int) -> dict:
    return {
        'type': 'EncoderDecoder',
        'data_preprocessor': {
            'type': 'SegDataPreProcessor',
            'seg_pad_val': ignore,
        },
        'decode_head': {
            'type': 'FCNHead',
            'num_classes': num_classes,
            'ignore_index': ignore,
            'loss_decode': {'type': 'CrossEntropyLoss'},
        },
    }


def _semantic_config(
    root: Path,
    classes: Sequence[str],
    ignore: int,
    kind: str = 'BaseSegDataset',
    **more,
) -> dict:
    config = {
        'default_scope': 'mmseg',
        'model': _model(len(classes), ignore),
        'val_evaluator': {'type': 'IoUMetric', 'ignore_index': ignore},
    }
    for split in SIZES:
        config[f'{split}_dataloader'] = {
            'dataset': {
                'type': kind,
                'data_root': str(root),
                'data_prefix': {
                    'img_path': f'images/{split}',
                    'seg_map_path': f'masks/{split}',
                },
                'img_suffix': '.png',
                'seg_map_suffix': '.png',
                'metainfo': {'classes': list(classes)},
                'pipeline': [
                    {'type': 'LoadImageFromFile'},
                    {'type': 'LoadAnnotations'},
                ],
                **more,
            }
        }
    return config


def _semantic(
    root: Path,
    stored: Sequence[int] = (0, 1, 2),
    void: Sequence[int] = (255,),
    ignore: int = 255,
    classes: Sequence[str] = CLASSES,
    masks: dict | None = None,
    **more,
) -> DataSet:
    """Label maps with a config as MMSegmentation's."""
    _write_masks(root, (*stored, *void), **(masks or {}))
    config = _semantic_config(root, classes, ignore, **more)
    return DataSet(root, '', config, {}, tuple(stored))


def _folders(root: Path, stored: Sequence[int], void: int = 255) -> DataSet:
    """Bare folders."""
    _write_masks(root, (*stored, void) if void else stored, suffix='.jpg')
    settings = {
        'masks': root / 'masks' / 'train',
        'images': root / 'images' / 'train',
        'num_classes': len(stored),
    }
    return DataSet(root, '', {}, settings, tuple(stored))


def _write_images(root: Path, folder: str) -> dict[str, list[str]]:
    """Images of each split; their names."""
    names: dict[str, list[str]] = {}
    for number, (split, size) in enumerate(SIZES.items()):
        where = root / folder.format(split=split)
        where.mkdir(parents=True, exist_ok=True)
        prefix = '' if '{split}' in folder else f'{split}_'
        names[split] = [f'{prefix}{index}.jpg' for index in range(size)]
        for index, name in enumerate(names[split]):
            noise((7, number, index), *_BOX_SIZE[::-1]).save(where / name)
    return names


def _write_coco(root: Path) -> None:
    for split, names in _write_images(root, 'images/{split}').items():
        records = coco_records(names, CLASSES, _BOX_SIZE)
        (root / f'{split}.json').write_text(json.dumps(records))


def _detection_config(root: Path, datasets: dict[str, dict]) -> dict:
    head = {
        'type': 'RetinaHead',
        'num_classes': len(CLASSES),
        'loss_cls': {'type': 'FocalLoss'},
    }
    config = {
        'default_scope': 'mmdet',
        'model': {'type': 'RetinaNet', 'bbox_head': head},
    }
    for split, own in datasets.items():
        config[f'{split}_dataloader'] = {
            'dataset': {
                'data_root': str(root),
                'metainfo': {'classes': list(CLASSES)},
                'pipeline': [{'type': 'LoadAnnotations', 'with_bbox': True}],
                **own,
            }
        }
    return config


def _coco(root: Path) -> DataSet:
    """Annotation files of COCO with a config as MMDetection's."""
    _write_coco(root)
    datasets = {
        split: {
            'type': 'CocoDataset',
            'ann_file': f'{split}.json',
            'data_prefix': {'img': f'images/{split}'},
        }
        for split in SIZES
    }
    return DataSet(root, '', _detection_config(root, datasets))


def _coco_bare(root: Path) -> DataSet:
    """An annotation file without a config."""
    _write_coco(root)
    settings = {
        'coco': root / 'train.json',
        'images': root / 'images' / 'train',
    }
    return DataSet(root, '', {}, settings)


def _write_panoptic(root: Path) -> None:
    """Each object is painted in its box, in a colour that is its id."""
    _write_coco(root)
    for split in SIZES:
        path = root / f'{split}.json'
        content = json.loads(path.read_text())
        notes = {}
        for note in content['annotations']:
            notes.setdefault(note['image_id'], []).append(note)
        content['annotations'] = [
            _panoptic_record(root / f'{split}', image, notes[image['id']])
            for image in content['images']
        ]
        for number, kind in enumerate(content['categories']):
            kind['isthing'] = int(number < _NUM_THINGS)
        path.write_text(json.dumps(content))


def _panoptic_record(folder: Path, image: dict, notes: list[dict]) -> dict:
    """Write the PNG of an image; what the annotation file says of it."""
    ids = np.zeros(_BOX_SIZE[::-1], np.uint32)
    segments = []
    for number, note in enumerate(notes, 1):
        x, y, wide, high = note['bbox']
        ids[y : y + high, x : x + wide] = number * 70_003
        segments.append({**note, 'id': number * 70_003})
    for segment in segments:
        segment.pop('segmentation')
        segment['area'] = int((ids == segment['id']).sum())
    name = image['file_name'].replace('.jpg', '.png')
    folder.mkdir(exist_ok=True)
    colours = np.stack([ids >> shift & 255 for shift in (0, 8, 16)], -1)
    Image.fromarray(colours.astype(np.uint8)).save(folder / name)
    return {
        'image_id': image['id'],
        'file_name': name,
        'segments_info': segments,
    }


def _panoptic(root: Path) -> DataSet:
    """Panoptic annotations with a config as MMDetection's."""
    _write_panoptic(root)
    datasets = {
        split: {
            'type': 'CocoPanopticDataset',
            'ann_file': f'{split}.json',
            'data_prefix': {'img': f'images/{split}', 'seg': split},
            'metainfo': {
                'classes': list(CLASSES),
                'thing_classes': list(CLASSES[:_NUM_THINGS]),
                'stuff_classes': list(CLASSES[_NUM_THINGS:]),
            },
        }
        for split in SIZES
    }
    config = _detection_config(root, datasets)
    config['model']['bbox_head']['num_classes'] = _NUM_THINGS
    return DataSet(root, '', config)


def _panoptic_bare(root: Path) -> DataSet:
    """Panoptic annotations without a config."""
    _write_panoptic(root)
    settings = {
        'coco': root / 'train.json',
        'images': root / 'images' / 'train',
    }
    return DataSet(root, '', {}, settings)


def _openmmlab(root: Path) -> DataSet:
    """Annotation files in the format of OpenMMLab itself."""
    datasets = {}
    for split, names in _write_images(root, 'images/{split}').items():
        records = coco_records(names, CLASSES, _BOX_SIZE)
        (root / f'{split}.json').write_text(
            json.dumps(openmmlab_records(records))
        )
        datasets[split] = {
            'type': 'BaseDetDataset',
            'ann_file': f'{split}.json',
            'data_prefix': {'img_path': f'images/{split}'},
        }
    return DataSet(root, '', _detection_config(root, datasets))


def _write_voc(root: Path) -> None:
    names = _write_images(root, 'JPEGImages')
    lists = root / 'ImageSets' / 'Main'
    for folder in (root / 'Annotations', lists):
        folder.mkdir(parents=True)
    for split, own in names.items():
        for index, name in enumerate(own):
            text = voc_text(name, index, CLASSES, _BOX_SIZE)
            path = root / 'Annotations' / Path(name).with_suffix('.xml')
            path.write_text(text)
        stems = ''.join(f'{Path(name).stem}\n' for name in own)
        (lists / f'{split}.txt').write_text(stems)


def _voc(root: Path) -> DataSet:
    """Annotation files of Pascal VOC with a config as MMDetection's."""
    _write_voc(root)
    datasets = {
        split: {
            'type': 'XMLDataset',
            'ann_file': f'ImageSets/Main/{split}.txt',
            'data_prefix': {'sub_data_root': ''},
        }
        for split in SIZES
    }
    return DataSet(root, '', _detection_config(root, datasets))


def _voc_bare(root: Path) -> DataSet:
    """Annotation files of Pascal VOC without a config."""
    _write_voc(root)
    return DataSet(root, '', {}, {'voc': root})


def _write_yolo(root: Path) -> None:
    for split, names in _write_images(root, 'images/{split}').items():
        (root / 'labels' / split).mkdir(parents=True)
        for index in range(len(names)):
            path = root / 'labels' / split / f'{index}.txt'
            path.write_text(yolo_text(index, _BOX_SIZE))
    (root / 'data.yaml').write_text(
        f'train: images/train\nval: images/val\nnames: {[*CLASSES]}\n'
    )


def _yolo(root: Path) -> DataSet:
    """Label files of YOLO with a config."""
    _write_yolo(root)
    datasets = {
        split: {'type': 'mmext.YOLODataset', 'ann_file': f'images/{split}'}
        for split in SIZES
    }
    return DataSet(root, '', _detection_config(root, datasets))


def _yolo_bare(root: Path) -> DataSet:
    """Label files of YOLO without a config."""
    _write_yolo(root)
    return DataSet(root, '', {}, {'yolo': root})


def _layout(root: Path, config: bool) -> DataSet:
    """NYUv2's layout, with or without a config."""
    height, width = _ROWS * _BLOCK, _COLUMNS * _BLOCK
    for number, (split, size) in enumerate(SIZES.items()):
        for index in range(size):
            seed = (number, index)
            label = _blocks((0, 1, 2, -1), seed, np.float32)
            normal = np.zeros((height, width, 3), np.float32)
            normal[label >= 0] = 0.48, -0.6, -0.64
            arrays = {
                'image': np.asarray(noise(seed, height, width)) / 255,
                'label': label,
                'depth': (label + 1)[..., None],
                'normal': normal,
            }
            for name, array in arrays.items():
                folder = root / split / name
                folder.mkdir(parents=True, exist_ok=True)
                np.save(folder / f'{index}.npy', array)
    if not config:
        return DataSet(root, '', {}, {'nyuv2': root, 'classes': [*CLASSES]})
    content = {'default_scope': 'mmseg'}
    for split in SIZES:
        content[f'{split}_dataloader'] = {
            'dataset': {
                'type': 'mmext.NYUv2MultiTaskDataset',
                'data_root': str(root),
                'data_prefix': {'split': split},
                'metainfo': {'classes': list(CLASSES)},
            }
        }
    return DataSet(root, '', content)


_CAMVID = tuple(f'kind{number}' for number in range(11))
CLEAN: dict[str, Callable[[Path], DataSet]] = {
    'semantic': _semantic,
    # 0 is void, which the loader turns into 255.
    'reduced': partial(
        _semantic, stored=(1, 2, 3), void=(0,), reduce_zero_label=True
    ),
    # 13 becomes 1 by the label map, and all other classes 255.
    'mapped': partial(
        _semantic,
        stored=(0, 13),
        void=(5, 255),
        classes=('road', 'car'),
        kind='CityscapesDataset',
    ),
    'wide': partial(_semantic, masks={'dtype': np.uint16}),
    'palette': partial(_semantic, masks={'palette': True}),
    'camvid': partial(
        _semantic, stored=range(11), void=(11,), ignore=11, classes=_CAMVID
    ),
    'binary': partial(
        _semantic, stored=(0, 1), void=(), ignore=100, classes=('no', 'yes')
    ),
    'folders': partial(_folders, stored=(0, 1, 2)),
    'binary_folders': partial(_folders, stored=(0, 1), void=0),
    'coco': _coco,
    'coco_bare': _coco_bare,
    'openmmlab': _openmmlab,
    'panoptic': _panoptic,
    'panoptic_bare': _panoptic_bare,
    'voc': _voc,
    'voc_bare': _voc_bare,
    'yolo': _yolo,
    'yolo_bare': _yolo_bare,
    'nyuv2': partial(_layout, config=True),
    'nyuv2_bare': partial(_layout, config=False),
}


def clean(kind: str, root: Path) -> DataSet:
    """Make a clean data set.

    Args:
        kind: Key of ``CLEAN``.
        root: Folder to make.

    Returns:
        What is there, and how to check it.
    """
    root.mkdir(parents=True)
    made = CLEAN[kind](root)
    made.kind = kind
    return made

"""Errors of configs, class counts, pairs of files, images and duplicates."""

import cv2
import numpy as np
import pytest
from mmengine.dataset import BaseDataset
from PIL import Image

from helpers.image_bytes import bare_png
from helpers.label_boxes import edit_json
from helpers.label_plants import Planted, plant
from helpers.label_sets import SIZES, DataSet
from mmext.checks.findings import code_location
from mmext.checks.labels.facts import ErrorKind
from mmext.checks.labels.readers.image import read_image_facts

_ALL = sum(SIZES.values())


def _dataset(data: DataSet, split: str) -> dict:
    return data.config[f'{split}_dataloader']['dataset']


def _replace(data: DataSet, split: str, old: int, new: int) -> int:
    """Give pixels another value; how many."""
    count = 0
    for index in range(SIZES[split]):
        pixels = data.pixels(index, split)
        count += int((pixels == old).sum())
        pixels[pixels == old] = new
        Image.fromarray(pixels).save(data.mask(index, split))
    return count


@plant('READ001', 'semantic', 'coco')
def one_split_cannot_be_built(data: DataSet) -> Planted:
    dataset = _dataset(data, 'val')
    dataset['metainfo'] = 3
    with pytest.raises(TypeError) as caught:
        BaseDataset._load_metainfo(3)
    return Planted(
        position='val_dataloader.dataset',
        value=f'ValueError: the data set {dataset["type"]} raises TypeError: '
        f'{caught.value} ({code_location(caught.value)}); correct its code, '
        'or its arguments in the config',
        files=0,
    )


@plant('CFG001', 'semantic', 'camvid')
def metric_ignores_another(data: DataSet) -> Planted:
    data.config['val_evaluator']['ignore_index'] = 254
    position = 'val_evaluator.ignore_index'
    return Planted(position=position, value='254', files=0)


@plant('CFG001', 'semantic')
def rotation_fills_with_a_class(data: DataSet) -> Planted:
    step = {'type': 'RandomRotate', 'seg_pad_val': 0}
    _dataset(data, 'train')['pipeline'].append(step)
    position = 'train_dataloader.dataset.pipeline[2].seg_pad_val'
    return Planted(position=position, value='0', files=0)


@plant('CFG001', 'camvid')
def rotation_fills_with_its_default(data: DataSet) -> Planted:
    step = {'type': 'RandomRotate', 'prob': 0.5, 'degree': 20}
    _dataset(data, 'train')['pipeline'].append(step)
    position = 'train_dataloader.dataset.pipeline[2].seg_pad_val'
    return Planted(position=position, value='255', files=0)


@plant('CFG001', 'semantic')
def holes_are_filled_with_a_class(data: DataSet) -> Planted:
    step = {'type': 'RandomCutOut', 'prob': 0.5, 'n_holes': 2}
    step.update(cutout_shape=(4, 4), seg_fill_in=1)
    _dataset(data, 'train')['pipeline'].append(step)
    position = 'train_dataloader.dataset.pipeline[2].seg_fill_in'
    return Planted(position=position, value='1', files=0)


@plant('CFG001', 'camvid')
def loss_ignores_its_default(data: DataSet) -> Planted:
    """It does not get the value from its head."""
    head = data.config['model']['decode_head']
    head['loss_decode'] = [{'type': 'OhemCrossEntropy'}]
    position = 'model.decode_head.loss_decode[0].ignore_label'
    return Planted(position=position, value='255', files=0)


@plant('CFG001', 'camvid')
def metric_ignores_its_default(data: DataSet) -> Planted:
    del data.config['val_evaluator']['ignore_index']
    position = 'val_evaluator.ignore_index'
    return Planted(position=position, value='255', files=0)


@plant('CFG002', 'semantic')
def weights_of_another_length(data: DataSet) -> Planted:
    loss = data.config['model']['decode_head']['loss_decode']
    loss['class_weight'] = [1.0, 2.0]
    position = 'model.decode_head.loss_decode'
    return Planted(position=position, value='2', files=0)


@plant('CFG002', 'semantic')
def weights_of_another_length_in_a_file(data: DataSet) -> Planted:
    file = data.root / 'weights.json'
    file.write_text('[1.0, 2.0]')
    loss = data.config['model']['decode_head']['loss_decode']
    loss['class_weight'] = str(file)
    position = 'model.decode_head.loss_decode'
    return Planted(position=position, value='2', files=0)


@plant('CFG002', 'coco')
def weights_of_a_detector(data: DataSet) -> Planted:
    loss = data.config['model']['bbox_head']['loss_cls']
    loss['class_weight'] = [1.0] * 5
    position = 'model.bbox_head.loss_cls'
    return Planted(position=position, value='5', files=0)


@plant('CFG003', 'semantic')
def one_class_more(data: DataSet) -> Planted:
    data.config['model']['decode_head']['num_classes'] = 4
    position = 'model.decode_head.num_classes'
    return Planted(position=position, value='4', files=0)


@plant('CFG003', 'coco', 'voc')
def detector_of_more_classes(data: DataSet) -> Planted:
    data.config['model']['bbox_head']['num_classes'] = 80
    position = 'model.bbox_head.num_classes'
    return Planted(position=position, value='80', files=0)


@plant('CFG003', 'coco', 'voc')
def classes_by_default(data: DataSet) -> Planted:
    """BBoxHead, from which the class inherits, has 80."""
    data.config['model']['bbox_head'] = {
        'type': 'Shared2FCBBoxHead',
        'loss_cls': {'type': 'CrossEntropyLoss'},
    }
    position = 'model.bbox_head.num_classes'
    return Planted(position=position, value='80', files=0)


@plant('CFG004', 'semantic')
def padding(data: DataSet) -> Planted:
    data.config['model']['data_preprocessor']['seg_pad_val'] = 0
    position = 'model.data_preprocessor.seg_pad_val'
    return Planted(position=position, value='0', files=0)


@plant('CFG004', 'camvid')
def padding_by_default(data: DataSet) -> Planted:
    """All images are 24 x 32."""
    preprocessor = {'type': 'SegDataPreProcessor', 'size': (96, 96)}
    data.config['model']['data_preprocessor'] = preprocessor
    position = 'model.data_preprocessor.seg_pad_val'
    return Planted(position=position, value='255', files=0)


@plant('CFG004', 'semantic')
def transform_pads_with_a_class(data: DataSet) -> Planted:
    step = {'type': 'Pad', 'size': (96, 96), 'pad_val': {'img': 0, 'seg': 0}}
    _dataset(data, 'train')['pipeline'].append(step)
    position = 'train_dataloader.dataset.pipeline[2].pad_val'
    return Planted(position=position, value='0', files=0)


@plant('CFG005', 'binary')
def class_is_ignored(data: DataSet) -> Planted:
    data.config['model']['decode_head']['ignore_index'] = 1
    data.config['model']['data_preprocessor']['seg_pad_val'] = 1
    data.config['val_evaluator']['ignore_index'] = 1
    return Planted(position='ignore_index', value='1', files=0)


@plant('CFG006', 'semantic')
def first_class_is_reduced(data: DataSet) -> Planted:
    count = 0
    for split, size in SIZES.items():
        _dataset(data, split)['reduce_zero_label'] = True
        for index in range(size):
            count += int((data.pixels(index, split) == 0).sum())
    return Planted(value='0', count=count, files=0, findings=2)


@plant('CFG007', 'semantic')
def named_twice(data: DataSet) -> Planted:
    for split in SIZES:
        names = ['road', 'car', 'car']
        _dataset(data, split)['metainfo']['classes'] = names
    return Planted(position='metainfo.classes', value='car', files=0)


@plant('CFG008', 'semantic')
def other_order_in_val(data: DataSet) -> Planted:
    names = ['road', 'sky', 'car']
    _dataset(data, 'val')['metainfo']['classes'] = names
    position = 'val_dataloader.dataset'
    return Planted(position=position, value='classes', files=0)


@plant('CFG009', 'semantic')
def loader_alone_reduces(data: DataSet) -> Planted:
    """As configs of MMSegmentation 0.x have it; each label is in range."""
    for split, size in SIZES.items():
        step = {'type': 'LoadAnnotations', 'reduce_zero_label': True}
        _dataset(data, split)['pipeline'][1] = step
        for index in range(size):
            pixels = data.pixels(index, split) + np.uint8(1)
            Image.fromarray(pixels).save(data.mask(index, split))
    position = 'train_dataloader.dataset'
    return Planted(
        position=position, value='True', files=0, findings=2, count=2
    )


@plant('CFG009', 'reduced')
def loader_does_not_reduce(data: DataSet) -> Planted:
    step = {'type': 'LoadAnnotations', 'reduce_zero_label': False}
    for split, size in SIZES.items():
        _dataset(data, split)['pipeline'][1] = step
        for index in range(size):
            pixels = data.pixels(index, split) - np.uint8(1)
            Image.fromarray(pixels).save(data.mask(index, split))
    position = 'train_dataloader.dataset'
    return Planted(
        position=position, value='False', files=0, findings=2, count=2
    )


@plant('CFG010', 'semantic')
def written_in_two_ways(data: DataSet) -> Planted:
    for split in SIZES:
        names = ['road', 'car', 'Car ']
        _dataset(data, split)['metainfo']['classes'] = names
    return Planted(position='metainfo.classes', value='Car ', files=0)


@plant('CFG010', 'voc_bare')
def named_in_two_ways(data: DataSet) -> Planted:
    path = data.annotation(2)
    text = path.read_text()
    path.write_text(text.replace('<name>road<', '<name>Road<'))
    return Planted(position='metainfo.classes', value='road', files=0)


@plant('CFG011', 'semantic')
def weight_is_nan(data: DataSet) -> Planted:
    loss = data.config['model']['decode_head']['loss_decode']
    loss['class_weight'] = [1.0, _Nan('nan'), 2.0]
    position = 'model.decode_head.loss_decode'
    return Planted(position=position, value='nan', files=0)


@plant('CFG011', 'coco')
def weight_is_negative(data: DataSet) -> Planted:
    loss = data.config['model']['bbox_head']['loss_cls']
    loss['class_weight'] = [1.0, 1.0, -0.5]
    position = 'model.bbox_head.loss_cls'
    return Planted(position=position, value='-0.5', files=0)


@plant('CFG011', 'semantic')
def weights_of_no_file(data: DataSet) -> Planted:
    path = str(data.root / 'weights.npy')
    loss = data.config['model']['decode_head']['loss_decode']
    loss['class_weight'] = path
    position = 'model.decode_head.loss_decode'
    return Planted(position=position, value=path, files=0)


class _Nan(float):
    """NaN that a config can be written with."""

    def __repr__(self) -> str:
        return "float('nan')"


def _filter(data: DataSet, **filter_cfg) -> str:
    _dataset(data, 'train')['filter_cfg'] = filter_cfg
    return 'train_dataloader.dataset.filter_cfg'


@plant('CFG012', 'coco', 'voc', 'yolo')
def images_without_objects_are_left_out(data: DataSet) -> Planted:
    position = _filter(data, filter_empty_gt=True, min_size=16)
    if data.kind == 'yolo':
        data.annotation(2).write_text('')
    elif data.kind == 'voc':
        for index in (2, 4):
            path = data.annotation(index)
            path.write_text(path.read_text().partition('<object>')[0])
            with path.open('a') as file:
                file.write('</annotation>')
    else:

        def change(content: dict) -> None:
            del content['annotations'][6:12]

        edit_json(data.annotation(), change)
    return Planted(position=position, value='train', files=0)


@plant('CFG012', 'voc')
def small_boxes_are_ignored(data: DataSet) -> Planted:
    """The first of three in each image is 12 x 9."""
    position = _filter(data, bbox_min_size=10)
    for index in range(3):
        path = data.annotation(index)
        first = path.read_text().index('<ymax>14<')
        text = path.read_text()
        path.write_text(f'{text[:first]}<ymax>30<{text[first + 9 :]}')
    return Planted(position=position, value='train', files=0)


@plant('CFG012', 'coco', 'voc', 'yolo')
def all_images_are_too_small(data: DataSet) -> Planted:
    position = _filter(data, min_size=37)
    return Planted(position=position, value='train', files=0)


@plant('CFG013', 'semantic')
def vaihingen_is_not_reduced(data: DataSet) -> Planted:
    """Values 0 to 5 of 0 to 6: 0 is no class, the last class is rare."""
    names = ['impervious_surface', 'building', 'tree', 'car', 'low', 'x']
    for split in SIZES:
        _dataset(data, split)['metainfo']['classes'] = names
        _replace(data, split, 255, 5)
    data.config['model']['decode_head']['num_classes'] = 6
    count = sum(
        int((data.pixels(index, split) == 0).sum())
        for split, size in SIZES.items()
        for index in range(size)
    )
    return Planted(value='0', count=count, files=0, findings=2)


@plant('CLS001', 'folders')
def never_trained(data: DataSet) -> Planted:
    _replace(data, 'train', 1, 0)
    return Planted(value='1', files=0)


@plant('CLS002', 'semantic', 'camvid', 'palette')
def never_evaluated(data: DataSet) -> Planted:
    _replace(data, 'val', 2, 0)
    return Planted(value='2', files=0)


@plant('CLS003', 'semantic')
def only_evaluated(data: DataSet) -> Planted:
    _replace(data, 'train', 2, 0)
    count = sum(
        int((data.pixels(index, 'val') == 2).sum())
        for index in range(SIZES['val'])
    )
    return Planted(value='2', count=count, files=0)


@plant('CLS005', 'folders', 'semantic')
def all_void(data: DataSet) -> Planted:
    for value in data.stored:
        _replace(data, 'train', value, 255)
    return Planted(value='0', files=0)


@plant('DUP001', 'semantic', 'folders', 'coco')
def same_twice(data: DataSet) -> Planted:
    data.image(3).write_bytes(data.image(1).read_bytes())
    return Planted(data.image(1), count=2)


@plant('DUP001', 'voc', 'voc_bare', 'yolo_bare', 'semantic')
def named_twice_in_a_list(data: DataSet) -> Planted:
    lines = [path.stem for path in map(data.image, (0, 1, 2, 3, 4, 5, 3))]
    path = data.root / 'list.txt'
    if data.kind == 'semantic':
        _dataset(data, 'train')['ann_file'] = 'list.txt'
    elif data.kind == 'yolo_bare':
        lines = [f'images/train/{name}.jpg' for name in lines]
        yaml = data.root / 'data.yaml'
        yaml.write_text(yaml.read_text().replace('images/train', 'list.txt'))
    else:
        path = data.root / 'ImageSets' / 'Main' / 'train.txt'
    path.write_text('\n'.join(lines))
    return Planted(data.image(3))


@plant('DUP002', 'semantic', 'coco')
def same_in_both(data: DataSet) -> Planted:
    data.image(3, 'val').write_bytes(data.image(1).read_bytes())
    return Planted(data.image(1), count=2)


def _resaved(data: DataSet, split: str) -> None:
    """The same image in other bytes."""
    image = Image.open(data.image(1))
    image.putpixel((0, 0), (1, 2, 3))
    image.save(data.image(3, split))


@plant('DUP003', 'semantic', 'folders')
def alike(data: DataSet) -> Planted:
    _resaved(data, 'train')
    return Planted(data.image(1), count=2)


@plant('DUP004', 'semantic', 'coco')
def alike_in_both(data: DataSet) -> Planted:
    _resaved(data, 'val')
    return Planted(data.image(1), count=2)


@plant('IMG001', 'coco', 'voc')
def image_missing(data: DataSet) -> Planted:
    path = data.image(2)
    path.unlink()
    return Planted(path)


@plant('IMG001', 'voc', 'voc_bare')
def image_of_xml_as_png(data: DataSet) -> Planted:
    """MMDetection's XMLDataset adds .jpg to the names of the list."""
    path = data.image(2)
    Image.open(path).save(path.with_suffix('.png'))
    path.unlink()
    return Planted(path.with_suffix('.png'))


@plant('IMG001', 'semantic')
def image_of_a_list_missing(data: DataSet) -> Planted:
    names = ''.join(f'{index}\n' for index in range(SIZES['train']))
    (data.root / 'list.txt').write_text(names)
    _dataset(data, 'train')['ann_file'] = 'list.txt'
    path = data.image(2)
    path.unlink()
    return Planted(path)


@plant('IMG002', 'semantic', 'folders', 'coco', 'voc')
def image_empty(data: DataSet) -> Planted:
    data.image(2).write_bytes(b'')
    return Planted(data.image(2))


@plant('IMG003', 'semantic', 'folders', 'coco', 'voc')
def image_cut_off(data: DataSet) -> Planted:
    path = data.image(2)
    path.write_bytes(path.read_bytes()[:-30])
    return Planted(path)


@plant('IMG004', 'semantic', 'folders', 'coco', 'voc')
def no_image(data: DataSet) -> Planted:
    data.image(0).write_text('<html>404</html>')
    return Planted(data.image(0))


@plant('IMG005', 'semantic')
def image_huge(data: DataSet) -> Planted:
    data.image(0).write_bytes(bare_png(100_000, 100_000, colour=2))
    return Planted(data.image(0))


@plant('IMG006', 'folders', 'coco', 'voc')
def image_suspect(data: DataSet) -> Planted:
    """The first flipped byte of a scan that one decoder warns of."""
    path = data.image(4)
    content = bytearray(path.read_bytes())
    for at in range(len(content) - 3, 0, -1):
        changed = content.copy()
        changed[at] ^= 0x5A
        error = read_image_facts(bytes(changed)).error
        if error is not None and error.kind is ErrorKind.SUSPECT:
            path.write_bytes(changed)
            return Planted(path)
    raise AssertionError('no flipped byte makes a warning')


@plant('IMG007', 'semantic')
def image_of_16_bits(data: DataSet) -> Planted:
    """In colours, of which Pillow's mode does not tell it."""
    path = data.image(2)
    pixels = cv2.imread(str(path)).astype(np.uint16) * 257
    path.write_bytes(cv2.imencode('.png', pixels)[1].tobytes())
    return Planted(path, value='16')


@plant('IMG008', 'semantic')
def image_with_alpha(data: DataSet) -> Planted:
    _dataset(data, 'train')['pipeline'][0]['color_type'] = 'unchanged'
    batch = data.config['model']['data_preprocessor']
    batch.update(mean=[127.0] * 3, std=[64.0] * 3)
    path = data.image(2)
    with Image.open(path) as image:
        image.convert('RGBA').save(path, 'PNG')
    return Planted(path, value='RGBA')


@plant('PAIR001', 'semantic', 'folders', 'wide')
def other_size(data: DataSet) -> Planted:
    path = data.mask(2)
    Image.fromarray(data.pixels(2)[:, :-1].copy()).save(path)
    return Planted(path, value='31 x 24')


def _turn(data: DataSet, orientation: int) -> Planted:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = data.image(2)
    Image.open(path).save(path, exif=exif)
    return Planted(path, value=str(orientation))


@plant('PAIR002', 'semantic', 'folders')
def turned_image(data: DataSet) -> Planted:
    return _turn(data, 6)


@plant('PAIR003', 'yolo', 'yolo_bare')
def turned_image_of_fractions(data: DataSet) -> Planted:
    return _turn(data, 6)


@plant('PAIR003', 'semantic', 'folders', 'coco', 'voc', 'yolo')
def mirrored_image(data: DataSet) -> Planted:
    return _turn(data, 3)


@plant('PAIR005', 'coco', 'voc')
def turned_after_annotation(data: DataSet) -> Planted:
    return _turn(data, 8)


@plant('PAIR006', 'folders')
def no_mask(data: DataSet) -> Planted:
    data.mask(5).unlink()
    return Planted(data.image(5))


@plant('PAIR007', 'folders')
def no_image_of_mask(data: DataSet) -> Planted:
    data.image(5).unlink()
    return Planted(data.mask(5))


@plant('PAIR008', 'semantic')
def no_sample(data: DataSet) -> Planted:
    _dataset(data, 'train')['img_suffix'] = '.jpeg'
    return Planted(value='0', files=0)


@plant('PAIR011', 'semantic')
def bands_as_arrays(data: DataSet) -> Planted:
    for split, size in SIZES.items():
        _dataset(data, split)['img_suffix'] = '.npy'
        for index in range(size):
            path = data.image(index, split)
            np.save(path.with_suffix('.npy'), np.zeros((24, 32, 25)))
            path.unlink()
    return Planted(value='.npy', count=2, files=0, findings=2)


@plant('PAIR008', 'folders')
def no_files(data: DataSet) -> Planted:
    for index in range(SIZES['train']):
        data.mask(index).unlink()
        data.image(index).unlink()
    return Planted(value='0', files=0)

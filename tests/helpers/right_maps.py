"""Right sets with label maps: semantic and panoptic."""

import json
from collections.abc import Sequence
from pathlib import Path

import mmdet.datasets as hosts
import numpy as np
from PIL import Image

from helpers.right_sets import (
    SIZE,
    Right,
    categories_of,
    coco_file,
    host_path,
    label_map,
    numbers,
    picture,
    right_set,
    write_json,
)

_CITIES = {'train': 'aachen', 'val': 'munster'}


def _cityscapes(root: Path) -> None:
    """Pictures by city; beside the maps that count, three other kinds."""
    for split, city in _CITIES.items():
        for number in range(3):
            stem = f'{city}/{city}_{number:06d}_000019'
            picture(root / f'leftImg8bit/{split}/{stem}_leftImg8bit.png')
            gt = root / f'gtFine/{split}/{stem}_gtFine'
            label_map(Path(f'{gt}_labelTrainIds.png'), (*range(19), 255))
            label_map(Path(f'{gt}_labelIds.png'), (*range(34),))
            ids = (1, 4, 26001, 26002, 24003)
            label_map(Path(f'{gt}_instanceIds.png'), ids, np.uint16)
            picture(Path(f'{gt}_color.png'))
            write_json(Path(f'{gt}_polygons.json'), {'objects': []})


@right_set
def cityscapes(root: Path) -> Right:
    """By config, and by folder with the ends of names."""
    _cityscapes(root)
    return Right(
        [
            'mmseg::pspnet/pspnet_r50-d8_4xb2-40k_cityscapes-512x1024.py',
            'mmseg::stdc/stdc1_4xb12-80k_cityscapes-512x1024.py',
            'mmseg::mask2former/'
            'mask2former_r50_8xb2-90k_cityscapes-512x1024.py',
            'mmseg::ddrnet/'
            'ddrnet_23-slim_in1k-pre_2xb6-120k_cityscapes-1024x1024.py',
            'mmseg::point_rend/pointrend_r50_4xb2-80k_cityscapes-512x1024.py',
        ],
        bare=[
            {
                'masks': root / 'gtFine/train',
                'images': root / 'leftImg8bit/train',
                'mask_suffix': '_gtFine_labelTrainIds.png',
                'image_suffix': '_leftImg8bit.png',
                'num_classes': 19,
            },
            {
                'masks': root / 'gtFine/train',
                'images': root / 'leftImg8bit/train',
                'mask_suffix': '_gtFine_labelTrainIds',
                'image_suffix': '_leftImg8bit',
                'num_classes': 19,
            },
            {
                'masks': root / 'gtFine/train',
                'mask_suffix': '_gtFine_labelIds.png',
                'num_classes': 34,
            },
        ],
    )


@right_set
def dark_zurich(root: Path) -> Right:
    """Trained on Cityscapes, evaluated on pictures of the night."""
    _cityscapes(root)
    for number in range(2):
        stem = f'val/night/GOPR0356/GOPR0356_frame_{number:06d}'
        night = root / 'dark_zurich'
        picture(night / f'rgb_anon/{stem}_rgb_anon.png')
        ids = (*range(19), 255)
        label_map(night / f'gt/{stem}_gt_labelTrainIds.png', ids)
        label_map(night / f'gt/{stem}_gt_labelIds.png', range(34))
        picture(night / f'gt/{stem}_gt_labelColor.png')
    return Right(
        ['mmseg::pspnet/pspnet_r50-d8_4xb2-40k_cityscapes-512x1024.py'],
        {
            'val_dataloader.dataset.type': 'DarkZurichDataset',
            'val_dataloader.dataset.data_root': str(night),
            'val_dataloader.dataset.data_prefix.img_path': 'rgb_anon/val',
            'val_dataloader.dataset.data_prefix.seg_map_path': 'gt/val',
        },
    )


def _pairs(
    root: Path,
    splits: dict[str, str],
    values: Sequence[int],
    images: str = 'images',
    masks: str = 'annotations',
    end: str = '.jpg',
    map_end: str = '.png',
    **more,
) -> None:
    """Pictures and maps of the same names, in folders by split."""
    for split in splits:
        for number in range(3):
            name = splits[split].format(number)
            picture(root / images / split / f'{name}{end}')
            label_map(
                root / masks / split / f'{name}{map_end}', values, **more
            )


@right_set
def ade20k(root: Path) -> Right:
    """0 is what no class is; the loader reduces by one."""
    splits = {'training': 'ADE_train_{:08d}', 'validation': 'ADE_val_{:08d}'}
    _pairs(root, splits, range(151), size=(302, 48))
    for split, name in splits.items():
        for number in range(3):
            path = root / f'images/{split}/{name.format(number)}.jpg'
            picture(path, size=(302, 48))
    bare = {
        'masks': root / 'annotations/training',
        'images': root / 'images/training',
        'num_classes': 150,
    }
    return Right(
        [
            'mmseg::pspnet/pspnet_r50-d8_4xb4-80k_ade20k-512x512.py',
            'mmseg::mask2former/mask2former_r50_8xb2-160k_ade20k-512x512.py',
            'mmseg::knet/knet-s3_r50-d8_fcn_8xb2-adamw-80k_ade20k-512x512.py',
        ],
        bare=[{**bare, 'reduce_zero_label': True}],
    )


def _voc2012(root: Path) -> Path:
    """Palette images whose borders are 255; lists; pictures without maps."""
    base = root / 'VOCdevkit/VOC2012'
    lists = {'train': 3, 'val': 2, 'aug': 2}
    for split, count in lists.items():
        names = [f'2007_{split}{number}' for number in range(count)]
        folder = 'SegmentationClass' + 'Aug' * (split == 'aug')
        for name in names:
            picture(base / f'JPEGImages/{name}.jpg')
            path = base / f'{folder}/{name}.png'
            label_map(path, (*range(21), 255), palette=split != 'aug')
        path = base / f'ImageSets/Segmentation/{split}.txt'
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(''.join(f'{name}\n' for name in names))
    picture(base / 'JPEGImages/2008_only_boxes.jpg')
    return base


@right_set
def voc12_maps(root: Path) -> Right:
    """VOC2012's segmentation, with the larger training set, by lists."""
    base = _voc2012(root)
    return Right(
        ['mmseg::pspnet/pspnet_r50-d8_4xb4-20k_voc12aug-512x512.py'],
        {'data_root': str(base)},
        bare=[
            {
                'masks': base / 'SegmentationClass',
                'images': base / 'JPEGImages',
                'num_classes': 21,
            }
        ],
    )


@right_set
def pascal_context(root: Path) -> Right:
    """60 classes with background, or 59 without it, of the same maps."""
    base = root / 'VOCdevkit/VOC2010'
    for split in ('train', 'val'):
        names = [f'2008_{split}{number}' for number in range(2)]
        for name in names:
            picture(base / f'JPEGImages/{name}.jpg')
            path = base / f'SegmentationClassContext/{name}.png'
            label_map(path, range(60))
        path = base / f'ImageSets/SegmentationContext/{split}.txt'
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('\n'.join(names))
    return Right(
        [
            'mmseg::fcn/fcn_r101-d8_4xb4-40k_pascal-context-480x480.py',
            'mmseg::fcn/fcn_r101-d8_4xb4-40k_pascal-context-59-480x480.py',
        ],
        {'data_root': str(base)},
    )


@right_set
def loveda(root: Path) -> Right:
    """0 is what no class is, of seven classes."""
    _pairs(
        root,
        {'train': '{}', 'val': '1{}'},
        range(8),
        'img_dir',
        'ann_dir',
        '.png',
    )
    return Right(
        ['mmseg::pspnet/pspnet_r50-d8_4xb4-80k_loveda-512x512.py'],
        {'data_root': str(root)},
        bare=[
            {
                'masks': root / 'ann_dir/train',
                'images': root / 'img_dir/train',
                'num_classes': 7,
                'reduce_zero_label': True,
            }
        ],
    )


@right_set
def coco_stuff(root: Path) -> Right:
    """164k: maps end otherwise than pictures, other maps beside them."""
    for split, first in (('train', 1), ('val', 9)):
        for name in numbers(first, 2):
            picture(root / f'images/{split}2017/{name}')
            stem = root / f'annotations/{split}2017/{name[:-4]}'
            label_map(Path(f'{stem}_labelTrainIds.png'), (0, 3, 170, 255))
            label_map(Path(f'{stem}.png'), (0, 3, 181, 255))
    return Right(
        ['mmseg::pspnet/pspnet_r50-d8_4xb4-80k_coco-stuff164k-512x512.py'],
        {'data_root': str(root)},
        bare=[
            {
                'masks': root / 'annotations/train2017',
                'images': root / 'images/train2017',
                'mask_suffix': '_labelTrainIds.png',
                'num_classes': 171,
            }
        ],
    )


@right_set
def repeated_binary(root: Path) -> Right:
    """DRIVE: two classes, a set that is repeated 40000 times."""
    splits = {'training': '2{}_training', 'validation': '0{}_test'}
    _pairs(root, splits, (0, 1), end='.png', map_end='_manual1.png')
    return Right(
        ['mmseg::unet/unet-s5-d16_fcn_4xb4-40k_drive-64x64.py'],
        {'data_root': str(root)},
        bare=[
            {
                'masks': root / 'annotations/training',
                'images': root / 'images/training',
                'mask_suffix': '_manual1.png',
                'num_classes': 2,
            }
        ],
    )


@right_set
def two_dates(root: Path) -> Right:
    """LEVIR: two pictures for each map of changes."""
    for split in ('train', 'test'):
        for number in range(2):
            for folder in 'AB':
                picture(root / split / folder / f'{split}_{number}.png')
            label_map(root / split / f'label/{split}_{number}.png', (0, 1))
    return Right(
        [
            'mmseg::swin/'
            'swin-tiny-patch4-window7_upernet_1xb8-20k_levir-256x256.py'
        ],
        {'data_root': str(root)},
    )


@right_set
def wide_ids(root: Path) -> Right:
    """Maps of 16 bits: ids that fit into 8, and ids that do not."""
    names = [f'kind{number}' for number in range(847)]
    ids = (0, 255, 256, 700, 846)
    for split in ('train', 'val'):
        for number in range(2):
            picture(root / f'images/{split}/{number}.jpg')
            label_map(root / f'wide/{split}/{number}.png', ids, np.uint16)
            path = root / f'narrow/{split}/{number}.png'
            label_map(path, (*range(19), 255), np.uint16)
    lines = [f'names = {names!r}', _WIDE]
    (root / 'wide.py').write_text('\n'.join(lines))
    base = host_path(
        'mmseg::pspnet/pspnet_r50-d8_4xb2-40k_cityscapes-512x1024.py'
    )
    (root / 'narrow.py').write_text(
        f'_base_ = {str(base)!r}\n'
        'img = dict(img_suffix=".jpg", seg_map_suffix=".png")\n'
        'train_dataloader = dict(dataset=dict(data_prefix=dict('
        'img_path="images/train", seg_map_path="narrow/train"), **img))\n'
        'val_dataloader = dict(dataset=dict(data_prefix=dict('
        'img_path="images/val", seg_map_path="narrow/val"), **img))\n'
    )
    return Right(
        [root / 'wide.py', root / 'narrow.py'],
        bare=[
            {
                'masks': root / f'{kind}/train',
                'images': root / 'images/train',
                'num_classes': count,
                'ignore_index': ignored,
            }
            for kind, count, ignored in (
                ('narrow', 19, 255),
                ('wide', 847, 65535),
            )
        ],
    )


# MMDetection's loader keeps 16 bits.
_WIDE = """
default_scope = 'mmdet'
data_root = 'data/'
head = dict(
    type='MaskFormerFusionHead',
    num_classes=847,
    ignore_index=65535,
    loss_seg=dict(type='CrossEntropyLoss', ignore_index=65535),
)
model = dict(type='MaskFormer', semantic_head=head)


def dataset(split):
    return dict(
        type='BaseSegDataset',
        data_root=data_root,
        data_prefix=dict(
            img_path=f'images/{split}', seg_map_path=f'wide/{split}'
        ),
        metainfo=dict(classes=names),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(
                type='LoadAnnotations',
                with_bbox=False,
                with_label=False,
                with_seg=True,
                ignore_index=65535,
            ),
        ],
    )


train_dataloader = dict(dataset=dataset('train'))
val_dataloader = dict(dataset=dataset('val'))
del dataset
"""


def _panoptic_png(path: Path, ids: Sequence[int]) -> list[int]:
    """Ids as colours, a column each; pixels of each."""
    columns = np.linspace(0, len(ids), SIZE[0], endpoint=False).astype(int)
    pixels = np.array(ids)[columns][None].repeat(SIZE[1], 0)
    colours = np.stack([pixels >> shift & 255 for shift in (0, 8, 16)], -1)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(colours.astype(np.uint8)).save(path)
    return [int((pixels == value).sum()) for value in ids]


def panoptic_file(
    root: Path,
    split: str,
    names: Sequence[str],
    kinds: Sequence[dict],
    json_name: str,
    images: str,
    png_name=lambda name: name.replace('.jpg', '.png'),
) -> None:
    """A panoptic annotation file, its PNG files and its pictures."""
    path = root / f'{json_name}.json'
    content = coco_file(path, names, kinds, folder=root / images, objects=0)
    ids = (0, 1, 3226956, 0x10000, 0x1FFFE)
    used = (kinds[0], kinds[2], kinds[-1], kinds[-2])
    crowds = (0, 1, 0, 0)
    for image in content['images']:
        name = png_name(image['file_name'])
        areas = _panoptic_png(root / json_name / name, ids)
        lefts = np.cumsum([0, *[area // SIZE[1] for area in areas]]).tolist()
        segments = [
            {
                'id': ids[i],
                'category_id': used[i - 1]['id'],
                'iscrowd': crowds[i - 1],
                'area': areas[i],
                'bbox': [lefts[i], 0, lefts[i + 1] - lefts[i], SIZE[1]],
            }
            for i in range(1, len(ids))
        ]
        content['annotations'].append(
            {
                'image_id': image['id'],
                'file_name': name,
                'segments_info': segments,
            }
        )
    write_json(path, content)


@right_set
def panoptic(root: Path) -> Right:
    """COCO's: ids of segments as colours, things and stuff."""
    meta = hosts.CocoPanopticDataset.METAINFO
    names = meta['classes']
    things = [int(name in meta['thing_classes']) for name in names]
    kinds = categories_of(names, isthing=things)
    for split, own in (('train', numbers(1, 3)), ('val', numbers(9, 2))):
        panoptic_file(
            root,
            split,
            own,
            kinds,
            f'annotations/panoptic_{split}2017',
            f'{split}2017',
        )
    # What the metrics of boxes read.
    coco_file(
        root / 'annotations/instances_val2017.json', numbers(9, 2), kinds[:80]
    )
    return Right(
        [
            'mmdet::panoptic_fpn/panoptic-fpn_r50_fpn_1x_coco.py',
            'mmdet::mask2former/mask2former_r50_8xb2-lsj-50e_coco-panoptic.py',
            'mmdet::maskformer/maskformer_r50_ms-16xb1-75e_coco.py',
        ],
        bare=[
            {
                'coco': root / 'annotations/panoptic_train2017.json',
                'images': root / 'train2017',
            }
        ],
    )


@right_set
def cityscapes_panoptic(root: Path) -> Right:
    """Files of segments that are named otherwise than their pictures."""
    kinds = [
        {'id': 7 + i, 'name': f'kind{i}', 'isthing': int(i > 10)}
        for i in range(19)
    ]
    panoptic_file(
        root,
        'train',
        [f'aachen/aachen_00000{i}_000019_leftImg8bit.png' for i in range(3)],
        kinds,
        'gtFine/cityscapes_panoptic_train',
        'leftImg8bit/train',
        lambda name: name.rpartition('/')[2].replace(
            'leftImg8bit', 'gtFine_panoptic'
        ),
    )
    path = root / 'gtFine/cityscapes_panoptic_train.json'
    content = json.loads(path.read_text())
    for image in content['images']:
        stem = image['file_name'].rpartition('/')[2]
        image['id'] = stem.replace('_leftImg8bit.png', '')
    for note, image in zip(content['annotations'], content['images']):
        note['image_id'] = image['id']
    write_json(path, content)
    return Right(
        bare=[{'coco': path, 'images': root / 'leftImg8bit/train'}],
    )


@right_set
def nyu_depth(root: Path) -> Right:
    """Depth, which has no classes, in place of label maps."""
    for split in ('train', 'test'):
        for number in range(2):
            name = f'bathroom_{split}_{number}'
            picture(root / f'images/{split}/{name}.jpg')
            path = root / f'annotations/{split}/{name}.png'
            label_map(path, (0, 700, 9900), np.uint16)
    return Right(['mmseg::vpd/vpd_sd_4xb8-25k_nyu-512x512.py'])


@right_set
def hyperspectral(root: Path) -> Right:
    """HSI-Drive: pictures of 25 bands, as arrays."""
    for split in ('training', 'validation'):
        for number in range(2):
            path = root / f'images/{split}/{split}{number}.npy'
            path.parent.mkdir(parents=True, exist_ok=True)
            bands = np.random.default_rng(len(split)).random((48, 64, 25))
            np.save(path, 9000 * bands.astype(np.float32))
            path = root / f'annotations/{split}/{split}{number}.png'
            label_map(path, range(11))
    return Right(
        ['mmseg::unet/unet-s5-d16_fcn_4xb4-160k_hsidrive-192x384.py'],
        {
            # The padding that the host's has is never there.
            'model.data_preprocessor.seg_pad_val': 0,
            'data_root': str(root),
            **{
                f'{split}_dataloader.dataset.data_root': str(root)
                for split in ('train', 'val')
            },
        },
    )

"""Right sets with boxes: COCO and its kin, Pascal VOC, and others."""

import csv
import json
import pickle
from pathlib import Path

import mmdet.datasets as hosts

from helpers.right_sets import (
    SIZE,
    Right,
    categories_of,
    coco_file,
    label_map,
    numbers,
    packed_rle,
    picture,
    plain_rle,
    right_set,
    write_json,
)

_COCO = hosts.CocoDataset.METAINFO['classes']


def _splits(train: int = 4, val: int = 2) -> dict[str, list[str]]:
    return {'train': numbers(100, train), 'val': numbers(500, val)}


def _coco(root: Path, **more) -> None:
    """train2017, val2017 and their annotations."""
    for split, names in _splits().items():
        coco_file(
            root / f'annotations/instances_{split}2017.json',
            names,
            categories_of(_COCO, supercategory=['x'] * 80),
            folder=root / f'{split}2017',
            **more,
        )


def _bare_coco(root: Path, name: str = 'instances_train2017') -> dict:
    return {
        'coco': root / f'annotations/{name}.json',
        'images': root / 'train2017',
    }


@right_set
def coco_rle_and_crowd(root: Path) -> Right:
    """Polygons, both forms of run lengths, crowds that overlap the others."""
    shapes = iter([packed_rle, plain_rle] * 99)
    _coco(root, shape=lambda box: next(shapes)(box))
    for split in ('train', 'val'):
        path = root / f'annotations/instances_{split}2017.json'
        content = json.loads(path.read_text())
        for index, image in enumerate(content['images']):
            box = [0.0, 0.0, 60.5, 40.25]
            content['annotations'].append(
                {
                    'id': 900100000000 + index,
                    'image_id': image['id'],
                    'category_id': 1,
                    'iscrowd': 1,
                    'area': 2400,
                    'bbox': box,
                    'segmentation': plain_rle([0, 0, 60, 40]),
                }
            )
        write_json(path, content)
    return Right(
        [
            'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py',
            'mmdet::yolox/yolox_s_8xb8-300e_coco.py',
            'mmdet::detr/detr_r50_8xb2-150e_coco.py',
            'mmdet::solov2/solov2_r50_fpn_1x_coco.py',
        ],
        bare=[_bare_coco(root)],
    )


@right_set
def htc_stuff(root: Path) -> Right:
    """Instances, and maps of things and stuff: ids less one, 255 is void."""
    _coco(root)
    for name in _splits()['train']:
        stem = name.partition('.')[0]
        label_map(
            root / f'stuffthingmaps/train2017/{stem}.png',
            (0, 2, 89, 91, 181, 255),
        )
    return Right(
        ['mmdet::htc/htc_r50_fpn_1x_coco.py'],
        bare=[
            _bare_coco(root),
            {
                'masks': root / 'stuffthingmaps/train2017',
                'images': root / 'train2017',
                'num_classes': 183,
            },
        ],
    )


@right_set
def rpn_with_classes(root: Path) -> Right:
    """An RPN whose config says what is its default: one class."""
    _coco(root)
    return Right(
        ['mmdet::faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py'],
        {'model.rpn_head.num_classes': 1},
    )


@right_set
def semi_supervised(root: Path) -> Right:
    """Soft-teacher's: unlabelled pictures have a file without objects."""
    _coco(root)
    coco_file(
        root / 'annotations/instances_unlabeled2017.json',
        numbers(900, 3),
        categories_of(_COCO),
        folder=root / 'unlabeled2017',
        objects=0,
    )
    return Right(
        [
            'mmdet::soft_teacher/'
            'soft-teacher_faster-rcnn_r50-caffe_fpn_180k_semi-0.1-coco.py'
        ],
        {
            'labeled_dataset.ann_file': 'annotations/instances_train2017.json',
            'train_dataloader.dataset.datasets.0.ann_file': 'annotations/'
            'instances_train2017.json',
            'train_dataloader.dataset.datasets.1.ann_file': 'annotations/'
            'instances_unlabeled2017.json',
            'train_dataloader.dataset.datasets.1.data_prefix.img': ''
            'unlabeled2017/',
        },
        bare=[_bare_coco(root)],
    )


@right_set
def lvis(root: Path) -> Right:
    """No file names but URLs, no crowds, lists of absent categories."""
    names = hosts.LVISV1Dataset.METAINFO['classes']
    kinds = [
        {
            'id': i,
            'name': name,
            'synset': f'{name}.n.01',
            'frequency': 'rcf'[i % 3],
            'image_count': 9,
        }
        for i, name in enumerate(names, 1)
    ]
    for split, own in _splits().items():
        content = coco_file(
            root / f'annotations/lvis_v1_{split}.json',
            own,
            kinds,
            folder=root / f'{split}2017',
            of_image=lambda name, split=split: {
                'coco_url': 'http://images.cocodataset.org/'
                f'{split}2017/{name}',
                'flickr_url': 'http://farm.staticflickr.com/9_z.jpg',
                'neg_category_ids': [9, 10],
                'not_exhaustive_category_ids': [2],
            },
        )
        for note in content['annotations']:
            note.pop('iscrowd')
        write_json(root / f'annotations/lvis_v1_{split}.json', content)
    return Right(
        ['mmdet::lvis/mask-rcnn_r50_fpn_sample1e-3_ms-1x_lvis-v1.py'],
        bare=[
            {'coco': root / 'annotations/lvis_v1_train.json', 'images': root}
        ],
    )


@right_set
def cityscapes_instances(root: Path) -> Right:
    """mmdet's: one annotation file a split, pictures by city."""
    kinds = [
        {'id': 24 + i, 'name': name}
        for i, name in enumerate(hosts.CityscapesDataset.METAINFO['classes'])
    ]
    for split, city in (('train', 'aachen'), ('val', 'munster')):
        coco_file(
            root / f'annotations/instancesonly_filtered_gtFine_{split}.json',
            [f'{city}/{city}_00000{i}_000019_leftImg8bit.png' for i in (0, 1)],
            kinds,
            folder=root / f'leftImg8bit/{split}',
            shape=packed_rle,
        )
        # What the metric reads.
        (root / f'gtFine/{split}').mkdir(parents=True)
    return Right(
        ['mmdet::cityscapes/mask-rcnn_r50_fpn_1x_cityscapes.py'],
    )


@right_set
def coco_test_dev(root: Path) -> Right:
    """A test split has pictures and categories, and nothing else."""
    _coco(root)
    content = coco_file(
        root / 'annotations/image_info_test-dev2017.json',
        numbers(800, 2),
        categories_of(_COCO),
        folder=root / 'test2017',
    )
    content.pop('annotations')
    write_json(root / 'annotations/image_info_test-dev2017.json', content)
    return Right(
        ['mmdet::faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py'],
        {
            'test_dataloader.dataset.ann_file': 'annotations/'
            'image_info_test-dev2017.json',
            'test_dataloader.dataset.data_prefix.img': 'test2017/',
        },
        {'split': ['train', 'val', 'test']},
    )


@right_set
def val_is_test(root: Path) -> Right:
    """What most configs say: the test split is the validation split."""
    _coco(root)
    return Right(
        ['mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'],
        settings={'split': ['train', 'val', 'test']},
    )


@right_set
def objects365(root: Path) -> Right:
    """Version 2 keeps pictures in patches, below a path of its makers."""
    kinds = categories_of(hosts.Objects365V2Dataset.METAINFO['classes'])
    for split, names in _splits().items():
        coco_file(
            root / f'annotations/zhiyuan_objv2_{split}.json',
            [f'patch0/objects365_v2_{name}' for name in names],
            kinds,
            folder=root / split,
            of_image=lambda name: {'file_name': f'images/v1/{name}'},
            isfake=0,
            isreflected=0,
        )
    return Right(
        ['mmdet::objects365/retinanet_r50_fpn_1x_objects365v2.py'],
        bare=[],
    )


@right_set
def youtube_vis(root: Path) -> Right:
    """Frames of videos, with run lengths."""
    hosts.YouTubeVISDataset.set_dataset_classes('2019')
    kinds = categories_of(hosts.YouTubeVISDataset.METAINFO['classes'])
    for split in ('train', 'valid'):
        path = root / f'annotations/youtube_vis_2019_{split}.json'
        content = coco_file(
            path,
            [f'{split}0032/0000{i}.jpg' for i in range(4)],
            kinds,
            folder=root / f'{split}/JPEGImages',
            shape=plain_rle,
            objects=3 if split == 'train' else 0,
        )
        content['videos'] = [{'id': 1, 'name': '0032', 'width': 64}]
        for index, image in enumerate(content['images']):
            image |= {'video_id': 1, 'frame_id': index}
        for index, note in enumerate(content['annotations']):
            note |= {'video_id': 1, 'instance_id': 1 + index % 3}
        write_json(path, content)
    return Right(
        [
            'mmdet::masktrack_rcnn/'
            'masktrack-rcnn_mask-rcnn_r50_fpn_8xb1-12e_youtubevis2019.py'
        ],
        bare=[
            {
                'coco': root / 'annotations/youtube_vis_2019_train.json',
                'images': root / 'train/JPEGImages',
            }
        ],
    )


@right_set
def open_images(root: Path) -> Right:
    """Tables of boxes in parts of the picture, classes in another table."""
    classes = [(f'/m/0{i:03d}', f'Kind {i}') for i in range(601)]
    _table(root / 'annotations/class-descriptions-boxable.csv', classes)
    write_json(
        root / 'annotations/bbox_labels_600_hierarchy.json',
        {
            'LabelName': '/m/0bl9f',
            'Subcategory': [{'LabelName': '/m/0001'}],
        },
    )
    head = [
        'ImageID',
        'Source',
        'LabelName',
        'Confidence',
        'XMin',
        'XMax',
        'YMin',
        'YMax',
    ]
    for split, word, count in (
        ('train', 'oidv6-train', 3),
        ('validation', 'validation', 2),
    ):
        rows: list = [[*head, *'abcde']]
        metas = []
        for number in range(count):
            name = f'{split}{number}'
            path = root / f'OpenImages/{split}/{name}.jpg'
            picture(path)
            metas.append(
                {'filename': str(path), 'ori_shape': (*SIZE[::-1], 3)}
            )
            box = [0.1, 0.6, 0.2, 0.9]
            rows += [
                [name, 'xclick', f'/m/0{i:03d}', 1, *box, 0, 0, i, 0, 0]
                for i in (0, 1)
            ]
        _table(root / f'annotations/{word}-annotations-bbox.csv', rows)
        labels = [['ImageID', 'Source', 'LabelName', 'Confidence']]
        _table(
            root / f'annotations/{split}-annotations-human-imagelabels-'
            'boxable.csv',
            labels,
        )
        path = root / f'annotations/{split}-image-metas.pkl'
        path.write_bytes(pickle.dumps(metas))
    return Right(
        ['mmdet::openimages/faster-rcnn_r50_fpn_32xb2-1x_openimages.py'],
    )


def _table(path: Path, rows: list) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open('w', newline='') as file:
        csv.writer(file).writerows(rows)


@right_set
def crowdhuman(root: Path) -> Right:
    """Lines of JSON; what is no person is marked to be ignored."""
    for split in ('train', 'val'):
        lines, sizes = [], {}
        for number in range(2):
            name = f'{split},{number}'
            picture(root / f'Images/{name}.jpg')
            sizes[name] = SIZE[::-1]
            box = {'fbox': [3, 4, 20, 30], 'vbox': [3, 4, 20, 20]}
            box |= {'hbox': [5, 5, 6, 6], 'extra': {'box_id': 0}}
            mask = {**box, 'fbox': [30, 1, 9, 9], 'extra': {'ignore': 1}}
            boxes = [{'tag': 'person', **box}, {'tag': 'mask', **mask}]
            lines.append(json.dumps({'ID': name, 'gtboxes': boxes}))
        (root / f'annotation_{split}.odgt').write_text('\n'.join(lines))
        write_json(root / f'id_hw_{split}.json', sizes)
    return Right(
        ['mmdet::crowddet/crowddet-rcnn_r50_fpn_8xb2-30e_crowdhuman.py'],
    )


@right_set
def mot17(root: Path) -> Right:
    """Frames of videos; evaluated on the first of thirteen classes."""
    kinds = categories_of(hosts.MOTChallengeDataset.METAINFO['classes'])
    for number, split in enumerate(('train', 'val')):
        path = root / f'annotations/half-{split}_cocoformat.json'
        content = coco_file(
            path,
            [f'MOT17-02-FRCNN/img1/{number}0000{i}.jpg' for i in range(2)],
            kinds,
            folder=root / 'train',
            shape=None,
            objects=1,
            visibility=0.9,
            mot_instance_id=1,
            mot_conf=1.0,
            instance_id=1,
        )
        content['videos'] = [{'id': 1, 'name': 'MOT17-02-FRCNN'}]
        for index, image in enumerate(content['images']):
            image |= {'video_id': 1, 'frame_id': index, 'mot_frame_id': index}
        # Boxes of MOT reach out of the picture.
        content['annotations'][0]['bbox'][0] = -5.0
        write_json(path, content)
    (root / 'mot.py').write_text(
        "_base_ = 'mmdet::_base_/datasets/mot_challenge.py'\n"
        'head = dict(type="RetinaHead", num_classes=1, '
        'loss_cls=dict(type="FocalLoss"))\n'
        'model = dict(type="DeepSORT", detector=dict(bbox_head=head))\n'
        'default_scope = "mmdet"\n'
    )
    return Right([root / 'mot.py'])


@right_set
def text_prompts(root: Path) -> Right:
    """Grounding DINO: the head's number is the length of texts."""
    _coco(root)
    return Right(
        [
            'mmdet::grounding_dino/'
            'grounding_dino_swin-t_finetune_16xb2_1x_coco.py'
        ],
        bare=[],
    )

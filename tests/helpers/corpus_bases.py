"""Right configs of a user's own data, which those of the corpus inherit.

Each inherits a config of a host as it ships, and sets what its documentation
says to set for data of one's own: here the generated shapes. The models are
narrow, so that a step takes a fraction of a second.
"""

import json
from pathlib import Path
from typing import NamedTuple

import cv2
import mmdet
import mmseg
import numpy as np
import torch
from mmdet.models import SwinTransformer

import mmext
from mmext.datasets import SHAPE_CLASSES, ShapesSpec, write_shapes_dataset

CONFIGS = {
    'mmdet': Path(mmdet.__file__).parent / '.mim' / 'configs',
    'mmseg': Path(mmseg.__file__).parent / '.mim' / 'configs',
    'mmext': Path(mmext.config_path('_base_/default_runtime.py')).parents[1],
}
SIZE = (64, 64)

# Nothing is loaded, so nothing is frozen.
_RESNET = (
    'depth=18, base_channels=4, stem_channels=4, init_cfg=None, '
    'frozen_stages=-1, norm_eval=False'
)
_LEVELS = 'in_channels=[4, 8, 16, 32], out_channels=8'
_LOADER = 'batch_size=2, num_workers=0, persistent_workers=False'

_DETECTION_DATA = f"""
data_root = 'DATA/'
metainfo = dict(classes={SHAPE_CLASSES})
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='Resize', scale={SIZE}, keep_ratio=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale={SIZE}, keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='PackDetInputs',
         meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape',
                    'scale_factor')),
]
train_dataloader = dict(
    {_LOADER},
    dataset=dict(
        metainfo=metainfo, data_root=data_root,
        ann_file='annotations/train.json',
        data_prefix=dict(img='img_dir/train/'),
        pipeline=train_pipeline))
val_dataloader = dict(
    num_workers=0, persistent_workers=False,
    dataset=dict(
        metainfo=metainfo, data_root=data_root,
        ann_file='annotations/val.json',
        data_prefix=dict(img='img_dir/val/'),
        pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=data_root + 'annotations/val.json')
test_evaluator = val_evaluator
"""
_WARM_UP = """
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, end=5),
    dict(type='MultiStepLR', end=12, milestones=[8, 11], gamma=0.1),
]
"""
_TWO_STAGES = f"""
    backbone=dict({_RESNET}),
    neck=dict({_LEVELS}),
    rpn_head=dict(in_channels=8, feat_channels=8),
"""
_MASKS = """
train_pipeline[1].update(with_mask=True)
test_pipeline[2].update(with_mask=True)
"""
_CASCADE_HEADS = """[
    dict(type='Shared2FCBBoxHead', in_channels=8, fc_out_channels=8,
         roi_feat_size=7, num_classes=6, reg_class_agnostic=True,
         bbox_coder=dict(type='DeltaXYWHBBoxCoder', target_stds=stds),
         loss_cls=dict(type='CrossEntropyLoss'),
         loss_bbox=dict(type='SmoothL1Loss', beta=1.0))
    for stds in ([0.1, 0.1, 0.2, 0.2], [0.05, 0.05, 0.1, 0.1],
                 [0.033, 0.033, 0.067, 0.067])]"""
_SEGMENTATION_DATA = f"""
data_root = 'DATA/'
crop_size = {SIZE}
metainfo = dict(
    classes={('ground', *SHAPE_CLASSES)},
    palette={[[20 * i, 90, 250 - 20 * i] for i in range(7)]})
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomResize', scale=(96, 96), ratio_range=(0.5, 2.0),
         keep_ratio=True),
    dict(type='RandomCrop', crop_size=crop_size, cat_max_ratio=0.75),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale={SIZE}, keep_ratio=True),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
train_dataloader = dict(
    {_LOADER},
    dataset=dict(
        type='BaseSegDataset', metainfo=metainfo, data_root=data_root,
        data_prefix=dict(img_path='img_dir/train',
                         seg_map_path='ann_dir/train'),
        pipeline=train_pipeline))
val_dataloader = dict(
    num_workers=0, persistent_workers=False,
    dataset=dict(
        type='BaseSegDataset', metainfo=metainfo, data_root=data_root,
        data_prefix=dict(img_path='img_dir/val', seg_map_path='ann_dir/val'),
        pipeline=test_pipeline))
test_dataloader = val_dataloader
"""

# Name -> what is inherited, and what is set.
BASES: dict[str, tuple[Path, str]] = {
    'faster': (
        CONFIGS['mmdet'] / 'faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py',
        f"""{_DETECTION_DATA}{_WARM_UP}
model = dict({_TWO_STAGES}
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=8),
        bbox_head=dict(in_channels=8, fc_out_channels=8, num_classes=6)))
""",
    ),
    'mask': (
        CONFIGS['mmdet'] / 'mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py',
        f"""{_DETECTION_DATA}{_WARM_UP}{_MASKS}
model = dict({_TWO_STAGES}
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=8),
        bbox_head=dict(in_channels=8, fc_out_channels=8, num_classes=6),
        mask_roi_extractor=dict(out_channels=8),
        mask_head=dict(num_convs=1, in_channels=8, conv_out_channels=8,
                       num_classes=6)))
""",
    ),
    'cascade': (
        CONFIGS['mmdet'] / 'cascade_rcnn/cascade-rcnn_r50_fpn_1x_coco.py',
        f"""{_DETECTION_DATA}{_WARM_UP}
model = dict({_TWO_STAGES}
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=8),
        bbox_head={_CASCADE_HEADS}))
""",
    ),
    'retina': (
        CONFIGS['mmdet'] / 'retinanet/retinanet_r50_fpn_1x_coco.py',
        f"""{_DETECTION_DATA}{_WARM_UP}
model = dict(
    backbone=dict({_RESNET}),
    neck=dict({_LEVELS}),
    bbox_head=dict(in_channels=8, feat_channels=8, stacked_convs=1,
                   num_classes=6))
""",
    ),
    'yolox': (
        CONFIGS['mmdet'] / 'yolox/yolox_tiny_8xb8-300e_coco.py',
        f"""
data_root = 'DATA/'
metainfo = dict(classes={SHAPE_CLASSES})
img_scale = {SIZE}
model = dict(
    data_preprocessor=dict(batch_augments=[
        dict(type='BatchSyncRandomResize', random_size_range=(64, 96),
             size_divisor=32, interval=10)]),
    backbone=dict(deepen_factor=0.33, widen_factor=0.125),
    neck=dict(in_channels=[32, 64, 128], out_channels=16),
    bbox_head=dict(num_classes=6, in_channels=16, feat_channels=16))
train_pipeline = [
    dict(type='Mosaic', img_scale=img_scale, pad_val=114.0),
    dict(type='RandomAffine', scaling_ratio_range=(0.5, 1.5),
         border=(-img_scale[0] // 2, -img_scale[1] // 2)),
    dict(type='YOLOXHSVRandomAug'),
    dict(type='RandomFlip', prob=0.5),
    dict(type='Resize', scale=img_scale, keep_ratio=True),
    dict(type='Pad', pad_to_square=True,
         pad_val=dict(img=(114.0, 114.0, 114.0))),
    dict(type='FilterAnnotations', min_gt_bbox_wh=(1, 1), keep_empty=False),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=img_scale, keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='PackDetInputs',
         meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape',
                    'scale_factor')),
]
train_dataloader = dict(
    {_LOADER},
    dataset=dict(
        dataset=dict(
            metainfo=metainfo, data_root=data_root,
            ann_file='annotations/train.json',
            data_prefix=dict(img='img_dir/train/')),
        pipeline=train_pipeline))
val_dataloader = dict(
    num_workers=0, persistent_workers=False,
    dataset=dict(
        metainfo=metainfo, data_root=data_root,
        ann_file='annotations/val.json',
        data_prefix=dict(img='img_dir/val/'),
        pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=data_root + 'annotations/val.json')
test_evaluator = val_evaluator
""",
    ),
    'dino': (
        CONFIGS['mmdet'] / 'dino/dino-4scale_r50_8xb2-12e_coco.py',
        f"""{_DETECTION_DATA}
model = dict(
    num_queries=60,
    backbone=dict({_RESNET}),
    neck=dict(in_channels=[8, 16, 32]),
    encoder=dict(num_layers=1),
    decoder=dict(num_layers=2),
    bbox_head=dict(num_classes=6))
""",
    ),
    'mask2former': (
        CONFIGS['mmdet'] / 'mask2former/mask2former_r50_8xb2-lsj-50e_coco.py',
        f"""{_DETECTION_DATA}{_MASKS}
model = dict(
    backbone=dict({_RESNET}),
    panoptic_head=dict(
        in_channels=[4, 8, 16, 32], num_queries=20, num_things_classes=6,
        num_stuff_classes=0, transformer_decoder=dict(num_layers=1),
        loss_cls=dict(class_weight=[1.0] * 6 + [0.1])),
    panoptic_fusion_head=dict(num_things_classes=6, num_stuff_classes=0))
""",
    ),
    'rtmdet_ins': (
        CONFIGS['mmdet'] / 'rtmdet/rtmdet-ins_tiny_8xb32-300e_coco.py',
        f"""{_DETECTION_DATA}{_MASKS}
model = dict(
    backbone=dict(deepen_factor=0.167, widen_factor=0.125, init_cfg=None),
    neck=dict(in_channels=[32, 64, 128], out_channels=16),
    bbox_head=dict(in_channels=16, feat_channels=16, num_classes=6))
custom_hooks = []
""",
    ),
    'codino': (
        CONFIGS['mmext'] / 'co_dino/co_dino_r18_shapes.py',
        f"""
data_root = 'DATA/'
train_dataloader = dict({_LOADER}, dataset=dict(data_root=data_root))
val_dataloader = dict({_LOADER}, dataset=dict(data_root=data_root))
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=data_root + 'annotations/val.json')
test_evaluator = val_evaluator
""",
    ),
    'psp': (
        CONFIGS['mmseg']
        / 'pspnet/pspnet_r50-d8_4xb2-40k_cityscapes-512x1024.py',
        f"""{_SEGMENTATION_DATA}
norm_cfg = dict(type='BN', requires_grad=True)
model = dict(
    pretrained=None,
    data_preprocessor=dict(size=crop_size),
    backbone=dict(depth=18, base_channels=4, stem_channels=4,
                  norm_cfg=norm_cfg),
    decode_head=dict(in_channels=32, channels=8, num_classes=7,
                     norm_cfg=norm_cfg),
    auxiliary_head=dict(in_channels=16, channels=8, num_classes=7,
                        norm_cfg=norm_cfg))
""",
    ),
    'segformer': (
        CONFIGS['mmseg']
        / 'segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py',
        f"""{_SEGMENTATION_DATA}
norm_cfg = dict(type='BN', requires_grad=True)
model = dict(
    data_preprocessor=dict(size=crop_size),
    backbone=dict(embed_dims=4, num_layers=[1] * 4, num_heads=[1, 1, 2, 2],
                  init_cfg=None),
    decode_head=dict(in_channels=[4, 4, 8, 8], channels=8, num_classes=7,
                     norm_cfg=norm_cfg))
""",
    ),
}


class Case(NamedTuple):
    """A wrong config, as its user wrote it.

    Attributes:
        name: Of the case.
        base: Which of ``BASES`` it inherits.
        thread: ``owner/repository#number`` where the mistake was reported;
            ``own`` if it was not.
        cause: Regular expression; a finding that names the cause has it in
            its rule, key, message or remedy.
        wrong: What the user set.
        right: The same after the tool's remedy was followed.
    """

    name: str
    base: str
    thread: str
    cause: str
    wrong: str
    right: str

    @property
    def of_mmseg(self) -> bool:
        """Whether it inherits a config of MMSegmentation."""
        return CONFIGS['mmseg'] in BASES[self.base][0].parents


def parse_cases(text: str) -> list[Case]:
    """Read cases from the text in which they are written down."""
    cases = []
    for part in text.split('\n== ')[1:]:
        header, _, lines = part.partition('\n')
        causes = []
        while lines.startswith('~ '):
            cause, _, lines = lines.partition('\n')
            causes.append(cause.removeprefix('~ '))
        wrong, _, right = lines.partition('\n--\n')
        cases.append(Case(*header.split(), '|'.join(causes), wrong, right))
    return cases


def _write_other_forms(data: Path) -> None:
    """The training as VOC of two years, without masks, and mostly empty."""
    train = data / 'annotations/train.json'
    content = json.loads(train.read_bytes())
    names = {kind['id']: kind['name'] for kind in content['categories']}
    for year in ('VOC2007', 'VOC2012'):
        annotations = data / year / 'Annotations'
        annotations.mkdir(parents=True)
        (data / year / 'JPEGImages').symlink_to(data / 'img_dir/train')
        for image in content['images']:
            objects = ''
            for note in content['annotations']:
                left, top, width, height = note['bbox']
                if note['image_id'] == image['id']:
                    objects += (
                        f'<object><name>{names[note["category_id"]]}</name>'
                        f'<bndbox><xmin>{left + 1}</xmin><ymin>{top + 1}'
                        f'</ymin><xmax>{left + width}</xmax><ymax>'
                        f'{top + height}</ymax></bndbox></object>'
                    )
            name = Path(image['file_name']).stem
            (annotations / f'{name}.xml').write_text(
                f'<annotation><size><width>{image["width"]}</width><height>'
                f'{image["height"]}</height></size>{objects}</annotation>'
            )
        stems = [Path(image['file_name']).stem for image in content['images']]
        (data / year / 'train.txt').write_text('\n'.join(stems))
    empty = [{**content['images'][0], 'id': 1000 + n} for n in range(90)]
    train.with_name('mostly_empty.json').write_text(
        json.dumps({**content, 'images': [*content['images'], *empty]})
    )
    for note in content['annotations']:
        del note['segmentation']
    train.with_name('boxes.json').write_text(json.dumps(content))
    kept_back = json.loads(train.with_name('val.json').read_bytes())
    del kept_back['annotations']
    train.with_name('unlabelled.json').write_text(json.dumps(kept_back))


def names_of_authors(swin: SwinTransformer) -> dict[str, torch.Tensor]:
    """Weights of MMDetection's Swin by the names that its authors give."""
    state = swin.state_dict()
    for ours, theirs in (
        ('stages.', 'layers.'),
        ('attn.w_msa.', 'attn.'),
        ('ffn.layers.0.0.', 'mlp.fc1.'),
        ('ffn.layers.1.', 'mlp.fc2.'),
        ('patch_embed.projection', 'patch_embed.proj'),
    ):
        state = {k.replace(ours, theirs): v for k, v in state.items()}
    return state


def write_data(folder: Path) -> Path:
    """Write the data of all bases, with binary masks, and checkpoints."""
    spec = ShapesSpec(image_size=SIZE, min_objects=2, empty_fraction=0)
    data = folder / 'data'
    write_shapes_dataset(data, spec, num_train=8, num_val=2)
    _write_other_forms(data)
    for mask in sorted((data / 'ann_dir').rglob('*.png')):
        folder = data / 'ann_dir' / f'binary_{mask.parent.name}'
        folder.mkdir(exist_ok=True)
        cv2.imwrite(
            str(folder / mask.name), cv2.imread(str(mask), 0).clip(max=1)
        )
    (data / 'img_dir' / 'deep').mkdir()
    for image in sorted((data / 'img_dir' / 'train').iterdir()):
        pixels = cv2.imread(str(image)).astype(np.uint16) * 16
        path = data / 'img_dir' / 'deep' / f'{image.stem}.png'
        cv2.imwrite(str(path), pixels)
    weights = {'conv1.weight': torch.zeros(4, 3, 7, 7)}
    torch.save(weights, data / 'backbone.pth')
    detector = {f'backbone.{key}': value for key, value in weights.items()}
    torch.save({'state_dict': detector}, data / 'detector.pth')
    swin = SwinTransformer(
        embed_dims=8,
        depths=[1, 1, 2, 1],
        num_heads=[1, 2, 4, 8],
        window_size=4,
    )
    torch.save({'model': names_of_authors(swin)}, data / 'swin.pth')
    return data


def write_base(name: str, data: Path, folder: Path) -> Path:
    """Write a right config, which a case inherits as ``small.py``."""
    host, text = BASES[name]
    path = folder / 'small.py'
    text = text.replace('DATA', str(data))
    path.write_text(f'_base_ = {str(host)!r}\n{text}')
    return path

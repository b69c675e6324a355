"""Numbers of classes in heads and in the data."""

import pytest
import torch
from helpers.corpus_bases import CONFIGS
from helpers.lint_findings import changed, lint
from mmdet.models import RetinaHead
from mmengine.config import Config
from mmengine.registry import DefaultScope
from mmengine.structures import InstanceData
from torch import nn

from mmext.checks.preflight.rules.limits import object_findings
from mmext.checks.preflight.rules.subject import Subject

CLASSES = ('road', 'car', 'tree')


def data(**splits):
    """Changes that name the classes of splits."""
    return {
        f'{split}_dataloader.dataset.metainfo': {'classes': classes}
        for split, classes in splits.items()
    }


BOTH = data(train=CLASSES, val=CLASSES)


def test_a_built_model_with_texts_for_classes():
    model = nn.Module()
    model.bbox_head = nn.Module()
    model.bbox_head.num_classes = 256
    assert lint(BOTH, 'HEAD', model=model)
    assert (
        lint({**BOTH, 'model.language_model': {}}, 'HEAD', model=model) == []
    )
    model.query_head = nn.Module()
    model.query_head.class_vocabulary = lambda training: ()
    assert lint(BOTH, 'HEAD', model=model) == []


def test_things_and_stuff_of_a_built_model():
    """Mask2Former takes no num_classes, which it has."""
    model = nn.Module()
    model.num_classes = 80
    head = {'num_things_classes': 80, 'num_stuff_classes': 0}
    changes = {**BOTH, 'model.panoptic_head': head}
    (finding,) = lint(changes, 'HEAD', model=model)
    assert (finding.rule, finding.key) == ('HEAD002', 'model.panoptic_head')
    assert 'set them to 3' in finding.remedy
    assert finding.options == {}


def test_the_detector_of_a_semi_supervised_one():
    name = 'soft-teacher_faster-rcnn_r50-caffe_fpn_180k_semi-0.1-coco.py'
    cfg = Config.fromfile(CONFIGS['mmdet'] / 'soft_teacher' / name)
    parts = cfg.train_dataloader.dataset.datasets
    for part in (*parts, cfg.val_dataloader.dataset):
        part.metainfo = {'classes': CLASSES}
    (finding,) = lint(cfg, 'HEAD002')
    key = 'model.detector.roi_head.bbox_head.num_classes'
    assert (finding.key, finding.severity.name) == (key, 'ERROR')


@pytest.mark.parametrize(
    'key', ['language_model', 'panoptic_fusion_head', 'text_encoder']
)
def test_models_that_count_otherwise(key):
    changes = {**data(train=CLASSES, val=('x',)), f'model.{key}': {}}
    assert lint(changes, 'HEAD') == []


@pytest.mark.parametrize(
    ('names', 'counts', 'fixed'),
    [
        ('cat', 1, True),
        # ('cat' 'dog') is one text, too.
        ('catdog', 2, False),
        ('cat,dog', 1, False),
        ('none.txt', 1, False),
    ],
)
def test_a_text_for_classes(names, counts, fixed):
    changes = {**data(train=names), 'model.bbox_head.num_classes': counts}
    (finding,) = lint(changes, 'HEAD')
    assert finding.rule == 'HEAD005'
    assert list(finding.options.values()) == ([(names,)] if fixed else [])


def test_a_file_of_classes(tmp_path):
    file = tmp_path / 'classes.txt'
    file.write_text('cat\ndog\n')
    changes = {**data(train=str(file), val=str(file))}
    changes['model.bbox_head.num_classes'] = 2
    assert lint(changes, 'HEAD') == []


@pytest.mark.parametrize(
    ('key', 'meant'),
    [
        ('CLASSES', 'classes'),
        ('class', 'classes'),
        ('Classes', 'classes'),
        ('PALETTE', 'palette'),
        ('dataset_type', ''),
        ('thing_classes', ''),
    ],
)
def test_keys_of_metainfo(key, meant):
    at = 'train_dataloader.dataset.metainfo'
    findings = lint({at: {key: CLASSES}}, 'HEAD')
    assert [finding.rule for finding in findings] == (
        ['HEAD006'] if meant else []
    )
    if meant:
        right = {f'{at}.{key}': '__delete__', f'{at}.{meant}': CLASSES}
        assert findings[0].options == right


def test_a_number_of_classes_that_a_base_has(tmp_path):
    (tmp_path / 'base.py').write_text(changed(BOTH).pretty_text)
    child = tmp_path / 'child.py'
    both = "metainfo = dict(classes=('a', 'b'))\n" + ''.join(
        f'{split}_dataloader = dict(dataset=dict(metainfo=metainfo))\n'
        for split in ('train', 'val')
    )
    child.write_text(f"_base_ = 'base.py'\n{both}")
    (finding,) = lint(Config.fromfile(child), 'HEAD')
    assert finding.options == {'model.bbox_head.num_classes': 2}
    # The same file says both.
    child.write_text(
        f"_base_ = 'base.py'\n{both}"
        'model = dict(bbox_head=dict(num_classes=3))\n'
    )
    (finding,) = lint(Config.fromfile(child), 'HEAD')
    assert finding.options == {}


@pytest.mark.parametrize(
    ('settings', 'text'),
    [
        (dict(crop_size=(64, 64)), 'without stride'),
        (dict(), 'without crop_size and stride'),
        (dict(crop_size=64, stride=32), 'crop_size must be (height, width)'),
        (dict(crop_size=(64, 64), stride=(96, 32)), 'leaves gaps'),
        (
            dict(crop_size=(64, 64), stride=(0, 32)),
            'stride must be (height, width) above 0',
        ),
        (dict(mode='slides'), 'neither'),
        (dict(crop_size=(64, 64), stride=(32, 64)), ''),
    ],
)
def test_windows(settings, text):
    test_cfg = {'mode': 'slide', **settings}
    changes = {'model.type': 'mmseg.EncoderDecoder'}
    findings = lint({**changes, 'model.test_cfg': test_cfg}, 'HEAD004')
    assert [text in finding.message for finding in findings] == (
        [True] if text else []
    )


def test_classes_that_a_split_forgets():
    """The model is judged by the names that the data set has of itself."""
    changes = {**data(train=CLASSES), 'model.bbox_head.num_classes': 3}
    (finding,) = lint(changes, 'HEAD')
    assert (finding.rule, finding.severity.name) == ('HEAD003', 'ERROR')
    assert finding.options == {
        'val_dataloader.dataset.metainfo.classes': CLASSES
    }
    changes['val_dataloader.dataset.type'] = 'MOTChallengeDataset'
    (finding,) = lint(changes, 'HEAD')
    assert (finding.severity.name, finding.options) == ('INFO', {})


ANCHORS = {
    'type': 'AnchorGenerator',
    'octave_base_scale': 4,
    'scales_per_octave': 1,
    'ratios': [1.0],
    'strides': [8, 16, 32],
}


@pytest.mark.parametrize(
    ('head', 'loss', 'decoded', 'severity'),
    [
        ('RetinaHead', 'GIoULoss', None, 'ERROR'),
        ('RetinaHead', 'IoULoss', False, 'ERROR'),
        ('RetinaHead', 'CIoULoss', True, ''),
        ('RetinaHead', 'L1Loss', None, ''),
        ('RetinaHead', 'SmoothL1Loss', True, 'WARNING'),
        ('Shared2FCBBoxHead', 'DIoULoss', None, 'ERROR'),
        # They decode in any case, by default, or do not read the flag.
        ('ATSSHead', 'GIoULoss', False, ''),
        ('FCOSHead', 'IoULoss', None, ''),
        ('YOLOFHead', 'GIoULoss', True, ''),
        ('FreeAnchorRetinaHead', 'GIoULoss', None, ''),
    ],
)
def test_losses_of_boxes(head, loss, decoded, severity):
    changes = {
        'model.bbox_head.type': head,
        'model.bbox_head.loss_bbox': {'type': loss},
    }
    if decoded is not None:
        changes['model.bbox_head.reg_decoded_bbox'] = decoded
    findings = lint(changes, 'LOSS007')
    assert [f.severity.name for f in findings] == [severity][: len(severity)]
    changes['model.bbox_head.bbox_coder'] = {'type': 'PseudoBBoxCoder'}
    findings = lint(changes, 'LOSS007')
    assert [f.severity.name for f in findings] != ['ERROR']


@pytest.mark.parametrize('decoded', [False, True])
def test_what_a_loss_of_boxes_learns_in_the_host(decoded):
    torch.manual_seed(0)
    # Its defaults are names of mmdet.
    with DefaultScope.overwrite_default_scope('mmdet'):
        head = RetinaHead(
            num_classes=1,
            in_channels=4,
            feat_channels=4,
            stacked_convs=1,
            reg_decoded_bbox=decoded,
            anchor_generator=ANCHORS,
            loss_bbox={'type': 'mmdet.GIoULoss'},
            train_cfg={
                'assigner': {
                    'type': 'mmdet.MaxIoUAssigner',
                    'pos_iou_thr': 0.5,
                    'neg_iou_thr': 0.4,
                    'min_pos_iou': 0,
                },
                'sampler': {'type': 'mmdet.PseudoSampler'},
                'allowed_border': -1,
                'pos_weight': -1,
            },
        )
    maps = [torch.randn(1, 4, 64 // s, 64 // s) for s in ANCHORS['strides']]
    meta = [{'img_shape': (64, 64), 'pad_shape': (64, 64)}]
    boxes = torch.tensor([[10.0, 8.0, 50.0, 46.0]])
    target = InstanceData(bboxes=boxes, labels=torch.tensor([0]))
    optimizer = torch.optim.Adam(head.parameters(), 0.01)
    for _ in range(60):
        classes, deltas = head(maps)
        losses = head.loss_by_feat(classes, deltas, [target], meta)
        optimizer.zero_grad()
        sum(losses['loss_bbox']).backward()
        optimizer.step()
    # Of boxes it is never below 0.
    loss = float(sum(losses['loss_bbox']))
    assert (0 <= loss < 0.1) == decoded, loss


COLOURS = [(9, 0, 0), (0, 9, 0)]


@pytest.mark.parametrize(
    ('metainfo', 'hook', 'severity'),
    [
        ({'palette': COLOURS}, {}, 'WARNING'),
        ({'palette': COLOURS}, {'draw': True}, 'ERROR'),
        ({'palette': [*COLOURS, (0, 0, 9)]}, {}, ''),
        # One colour for all, and colours at random.
        ({'palette': COLOURS[0]}, {}, ''),
        ({'palette': 'random'}, {}, ''),
        # Without one, that of COCO is used, which has 80.
        ({}, {}, ''),
        ({'classes': tuple(f'{i}' for i in range(81))}, {}, 'WARNING'),
    ],
)
def test_colours_of_classes(metainfo, hook, severity):
    changes = {
        f'{split}_dataloader.dataset.metainfo': {
            'classes': CLASSES,
            **metainfo,
        }
        for split in ('train', 'val')
    }
    draw = {'type': 'DetVisualizationHook', **hook}
    changes['default_hooks.visualization'] = draw
    findings = lint(changes, 'HEAD008')
    assert [f.severity.name for f in findings] == [severity][: len(severity)]


@pytest.mark.parametrize(
    ('model', 'counts', 'expected'),
    [
        ({'num_queries': 9}, {'train': [9, 3]}, []),
        ({'num_queries': 9}, {'train': [10, 3]}, ['WARNING']),
        # Fewer than 1 of 100 objects.
        ({'num_queries': 9}, {'train': [10] + [3] * 40}, ['INFO']),
        ({'test_cfg': {'max_per_img': 9}}, {'train': [99], 'val': [9]}, []),
        (
            {'test_cfg': {'rcnn': {'max_per_img': 9}}},
            {'val': [12]},
            ['WARNING'],
        ),
        ({'test_cfg': {'max_per_img': -1}}, {'val': [12]}, []),
        # The other heads of CO-DETR do not predict.
        (
            {
                'test_cfg': {
                    'query_head': {'max_per_img': 20},
                    'bbox_head': {'max_per_img': 9},
                }
            },
            {'val': [12]},
            [],
        ),
    ],
)
def test_objects_of_images(model, counts, expected):
    changes = {f'model.{key}': value for key, value in model.items()}
    found = object_findings(Subject(changed(changes)), counts)
    assert [finding.severity.name for finding in found] == expected

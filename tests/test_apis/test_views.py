"""Tiles and test-time augmentation, through the tools."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from helpers import recited
from helpers.toy_ranks import load_tool, start_ranks
from mmengine.config import Config

import mmext
from mmext.apis import add_views, infer_images, load_detector
from mmext.apis.views import wrap_test
from mmext.datasets import ShapesSpec, write_shapes_dataset
from mmext.evaluation import ERROR_KINDS

SIZE, SCALE, TILE = (1000, 750), (250, 188), 250
LARGE = (0, 310, 205, 740, 560)
# In a grid that meets the borders of tiles in every way.
SMALL = [
    (0, x, y, x + 12, y + 10)
    for x in range(30, 990, 113)
    for y in (11, 182, 626, 738)
]


def run_test(folder, config, *more):
    """The report of the tool."""
    args = [str(config), str(recited.write_checkpoint(folder)), *more]
    args += ['--work-dir', str(folder / 'w'), '--report', str(folder / 'r')]
    assert load_tool('test').main(args) == 0
    return json.loads((folder / 'r/report.json').read_text())


@pytest.fixture
def patches(tmp_path):
    """A large picture; the model sees a quarter of each side."""
    return recited.write_patches(tmp_path, SIZE, [LARGE, *SMALL], SCALE)


def test_tiles_find_small_objects_and_keep_large_ones(patches, tmp_path):
    """Each object once, also those that lie in several tiles, and in parts."""
    report = run_test(tmp_path, patches)
    assert report['counts']['right'] == 1
    assert report['counts']['missed'] == len(SMALL)
    report = run_test(tmp_path, patches, '--tile', str(TILE))
    assert report['counts'] == {
        'right': 1 + len(SMALL),
        **dict.fromkeys(ERROR_KINDS, 0),
    }
    theirs = report['metrics']['coco/bbox_mAP']
    assert report['summary']['mAP'] == pytest.approx(theirs, abs=5e-4)
    assert report['summary']['mAP_50'] == pytest.approx(1)


@pytest.mark.slow
def test_infer_with_tiles_and_augmentation(patches, tmp_path, capsys):
    checkpoint = str(recited.write_checkpoint(tmp_path))
    args = [str(tmp_path / 'images'), '--config', str(patches)]
    args += ['--checkpoint', checkpoint, '--out', str(tmp_path / 'out')]
    main = load_tool('infer').main
    with pytest.raises(SystemExit):
        main([*args, '--tile', '250', '--batch-size', '2'])
    assert '--tile needs --batch-size 1' in capsys.readouterr().err
    assert main([*args, '--tta', '--tile', str(TILE)]) == 0
    content = json.loads((tmp_path / 'out/predictions.json').read_text())
    found = np.array(content['images'][0]['boxes'])
    wanted = np.array([LARGE, *SMALL])[:, 1:]
    apart = np.abs(found[:, None] - wanted).max(-1).min(0)
    assert len(found) == len(wanted)
    # A pixel of the smallest view is 2.7 of the picture, 5.4 of the large one.
    assert apart.max() < 6


def test_views_of_a_detector_are_put_together(tmp_path):
    rows = [(0, 10, 10, 60, 50), (0, 150, 100, 180, 140)]
    config = recited.write_patches(tmp_path, (240, 160), rows, (240, 160))
    checkpoint = recited.write_checkpoint(tmp_path)
    model = load_detector(config, checkpoint, device='cpu')
    seen = model.sizes
    for given, sizes in (
        ({}, [(160, 240)]),
        (
            {'tta': True},
            [(160, 240)] * 2 + [(120, 180)] * 2 + [(200, 300)] * 2,
        ),
    ):
        seen.clear()
        views = add_views(model, **given)
        (result,) = infer_images(views, [tmp_path / 'images/patches.png'])
        assert seen == sizes
        order = result.boxes[:, 0].argsort()
        wanted = np.array(rows)[:, 1:]
        np.testing.assert_allclose(result.boxes[order], wanted, atol=1.5)


@pytest.mark.slow
def test_two_processes(patches, tmp_path):
    """The only picture goes to both, and counts once."""
    args = [patches, recited.write_checkpoint(tmp_path), '--tta']
    args += ['--tile', str(TILE), '--report', tmp_path / 'r']
    args += ['--work-dir', tmp_path / 'w']
    ranks = start_ranks(args, 2, tmp_path / 'log', tool='test')
    assert ranks.wait() == [0, 0], ranks.output()
    report = json.loads((tmp_path / 'r/report.json').read_text())
    assert report['images'] == 1
    assert report['counts']['right'] == 1 + len(SMALL)
    assert sum(report['counts'].values()) == 1 + len(SMALL)


def colour_map(rng):
    """A map without symmetry, of areas that are wide enough to resize."""
    return (
        rng.integers(0, 3, (6, 8)).astype(np.uint8).repeat(16, 0).repeat(16, 1)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    'more', [['--tta'], ['--tile', '40'], ['--tta', '--tile', '40']]
)
def test_segmentors(tmp_path, more):
    """What each view sees lies where it was in the picture."""
    right = colour_map(np.random.default_rng(3))
    told = right.copy()
    told[:20, :30] = 1
    config = recited.write_segmentation(
        tmp_path, {'one': (right, told)}, ('a', 'b', 'c')
    )
    recited.write_checkpoint(tmp_path, 3)
    args = [str(config), str(tmp_path / 'recited.pth'), *more]
    args += [
        '--work-dir',
        str(tmp_path / 'w'),
        '--report',
        str(tmp_path / 'r'),
    ]
    assert load_tool('test').main(args) == 0
    report = json.loads((tmp_path / 'r/report.json').read_text())
    share = float((right == told).mean())
    # Along the borders of areas, scaled views mix two colours.
    near = {'abs': 0.02} if '--tta' in more else {'rel': 1e-6}
    assert report['summary']['aAcc'] == pytest.approx(share, **near)


def test_the_views_of_a_config_come_first(patches):
    config = Config.fromfile(patches)
    config.tta_model = {
        'type': 'DetTTAModel',
        'tta_cfg': {'nms': {'type': 'soft_nms'}, 'max_per_img': 7},
    }
    flips = [{'type': 'RandomFlip', 'prob': prob} for prob in (0.0, 1.0)]
    pack = [{'type': 'PackDetInputs'}]
    config.tta_pipeline = [
        {'type': 'LoadImageFromFile'},
        {'type': 'TestTimeAug', 'transforms': [flips, pack]},
    ]
    both = config.copy()
    wrap_test(config, tta=True, tile=None)
    assert config.model['tta_cfg']['max_per_img'] == 7
    assert config.model['module']['type'] == 'mmengine.PatchFinder'
    pipeline = config.test_dataloader.dataset.pipeline
    assert [len(each) for each in pipeline[-1]['transforms']] == [2, 1]
    wrap_test(both, tta=True, tile=64)
    assert both.model['type'] == 'mmext.TiledDetector'
    assert both.model['tta_cfg']['nms'] == {'type': 'soft_nms'}
    (inner,) = both.test_dataloader.dataset.pipeline[-1]['transforms']
    assert inner['type'] == 'TestTimeAug'


@pytest.mark.parametrize(
    ('pipeline', 'options', 'message'),
    [
        (['LoadImageFromFile', 'PackDetInputs'], {'tile': 0}, 'at least 1'),
        (['LoadImageFromFile', 'PackTriple'], {}, 'PackSegInputs, got Pack'),
        (['LoadNothing', 'PackDetInputs'], {}, 'loads an image, got'),
        (
            ['LoadImageFromFile', 'Resize', 'PackDetInputs'],
            {},
            'neither scale nor scale_factor',
        ),
    ],
)
def test_refuses(pipeline, options, message):
    steps = [{'type': name} for name in pipeline]
    config = Config(
        {
            'model': {'type': 'A'},
            'test_dataloader': {'dataset': {'type': 'B', 'pipeline': steps}},
        }
    )
    options = {'tta': True, 'tile': None, **options}
    with pytest.raises(ValueError, match=message):
        wrap_test(config, **options)


@pytest.mark.parametrize('options', [{'tta': True}, {'tile': 64}])
def test_refuses_masks(options):
    path = mmext.config_path('co_dino/co_dino_r18_shapes_instance.py')
    config = Config.fromfile(path)
    options = {'tta': False, 'tile': None, **options}
    with pytest.raises(ValueError, match=r'options model\.eval_masks=Fal'):
        wrap_test(config, **options)
    config.model.eval_masks = False
    wrap_test(config, **options)
    assert config.model.module.type == 'mmext.CoDETR'


def test_wrong_tiles_are_one_line(patches, tmp_path, capsys):
    args = [str(patches), str(recited.write_checkpoint(tmp_path))]
    with pytest.raises(SystemExit) as info:
        load_tool('test').main([*args, '--tile', '0'])
    assert info.value.code == 2
    assert '--tile must be at least 1 pixel, got 0' in capsys.readouterr().err


TRAINING = """
_base_ = [
    '{configs}/models/retinanet_r50_fpn.py',
    '{configs}/datasets/shapes_detection.py',
    '{configs}/schedules/co_dino_small.py',
    '{configs}/default_runtime.py',
]
model = dict(
    backbone=dict(
        depth=18, base_channels=32, stem_channels=32, num_stages=3,
        strides=(1, 2, 2), dilations=(1, 1, 1), out_indices=(0, 1, 2),
        frozen_stages=-1, norm_eval=False, init_cfg=None,
        norm_cfg=dict(type='GN', num_groups=8, requires_grad=True)),
    neck=dict(
        in_channels=[32, 64, 128], out_channels=64, num_outs=3,
        start_level=0, add_extra_convs=False),
    bbox_head=dict(
        num_classes=6, in_channels=64, stacked_convs=2, feat_channels=64,
        anchor_generator=dict(
            strides=[4, 8, 16], octave_base_scale=3, scales_per_octave=2,
            ratios=[1.0])),
    test_cfg=dict(max_per_img=1000, nms_pre=3000))
train_cfg = dict(max_epochs=3, val_interval=3)
optim_wrapper = dict(optimizer=dict(lr=1.5e-3))
train_dataloader = dict(num_workers=0, persistent_workers=False)
val_dataloader = dict(num_workers=0, persistent_workers=False)
test_dataloader = dict(
    batch_size=1, num_workers=0, persistent_workers=False,
    dataset=dict(
        data_root='{large}',
        pipeline=[
            dict(type='LoadImageFromFile', _scope_='mmdet'),
            dict(
                type='mmdet.Resize', _scope_='mmdet', scale=(640, 640),
                keep_ratio=True),
            dict(type='mmdet.PackDetInputs', _scope_='mmdet'),
        ]))
test_evaluator = dict(ann_file='{large}annotations/val.json')
"""


def write_mosaic(shapes, folder, number=15):
    """One picture of the first ``number ** 2`` of a validation set."""
    content = json.loads((shapes / 'annotations/val.json').read_text())
    side = 128
    picture = np.zeros((number * side, number * side, 3), np.uint8)
    annotations = []
    for index, image in enumerate(content['images'][: number**2]):
        y, x = (side * each for each in divmod(index, number))
        part = cv2.imread(str(shapes / 'img_dir/val' / image['file_name']))
        picture[y : y + side, x : x + side] = part
        for each in content['annotations']:
            if each['image_id'] == image['id']:
                left, top, *sides = each['bbox']
                moved = {**each, 'image_id': 1, 'segmentation': []}
                moved['bbox'] = [left + x, top + y, *sides]
                annotations.append(moved)
    (folder / 'annotations').mkdir(parents=True)
    (folder / 'img_dir/val').mkdir(parents=True)
    assert cv2.imwrite(str(folder / 'img_dir/val/large.png'), picture)
    image = {'id': 1, 'file_name': 'large.png'}
    image['width'] = image['height'] = number * side
    content = {**content, 'images': [image], 'annotations': annotations}
    (folder / 'annotations/val.json').write_text(json.dumps(content))
    return [each['bbox'] for each in annotations]


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
def test_recall_of_small_objects(tmp_path):
    """Of a trained detector in a picture of 1920 pixels: 0.0 and 0.65."""
    shapes, large = tmp_path / 'shapes', tmp_path / 'large'
    write_shapes_dataset(
        shapes,
        ShapesSpec(
            hue_by_class=1.0,
            classes=('circle', 'square', 'star'),
            empty_fraction=0.0,
        ),
        num_train=800,
        num_val=225,
    )
    boxes = write_mosaic(shapes, large)
    small = sum(width * height < 32**2 for *_, width, height in boxes)
    config = tmp_path / 'config.py'
    config.write_text(
        TRAINING.format(
            configs=Path(
                mmext.config_path('_base_/default_runtime.py')
            ).parent,
            large=f'{large}/',
        )
    )
    work_dir = ['--work-dir', str(tmp_path / 'w'), '--device', 'cpu']
    root = ['--cfg-options', f'train_dataloader.dataset.data_root={shapes}/']
    root += [f'val_dataloader.dataset.data_root={shapes}/']
    root += [f'val_evaluator.ann_file={shapes}/annotations/val.json']
    root += ['param_scheduler.1.end=3', 'param_scheduler.1.T_max=3']
    train, test = load_tool('train').main, load_tool('test').main
    assert train([str(config), *work_dir, *root]) == 0
    recalls = []
    for more in ([], ['--tile', '640']):
        args = [str(config), str(tmp_path / 'w/epoch_3.pth'), *work_dir, *more]
        assert test([*args, '--report', str(tmp_path / 'r')]) == 0
        report = json.loads((tmp_path / 'r/report.json').read_text())
        (picture,) = report['pictures']
        lost = [
            each['truth_box'] or each['box']
            for each in picture['errors']
            if each['kind'] in ('missed', 'classification')
        ]
        lost = sum((c - a) * (d - b) < 32**2 for a, b, c, d in lost)
        recalls.append(1 - lost / small)
    assert recalls[0] < 0.05
    assert recalls[1] > 0.5, recalls

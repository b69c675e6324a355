"""Tiles and test-time augmentation, through the tools."""

import json

import numpy as np
import pytest
from helpers import recited
from helpers.toy_ranks import load_tool, start_ranks
from mmengine.config import Config

import mmext
from mmext.apis import add_views, infer_images, load_detector
from mmext.apis.views import wrap_test
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


@pytest.mark.slow
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
    array = np.array(content['images'][0]['boxes'])
    wanted = np.array([LARGE, *SMALL])[:, 1:]
    apart = np.abs(array[:, None] - wanted).max(-1).min(0)
    assert len(array) == len(wanted)
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
@pytest.mark.xdist_group('processes')
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
    assert [len(transform) for transform in pipeline[-1]['transforms']] == [
        2,
        1,
    ]
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

import pytest
from helpers.preflight_configs import detector, segmentor
from mmengine.registry import DefaultScope
from torch import nn

from mmext.checks.preflight.batches.recipe import (
    class_counts,
    declared_size,
    fit_model,
    fit_to_pictures,
    make_recipe,
    query_area,
    reduced_size,
)

SIZES = ((64, 64), (64, 64))


def part(**numbers):
    module = nn.Module()
    for name, value in numbers.items():
        setattr(module, name, value)
    return module


def test_recipe_of_a_detector():
    cfg = detector()
    cfg['train_dataloader']['dataset']['metainfo'] = {'classes': ('a', 'b')}
    cfg['train_dataloader']['dataset']['return_classes'] = True
    cfg['train_dataloader']['collate_fn'] = {'type': 'default_collate'}
    with DefaultScope.overwrite_default_scope('mmdet'):
        recipe = make_recipe(
            cfg, part(bbox_head=part(num_classes=3)), (8, 9), (80, 90)
        )
    assert recipe.task == 'detection'
    assert recipe.size == (8, 9)
    assert recipe.declared_size == (80, 90)
    assert recipe.num_classes == 3
    assert recipe.channels == 3
    assert recipe.classes == ('a', 'b')
    assert recipe.collate == {'type': 'default_collate'}
    (fields,) = recipe.fields
    assert fields.text
    (pipeline,) = recipe.pipelines
    assert pipeline == [{'type': 'PackDetInputs'}]


def test_recipe_of_a_segmentor():
    cfg = segmentor()
    cfg['model']['data_preprocessor']['mean'] = [0] * 25
    head = part(num_classes=5, ignore_index=9)
    with DefaultScope.overwrite_default_scope('mmseg'):
        recipe = make_recipe(cfg, part(decode_head=head), *SIZES)
    assert recipe.task == 'semantic'
    assert recipe.channels == 25
    assert recipe.ignore_index == 9
    assert recipe.num_classes == 5


@pytest.mark.parametrize(
    ('model', 'counts'),
    [
        (part(bbox_head=part(num_classes=80)), (80, 0)),
        (part(rpn_head=part(num_classes=1)), (0, 0)),
        (
            part(
                rpn_head=part(num_classes=1),
                roi_head=part(
                    bbox_head=nn.ModuleList([part(num_classes=7)] * 3),
                    semantic_head=part(num_classes=183),
                ),
            ),
            (7, 183),
        ),
        (
            part(
                panoptic_head=part(
                    num_classes=133,
                    num_things_classes=80,
                    num_stuff_classes=53,
                )
            ),
            (80, 53),
        ),
        (
            part(
                roi_head=part(bbox_head=part(num_classes=80)),
                semantic_head=part(num_classes=54, num_stuff_classes=53),
            ),
            (80, 53),
        ),
        (part(detector=part(bbox_head=part(num_classes=4))), (4, 0)),
        (
            part(
                decode_head=nn.ModuleList(
                    [part(num_classes=19), part(num_classes=19)]
                )
            ),
            (19, 0),
        ),
    ],
)
def test_counts_of_classes(model, counts):
    assert class_counts(model) == counts


def test_fits_a_segmentor():
    cfg = segmentor()
    size, declared, notes = fit_to_pictures(cfg)
    assert size == (96, 192)
    assert declared == (512, 1024)
    assert cfg['model']['data_preprocessor']['size'] == (96, 192)
    assert len(notes) == 1


def test_keeps_the_size_of_anchors():
    cfg = detector()
    cfg['model']['bbox_head']['anchor_generator']['input_size'] = 300
    size, _, notes = fit_to_pictures(cfg)
    assert size == (300, 300)
    assert notes == []


@pytest.mark.parametrize(
    ('steps', 'size'),
    [
        ([], (512, 512)),
        ([{'type': 'Resize', 'scale': (1333, 800)}], (800, 1333)),
        ([{'type': 'mmdet.Resize', 'scale': 300}], (300, 300)),
        (
            [{'type': 'RandomResize', 'scale': [(1333, 640), (1333, 800)]}],
            (800, 1333),
        ),
        (
            [{'type': 'RandomChoiceResize', 'scales': [480, 640]}],
            (640, 640),
        ),
        (
            [
                {'type': 'RandomResize', 'scale': (2048, 1024)},
                {'type': 'RandomCrop', 'crop_size': (512, 1024)},
            ],
            (512, 1024),
        ),
        (
            [
                {'type': 'Resize', 'scale': (640, 320)},
                {
                    'type': 'RandomCrop',
                    'crop_size': (0.5, 0.5),
                    'crop_type': 'relative_range',
                },
            ],
            (320, 640),
        ),
        ([{'type': 'Pad', 'size': (640, 480)}], (480, 640)),
        ([{'type': 'Pad', 'size_divisor': 32}], (512, 512)),
        (
            [
                {
                    'type': 'TransformBroadcaster',
                    'transforms': [{'type': 'Resize', 'scale': (640, 360)}],
                }
            ],
            (360, 640),
        ),
    ],
)
def test_declared_by_steps(steps, size):
    assert declared_size([steps], {}) == size


def test_declared_by_padding():
    model = {'data_preprocessor': {'size': (768, 1024)}}
    assert declared_size([], model) == (768, 1024)
    augment = {'type': 'BatchFixedSizePad', 'size': (1024, 1024)}
    model = {'data_preprocessor': {'batch_augments': [augment]}}
    assert declared_size([], model) == (1024, 1024)


@pytest.mark.parametrize(
    ('size', 'expected'),
    [
        ((800, 1333), (160, 256)),
        ((512, 1024), (128, 256)),
        ((1024, 1024), (256, 256)),
        ((64, 64), (64, 64)),
        ((256, 200), (256, 200)),
        ((20, 2000), (32, 256)),
    ],
)
def test_reduced(size, expected):
    assert reduced_size(size) == expected


@pytest.mark.parametrize(
    ('size', 'area', 'expected'),
    [
        ((800, 1333), 57_600, (192, 320)),
        ((800, 1333), 100, (160, 256)),
        ((64, 64), 57_600, (64, 64)),
        ((300, 300), 10**6, (300, 300)),
    ],
)
def test_large_enough_for_queries(size, area, expected):
    assert reduced_size(size, area=area) == expected


def test_area_of_queries():
    assert query_area({'num_queries': 900, 'head': {'num_queries': 0}}) == (
        57_600
    )
    assert query_area({'backbone': {}}) == 0
    early = {'num_queries': 900, 'backbone': {'out_indices': (0, 1, 2, 3)}}
    assert query_area(early) == 14_400


def test_fits_all_that_has_a_size():
    model = {
        'data_preprocessor': {
            'size': (512, 512),
            'batch_augments': [
                {
                    'type': 'BatchSyncRandomResize',
                    'random_size_range': (480, 800),
                },
                {'type': 'BatchResize', 'scale': 0.5},
            ],
        },
        'backbone': {'type': 'mmseg.BEiT', 'img_size': (512, 512)},
        'neck': {'type': 'Other', 'img_size': 224},
    }
    notes = fit_model(model, (512, 512), (128, 192))
    batch = model['data_preprocessor']
    assert batch['size'] == (128, 192)
    assert batch['batch_augments'][0]['random_size_range'] == (128, 192)
    assert batch['batch_augments'][1]['scale'] == (128, 192)
    assert model['backbone']['img_size'] == (128, 192)
    assert model['neck']['img_size'] == 224
    assert notes == [
        'batches are padded to (128, 192), not to (512, 512)',
        'batches are resized to (128, 192), not to (480, 800)',
        'batches are resized to (128, 192), not to 0.5',
        'BEiT.img_size is (128, 192), not (512, 512)',
    ]

import copy

import pytest

from mmext.preflight.batches.sizes import (
    declared_size,
    fit_model,
    fixed_size,
    query_area,
    reduced_size,
)


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


def test_test_cfg_tells_nothing():
    model = {'test_cfg': {'data_preprocessor': {'size': (9, 9)}}}
    assert declared_size([], model) == (512, 512)


def test_fixed_by_anchors():
    head = {'anchor_generator': {'input_size': 300}}
    assert fixed_size({'bbox_head': head}) == (300, 300)
    assert fixed_size({'backbone': {'img_size': [224, 192]}}) == (224, 192)
    assert fixed_size({'backbone': {'pretrain_img_size': 224}}) is None


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


def test_reduced_further():
    assert reduced_size((512, 512), longest=192) == (192, 192)


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


def test_leaves_a_model_that_fits():
    model = {
        'data_preprocessor': {'size': (64, 64)},
        'backbone': {'img_size': 64},
    }
    before = copy.deepcopy(model)
    assert fit_model(model, (64, 64), (64, 64)) == []
    assert model == before

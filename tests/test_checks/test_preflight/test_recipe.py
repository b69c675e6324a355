"""What is made up for a config, and how large its pictures are."""

import copy

import pytest
from helpers.preflight_configs import detector, segmentor
from mmengine.registry import TRANSFORMS, DefaultScope
from torch import nn

from mmext.checks.preflight.recipe import (
    Fields,
    class_counts,
    declared_size,
    fit_model,
    fit_to_pictures,
    pipeline_fields,
    query_area,
    reduced_size,
    shortened_pipeline,
    step_name,
    task_of,
)

LOAD = {'type': 'LoadImageFromFile'}
PACK = {'type': 'PackDetInputs'}


@pytest.fixture
def scope():
    with DefaultScope.overwrite_default_scope('mmdet'):
        yield


def names(steps):
    return [step_name(step) for step in steps]


def test_fields_of_others(scope):
    proposals = {'type': 'LoadProposals', 'num_max_proposals': 30}
    assert pipeline_fields([proposals]).proposals == 30
    track = {'type': 'LoadTrackAnnotations', 'with_mask': True}
    broadcast = {'type': 'TransformBroadcaster', 'transforms': [track]}
    fields = pipeline_fields([broadcast, {'type': 'PackTrackInputs'}])
    assert fields.frames == 2
    assert fields.box_type is None
    assert fields.masks
    assert pipeline_fields([], text=True).text
    assert pipeline_fields([{'type': 'PackReIDInputs'}]).alone


def test_keeps_what_adds_to_a_sample(scope):
    pipeline = [
        {**LOAD, '_scope_': 'mmdet'},
        {'type': 'LoadAnnotations', 'with_bbox': True},
        {'type': 'Mosaic'},
        {'type': 'Resize', 'scale': (64, 64)},
        {'type': 'SegRescale', 'scale_factor': 0.5},
        {'type': 'RandomChoice', 'transforms': [[{'type': 'RandomFlip'}]]},
        {'type': 'ProposalBroadcaster', 'transforms': []},
        PACK,
    ]
    before = copy.deepcopy(pipeline)
    assert names(shortened_pipeline(pipeline)) == [
        'SegRescale',
        'PackDetInputs',
    ]
    assert pipeline == before


def test_keeps_steps_that_no_host_has(scope):
    @TRANSFORMS.register_module(force=True)
    class StepOfAUser:
        def __call__(self, results):
            return results

    try:
        steps = shortened_pipeline([LOAD, {'type': 'StepOfAUser'}, PACK])
    finally:
        TRANSFORMS.module_dict.pop('StepOfAUser')
    assert names(steps) == ['StepOfAUser', 'PackDetInputs']


@pytest.mark.parametrize(
    ('pack', 'fields', 'task'),
    [
        ('PackDetInputs', {'boxes': True}, 'detection'),
        ('PackDetInputs', {}, 'detection'),
        ('PackTrackInputs', {'masks': True}, 'tracking'),
    ],
)
def test_task(pack, fields, task):
    assert task_of([LOAD, {'type': pack}], Fields(**fields)) == task


def test_task_of_pictures_is_told_by_the_model():
    class BaseSelfSupervisor:
        head = None

    class MultiLabelHead:
        in_channels = 3

    class OtherHead(MultiLabelHead):
        in_channels = 4

    class Classifier:
        head = OtherHead()

    pack = [{'type': 'mmpretrain.PackInputs'}]
    assert task_of(pack, Fields(), BaseSelfSupervisor()) == 'pretraining'
    assert task_of(pack, Fields(), Classifier()) == 'multi-label'


def part(**numbers):
    module = nn.Module()
    for name, value in numbers.items():
        setattr(module, name, value)
    return module


@pytest.mark.parametrize(
    ('model', 'counts'),
    [
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
    ('size', 'area', 'expected'),
    [
        ((800, 1333), 0, (160, 256)),
        ((256, 200), 0, (256, 200)),
        ((20, 2000), 0, (32, 256)),
        # Large enough for the queries of a model.
        ((800, 1333), 57_600, (192, 320)),
        ((64, 64), 57_600, (64, 64)),
        ((300, 300), 10**6, (300, 300)),
    ],
)
def test_reduced(size, area, expected):
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

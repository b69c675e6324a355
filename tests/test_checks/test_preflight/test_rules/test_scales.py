"""Sizes of images against the queries of a model, and of each other."""

import pytest
from helpers.lint_findings import lint


def dino(steps=(), queries=900, split='train', **changes):
    load = [{'type': 'LoadImageFromFile'}, {'type': 'LoadAnnotations'}]
    pipeline = [*load, *steps, {'type': 'PackDetInputs'}]
    model = {
        'type': 'DINO',
        'num_queries': queries,
        'backbone': {'type': 'ResNet', 'depth': 50, 'out_indices': (1, 2, 3)},
        'neck': {'type': 'ChannelMapper', 'num_outs': 4},
    }
    dataset = {'type': 'CocoDataset', 'pipeline': pipeline}
    loader = {'batch_size': 1, 'dataset': dataset}
    return {'model': {**model, **changes}, f'{split}_dataloader': loader}


def resize(*scale, **more):
    return {'type': 'Resize', 'scale': scale, 'keep_ratio': True, **more}


CROP = {'type': 'RandomCrop', 'crop_size': (60, 90)}
SCALES = {
    'type': 'RandomChoiceResize',
    'scales': [(480, 1333), (800, 1333)],
    'keep_ratio': True,
}
LSJ = {
    'type': 'RandomResize',
    'scale': (1024, 1024),
    'ratio_range': (0.1, 2.0),
    'keep_ratio': True,
}


@pytest.mark.parametrize(
    ('changes', 'severity'),
    [
        (dino([SCALES]), ''),
        (dino([CROP, SCALES]), ''),
        (dino([SCALES, CROP]), 'ERROR'),
        (dino([LSJ]), ''),
        (dino([LSJ, {'type': 'Pad', 'size': (1024, 1024)}]), ''),
        (dino([resize(192, 192)]), 'ERROR'),
        (dino([resize(224, 224)], 700), ''),
        # High and wide ones in a batch have more places than one of them.
        (dino([resize(400, 200)], 1800), 'WARNING'),
        (dino([resize(192, 192, keep_ratio=False)], 765), ''),
        (dino([resize(192, 192, keep_ratio=False)], 766), 'ERROR'),
        (dino([resize(192, 192)], split='val'), 'ERROR'),
        (dino([{'type': 'MyResize'}, resize(192, 192)]), ''),
        (dino([resize(192, 192)], type='DDQDETR'), ''),
        (dino([resize(192, 192)], type='DeformableDETR'), ''),
        (
            dino([resize(192, 192)], type='DeformableDETR', as_two_stage=True),
            'ERROR',
        ),
        (dino([resize(192, 192)], type='mmext.CoDINO'), ''),
    ],
)
def test_queries_and_pictures(changes, severity):
    findings = lint(changes, 'PIPE007')
    assert [f.severity.name for f in findings] == [severity][: len(severity)]


CHOICE = {'type': 'RandomChoice', 'transforms': [[SCALES], [CROP, SCALES]]}
WIDE = resize(1333, 800)


@pytest.mark.parametrize(
    ('train', 'val', 'text'),
    [
        ([SCALES], [WIDE], ''),
        ([LSJ], [resize(2048, 1280)], ''),
        ([resize(400, 300)], [WIDE], 'at least 2.67 times larger'),
        ([WIDE], [resize(400, 300)], 'at least 2.67 times smaller'),
        ([SCALES], [resize(1333, 1600)], ''),
        # A crop is resized to any larger scale.
        ([CHOICE], [resize(5000, 5000)], ''),
        ([CHOICE], [resize(300, 200)], 'at least 2.4 times smaller'),
        ([CROP, resize(64, 64)], [WIDE], ''),
        ([{'type': 'Mosaic', 'img_scale': (64, 64)}], [WIDE], ''),
        ([], [WIDE], ''),
        ([resize(64, 64, keep_ratio=False)], [WIDE], 'larger'),
    ],
)
def test_scale_of_the_validation(train, val, text):
    changes = {
        key: loader
        for split, steps in (('train', train), ('val', val))
        for key, loader in dino(steps, split=split).items()
    }
    found = ''.join(f.message for f in lint(changes, 'PIPE010'))
    assert text in found
    assert bool(text) == bool(found)

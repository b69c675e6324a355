import json
from importlib.util import find_spec

import cv2
import numpy as np
import pytest
import torch
from helpers.preflight_configs import (
    classifier,
    detector,
    instance_segmentor,
    segmentor,
    two_views,
    with_pipeline,
)

from mmext.checks.ddp import trace_train_step
from mmext.checks.preflight.batches.making import (
    make_batches,
    real_batches,
)
from mmext.checks.preflight.build import build_for_preflight
from mmext.checks.preflight.sandbox import CannotBuildError

needs_mmpretrain = pytest.mark.skipif(
    find_spec('mmpretrain') is None, reason='mmpretrain is not installed'
)
MADE_UP = ('normal', 'empty', 'one-class', 'crowded')


@pytest.mark.parametrize('config', [detector, instance_segmentor, segmentor])
def test_model_trains_on_every_kind(config):
    built = build_for_preflight(config())
    made = make_batches(built, MADE_UP)
    assert tuple(made) == MADE_UP
    for kind, batches in made.items():
        assert len(batches) == 2
        usage = trace_train_step(built.model, batches[0])
        assert usage.ready, kind
        if kind == 'normal':
            assert not usage.unused


@needs_mmpretrain
def test_classification():
    built = build_for_preflight(classifier())
    assert built.task == 'classification'
    made = make_batches(built, MADE_UP, steps=1)
    assert tuple(made) == ('normal', 'one-class')
    for (batch,) in made.values():
        assert batch['inputs'].shape == (2, 3, 64, 64)
        assert not trace_train_step(built.model, batch).unused


@needs_mmpretrain
def test_pretraining_sees_two_views():
    built = build_for_preflight(two_views())
    assert built.task == 'pretraining'
    made = make_batches(built, MADE_UP, steps=1)
    assert tuple(made) == ('normal',)
    (batch,) = made['normal']
    assert [view.shape for view in batch['inputs']] == [(2, 3, 64, 64)] * 2
    assert not torch.equal(*batch['inputs'])
    assert not trace_train_step(built.model, batch).unused


def test_step_fails_as_in_a_training_without_what_the_head_needs():
    cfg = with_pipeline(
        instance_segmentor(),
        [
            {'type': 'LoadImageFromFile'},
            {'type': 'LoadAnnotations', 'with_bbox': True},
            {'type': 'PackDetInputs'},
        ],
    )
    built = build_for_preflight(cfg)
    assert built.task == 'detection'
    ((batch,),) = make_batches(built, ['normal'], steps=1).values()
    with pytest.raises(AttributeError, match='masks'):
        trace_train_step(built.model, batch)


@pytest.fixture
def config(tmp_path):
    """A detector whose data are five pictures with a box each."""
    images, annotations = [], []
    for index in range(5):
        name = f'{index}.png'
        pixels = np.full((64, 96, 3), 40 * index, np.uint8)
        assert cv2.imwrite(str(tmp_path / name), pixels)
        images.append(
            {'id': index, 'file_name': name, 'height': 64, 'width': 96}
        )
        annotations.append(
            {
                'id': index,
                'image_id': index,
                'category_id': 1,
                'bbox': [8, 8, 40, 40],
                'area': 1600,
                'iscrowd': 0,
            }
        )
    content = {
        'images': images,
        'annotations': annotations,
        'categories': [{'id': 1, 'name': 'cell'}],
    }
    (tmp_path / 'labels.json').write_text(json.dumps(content))
    cfg = detector()
    cfg['train_dataloader']['dataset'].update(
        data_root=f'{tmp_path}/',
        ann_file='labels.json',
        data_prefix={'img': ''},
        metainfo={'classes': ('cell',)},
    )
    pipeline = cfg['train_dataloader']['dataset']['pipeline']
    pipeline[2] = {'type': 'Resize', 'scale': (96, 64)}
    return cfg


def test_first_batches_of_the_data(config):
    built = build_for_preflight(config)
    ((first, second),) = make_batches(built, ['real'], steps=2).values()
    assert [int(image[0, 0, 0]) for image in first['inputs']] == [0, 40]
    assert [int(image[0, 0, 0]) for image in second['inputs']] == [80, 120]
    assert not trace_train_step(built.model, first).unused


def test_each_part_of_the_data_gives_samples(config):
    loader = config['train_dataloader']
    inner = loader['dataset']
    loader['dataset'] = {'type': 'ConcatDataset', 'datasets': [inner, inner]}
    batches = real_batches(config, steps=3)
    blues = [
        [int(image[0, 0, 0]) for image in batch['inputs']] for batch in batches
    ]
    assert blues == [[0, 40, 0, 40], [80, 120, 80, 120], [160, 160]]


def test_rejects_data_that_are_not_there():
    with pytest.raises(
        CannotBuildError,
        match=r'dataset must give samples, got FileNotFoundError',
    ):
        real_batches(detector())

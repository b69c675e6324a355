from importlib.util import find_spec

import pytest
import torch
from preflight_configs import (
    classifier,
    detector,
    instance_segmentor,
    segmentor,
    two_views,
    with_pipeline,
)

from mmext.preflight import trace_train_step
from mmext.preflight.batches import make_batches
from mmext.preflight.building import build_for_preflight

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
        assert usage.firings, kind
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


def test_size_can_be_told():
    built = build_for_preflight(detector())
    ((batch,),) = make_batches(
        built, ['normal'], steps=1, batch_size=3, size=(64, 96)
    ).values()
    assert [tuple(each.shape) for each in batch['inputs']] == [(3, 64, 96)] * 3


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


def test_same_batches_for_a_seed():
    built = build_for_preflight(detector())
    first, again, other = (
        make_batches(built, ['normal'], steps=1, seed=seed)['normal'][0]
        for seed in (0, 0, 1)
    )
    assert torch.equal(first['inputs'][0], again['inputs'][0])
    assert not torch.equal(first['inputs'][0], other['inputs'][0])


def test_rejects_unknown_kind():
    built = build_for_preflight(detector())
    with pytest.raises(ValueError, match=r"kinds must be .*\['odd'\]"):
        make_batches(built, ['odd'])


@pytest.mark.parametrize('options', [{'steps': 0}, {'batch_size': 0}])
def test_rejects_numbers_below_one(options):
    built = build_for_preflight(detector())
    with pytest.raises(ValueError, match='must be at least 1'):
        make_batches(built, **options)

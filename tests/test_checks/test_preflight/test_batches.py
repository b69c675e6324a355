"""Batches of all kinds, made up or read from the data."""

import json
from dataclasses import replace
from importlib.util import find_spec

import cv2
import numpy as np
import pytest
import torch
from helpers.preflight_configs import (
    classifier,
    detector,
    segmentor,
)
from mmengine.registry import DefaultScope

from mmext.checks.ddp import trace_train_step
from mmext.checks.preflight.batches import (
    fake_batch,
    make_batches,
    real_batches,
)
from mmext.checks.preflight.build import build_for_preflight
from mmext.checks.preflight.recipe import Fields, Recipe
from mmext.checks.preflight.sandbox import CannotBuildError

BOXES = Fields(boxes=True, labels=True)
DETECTION = Recipe(
    task='detection',
    size=(64, 96),
    pipelines=([{'type': 'PackDetInputs'}],),
    fields=(BOXES,),
    num_classes=4,
)
SEMANTIC = Recipe(
    task='semantic',
    size=(64, 96),
    pipelines=([{'type': 'PackSegInputs'}],),
    fields=(Fields(semantic=True),),
    num_classes=5,
)


def batch(recipe, kind='normal', **options):
    scope = 'mmseg' if recipe.task in ('semantic', 'depth') else 'mmdet'
    with DefaultScope.overwrite_default_scope(scope):
        return fake_batch(recipe, kind, **options)


def test_proposals():
    recipe = replace(DETECTION, fields=(replace(BOXES, proposals=30),))
    proposals = batch(recipe)['data_samples'][0].proposals
    assert proposals.bboxes.shape == (30, 4)
    assert (proposals.bboxes[:, 2:] > proposals.bboxes[:, :2]).all()
    assert len(batch(recipe, 'empty')['data_samples'][0].proposals) == 30


def test_boxes_as_arrays_and_in_sequences():
    fields = replace(BOXES, frames=2, box_type=None)
    pipelines = ([{'type': 'PackTrackInputs'}],)
    recipe = replace(
        DETECTION, task='tracking', fields=(fields,), pipelines=pipelines
    )
    made = batch(recipe)
    assert made['inputs'][0].shape == (2, 3, 64, 96)
    track = made['data_samples'][0]
    assert track.key_frames_inds == [0]
    assert track.ref_frames_inds == [1]
    first, second = track.video_data_samples
    assert torch.equal(
        first.gt_instances.instances_ids, second.gt_instances.instances_ids
    )
    assert isinstance(first.gt_instances.bboxes, torch.Tensor)


def test_pictures_of_two_identities():
    fields = Fields(frames=4, alone=True)
    pipelines = ([{'type': 'PackReIDInputs'}],)
    recipe = replace(
        DETECTION, task='tracking', fields=(fields,), pipelines=pipelines
    )
    made = batch(recipe, batch_size=2)
    (pictures,) = made['inputs']
    assert pictures.shape == (4, 3, 64, 96)
    (sample,) = made['data_samples']
    one, same, two, other = sample.gt_label.label.tolist()
    assert one == same
    assert two == other
    assert one != two
    assert {one, two} <= {0, 1, 2, 3}


def test_labels_of_pixels_and_edges():
    sample = batch(SEMANTIC)['data_samples'][0]
    assert set(sample.gt_sem_seg.data.unique().tolist()) == {
        0, 1, 2, 3, 4, 255,
    }  # fmt: skip
    assert 'gt_edge_map' not in sample
    steps = [{'type': 'GenerateEdge', 'edge_width': 2}]
    recipe = replace(SEMANTIC, pipelines=([*steps, *SEMANTIC.pipelines[0]],))
    assert batch(recipe)['data_samples'][0].gt_edge_map.data.any()


def test_seed_step_and_kind_tell_the_contents():
    def picture(kind='normal', **options):
        return batch(DETECTION, kind, **options)['inputs'][0]

    expected = picture()
    np.random.seed(7)
    assert torch.equal(picture(), expected)
    for other in (
        picture(seed=1),
        picture(step=1),
        picture('one-class'),
        batch(DETECTION)['inputs'][1],
    ):
        assert not torch.equal(other, expected)


@pytest.mark.parametrize(
    ('step', 'message'),
    [
        (
            {'type': 'FilterAnnotations', 'min_gt_bbox_wh': (999, 999)},
            r"of kind 'normal' .*\(FilterAnnotations, PackDetInputs\).* None",
        ),
        ({'type': 'NoSuchStep'}, 'KeyError.*NoSuchStep'),
        ({'type': 'ToTensor', 'keys': ['odd']}, "ToTensor.*KeyError: 'odd'"),
    ],
)
def test_rejects_a_pipeline_that_gives_nothing(step, message):
    recipe = replace(DETECTION, pipelines=([step, {'type': 'PackDetInputs'}],))
    with pytest.raises(CannotBuildError, match=message):
        batch(recipe)


needs_mmpretrain = pytest.mark.skipif(
    find_spec('mmpretrain') is None, reason='mmpretrain is not installed'
)
MADE_UP = ('normal', 'empty', 'one-class', 'crowded')


@pytest.mark.parametrize('config', [detector, segmentor])
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

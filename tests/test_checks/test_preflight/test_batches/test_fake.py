from dataclasses import replace

import numpy as np
import pytest
import torch
from mmdet.structures.bbox import HorizontalBoxes
from mmdet.structures.mask import BitmapMasks, PolygonMasks
from mmengine.dataset import default_collate, pseudo_collate
from mmengine.registry import DefaultScope

from mmext.checks.preflight.batches.fake import (
    collate_function,
    fake_batch,
    make_scene,
)
from mmext.checks.preflight.batches.pipelines import Fields
from mmext.checks.preflight.batches.recipe import Recipe
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


@pytest.fixture(autouse=True)
def scope():
    with DefaultScope.overwrite_default_scope('mmdet'):
        yield


def batch(recipe, kind='normal', **options):
    scope = 'mmseg' if recipe.task in ('semantic', 'depth') else 'mmdet'
    with DefaultScope.overwrite_default_scope(scope):
        return fake_batch(recipe, kind, **options)


def test_boxes_as_the_loader_gives_them():
    made = batch(DETECTION, batch_size=3)
    assert [tuple(value.shape) for value in made['inputs']] == [
        (3, 64, 96)
    ] * 3
    sample = made['data_samples'][0]
    assert isinstance(sample.gt_instances.bboxes, HorizontalBoxes)
    assert sample.gt_instances.labels.dtype == torch.int64
    assert sample.img_shape == (64, 96)
    assert len(sample.gt_instances) == 6
    assert 'masks' not in sample.gt_instances
    assert 'gt_sem_seg' not in sample


@pytest.mark.parametrize(
    ('polygons', 'kind'), [(True, PolygonMasks), (False, BitmapMasks)]
)
def test_masks(polygons, kind):
    fields = replace(BOXES, masks=True, polygons=polygons)
    sample = batch(replace(DETECTION, fields=(fields,)))['data_samples'][0]
    masks = sample.gt_instances.masks
    assert isinstance(masks, kind)
    assert len(masks) == 6
    assert (masks.height, masks.width) == (64, 96)


def test_panoptic():
    fields = replace(BOXES, masks=True, semantic=True, panoptic=True)
    recipe = replace(DETECTION, fields=(fields,), num_stuff=2)
    sample = batch(recipe)['data_samples'][0]
    pixels = set(sample.gt_sem_seg.sem_seg.unique().tolist())
    assert {4, 5, 255} <= pixels <= {0, 1, 2, 3, 4, 5, 255}


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


def test_each_data_set_gives_samples():
    recipe = replace(
        DETECTION,
        pipelines=DETECTION.pipelines * 2,
        fields=(BOXES, Fields()),
    )
    samples = batch(recipe)['data_samples']
    assert ['bboxes' in s.gt_instances for s in samples] == [
        True, True, False, False,
    ]  # fmt: skip


def test_branches_of_a_semi_supervised_training():
    fields = ['sup', 'unsup_teacher', 'unsup_student']
    pack = [{'type': 'PackDetInputs', 'meta_keys': ('homography_matrix',)}]
    branch = {'type': 'MultiBranch', 'branch_field': fields}
    recipe = replace(
        DETECTION,
        pipelines=(
            [{**branch, 'sup': pack}],
            [
                {'type': 'LoadEmptyAnnotations'},
                {**branch, 'unsup_teacher': pack, 'unsup_student': pack},
            ],
        ),
        fields=(BOXES, Fields()),
    )
    samples = batch(recipe)['data_samples']
    given = {
        name: [sample is not None for sample in samples[name]]
        for name in fields
    }
    assert given == {
        'sup': [True, True, False, False],
        'unsup_teacher': [False, False, True, True],
        'unsup_student': [False, False, True, True],
    }
    assert len(samples['sup'][0].gt_instances) == 6
    unlabelled = samples['unsup_student'][2]
    assert len(unlabelled.gt_instances) == 0
    assert unlabelled.homography_matrix.shape == (3, 3)


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


def test_collate_as_the_runner():
    assert collate_function(None) is pseudo_collate
    made = collate_function({'type': 'default_collate'})
    assert made.func is default_collate
    assert collate_function(default_collate) is default_collate


SIZE = (96, 160)


def scene(kind, size=SIZE, seed=0, **options):
    options = {'num_classes': 7, **options}
    return make_scene(kind, size, rng=np.random.default_rng(seed), **options)


@pytest.mark.parametrize('kind', ['normal', 'empty', 'one-class', 'crowded'])
@pytest.mark.parametrize('size', [SIZE, (32, 32)])
def test_everything_is_inside_and_of_its_type(kind, size):
    made = scene(kind, size)
    height, width = size
    assert made.size == size
    assert made.image.shape == (*size, 3)
    assert made.image.dtype == np.uint8
    assert made.boxes.dtype == np.float32
    assert made.labels.dtype == np.int64
    assert len(made.boxes) == len(made.labels) == len(made.ignored)
    x1, y1, x2, y2 = made.boxes.T
    assert (x1 >= 0).all()
    assert (y1 >= 0).all()
    assert (x2 <= width).all()
    assert (y2 <= height).all()
    assert (x2 - x1 >= 3.9).all()
    assert (y2 - y1 >= 3.9).all()
    assert ((made.labels >= 0) & (made.labels < 7)).all()


def test_kinds_differ_as_told():
    normal, crowded = scene('normal'), scene('crowded')
    assert len(normal.boxes) == 6
    assert len(set(normal.labels)) == 6
    assert not normal.ignored.any()
    assert len(crowded.boxes) == 200
    assert crowded.ignored.sum() == 20
    assert len(scene('empty').boxes) == 0
    assert set(scene('one-class').labels) == {0}


def test_objects_lie_on_stuff():
    made = scene('normal')
    labels = made.panoptic_labels(7, 4)
    top = made.bitmaps()[-1].astype(bool)
    assert (labels[top] == made.labels[-1]).all()
    stuff = set(np.unique(labels)) - set(made.labels.tolist()) - {255}
    assert stuff
    assert stuff <= {7, 8, 9, 10}

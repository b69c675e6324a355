import copy

import pytest
from mmengine.registry import TRANSFORMS, DefaultScope

from mmext.checks.preflight.batches.pipelines import (
    Fields,
    find_pipelines,
    pipeline_fields,
    shortened_pipeline,
    step_name,
    task_of,
)

LOAD = {'type': 'LoadImageFromFile'}
PACK = {'type': 'PackDetInputs'}


@pytest.fixture(params=['mmdet'])
def scope(request):
    with DefaultScope.overwrite_default_scope(request.param):
        yield request.param


def names(steps):
    return [step_name(step) for step in steps]


def test_pipelines_of_wrapped_data_sets():
    one = {'type': 'A', 'pipeline': [LOAD, PACK]}
    two = {'type': 'B', 'pipeline': [LOAD]}
    mixed = {'type': 'Mixed', 'dataset': two, 'pipeline': [PACK]}
    assert find_pipelines({'type': 'Repeat', 'dataset': one}) == [[LOAD, PACK]]
    assert find_pipelines(mixed) == [[LOAD, PACK]]
    assert find_pipelines({'type': 'Concat', 'datasets': [one, one, two]}) == [
        [LOAD, PACK],
        [LOAD],
    ]
    assert find_pipelines([one, two]) == [[LOAD, PACK], [LOAD]]
    assert find_pipelines(None) == []


def test_fields_of_a_detector(scope):
    load = {'type': 'LoadAnnotations', 'with_bbox': True}
    assert pipeline_fields([LOAD, load]) == Fields(boxes=True, labels=True)
    masks = {**load, 'with_mask': True, 'poly2mask': False, 'with_seg': True}
    fields = pipeline_fields([LOAD, masks])
    assert fields.masks
    assert fields.polygons
    assert fields.semantic
    assert not pipeline_fields([{**load, 'with_mask': True}]).polygons


def test_fields_of_others(scope):
    panoptic = pipeline_fields([{'type': 'LoadPanopticAnnotations'}])
    assert panoptic.panoptic
    assert panoptic.semantic
    assert panoptic.masks
    assert not panoptic.polygons
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


def test_shortens_inside_of_branches(scope):
    flip = {'type': 'RandomFlip'}
    branches = {
        'type': 'MultiBranch',
        'branch_field': ['sup', 'unsup'],
        'sup': PACK,
        'unsup': [flip, PACK],
    }
    (step,) = shortened_pipeline([LOAD, branches])
    assert step == {**branches, 'sup': [PACK], 'unsup': [PACK]}
    broadcast = {'type': 'TransformBroadcaster', 'transforms': [LOAD, flip]}
    pack = {'type': 'PackTrackInputs'}
    assert shortened_pipeline([broadcast, pack]) == [pack]


@pytest.mark.parametrize(
    ('pack', 'fields', 'task'),
    [
        ('PackDetInputs', {'boxes': True}, 'detection'),
        ('PackDetInputs', {}, 'detection'),
        ('PackDetInputs', {'boxes': True, 'masks': True}, 'instance'),
        ('PackDetInputs', {'masks': True, 'panoptic': True}, 'panoptic'),
        ('PackTrackInputs', {'masks': True}, 'tracking'),
        ('PackSegInputs', {'semantic': True}, 'semantic'),
        ('PackSegInputs', {'depth': True}, 'depth'),
        ('PackInputs', {}, 'classification'),
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

"""Pipelines and what heads read."""

import pytest
from helpers.lint_findings import lint
from mmengine.config import Config

import mmext
from mmext.checks.config.child import apply_options

EDGE = {'type': 'mmseg.GenerateEdge', 'edge_width': 4, 'ignore_index': 11}
KEY = 'train_dataloader.dataset.pipeline'


@pytest.fixture
def pidnet():
    return Config.fromfile(mmext.config_path('pidnet/pidnet_s_camvid.py'))


def without_edges(cfg):
    data = cfg.train_dataloader.dataset
    while 'pipeline' not in data:
        data = data.dataset
    data.pipeline = [
        step for step in data.pipeline if 'GenerateEdge' not in step['type']
    ]
    return data


def test_no_edges(pidnet):
    without_edges(pidnet)
    (found,) = lint(pidnet, 'PIPE')
    assert (found.rule, found.severity.name) == ('PIPE001', 'ERROR')
    assert found.key.endswith('dataset.pipeline')
    mended = Config(apply_options(pidnet.to_dict(), found.options))
    assert lint(mended, 'PIPE') == []
    (pipeline,) = found.options.values()
    names = [step['type'].rpartition('.')[2] for step in pipeline]
    assert names[-2] == 'GenerateEdge'
    assert names[-1].startswith('Pack')


def test_edges_with_another_value_to_ignore(pidnet):
    data = without_edges(pidnet)
    data.pipeline.insert(-1, {**EDGE, 'ignore_index': 255})
    (found,) = lint(pidnet, 'PIPE')
    assert 'ignores 255, the head 11' in found.message


def test_masks():
    head = {'type': 'StandardRoIHead', 'mask_head': {'type': 'FCNMaskHead'}}
    (found,) = lint({'model.roi_head': head}, 'PIPE')
    assert (found.rule, found.key) == ('PIPE003', f'{KEY}[1]')
    changes = {'model.roi_head': head, f'{KEY}.1.with_mask': True}
    assert lint(changes, 'PIPE') == []
    # Of one stage: masks may be learned from boxes.
    assert lint({'model.mask_head': head}, 'PIPE') == []


LOAD = [{'type': 'LoadImageFromFile'}, {'type': 'LoadAnnotations'}]
INNER = 'train_dataloader.dataset'


@pytest.mark.parametrize(
    ('kind', 'wrong'),
    [('Mosaic', True), ('MixUp', True), ('CachedMosaic', False)],
)
def test_steps_that_mix(kind, wrong):
    steps = [*LOAD, {'type': kind}]
    found = lint({f'{INNER}.pipeline': steps}, 'PIPE004')
    assert [each.key for each in found] == (
        [f'{INNER}.pipeline[2]'] if wrong else []
    )
    wrapper = {
        'type': 'MultiImageMixDataset',
        'dataset': {'type': 'CocoDataset', 'pipeline': LOAD},
        'pipeline': [{'type': kind}],
    }
    assert lint({INNER: wrapper}, 'PIPE004') == []
    wrapper['dataset']['pipeline'] = steps
    found = lint({INNER: wrapper}, 'PIPE004')
    assert [each.key for each in found] == (
        [f'{INNER}.dataset.pipeline[2]'] if wrong else []
    )

"""Frozen modules stay as they are, in one process and in several."""

import pytest
import torch
from helpers import toy_training as toy
from helpers.toy_ranks import start_ranks
from mmengine.model import BaseTTAModel
from mmengine.registry import MODELS
from torch import nn

from mmext.checks.preflight.build import build_for_preflight
from mmext.engine import freeze_modules

pytestmark = pytest.mark.xdist_group('processes')
MODEL = dict(type='ToyModel', norm='BN')


def net():
    return nn.ModuleDict(
        {
            'backbone': nn.ModuleDict(
                {f'layer{i}': nn.Linear(1, 1) for i in range(3)}
            ),
            'head': nn.Linear(1, 1),
        }
    )


@pytest.mark.parametrize(
    ('names', 'trained'),
    [
        ([], 8),
        ('backbone', 2),
        (['backbone.layer[01]'], 4),
        (['backbone.layer0', 'head'], 4),
        (['*.layer2'], 6),
    ],
)
def test_names_and_patterns(names, trained):
    model = net()
    frozen = freeze_modules(model, names)
    assert sum(p.requires_grad for p in model.parameters()) == trained
    assert not any(module.training for module in frozen.values())
    assert model.training


@pytest.mark.parametrize(
    ('names', 'kind', 'message'),
    [
        (['backbon'], ValueError, r"got 'backbon', which fits none; near .*b"),
        (['zzz'], ValueError, r"near are \['backbone', 'head'\]"),
        (['backbone', 'head'], ValueError, 'must leave something to be'),
        ([3], TypeError, r'must be names of modules, .* got \[3\]'),
        (True, TypeError, 'got True'),
    ],
)
def test_rejects(names, kind, message):
    with pytest.raises(kind, match=message):
        freeze_modules(net(), names)


@pytest.mark.parametrize(
    'world_size', [1, pytest.param(2, marks=pytest.mark.slow)]
)
def test_through_the_tool(tmp_path, world_size):
    """DDP does not wait for them, and batch norm sees no batch."""
    changes = dict(model=MODEL, freeze=['norm'])
    path = toy.write(tmp_path / 'cfg.py', toy.config(**changes))
    work_dir = tmp_path / 'w'
    ranks = start_ranks(
        [path, '--work-dir', work_dir], world_size, tmp_path / 'out'
    )
    assert ranks.wait() == [0] * world_size, ranks.output()[-3000:]
    states = [
        torch.load(work_dir / f'epoch_{n}.pth', weights_only=False)
        for n in (1, 3)
    ]
    one, three = (state['state_dict'] for state in states)
    assert one['norm.running_mean'].tolist() == [0, 0]
    assert three['norm.num_batches_tracked'] == 0
    assert three['norm.weight'].tolist() == [1, 1]
    assert not torch.equal(one['linear.weight'], three['linear.weight'])


@MODELS.register_module(force=True)
class ToyViews(BaseTTAModel):
    """Several views of a sample in a test."""

    def merge_preds(self, data_samples_list):
        return data_samples_list[0]


def test_views_of_a_test_know_the_names_of_the_model(tmp_path):
    model = dict(type='ToyViews', module=MODEL)
    runner = toy.build(tmp_path, model=model, freeze=['norm'])
    assert not runner.model.module.norm.weight.requires_grad


def test_the_preflight_knows(tmp_path):
    cfg = toy.config(model=MODEL, freeze=['norm'])
    built = build_for_preflight(cfg)
    assert not built.model.norm.weight.requires_grad
    assert any('freeze' in note for note in built.notes)


@pytest.mark.slow
def test_goes_on_as_it_was(tmp_path):
    changes = dict(model=MODEL, freeze=['norm'])
    expected = toy.train(tmp_path / 'a', **changes)
    trace = toy.interrupted(tmp_path / 'b', [8], **changes)
    assert trace[-1] == expected[-1]

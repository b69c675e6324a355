"""Runs with the hook are runs without it, and take what others break on.

Model, data and losses are those of the toy training, where the oracle is the
same run without checkpoints.
"""

from pathlib import Path

import pytest
import torch
from helpers import toy_training as toy
from mmengine.hooks import EMAHook
from mmengine.registry import MODELS
from torch import nn

from mmext.models.checkpointing.checkpoint import is_checkpointed

RUNNERS = ['mmext.PortableRunner', 'Runner']
BN = dict(type='ToyModel', noise=0.1, norm='BN')


@MODELS.register_module(force=True)
class StackedModel(toy.ToyModel):
    """With layers that are called one by one, and dropout."""

    def __init__(self, frozen=False):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(3, 3), nn.Linear(3, 3), nn.Dropout(0.3)
        )
        self.layers[0].requires_grad_(not frozen)

    def forward(self, inputs, mode='tensor', **kwargs):
        points = torch.stack(list(inputs))
        for layer in self.layers:
            points = layer(points)
        return super().forward(list(points), mode, **kwargs)


def hook(**kwargs):
    return dict(type='mmext.ActivationCheckpointHook', **kwargs)


def hooks(**kwargs):
    """Default hooks of the toy training, and this one."""
    defaults = toy.config()['default_hooks']
    return {**defaults, 'activation_checkpoint': hook(**kwargs)}


def log_of(work_dir):
    (path,) = Path(work_dir).glob('*/*.log')
    return path.read_text()


@pytest.mark.parametrize('runner_type', RUNNERS)
def test_a_run_is_that_without(tmp_path, runner_type):
    """Losses, weights, and statistics of batch norm, to the last bit."""
    changes = dict(runner_type=runner_type, model=BN)
    plain = toy.train(tmp_path / 'plain', **changes)
    run = toy.train(
        tmp_path / 'hook',
        default_hooks=hooks(modules='linear', classes=['BatchNorm1d']),
        **changes,
    )
    assert run == plain
    assert (
        'Activation checkpointing (non-reentrant): 2 modules, 0 of them '
        'reentrant before: linear, norm' in log_of(tmp_path / 'hook')
    )


def test_flexible_runner(tmp_path):
    runner = toy.build(
        tmp_path,
        runner_type='FlexibleRunner',
        strategy=dict(type='SingleDeviceStrategy'),
        custom_hooks=[hook(modules='linear')],
        env_cfg=dict(),
    )
    runner.train()
    assert is_checkpointed(runner.model.linear)


def test_dropout_and_names_that_are_not_run(tmp_path):
    changes = dict(model=dict(type='StackedModel'))
    plain = toy.train(tmp_path / 'plain', **changes)
    run = toy.train(
        tmp_path / 'items', default_hooks=hooks(modules='layers.*'), **changes
    )
    assert run == plain
    assert 'Checkpointed, but not run' not in log_of(tmp_path / 'items')
    run = toy.train(
        tmp_path / 'whole', default_hooks=hooks(modules='layers'), **changes
    )
    assert run == plain
    log = log_of(tmp_path / 'whole')
    assert log.count('no memory is saved there: layers; name the') == 1


def test_resumed_run_is_the_same(tmp_path):
    changes = dict(
        model=BN, default_hooks=hooks(modules='linear'), param_scheduler=[]
    )
    whole = toy.train(tmp_path / 'whole', **changes)
    part = dict(by_epoch=True, max_epochs=1, val_interval=1)
    toy.train(tmp_path / 'parts', train_cfg=part, **changes)
    trace = toy.train(tmp_path / 'parts', resume=True, **changes)
    assert toy.steps(trace) == toy.steps(whole)
    assert trace[-1] == whole[-1]


def test_ema_averages_the_plain_model(tmp_path):
    def run(folder, **kwargs):
        runner = toy.build(
            tmp_path / folder,
            custom_hooks=[dict(type='EMAHook', momentum=0.3)],
            **kwargs,
        )
        runner.train()
        (ema,) = (h for h in runner.hooks if isinstance(h, EMAHook))
        return ema.ema_model.state_dict()

    plain = run('plain')
    result = run('hook', default_hooks=hooks(modules='linear'))
    assert result.keys() == plain.keys()
    for key, value in plain.items():
        assert torch.equal(result[key], value), key


@pytest.mark.parametrize('split', ['val', 'test'])
def test_nothing_happens_in_validation_and_test(tmp_path, split):
    runner = toy.build(
        tmp_path,
        default_hooks=hooks(modules='no.such.module'),
        test_dataloader=toy.loader(size=4, shuffle=False),
        test_cfg=dict(),
        test_evaluator=dict(type='ToyMetric'),
    )
    getattr(runner, split)()
    assert not any(map(is_checkpointed, runner.model.modules()))


def test_unknown_names_stop_the_run_at_once(tmp_path):
    with pytest.raises(
        ValueError, match=r"modules='linaer' .* fits none; near are linear"
    ):
        toy.train(tmp_path, default_hooks=hooks(modules='linaer'))
    assert not (tmp_path / 'trace.0').exists()
    assert not list(tmp_path.glob('*.pth'))


def test_says_that_it_does_nothing(tmp_path):
    toy.train(tmp_path, default_hooks=hooks())
    assert 'WARNING - Activation checkpointing' in log_of(tmp_path)
    assert '0 modules, 0 of them reentrant before: none' in log_of(tmp_path)


def test_trains_again_as_before(tmp_path):
    """A second ``train()`` finds everything done."""
    runner = toy.build(tmp_path, default_hooks=hooks(modules='linear'))
    runner.train()
    forward = runner.model.linear.forward
    runner.call_hook('before_train')
    assert runner.model.linear.forward is forward


@pytest.mark.parametrize('replace', [True, False])
def test_mmengine_own_key_under_its_runner(tmp_path, replace):
    """Its wrappers are there first; behind a frozen layer they break."""
    runner = toy.build(
        tmp_path,
        runner_type='Runner',
        model=dict(type='StackedModel', frozen=True),
        activation_checkpointing=['layers.1'],
        custom_hooks=[hook(replace_reentrant=replace)],
    )
    before = runner.model.layers[1].weight.clone()
    runner.train()
    assert is_checkpointed(runner.model.layers[1]) == replace
    assert torch.equal(runner.model.layers[1].weight, before) != replace


def test_mmengine_own_key_under_ours(tmp_path):
    """It needs no hook in the config: PortableRunner registers it."""
    changes = dict(model=dict(type='StackedModel', frozen=True))
    plain = toy.train(tmp_path / 'plain', **changes)
    changes['activation_checkpointing'] = ['layers.1']
    assert toy.train(tmp_path / 'key', **changes) == plain
    runner = toy.build(tmp_path / 'one', **changes)
    runner.train()
    assert is_checkpointed(runner.model.layers[1])
    assert runner.cfg.activation_checkpointing == ['layers.1']
    with pytest.raises(ValueError, match=r"modules='layer\.1' .* layers\.1"):
        toy.train(
            tmp_path / 'typo',
            **{**changes, 'activation_checkpointing': 'layer.1'},
        )

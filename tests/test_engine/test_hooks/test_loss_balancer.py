"""What balancers learn between steps, and how they resume."""

import uuid

import pytest
import torch
from helpers import toy_tasks
from helpers import toy_training as toy
from mmengine.config import Config
from mmengine.optim import OptimWrapper
from mmengine.registry import RUNNERS
from mmengine.runner import Runner

SLOW = pytest.mark.slow
HOOKS = dict(
    checkpoint=dict(type='CheckpointHook', interval=2, by_epoch=False),
    logger=dict(type='LoggerHook', interval=1),
)


def runner_of(work_dir, balancer, **changes):
    """A runner in this process, with a trace."""
    changes.setdefault('default_hooks', HOOKS)
    cfg = toy_tasks.config(balancer, **changes)
    cfg = toy.traced(work_dir / 'trace', cfg)
    cfg.update(work_dir=str(work_dir), experiment_name=uuid.uuid4().hex)
    work_dir.mkdir(parents=True, exist_ok=True)
    return RUNNERS.build(Config(cfg))


def resumed(work_dir, balancer, at, **changes):
    """Train, killed after a step and resumed; the runner that ended it."""
    kill = [dict(type='KillHook', at=at)]
    with pytest.raises(toy.Killed):
        runner_of(work_dir, balancer, custom_hooks=kill, **changes).train()
    runner = runner_of(work_dir, balancer, resume=True, **changes)
    runner.train()
    return runner


@pytest.mark.parametrize(
    'balancer',
    [
        pytest.param(name, marks=() if name == 'DWA' else SLOW)
        for name in toy_tasks.BALANCERS
    ],
)
def test_resumed_within_an_epoch(tmp_path, balancer):
    model = toy_tasks.model_cfg(balancer, noise=0.1, norm=True)
    model['balancer'].pop('interval', None)
    runner_of(tmp_path / 'a', balancer, model=model).train()
    # Between the checkpoint, of step 14, and the end of the last epoch.
    resumed(tmp_path / 'b', balancer, 15, model=model)
    one, other = (toy.read_trace(tmp_path / name / 'trace.0') for name in 'ab')
    last = {line['iter']: line for line in toy.steps(other)}
    assert list(last.values()) == toy.steps(one)
    assert other[-1] == one[-1]


@SLOW
@pytest.mark.parametrize(
    ('balancer', 'by_epoch'), [('DWA', True), ('STCH', False)]
)
def test_resumed_at_the_end_of_an_epoch(tmp_path, balancer, by_epoch):
    hook = dict(type='CheckpointHook', by_epoch=by_epoch)
    hook['interval'] = 1 if by_epoch else 6  # before the epoch is ended
    changes = dict(
        model=toy_tasks.model_cfg(balancer, noise=0.1),
        default_hooks={**HOOKS, 'checkpoint': hook},
    )
    changes['model']['balancer'].pop('interval')
    runner = runner_of(tmp_path / 'a', balancer, **changes)
    runner.train()
    other = resumed(tmp_path / 'b', balancer, 13, **changes)
    one, two = (toy.read_trace(tmp_path / n / 'trace.0') for n in 'ab')
    assert toy.steps(two)[-1] == toy.steps(one)[-1]
    assert two[-1] == one[-1]
    state = runner.model.balancer.get_state()
    assert state['num_epochs'] == 3
    again = other.model.balancer.get_state()
    assert toy.differences(state, again) == []


def test_load_from_begins_anew(tmp_path):
    runner = runner_of(tmp_path / 'a', 'DWA')
    runner.train()
    weights = runner.model.balancer.weights.clone()
    assert (weights - 1).abs().max() > 1e-4
    again = runner_of(
        tmp_path / 'b',
        'DWA',
        load_from=str(tmp_path / 'a/iter_18.pth'),
        train_cfg=dict(by_epoch=True, max_epochs=1),
        custom_hooks=[dict(type='KillHook', at=1)],
    )
    with pytest.raises(toy.Killed):
        again.train()
    assert again.model.balancer.weights.tolist() == [1, 1, 1]
    assert again.model.balancer.num_epochs == 0


def test_the_log_has_weights(tmp_path):
    runner = runner_of(tmp_path, 'DWA')
    runner.train()
    scalars = runner.message_hub.log_scalars
    weights = [scalars[f'train/weight/{task}'].current() for task in 'abc']
    assert sum(weights) == pytest.approx(3, abs=1e-5)
    assert scalars['train/a.raw'].current() > 0


def test_famo_sees_the_same_batch_and_changes_nothing(tmp_path):
    model = toy_tasks.model_cfg('FAMO', noise=0.5, norm=True)
    optimizer = dict(optimizer=dict(type='SGD', lr=0.0), accumulative_counts=3)
    runner = runner_of(tmp_path, 'FAMO', model=model, optim_wrapper=optimizer)
    seen = []
    update = runner.model.balancer.update

    def note(before, after):
        seen.append((before.clone(), after.clone()))
        update(before, after)

    runner.model.balancer.update = note
    runner.train()
    # Once for each step of the optimizer; as nothing moves, neither do the
    # losses, with the same noise and the same statistics of the batch.
    assert len(seen) == 6
    for before, after in seen:
        torch.testing.assert_close(before, after, rtol=0, atol=0)
    assert int(runner.model.backbone.norm.num_batches_tracked) == 18
    assert runner.model.backbone.norm.track_running_stats


def test_famo_learns_nothing_from_a_step_that_was_skipped(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(OptimWrapper, 'step', lambda self, **kwargs: None)
    runner = runner_of(tmp_path, 'FAMO')
    runner.train()
    assert runner.model.balancer.num_updates == 0


def test_an_interval_is_needed_without_epochs(tmp_path):
    model = toy_tasks.model_cfg('DWA')
    model['balancer'].pop('interval')
    by_iteration = dict(by_epoch=False, max_iters=4, val_interval=4)
    runner = runner_of(tmp_path, 'DWA', model=model, train_cfg=by_iteration)
    with pytest.raises(ValueError, match='6 are one pass over the data'):
        runner.train()


def test_a_model_without_balancer(tmp_path):
    hook = dict(type='mmext.LossBalancerHook')
    runner = toy.build(tmp_path, custom_hooks=[hook])
    with pytest.raises(TypeError, match=r'model with a balancer, .* ToyModel'):
        runner.train()


@pytest.mark.parametrize('has_hook', [True, False])
def test_the_runner_of_mmengine(tmp_path, has_hook):
    cfg = toy_tasks.config('DWA', train_cfg=dict(by_epoch=True, max_epochs=1))
    for key in ('runner_type', 'val_dataloader', 'val_cfg', 'val_evaluator'):
        cfg.pop(key)
    if has_hook:
        cfg['custom_hooks'] = [dict(type='mmext.LossBalancerHook')]
    cfg.update(work_dir=str(tmp_path), experiment_name=uuid.uuid4().hex)
    runner = Runner.from_cfg(Config(cfg))
    runner.train()
    text = next(tmp_path.glob('*/*.log')).read_text()
    assert text.count('DWA needs mmext.LossBalancerHook') == (not has_hook)
    assert runner.model.balancer.num_epochs == (3 if has_hook else 0)


@SLOW
@pytest.mark.xdist_group('processes')
@pytest.mark.parametrize('balancer', ['DWA', 'FAMO', 'STCH', 'RandomWeights'])
def test_kill_9_and_resume(tmp_path, balancer):
    toy_tasks.kill_on_two_ranks(
        tmp_path, model=toy_tasks.model_cfg(balancer, noise=0.1)
    )


def test_intervals(tmp_path):
    by_iteration = dict(by_epoch=False, max_iters=5, val_interval=5)
    runner = runner_of(tmp_path, 'DWA', train_cfg=by_iteration)
    runner.train()
    balancer = runner.model.balancer
    assert balancer.num_epochs == 2
    assert balancer.counts.tolist() == [1, 1, 1]

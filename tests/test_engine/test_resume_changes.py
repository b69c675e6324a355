"""Resuming with another config: what is told, what holds, what is refused."""

import copy
import re

import pytest
import torch
from helpers import toy_training as toy
from helpers.toy_ranks import start_ranks
from mmengine.model import BaseModel
from mmengine.optim import DefaultOptimWrapperConstructor, OptimWrapper
from mmengine.registry import MODELS, OPTIM_WRAPPER_CONSTRUCTORS
from torch import nn

from mmext.engine.checkpoint.config_changes import (
    config_changes,
    read_config_text,
)

EVERY_STEP = dict(
    checkpoint=dict(type='CheckpointHook', interval=1, by_epoch=False),
    logger=dict(type='LoggerHook', interval=100),
)
AT_THE_END = dict(
    checkpoint=dict(type='CheckpointHook', interval=99, by_epoch=False),
    logger=dict(type='LoggerHook', interval=100),
)
EMA = dict(type='EMAHook', momentum=0.5)
ADAM = dict(optimizer=dict(type='Adam', lr=0.05))


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """Folder of a training of three epochs of six steps, all saved."""
    path = tmp_path_factory.mktemp('trained')
    toy.train(path, default_hooks=EVERY_STEP)
    return path


def rows(folder):
    """Rows of the table in the log: key -> the other cells' words."""
    (log,) = folder.rglob('*.log')
    lines = log.read_text().splitlines()
    if not any('differs from this one' in line for line in lines):
        return {}
    start = next(n for n, line in enumerate(lines) if '──' in line)
    result = {}
    for line in lines[start + 1 :]:
        if line.startswith('20'):
            break
        if not line.startswith('  '):
            key, _, line = line.strip().partition('  ')
            result[key] = ''
        result[key] = ' '.join([*result[key].split(), *line.split()])
    return result


def resume(folder, path, **changes):
    """Go on from a checkpoint; returns the rows of the table."""
    options = dict(default_hooks=AT_THE_END)
    toy.train(
        folder, resume=True, load_from=str(path), **{**options, **changes}
    )
    return rows(folder)


def test_the_same_config_differs_in_nothing(tmp_path, trained):
    found = resume(tmp_path, trained / 'iter_8.pth', default_hooks=EVERY_STEP)
    assert set(found) <= {'custom_hooks[0].path'}  # of the trace
    assert (
        toy.differences(tmp_path / 'iter_18.pth', trained / 'iter_18.pth')
        == []
    )


def test_each_row_says_what_holds(tmp_path, trained):
    found = resume(
        tmp_path,
        trained / 'iter_6.pth',
        optim_wrapper=dict(
            optimizer=dict(type='SGD', lr=0.1, momentum=0.9, weight_decay=0.2),
            clip_grad=dict(max_norm=1.0),
        ),
        randomness=dict(seed=4),
        val_dataloader=toy.loader(size=6, shuffle=False),
        custom_hooks=[EMA],
        train_cfg=dict(by_epoch=True, max_epochs=4, val_interval=2),
        model=dict(type='ToyModel', noise=0.1),
        find_unused_parameters=True,
    )
    for key, text in {
        'optim_wrapper.optimizer.lr': '0.05 0.1 checkpoint',
        'optim_wrapper.optimizer.weight_decay': '0 0.2 checkpoint',
        'optim_wrapper.clip_grad': '- dict(max_norm=1.0) config',
        'randomness.seed': '3 4 checkpoint',
        'val_dataloader.dataset.size': '4 6 config',
        'EMAHook': 'no yes config',
        'train_cfg.max_epochs': '3 4 config',
        'train_cfg.val_interval': '1 2 config',
        'model.noise': '- 0.1 config',
        'find_unused_parameters': '- True config',
    }.items():
        assert found[key].startswith(text), (key, found)
    schedulers = {key for key in found if 'param_scheduler' in key}
    # Its end is that of the training, unless it is given.
    assert schedulers == {'param_scheduler[1].end'}


@pytest.mark.slow
def test_nothing_left_to_train(tmp_path, trained):
    found = resume(
        tmp_path,
        trained / 'iter_18.pth',
        train_cfg=dict(by_epoch=True, max_epochs=2, val_interval=1),
    )
    assert (
        'nothing is left to train: 2 are done' in found['train_cfg.max_epochs']
    )


def refused(tmp_path, path, **changes):
    """The error with which a checkpoint is refused."""
    options = dict(default_hooks=EVERY_STEP)
    with pytest.raises(ValueError, match='cannot resume from') as info:
        toy.train(
            tmp_path,
            resume=True,
            load_from=str(path),
            **{**options, **changes},
        )
    assert 'REFUSED' in ' '.join(rows(tmp_path).values())
    return str(info.value)


@MODELS.register_module(force=True)
class Layers(BaseModel):
    """Layers of the same size, some of them frozen."""

    def __init__(self, frozen=(), order='ab'):
        super().__init__()
        for name in order:
            setattr(self, name, nn.Linear(3, 3))
        for name in frozen:
            getattr(self, name).requires_grad_(False)

    def forward(self, inputs, mode='tensor', **_):
        out = self.b(self.a(torch.stack(list(inputs))))
        return (
            dict(loss=out.square().mean()) if mode == 'loss' else [out.sum()]
        )


@OPTIM_WRAPPER_CONSTRUCTORS.register_module(force=True)
class TrainedOnly(DefaultOptimWrapperConstructor):
    """Gives the optimizer what is not frozen."""

    def __call__(self, model):
        trained = [p for p in model.parameters() if p.requires_grad]
        return OptimWrapper(torch.optim.Adam(trained, lr=0.01))


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        (
            dict(optim_wrapper=ADAM),
            'optim_wrapper.optimizer.type: SGD in the checkpoint, Adam now',
        ),
        (
            dict(
                optim_wrapper=dict(
                    optimizer=dict(type='SGD', lr=0.05, momentum=0.9),
                    paramwise_cfg=dict(bias_lr_mult=2.0),
                )
            ),
            '2 in 1 groups .2. in the checkpoint, 2 in 2 groups .1, 1. now',
        ),
        (
            dict(train_cfg=dict(by_epoch=False, max_iters=30, val_interval=9)),
            'train_cfg.by_epoch: by epochs in the checkpoint, by iterations',
        ),
        (
            dict(param_scheduler=None),
            'must have as many entries .* got 0, and 2 in the checkpoint',
        ),
        (
            dict(train_dataloader=toy.loader(shuffle=False)),
            'train_dataloader.sampler.shuffle: True in the checkpoint, False',
        ),
    ],
)
@pytest.mark.parametrize(
    'noted', [True, pytest.param(False, marks=pytest.mark.slow)]
)
def test_refuses(tmp_path, trained, changes, message, noted):
    """Also with checkpoints of MMEngine's runner, which note less."""
    path = trained / 'iter_8.pth'
    if not noted:
        checkpoint = torch.load(path, weights_only=False)
        del checkpoint['meta']['training']
        path = tmp_path / 'less.pth'
        torch.save(checkpoint, path)
    assert re.search(message, refused(tmp_path, path, **changes))


def test_refuses_an_unknown_optimizer(tmp_path, trained):
    """Neither noted nor in a config; options tell SGD from Adam."""
    checkpoint = torch.load(trained / 'iter_6.pth', weights_only=False)
    del checkpoint['meta']['training'], checkpoint['meta']['cfg']
    torch.save(checkpoint, tmp_path / 'less.pth')
    text = refused(tmp_path, tmp_path / 'less.pth', optim_wrapper=ADAM)
    assert 'optimizer.type: dampening in the checkpoint, betas now' in text


def test_refuses_other_parameters_of_the_same_sizes(tmp_path):
    """Their states would be mixed up without an error."""
    only = dict(
        optim_wrapper=dict(
            optimizer=dict(type='Adam', lr=0.01),
            constructor='TrainedOnly',
        ),
        default_hooks=EVERY_STEP,
    )
    toy.train(tmp_path / 'a', model=dict(type='Layers', frozen=['a']), **only)
    text = refused(
        tmp_path / 'b',
        tmp_path / 'a' / 'iter_6.pth',
        model=dict(type='Layers', frozen=['b']),
        **only,
    )
    assert 'gone: b.bias, b.weight; new: a.bias, a.weight' in text


@pytest.mark.slow
def test_tells_frozen_parameters(tmp_path):
    changes = dict(optim_wrapper=ADAM)
    toy.train(
        tmp_path / 'a',
        model=dict(type='Layers', frozen=['a']),
        default_hooks=EVERY_STEP,
        **changes,
    )
    found = resume(
        tmp_path / 'b',
        tmp_path / 'a' / 'iter_6.pth',
        model=dict(type='Layers'),
        **changes,
    )
    assert found['frozen parameters'].startswith('2 0 config')
    assert 'trained now: a.bias, a.weight' in found['frozen parameters']


def test_averages_are_dropped_and_trained_weights_go_on(tmp_path, trained):
    """The checkpoint has the averages under the names of the weights."""
    toy.train(tmp_path / 'a', custom_hooks=[EMA], default_hooks=EVERY_STEP)
    found = resume(tmp_path / 'b', tmp_path / 'a' / 'iter_8.pth')
    assert found['EMAHook'].startswith('yes no config')
    for name in ('state_dict', 'optimizer'):
        one, other = (
            torch.load(folder / 'iter_18.pth', weights_only=False)[name]
            for folder in (tmp_path / 'b', trained)
        )
        assert toy.differences(one, other) == []


@pytest.mark.slow
def test_mixed_precision_is_added_and_removed(tmp_path):
    toy.train(tmp_path / 'a', default_hooks=EVERY_STEP)
    path = tmp_path / 'a' / 'iter_6.pth'
    amp = dict(type='AmpOptimWrapper', **toy.config()['optim_wrapper'])
    found = resume(tmp_path / 'b', path, optim_wrapper=amp)
    assert found['optim_wrapper.type'].startswith('- AmpOptimWrapper config')
    checkpoint = torch.load(path, weights_only=False)
    checkpoint['optimizer']['loss_scaler'] = dict(scale=2.0)
    torch.save(checkpoint, path)
    found = resume(tmp_path / 'c', path)
    assert found['optim_wrapper.loss_scale'].startswith('yes no config')
    # That of bfloat16 on a GPU.
    checkpoint['optimizer']['loss_scaler'] = {}
    torch.save(checkpoint, path)
    assert 'optim_wrapper.loss_scale' not in resume(tmp_path / 'd', path)


@pytest.mark.parametrize(
    ('at', 'counts', 'text'),
    [
        (6, 3, '4 3 config an open window of 2 batches goes on'),
        pytest.param(
            8,
            3,
            '4 3 config a window begins here',
            marks=pytest.mark.slow,
        ),
        pytest.param(
            8,
            1,
            '4 1 config a window begins here',
            marks=pytest.mark.slow,
        ),
    ],
)
def test_another_length_of_windows(tmp_path, at, counts, text):
    def wrapper(counts):
        return dict(optimizer=ADAM['optimizer'], accumulative_counts=counts)

    toy.train(
        tmp_path / 'a', optim_wrapper=wrapper(4), default_hooks=EVERY_STEP
    )
    found = resume(
        tmp_path / 'b',
        tmp_path / 'a' / f'iter_{at}.pth',
        optim_wrapper=wrapper(counts),
        default_hooks=EVERY_STEP,
    )
    assert found['optim_wrapper.accumulative_counts'] == text
    meta = torch.load(
        tmp_path / 'b' / f'iter_{at + 1}.pth', weights_only=False
    )
    window = meta['meta']['accumulation']['wrappers']['']
    assert window['open'] == {6: 0, 8: 1 % counts}[at]


def test_refuses_a_window_that_is_fuller_than_its_new_length(tmp_path):
    wrapper = dict(optimizer=ADAM['optimizer'], accumulative_counts=4)
    toy.train(tmp_path / 'a', optim_wrapper=wrapper, default_hooks=EVERY_STEP)
    text = refused(
        tmp_path / 'b',
        tmp_path / 'a' / 'iter_6.pth',
        optim_wrapper={**wrapper, 'accumulative_counts': 2},
    )
    assert 'gradients of 2 batches wait in the checkpoint; set it to 3' in text


@pytest.mark.slow
def test_longer_training_after_a_window_that_ended_early(tmp_path):
    wrapper = dict(optimizer=ADAM['optimizer'], accumulative_counts=4)
    toy.train(tmp_path / 'a', optim_wrapper=wrapper, default_hooks=EVERY_STEP)
    more = dict(
        optim_wrapper=wrapper,
        train_cfg=dict(by_epoch=True, max_epochs=4, val_interval=1),
    )
    found = resume(
        tmp_path / 'b',
        tmp_path / 'a' / 'iter_18.pth',
        default_hooks=EVERY_STEP,
        **more,
    )
    assert 'ended early' in found['accumulation window']
    meta = torch.load(tmp_path / 'b' / 'iter_22.pth', weights_only=False)
    assert meta['meta']['accumulation']['wrappers']['']['open'] == 0


@pytest.mark.parametrize('at', [pytest.param(16, marks=pytest.mark.slow), 17])
def test_longer_training_from_within_the_last_window(tmp_path, at):
    """Its losses were divided by two, and would have been by four."""
    wrapper = dict(optimizer=dict(type='SGD', lr=0.5), accumulative_counts=4)
    changes = dict(
        optim_wrapper=wrapper, default_hooks=EVERY_STEP, param_scheduler=None
    )
    more = dict(
        changes, train_cfg=dict(by_epoch=True, max_epochs=4, val_interval=1)
    )
    expected = toy.train(tmp_path / 'whole', **more)
    toy.train(tmp_path / 'a', **changes)
    resume(tmp_path / 'b', tmp_path / 'a' / f'iter_{at}.pth', **more)
    trace = toy.read_trace(tmp_path / 'b' / 'trace.0')
    assert toy.steps(trace) == toy.steps(expected)[at:]
    assert trace[-1] == expected[-1]


def test_other_data_within_an_epoch(tmp_path, trained):
    with pytest.raises(ValueError, match=r"'samples': 11.*'samples': 12"):
        resume(
            tmp_path,
            trained / 'iter_8.pth',
            train_dataloader=toy.loader(size=11),
        )
    found = resume(
        tmp_path / 'b',
        trained / 'iter_12.pth',
        train_dataloader=toy.loader(size=11),
    )
    assert found['training samples'].startswith('12 11 config')


@pytest.mark.slow
def test_stopping_early_counts_anew(tmp_path, trained):
    hook = dict(
        type='EarlyStoppingHook', monitor='mean', rule='less', patience=9
    )
    found = resume(tmp_path, trained / 'iter_12.pth', custom_hooks=[hook])
    assert 'counts anew' in found['EarlyStoppingHook']


def test_schedule_that_was_not_saved_is_refused(tmp_path):
    hooks = copy.deepcopy(EVERY_STEP)
    hooks['checkpoint']['save_param_scheduler'] = False
    toy.train(tmp_path / 'a', default_hooks=hooks)
    text = refused(tmp_path / 'b', tmp_path / 'a' / 'iter_6.pth')
    assert 'saved with save_param_scheduler=False' in text


def test_text_of_a_config_is_never_run(tmp_path, trained):
    """Not the present one, and not that of old releases."""
    mark = tmp_path / 'ran'
    code = f'import os\na = os.mkdir({str(mark)!r})\n'
    checkpoint = torch.load(trained / 'iter_6.pth', weights_only=False)
    checkpoint['meta'].update(cfg=code, config=code)
    path = tmp_path / 'hostile.pth'
    torch.save(checkpoint, path)
    resume(tmp_path / 'b', path)
    assert not mark.exists()


@pytest.mark.parametrize('text', [None, '', 'a = (', 'a = [' * 300, 3, b'x'])
def test_without_a_config_states_are_compared(tmp_path, trained, text):
    assert read_config_text(text) is None
    if text != 'a = (':
        return
    checkpoint = torch.load(trained / 'iter_6.pth', weights_only=False)
    checkpoint['meta']['cfg'] = text
    torch.save(checkpoint, tmp_path / 'a.pth')
    found = resume(tmp_path / 'b', tmp_path / 'a.pth')
    assert 'only states are compared' in found['config']


def test_config_changes():
    before = read_config_text(
        "a = dict(type='A', n=1, deep=dict(x=[1, 2]))\n"
        "b = [dict(type='B')]\n"
        "c = {'a-b': -1.5}\n"
        "work_dir = 'one'\n"
        'many = dict(a=1, b=2, c=3, d=4, e=5, f=6, g=7)\n'
    )
    now = copy.deepcopy(before)
    now['a']['deep']['x'][1] = 3
    now['b'].append(dict(type='C', k=1))
    now['c']['a-b'] = 0
    now['work_dir'] = 'other'
    now['d'] = 1
    now['many'] = dict.fromkeys(now['many'], 0)
    assert [
        (item.key, item.before, item.now)
        for item in config_changes(before, now)
    ] == [
        ('a.deep.x[1]', 2, 3),
        ('b', '[B()]', '[B(), C(k=1)]'),
        ('c.a-b', -1.5, 0),
        *((f'many.{key}', n, 0) for n, key in enumerate('abcdefg', 1)),
        ('d', '-', 1),
    ]


@pytest.mark.xdist_group('processes')
def test_another_number_of_processes(tmp_path):
    """Through the tool: told by one process only, and trained to the end."""
    cfg = toy.traced(
        tmp_path / 'trace', toy.config(train_dataloader=toy.loader(size=8))
    )
    cfg['train_cfg']['max_epochs'] = 1
    path = toy.write(tmp_path / 'cfg.py', cfg)
    args = [path, '--work-dir', tmp_path / 'w', '--resume']
    ranks = start_ranks(args, 2, tmp_path / 'out')
    assert ranks.wait() == [0, 0], ranks.output()
    args += ['--cfg-options', 'train_cfg.max_epochs=2']
    ranks = start_ranks(args, 1, tmp_path / 'one')
    assert ranks.wait() == [0], ranks.output()
    for text in ('number of processes', 'of 2 processes', 'per epoch'):
        assert text in ranks.output()
    ranks = start_ranks(
        [*args, '--cfg-options', 'train_cfg.max_epochs=3'],
        2,
        tmp_path / 'two',
    )
    assert ranks.wait() == [0, 0], ranks.output()
    assert 'number of processes' in ranks.output(0)
    assert 'number of processes' not in ranks.output(1)

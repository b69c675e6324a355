"""Resuming with another config: what goes through, and what is refused."""

import copy
import re
import shlex

import pytest
import torch
from helpers import toy_training as toy
from helpers.toy_ranks import load_tool, start_ranks

from mmext.engine.checkpoint.differences import read_config_text

SLOW = pytest.mark.slow
EVERY_STEP = dict(
    checkpoint=dict(type='CheckpointHook', interval=1, by_epoch=False),
    logger=dict(type='LoggerHook', interval=100),
)
EMA = dict(type='EMAHook', momentum=0.5)
SGD = dict(type='SGD', lr=0.05, momentum=0.9)
STEPS = [dict(type='MultiStepLR', milestones=[2])]


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
    """Go on from a checkpoint; returns the trace."""
    options = dict(default_hooks=EVERY_STEP, resume=True, load_from=str(path))
    return toy.train(folder, **{**options, **changes})


def refused(folder, path, **changes):
    """The error with which a checkpoint is refused before the first step."""
    with pytest.raises(ValueError, match='cannot resume from') as info:
        resume(folder, path, **changes)
    assert 'REFUSED' in ' '.join(rows(folder).values())
    assert not list(folder.glob('iter_*.pth'))
    assert f'load_from={path} resume=False' in str(info.value)
    return str(info.value)


def edit(path, target, change):
    """A copy of a checkpoint with a change."""
    checkpoint = torch.load(path, weights_only=False)
    change(checkpoint)
    torch.save(checkpoint, target)
    return target


def test_the_same_config_differs_in_nothing(tmp_path, trained):
    resume(tmp_path, trained / 'iter_8.pth')
    assert set(rows(tmp_path)) <= {'hook TraceHook'}  # its path
    pair = [folder / 'iter_18.pth' for folder in (tmp_path, trained)]
    assert toy.differences(*pair) == []


def data(**changes):
    """The training data, with other settings of their set."""
    cfg = toy.loader()
    cfg['dataset'].update(changes)
    return cfg


@pytest.mark.parametrize(
    ('changes', 'key', 'text'),
    [
        (
            dict(train_dataloader=toy.loader(num_workers=1)),
            'train_dataloader.num_workers',
            '0 1',
        ),
        (
            dict(train_dataloader=data(data_root='elsewhere')),
            'train_dataloader.dataset.data_root',
            'not set elsewhere',
        ),
        (
            dict(custom_hooks=[dict(type='EmptyCacheHook')]),
            'hook EmptyCacheHook',
            'not set EmptyCacheHook()',
        ),
        (
            dict(train_cfg=dict(by_epoch=True, max_epochs=3, val_interval=2)),
            'train_cfg.val_interval',
            '1 2',
        ),
        (
            dict(train_cfg=dict(by_epoch=True, max_epochs=4, val_interval=1)),
            'train_cfg.max_epochs',
            '3 4',
        ),
        (
            dict(train_cfg=dict(by_epoch=True, max_epochs=2, val_interval=1)),
            'train_cfg.max_epochs',
            '3 2',
        ),
        (
            dict(optim_wrapper=dict(optimizer=dict(SGD, foreach=False))),
            'optim_wrapper.optimizer.foreach',
            'not set False',
        ),
        (
            dict(
                custom_hooks=[
                    dict(
                        type='EarlyStoppingHook',
                        monitor='mean',
                        rule='less',
                        patience=9,
                    )
                ]
            ),
            'EarlyStoppingHook',
            'not set counts not saved: counts anew from here',
        ),
    ],
)
def test_goes_through(tmp_path, trained, changes, key, text):
    trace = resume(tmp_path, trained / 'iter_12.pth', **changes)
    assert rows(tmp_path)[key] == text
    assert 'REFUSED' not in ' '.join(rows(tmp_path).values())
    done = toy.steps(trace)
    expected = toy.steps(toy.read_trace(trained / 'trace.0'))[12:]
    assert done[: len(expected)] == expected[: len(done)]


def test_what_is_no_setting_of_the_steps_is_in_no_row(tmp_path, trained):
    resume(
        tmp_path,
        trained / 'iter_12.pth',
        val_dataloader=toy.loader(size=6, shuffle=False),
        find_unused_parameters=True,
        log_processor=dict(window_size=3),
        max_epochs=12,
    )
    assert set(rows(tmp_path)) <= {'hook TraceHook'}


@pytest.mark.parametrize(
    'paramwise', [None, pytest.param(dict(bias_lr_mult=2.0), marks=SLOW)]
)
def test_another_batch_size_with_its_learning_rate(tmp_path, paramwise):
    """The rates are those of a training that always had the new one."""

    def changes(batch_size, lr):
        return dict(
            train_dataloader=toy.loader(batch_size=batch_size),
            optim_wrapper=dict(
                optimizer=dict(SGD, lr=lr), paramwise_cfg=paramwise
            ),
            param_scheduler=STEPS,
        )

    expected = toy.train(tmp_path / 'whole', **changes(3, 0.1))
    toy.train(tmp_path / 'a', **changes(2, 0.05))
    trace = resume(
        tmp_path / 'b', tmp_path / 'a' / 'epoch_1.pth', **changes(3, 0.1)
    )
    rates = [line['lr'] for line in toy.steps(trace)]
    whole = [line['lr'] for line in toy.steps(expected)]
    assert rates == pytest.approx(whole[4:])
    assert len(set(whole)) == 2
    table = rows(tmp_path / 'b')
    assert table['train_dataloader.batch_size'].startswith('2 3 from this')
    assert table['optim_wrapper.optimizer.lr'].startswith('0.05 0.1 as conf')


@pytest.mark.parametrize(
    ('changes', 'message', 'option'),
    [
        (
            dict(
                optim_wrapper=dict(optimizer=SGD, clip_grad=dict(max_norm=1.0))
            ),
            r'clip_grad: not set in the checkpoint, dict\(max_norm=1\) now',
            '',
        ),
        (
            dict(optim_wrapper=dict(optimizer=dict(SGD, lr=0.1))),
            'optim_wrapper.optimizer.lr: 0.05 in the checkpoint, 0.1 now',
            'optim_wrapper.optimizer.lr=0.05',
        ),
        (
            dict(optim_wrapper=dict(optimizer=dict(SGD, weight_decay=0.2))),
            'optim_wrapper.optimizer.weight_decay: 0 in the checkpoint, 0.2',
            'optim_wrapper.optimizer.weight_decay=0',
        ),
        (
            dict(optim_wrapper=dict(optimizer=dict(type='Adam', lr=0.05))),
            'optim_wrapper.optimizer.type: SGD in the checkpoint, Adam now',
            'optim_wrapper.optimizer.type=SGD',
        ),
        (
            dict(optim_wrapper=dict(optimizer=SGD, type='AmpOptimWrapper')),
            'optim_wrapper.type: not set in the checkpoint, AmpOptimWrapper',
            '',
        ),
        (
            dict(optim_wrapper=dict(optimizer=SGD, accumulative_counts=2)),
            'accumulative_counts: not set in the checkpoint, 2 now',
            '',
        ),
        (
            dict(
                optim_wrapper=dict(
                    optimizer=SGD, paramwise_cfg=dict(bias_lr_mult=2.0)
                )
            ),
            r'parameters per group: \[2\] in the checkpoint, \[1, 1\] now',
            '',
        ),
        (
            dict(custom_hooks=[EMA]),
            'hook EMAHook: not set in the checkpoint, averages of weights now',
            '',
        ),
        (
            dict(
                train_dataloader=data(pipeline=[dict(type='LoadAnnotations')])
            ),
            r'dataset.pipeline: not set in the checkpoint, \[LoadAnnotations'
            r'\(\)\] now',
            '',
        ),
        (
            dict(model=dict(type='ToyModel', noise=0.1)),
            'model.noise: not set in the checkpoint, 0.1 now.*leave out model',
            '',
        ),
        (
            dict(randomness=dict(seed=4)),
            'randomness.seed: 3 in the checkpoint, 4 now',
            'randomness.seed=3',
        ),
        (
            dict(train_dataloader=toy.loader(shuffle=False)),
            'train_dataloader.sampler.shuffle: True in the checkpoint, False',
            'train_dataloader.sampler.shuffle=True',
        ),
        (
            dict(train_dataloader=toy.loader(size=11)),
            'training samples: 12 in the checkpoint, 11 now',
            'train_dataloader.dataset.size=12',
        ),
        (
            dict(train_dataloader=toy.loader(batch_size=3)),
            r'train_dataloader.batch_size: 2 in the checkpoint, 3 now \(it was'
            ' saved within an epoch',
            'train_dataloader.batch_size=2',
        ),
        (
            dict(train_cfg=dict(by_epoch=False, max_iters=30, val_interval=9)),
            'train_cfg.by_epoch: True in the checkpoint, False now',
            'train_cfg.by_epoch=True',
        ),
        (
            dict(param_scheduler=None),
            'param_scheduler: 2 schedulers in the checkpoint, 0 schedulers',
            '',
        ),
    ],
)
def test_refused(tmp_path, trained, changes, message, option):
    text = refused(tmp_path, trained / 'iter_8.pth', **changes)
    assert re.search(message, text)
    options = text.partition('give --cfg-options ')[2].partition('. To beg')[0]
    if option:
        assert option in shlex.split(options)
    else:
        assert options.startswith('load_from=')


def test_averages_that_were_left_out_are_refused(tmp_path):
    toy.train(tmp_path / 'a', custom_hooks=[EMA], default_hooks=EVERY_STEP)
    text = refused(tmp_path / 'b', tmp_path / 'a' / 'iter_8.pth')
    assert 'hook EMAHook: averages of weights in the checkpoint' in text


@pytest.mark.slow
def test_a_rate_that_a_schedule_ends_in_does_not_scale(tmp_path):
    cosine = [dict(type='CosineAnnealingLR', T_max=3, eta_min=0.001)]
    toy.train(tmp_path / 'a', param_scheduler=cosine)
    text = refused(
        tmp_path / 'b',
        tmp_path / 'a' / 'epoch_1.pth',
        param_scheduler=cosine,
        train_dataloader=toy.loader(batch_size=3),
        optim_wrapper=dict(optimizer=dict(SGD, lr=0.1)),
    )
    assert 'lr: 0.05 in the checkpoint, 0.1 now (the schedule has a' in text


def test_many_settings_of_a_part_are_one_row(tmp_path, trained):
    names = {f'a{number}': number for number in range(9)}
    before, cfg = data(metainfo=dict(a0=7)), data(metainfo=names)
    hooks = dict(default_hooks=EVERY_STEP)
    toy.train(tmp_path / 'a', train_dataloader=before, **hooks)
    path = tmp_path / 'a' / 'iter_8.pth'
    text = refused(tmp_path / 'b', path, train_dataloader=cfg)
    assert 'train_dataloader.dataset: 9 settings in the checkpoint' in text


def test_parameters_in_another_order_are_refused(tmp_path, trained):
    """Their states would be mixed up without an error."""
    path = edit(
        trained / 'iter_6.pth',
        tmp_path / 'other.pth',
        lambda c: c['meta']['training']['optimizers']['']['params'][
            0
        ].reverse(),
    )
    text = refused(tmp_path / 'b', path)
    assert 'in another order or in other groups' in text


@pytest.mark.slow
def test_a_checkpoint_that_notes_less(tmp_path, trained):
    """Such as those of MMEngine's runner."""
    path = edit(
        trained / 'iter_8.pth',
        tmp_path / 'less.pth',
        lambda c: c['meta'].pop('training'),
    )
    adam = dict(optimizer=dict(type='Adam', lr=0.05))
    text = refused(tmp_path / 'b', path, optim_wrapper=adam)
    assert 'optimizer.type: SGD in the checkpoint, Adam now' in text


@pytest.mark.slow
def test_a_loss_that_was_scaled(tmp_path, trained):
    path = tmp_path / 'scaled.pth'
    for scaler, is_refused in ((dict(scale=2.0), True), ({}, False)):
        edit(
            trained / 'iter_6.pth',
            path,
            lambda c, state=scaler: c['optimizer'].update(loss_scaler=state),
        )
        if is_refused:
            assert 'scaled loss: True in' in refused(tmp_path / 'b', path)
        else:
            # That of bfloat16 on a GPU.
            resume(tmp_path / 'c', path)


def test_the_commands_of_the_error_do_what_they_say(tmp_path, capsys):
    """Through the tool: the old training goes on, or a new one begins."""
    main = load_tool('train').main
    cfg = toy.config(default_hooks=EVERY_STEP)
    path = toy.write(tmp_path / 'a.py', toy.traced(tmp_path / 'a', cfg))
    assert main([path, '--work-dir', str(tmp_path / 'w')]) == 0
    cfg.update(
        optim_wrapper=dict(optimizer=dict(SGD, lr=0.1)),
        randomness=dict(seed=4),
    )
    saved = tmp_path / 'w' / 'iter_8.pth'
    path = toy.write(tmp_path / 'b.py', toy.traced(tmp_path / 'b', cfg))
    args = [path, '--work-dir', str(tmp_path / 'b_w')]
    with pytest.raises(SystemExit) as info:
        main([*args, '--resume', str(saved)])
    assert info.value.code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert 'error: cannot resume from' in error
    commands = re.findall(r'--cfg-options (.*?)(?:\. To|$)', error)
    restore, anew = map(shlex.split, commands)
    assert (
        main([*args, '--resume', str(saved), '--cfg-options', *restore]) == 0
    )
    expected = toy.read_trace(tmp_path / 'a.0')
    assert (
        toy.steps(toy.read_trace(tmp_path / 'b.0'))
        == (toy.steps(expected)[8:])
    )
    (tmp_path / 'b.0').unlink()
    assert main([*args, '--cfg-options', *anew]) == 0
    trace = toy.steps(toy.read_trace(tmp_path / 'b.0'))
    assert trace[0]['iter'] == 1
    assert trace[0]['loss'] != toy.steps(expected)[0]['loss']


@pytest.mark.slow
def test_longer_training_after_a_window_that_ended_early(tmp_path):
    wrapper = dict(optimizer=SGD, accumulative_counts=4)
    toy.train(tmp_path / 'a', optim_wrapper=wrapper, default_hooks=EVERY_STEP)
    resume(
        tmp_path / 'b',
        tmp_path / 'a' / 'iter_18.pth',
        optim_wrapper=wrapper,
        train_cfg=dict(by_epoch=True, max_epochs=4, val_interval=1),
    )
    meta = torch.load(tmp_path / 'b' / 'iter_22.pth', weights_only=False)
    assert meta['meta']['accumulation']['wrappers']['']['open'] == 0


@pytest.mark.parametrize('at', [pytest.param(16, marks=SLOW), 17])
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
    path = edit(
        trained / 'iter_6.pth',
        tmp_path / 'hostile.pth',
        lambda c: c['meta'].update(cfg=code, config=code),
    )
    with pytest.raises(ValueError, match='cannot resume from'):
        resume(tmp_path / 'b', path)
    assert not mark.exists()


@pytest.mark.parametrize('text', [None, '', 'a = (', 'a = [' * 300, 3, b'x'])
def test_without_a_config_states_are_compared(tmp_path, trained, text):
    assert read_config_text(text) is None
    if text != 'a = (':
        return
    path = edit(
        trained / 'iter_6.pth',
        tmp_path / 'a.pth',
        lambda c: c['meta'].update(cfg=text),
    )
    resume(tmp_path / 'b', path)
    assert 'states are compared' in rows(tmp_path / 'b')['config']


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
    for text in ('number of processes', 'of 2 processes', 'from this epoch'):
        assert text in ranks.output()
    ranks = start_ranks(
        [*args, '--cfg-options', 'train_cfg.max_epochs=3'],
        2,
        tmp_path / 'two',
    )
    assert ranks.wait() == [0, 0], ranks.output()
    assert 'number of processes' in ranks.output(0)
    assert 'number of processes' not in ranks.output(1)

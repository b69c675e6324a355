"""Runs in which a rank fails, hangs or goes away: what ends them, and how."""

import os
import re
import signal
import time

import pytest
from helpers import rank_faults  # noqa: F401
from helpers import toy_training as toy
from helpers.toy_ranks import run_on_ranks, start_ranks
from mmengine.hooks import Hook
from torch import distributed as dist

pytestmark = pytest.mark.xdist_group('processes')

TIMEOUT_S = 3
EACH_STEP = dict(
    checkpoint=dict(type='CheckpointHook', interval=1, by_epoch=False),
    logger=dict(type='LoggerHook', interval=1),
)


def run(folder, world_size=2, stopped=None, **changes):
    """A training with a fault: its ranks, and seconds from fault to end.

    The end of the rank that is ``stopped`` is not waited for.
    """
    cfg = toy.config(**changes)
    cfg['custom_imports']['imports'].append('helpers.rank_faults')
    cfg['env_cfg']['dist_cfg']['timeout'] = TIMEOUT_S
    path = toy.write(folder / 'cfg.py', cfg)
    ranks = start_ranks(
        [path, '--work-dir', folder / 'w'], world_size, folder / 'out'
    )
    end = time.monotonic() + 60
    try:
        while any(
            code is None for r, code in enumerate(ranks.codes) if r != stopped
        ):
            ranks.poll()
            assert time.monotonic() < end, ranks.output()
            time.sleep(0.01)
    finally:
        ranks.signal(signal.SIGKILL)
    mark = folder / 'mark'
    since = float(mark.read_text().split()[0]) if mark.exists() else 0
    return ranks, time.time() - since


def hook(folder, kind, **options):
    """Settings of a run with a fault at a place of the training."""
    return dict(
        custom_hooks=[
            dict(
                type='FaultHook',
                kind=kind,
                mark=str(folder / 'mark'),
                **options,
            )
        ]
    )


def model(folder, kind):
    """Settings of a run with a fault in the third forward of rank 1."""
    return dict(
        model=dict(
            type='FaultyModel',
            kind=kind,
            mark=str(folder / 'mark'),
            seconds=0.6,
        )
    )


def named(ranks, reporter, missing):
    """What one rank says about another one, by its host and process."""
    match = re.search(
        rf'rank {missing} \([^)]*, pid {ranks.pids[missing]}\) (.*?); this is',
        ranks.output(reporter),
        re.DOTALL,
    )
    assert match, ranks.output(reporter)
    return match[1]


@pytest.mark.slow
@pytest.mark.parametrize('rank', [1, 0])
def test_a_stopped_rank_is_named_after_the_timeout(tmp_path, rank):
    """Rank 0 serves the store: then not even that answers."""
    ranks, seconds = run(
        tmp_path,
        stopped=rank,
        model=dict(type='ToyModel', seconds=0.6),
        **hook(tmp_path, 'SIGSTOP', rank=rank),
    )
    assert ranks.codes[1 - rank] == 1
    assert seconds < TIMEOUT_S + 12
    said = named(ranks, 1 - rank, rank)
    assert 'is stopped (SIGSTOP); it was last seen' in said
    if rank:
        location = 'in the hooks before the step of iteration 3 (epoch 1)'
        assert location in said


@pytest.mark.parametrize(
    ('kind', 'code', 'options'),
    [
        ('SIGKILL', -9, {}),
        ('SIGKILL', -9, dict(stage='after_val_iter', at=1)),
        pytest.param('exit3', 3, dict(rank=0), marks=pytest.mark.slow),
        pytest.param(
            'exit0',
            0,
            dict(stage='before_save_checkpoint', rank=0, at=1),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_rank_that_is_gone_ends_the_others(tmp_path, kind, code, options):
    options = {**hook(tmp_path, kind, **options), 'default_hooks': EACH_STEP}
    ranks, seconds = run(tmp_path, **options)
    gone = options['custom_hooks'][0].get('rank', 1)
    assert ranks.codes[gone] == code
    assert ranks.codes[1 - gone] == 1
    assert seconds < 7
    said = named(ranks, 1 - gone, gone)
    if kind == 'exit0':
        assert 'SystemExit: 0' in said
    else:
        assert 'has ended without a word, as if killed' in said


@pytest.mark.parametrize(
    'options',
    [
        {},
        pytest.param(
            dict(stage='before_save_checkpoint', rank=0, at=1),
            marks=pytest.mark.slow,
        ),
        pytest.param(dict(stage='before_run', at=1), marks=pytest.mark.slow),
    ],
)
def test_the_error_of_a_rank_is_told_by_the_others(tmp_path, options):
    ranks, seconds = run(tmp_path, **hook(tmp_path, 'raise', **options))
    failed = options.get('rank', 1)
    assert ranks.codes == [1, 1]
    assert seconds < 8
    said = named(ranks, 1 - failed, failed)
    assert re.search('failed in .*ZeroDivisionError: the planted fault', said)
    # It took no time that could have run out.
    assert 'dist_cfg.timeout' not in ranks.output(1 - failed)


@pytest.mark.slow
def test_a_rank_that_hangs_in_its_forward(tmp_path):
    ranks, seconds = run(tmp_path, **model(tmp_path, 'hang'))
    assert ranks.codes == [1, 1]
    assert seconds < TIMEOUT_S + 12
    said = named(ranks, 0, 1)
    assert 'is alive, and has been in forward of iteration 3' in said
    # The thread of the one that hangs ends it, and shows the line.
    output = ranks.output(1)
    assert re.search(r'ERROR: rank 1 is ended: .*rank 0 \(', output)
    assert 'rank_faults.py' in output.split('It was here:')[1]


@pytest.mark.slow
def test_a_rank_that_has_finished_may_leave(tmp_path):
    """Rank 0 is at work after the last step for longer than the grace."""

    def train():
        runner = toy.build(tmp_path / f'{dist.get_rank()}', launcher='pytorch')
        if dist.get_rank() == 0:
            runner.register_hook(Late(5), priority='LOWEST')
        runner.train()
        if dist.get_rank() == 1:
            os._exit(0)

    ranks = run_on_ranks(train, 2, tmp_path / 'out')
    ranks.wait()
    output = ranks.output(0)
    assert 'was late' in output
    assert 'is ended' not in output


class Late(Hook):
    """Takes its time at the end."""

    def __init__(self, seconds):
        self.seconds = seconds

    def after_train(self, runner):
        time.sleep(self.seconds)
        print('was late')


def test_a_rank_that_leaves_out_a_backward(tmp_path):
    """The next step says so; without, the last one would wait for ever."""
    ranks, seconds = run(
        tmp_path,
        optim_wrapper=dict(
            type='SkippingOptimWrapper',
            mark=str(tmp_path / 'mark'),
            at=2,
            optimizer=dict(type='SGD', lr=0.05),
        ),
    )
    assert ranks.codes == [1, 1]
    assert seconds < 5
    for rank in (0, 1):
        assert 'rank 0 in step 2, rank 1 in step 3' in ranks.output(rank)


@pytest.mark.slow
def test_ranks_end_when_their_launcher_is_gone(tmp_path):
    """Also processes that load data."""
    loader = toy.loader(num_workers=1, persistent_workers=True)
    cfg = toy.config(
        train_dataloader=loader, **hook(tmp_path, 'hang', rank=None)
    )
    cfg['custom_imports']['imports'].append('helpers.rank_faults')
    path = toy.write(tmp_path / 'cfg.py', cfg)
    read, write = os.pipe()
    launcher = os.fork()
    if launcher == 0:
        os.close(read)
        os.environ['TORCHELASTIC_RUN_ID'] = 'toy'
        ranks = start_ranks(
            [path, '--work-dir', tmp_path / 'w'], 2, tmp_path / 'out'
        )
        os.write(write, ' '.join(map(str, ranks.pids)).encode())
        # Held by the ranks and their workers, until the last one ends.
        time.sleep(100)
        os._exit(0)
    os.close(write)
    pids = [int(pid) for pid in os.read(read, 100).split()]
    try:
        mark, end = tmp_path / 'mark', time.monotonic() + 60
        while not mark.exists() and time.monotonic() < end:
            time.sleep(0.05)
        os.kill(launcher, signal.SIGKILL)
        os.waitpid(launcher, 0)
        start = time.monotonic()
        os.set_blocking(read, False)
        while time.monotonic() < start + 20:
            try:
                if os.read(read, 1) == b'':
                    break
            except BlockingIOError:
                time.sleep(0.05)
        seconds = time.monotonic() - start
    finally:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
    assert seconds < 8
    output = (tmp_path / 'out.0').read_text()
    assert f'the launcher (pid {launcher}) is gone' in output


@pytest.mark.slow
def test_of_three_ranks_the_one_that_is_the_cause_is_named(tmp_path):
    """Not the one that was the first to give up."""
    options = hook(tmp_path, 'SIGSTOP', rank=2, at=2)
    ranks, _ = run(tmp_path, 3, stopped=2, **options)
    assert ranks.codes[:2] == [1, 1]
    for rank in (0, 1):
        assert 'is stopped (SIGSTOP)' in named(ranks, rank, 2)


def said(ranks, rank):
    """Lines of a rank on what ended it, without the log and warnings."""
    lines = ranks.output(rank).splitlines()
    log = re.compile(r'\d\d/\d\d \d\d:|.*Warning|  ')
    return [line for line in lines if line.strip() and not log.match(line)]


@pytest.mark.parametrize('cause', ['gradients', 'model', 'build', 'resume'])
def test_an_error_of_all_ranks_is_printed_by_the_first(tmp_path, cause):
    """The other one has a line, in the step, before it, and in the tool."""
    path = toy.write(tmp_path / 'cfg.py', toy.config())
    args = [path, '--work-dir', tmp_path / 'w']
    options = {
        'gradients': [{'type': 'UnusedModel'}],
        'model': [{'type': 'FaultyModel', 'kind': 'raise', 'rank': None}],
        'build': [{'type': 'ToyModel', 'widht': 3}],
        'resume': [],
    }
    for model in options[cause]:
        cfg = toy.config(model=model)
        cfg['custom_imports']['imports'].append('helpers.rank_faults')
        if cause == 'model':
            model['mark'] = str(tmp_path / 'mark')
        toy.write(path, cfg)
        args += ['--no-preflight']
    if cause == 'resume':
        (tmp_path / 'w').mkdir()
        (tmp_path / 'w/epoch_1.pth').touch()
        args += ['--resume']
    ranks = start_ranks(args, 2, tmp_path / 'out')
    assert ranks.wait(60) == [2 if cause == 'resume' else 1] * 2
    text, tracebacks = {
        'gradients': ('2 parameters got no gradient: never used', 0),
        'model': ('ZeroDivisionError: the planted fault', 1),
        'build': ("unexpected keyword argument 'widht'", 1),
        'resume': (f'No checkpoint in {tmp_path}/w can be used', 0),
    }[cause]
    assert ranks.output(0).count(text) == 1
    assert ranks.output(0).count('Traceback') == tracebacks
    assert said(ranks, 1) == ['rank 1 has the same error as rank 0']


@pytest.mark.parametrize('cause', ['model', 'data', 'checkpoint'])
def test_an_error_of_one_rank_is_printed_by_that(tmp_path, cause):
    """In full, with the user's code; the other one has a line."""
    rank, changes = 1, {}
    if cause == 'model':
        changes = model(tmp_path, 'raise')
        text = 'ZeroDivisionError: the planted fault'
    elif cause == 'data':
        # Not shuffled: rank 1 has the samples with an odd number.
        changes = {'train_dataloader': toy.loader(broken=3, shuffle=False)}
        text = 'SampleError: sample 3 of ToyDataset'
    else:
        (tmp_path / 'w/epoch_1.pth').mkdir(parents=True)
        rank, text = 0, f'error: {tmp_path}/w/epoch_1.pth must be a regular'
    ranks, _ = run(tmp_path, **changes)
    assert ranks.codes == ([2, 1] if cause == 'checkpoint' else [1, 1])
    assert ranks.output(rank).count(text) == 1
    users = {'model': 'rank_faults.py', 'data': 'toy_training.py'}
    assert users.get(cause, '') in ranks.output(rank)
    (line,) = said(ranks, 1 - rank)
    assert line.startswith(f'rank {1 - rank}: ')
    assert text.partition(': ')[2] in line


def test_errors_of_one_line_of_code_are_one_cause(tmp_path):
    """Each rank has a sample of its own; only its name is of interest."""
    loader = toy.loader(shuffle=False)
    loader['dataset']['type'] = 'BrokenDataset'
    ranks, _ = run(tmp_path, train_dataloader=loader)
    assert ranks.codes == [1, 1]
    assert 'Traceback' in ranks.output(0)
    (line,) = said(ranks, 1)
    assert line.startswith('rank 1: SampleError: sample 1 of BrokenDataset')
    assert line.endswith('(as rank 0, same code)')

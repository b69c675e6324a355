"""Whatever ends a training: what goes on is the one that was not ended.

Real processes, one and two of them, with windows of accumulated gradients
that reach over the ends of epochs, EMA, batch norm, noise, a best checkpoint
and rotation. Each is ended by a fault and resumed by the same command, until
it is done. The last checkpoint, with weights, averages, optimizer, schedulers
and random numbers, must be the same as without a fault, bit by bit.
"""

import random
import signal
import time
from pathlib import Path

import pytest
import torch
from helpers import toy_training as toy
from helpers.toy_ranks import start_ranks

import mmext.engine.checkpoint.exchange

pytestmark = pytest.mark.xdist_group('processes')

LAST = 'iter_15.pth'
KILLED = -signal.SIGKILL


def config(world_size, *faults, **changes):
    """Three epochs of five steps; a checkpoint after every second one."""
    return toy.config(
        model=dict(type='ToyModel', noise=0.3, norm='BN'),
        train_dataloader=toy.loader(size=10 * world_size),
        val_dataloader=toy.loader(size=4 * world_size, shuffle=False),
        optim_wrapper=dict(
            optimizer=dict(type='Adam', lr=0.05), accumulative_counts=3
        ),
        param_scheduler=[
            dict(type='LinearLR', start_factor=0.1, end=4, by_epoch=False),
            dict(
                type='CosineAnnealingLR',
                begin=1,
                eta_min=0.001,
                convert_to_iter_based=True,
            ),
        ],
        default_hooks=dict(
            checkpoint=dict(
                type='CheckpointHook',
                interval=2,
                by_epoch=False,
                max_keep_ckpts=2,
                save_best='mean',
                rule='less',
            ),
            logger=dict(type='LoggerHook', interval=1),
        ),
        custom_hooks=[dict(type='EMAHook', momentum=0.3), *faults],
        **changes,
    )


class Run:
    """A training in a folder, started again and again."""

    def __init__(self, folder, world_size):
        self.folder, self.world_size = folder, world_size
        self.work_dir = folder / 'w'
        self.output = ''

    def write(self, *faults, **changes):
        """Write the config, with hooks that make the fault."""
        cfg = toy.traced(
            self.folder / 'trace', config(self.world_size, *faults, **changes)
        )
        toy.write(self.folder / 'cfg.py', cfg)

    def start(self):
        """Start, or go on."""
        return start_ranks(
            [
                self.folder / 'cfg.py',
                '--resume',
                '--work-dir',
                self.work_dir,
            ],
            self.world_size,
            self.folder / 'out',
        )

    def run(self, end_others=True):
        """Start and wait; returns the exit codes."""
        ranks = self.start()
        codes = ranks.wait(end_others=end_others)
        self.output = ranks.output()
        return codes

    def finish(self):
        """Go on to the end."""
        assert set(self.run()) == {0}, self.output[-3000:]

    def once(self, name='struck'):
        return str(self.folder / name)


@pytest.fixture(scope='module')
def plain(tmp_path_factory):
    """The training without a fault, by number of processes."""
    runs = {}

    def get(world_size):
        if world_size not in runs:
            run = Run(
                tmp_path_factory.mktemp(f'plain{world_size}'), world_size
            )
            run.write()
            run.finish()
            runs[world_size] = run
        return runs[world_size]

    return get


@pytest.fixture
def run(tmp_path, request, plain):
    """A training; at its end it must be the one without a fault."""
    result = Run(tmp_path, request.getfixturevalue('world_size'))
    yield result
    expected = plain(result.world_size)
    pair = [item.work_dir / LAST for item in (expected, result)]
    assert toy.differences(*pair) == []
    for rank in range(result.world_size):
        ours, theirs = (
            toy.read_trace(item.folder / f'trace.{rank}')
            for item in (result, expected)
        )
        # Steps that are done again are done as before. That of a step is
        # not written when the process ends while it saves.
        assert all(line in toy.steps(theirs) for line in toy.steps(ours))
        assert ours[-1] == theirs[-1]
    assert not [
        path for path in result.work_dir.iterdir() if '.tmp' in path.name
    ]


def worlds(*quick):
    """One and two processes; those not named are slow."""
    return pytest.mark.parametrize(
        'world_size',
        [
            number if number in quick else pytest.param(number, marks=SLOW)
            for number in (1, 2)
        ],
    )


SLOW = pytest.mark.slow


def strike(run, name, at, stage='after_train_iter', rank=0, once='struck'):
    return dict(
        type='StrikeHook',
        signal=name,
        at=at,
        stage=stage,
        rank=rank,
        once=run.once(once),
    )


@worlds()
@pytest.mark.parametrize('seed', [0, 1, 2])
def test_killed_anywhere(run, world_size, seed):
    """Three times, by -9, at random steps and stages of a random rank."""
    draw = random.Random(seed)
    stages = ['before_train_iter', 'after_train_iter', 'before_val_epoch']
    run.write(
        *(
            strike(
                run,
                'SIGKILL',
                step,
                draw.choice(stages[:2]),
                draw.randrange(world_size),
                f'struck{step}',
            )
            for step in draw.sample(range(2, 16), 3)
        ),
        strike(
            run,
            'SIGKILL',
            -draw.choice([1, 2]),
            draw.choice(['before_val_epoch', 'after_val_iter']),
            draw.randrange(world_size),
            'struckval',
        ),
    )
    for _ in range(6):
        codes = run.run()
        if set(codes) == {0}:
            break
        assert KILLED in codes, run.output[-3000:]
    assert len(list(run.folder.glob('struck*'))) >= 3


AIMED = {
    'before the file is flushed': ('os.fsync', 1, False),
    'before it gets its name': ('os.replace', 1, False),
    'after it has its name': ('os.replace', 1, True),
    'before the pointer is written': ('os.replace', 2, False),
    'after the pointer is written': ('os.replace', 2, True),
    'before the oldest is removed': (
        'mmext.engine.hooks.checkpoint._remove',
        1,
        False,
    ),
    'after the oldest is removed': (
        'mmext.engine.hooks.checkpoint._remove',
        1,
        True,
    ),
}


@pytest.mark.parametrize(
    ('world_size', 'where'),
    [
        pytest.param(
            number,
            where,
            marks=()
            if (number, where) == (1, 'before it gets its name')
            else SLOW,
        )
        for number in (1, 2)
        for where in AIMED
    ],
)
def test_killed_while_it_saves(run, world_size, where):
    """Within a window, at a checkpoint that pushes another one out."""
    call, number, after = AIMED[where]
    run.write(
        dict(
            type='AimHook',
            call=call,
            at=8,
            number=number,
            after=after,
            once=run.once(),
        )
    )
    assert KILLED in run.run(), run.output[-3000:]
    assert Path(run.once()).exists()
    run.finish()


@worlds(1)
def test_killed_in_the_middle_of_a_write(run, world_size):
    run.write(
        dict(
            type='FullDiskHook',
            at=8,
            size=3000,
            kill=True,
            once=run.once(),
        )
    )
    assert -signal.SIGXFSZ in run.run(), run.output[-3000:]
    (left,) = (p for p in run.work_dir.iterdir() if '.tmp' in p.name)
    assert left.stat().st_size == 3000
    run.finish()
    assert 'removing what an interrupted write left' in run.output


@worlds(1)
def test_disk_full(run, world_size):
    run.write(dict(type='FullDiskHook', at=8, size=3000, once=run.once()))
    codes = run.run(end_others=False)
    assert codes[0] == 1, (codes, run.output[-3000:])
    assert 'iter_8.pth could not be written (File too large)' in run.output
    assert 'earlier checkpoints are untouched' in run.output
    run.finish()


@worlds()
def test_stopped_and_continued(run, world_size):
    """The others wait for it."""
    run.write(strike(run, 'SIGSTOP', 7, rank=world_size - 1))
    ranks = run.start()
    ranks.wait_for(Path(run.once()).exists)
    time.sleep(1)
    ranks.signal(signal.SIGCONT)
    assert set(ranks.wait()) == {0}, ranks.output()


def newest(work_dir):
    return max(work_dir.glob('iter_*.pth'), key=lambda p: int(p.stem[5:]))


@worlds()
def test_flipped_byte(run, world_size):
    """In the weights: an older checkpoint is taken, with a line."""
    run.write(strike(run, 'SIGKILL', 9))
    assert KILLED in run.run()
    path = newest(run.work_dir)
    weights = torch.load(path, weights_only=False)['state_dict']
    raw = weights['linear.weight'].numpy().tobytes()
    data = bytearray(path.read_bytes())
    data[data.index(raw) + 5] ^= 16
    path.write_bytes(data)
    run.finish()
    assert path.name in run.output.split('Resuming from')[0]


@pytest.mark.slow
@pytest.mark.parametrize('world_size', [2])
def test_one_of_two_is_killed_before_it_saves(run, world_size, monkeypatch):
    """The other one cannot save its state and must not save without it."""
    timeouts = {False: 1, True: 1}
    monkeypatch.setattr(
        mmext.engine.checkpoint.exchange, '_RNG_TIMEOUTS_S', timeouts
    )
    run.write(strike(run, 'SIGKILL', 8, rank=1))
    codes = run.run(end_others=False)
    assert codes[0] != 0, run.output[-3000:]
    assert codes[1] == KILLED
    assert (
        'iter_8.pth was not written, as rank 1 did not come to save it within '
        '1 s; earlier checkpoints are untouched'
    ) in run.output.replace('iter_8.pth/8', 'iter_8.pth')
    assert newest(run.work_dir).name == 'iter_6.pth'
    run.finish()

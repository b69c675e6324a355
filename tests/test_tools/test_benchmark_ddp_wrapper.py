"""The benchmark runs both wrappers on ranks and prints them; no times."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from helpers.toy_ranks import TOOLS, cells, load_tool, run_on_ranks

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group('processes')]

CPU = torch.device('cpu')
TINY = ['--device', 'cpu', '--repeats', '1', '--tensors', '6', '--size', '32']


@pytest.fixture(scope='module')
def tool():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOOLS / 'benchmarks'))
        module = load_tool('benchmarks/ddp_wrapper')
        patch.setattr(module, 'VOTES', 2)
        patch.setattr(module, 'SMALL_FACTOR', 1)
        thin = partial(module.ResNet, base_channels=4, stem_channels=4)
        patch.setattr(module, 'ResNet', thin)
        yield module


def on_ranks(tool, argv: list[str], world_size: int, out: Path) -> list[str]:
    """Outputs of all ranks."""
    args = tool.make_parser().parse_args(argv)
    ranks = run_on_ranks(lambda: tool.run(args, CPU), world_size, out)
    codes = ranks.wait()
    outputs = [ranks.output(rank) for rank in range(world_size)]
    assert codes == [0] * world_size, outputs
    return outputs


@pytest.mark.parametrize(
    'models',
    [
        ('small', 'resnet'),
        ('small', 'resnet', 'co-dino'),
    ],
)
def test_first_rank_prints_every_model(tool, tmp_path, monkeypatch, models):
    monkeypatch.setenv('COLUMNS', '100')
    argv = [*TINY, '--models', *models]
    first, second = on_ranks(tool, argv, 2, tmp_path / 'out')
    rows = cells(first)
    assert [row[0] for row in rows] == [name for name in models for _ in '12']
    assert [row[2] for row in rows] == ['False', 'True'] * len(models)
    assert [row[1] for row in rows[:3]] == ['6', '6', '159']
    assert all(float(cell) > 0 for row in rows for cell in row[3:])
    assert 'DDP wrappers, 2 processes, gloo' in first
    assert 'vote alone: ' in first
    assert cells(second) == []


def test_one_process_has_nobody_to_vote_with(tool, tmp_path):
    argv = [*TINY, '--models', 'small']
    (only,) = on_ranks(tool, argv, 1, tmp_path / 'out')
    assert 'DDP wrappers, 1 processes, gloo' in only
    assert len(cells(only)) == 2


def test_rejects_wrappers_that_differ(tool, tmp_path, monkeypatch):
    class Other(tool.MMDistributedDataParallel):
        def train_step(self, data: dict, optim_wrapper: object) -> dict:
            logged = super().train_step(data, optim_wrapper)
            return {'loss': logged['loss'] + 1}

    monkeypatch.setattr(tool, 'MMDistributedDataParallel', Other)
    args = tool.make_parser().parse_args([*TINY, '--models', 'small'])

    def run() -> None:
        with pytest.raises(ValueError, match=r'the same loss, got .*small'):
            tool.run(args, CPU)

    ranks = run_on_ranks(run, 1, tmp_path / 'out')
    assert ranks.wait() == [0], ranks.output()


@pytest.mark.parametrize(
    ('option', 'value'), [('--processes', '0'), ('--models', 'vit')]
)
def test_bad_settings_are_named(tool, capsys, option: str, value: str):
    with pytest.raises(SystemExit) as stop:
        tool.main([option, value])
    assert stop.value.code == 2
    assert option in capsys.readouterr().err


def test_bad_device_is_named(tool, capsys, monkeypatch):
    monkeypatch.delenv('RANK', raising=False)
    assert tool.main(['--device', 'tpu']) == 1
    assert "device must be 'auto', 'cpu'" in capsys.readouterr().err


def test_starts_its_processes(tool, monkeypatch):
    started = []
    monkeypatch.delenv('RANK', raising=False)
    monkeypatch.setattr(
        tool.subprocess, 'call', lambda cmd, env: started.append(cmd) or 3
    )
    assert tool.main([*TINY, '--processes', '4']) == 3
    (command,) = started
    place = command.index('--nproc-per-node')
    assert command[place + 1] == '4'
    assert command[place + 2].endswith('ddp_wrapper.py')
    assert command[place + 3 :] == [*TINY, '--processes', '4']


@pytest.mark.exhaustive
def test_as_a_script():
    argv = [*TINY, '--models', 'small']
    environ = {**os.environ, 'OMP_NUM_THREADS': '1', 'COLUMNS': '100'}
    environ.pop('RANK', None)
    done = subprocess.run(
        [sys.executable, TOOLS / 'benchmarks' / 'ddp_wrapper.py', *argv],
        env=environ,
        text=True,
        capture_output=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert len(cells(done.stdout)) == 2

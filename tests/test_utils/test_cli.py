import argparse
import os

import pytest

from mmext.utils.cli import (
    add_run_arguments,
    find_device,
    hide_gpus,
)


def parse(*argv):
    parser = argparse.ArgumentParser()
    add_run_arguments(parser)
    return parser.parse_args(argv)


def test_options():
    args = parse(
        'a.py',
        *('--cfg-options', 'a.b=1', 'c=[1,2]'),
        *('--cfg-options', 'a.b=3', 'd=4'),
        *('--launcher', 'slurm', '--device', 'cuda:1', '--local-rank', '3'),
    )
    assert args.cfg_options == {'a.b': 3, 'c': [1, 2], 'd': 4}
    assert (args.launcher, args.device, args.local_rank) == (
        'slurm',
        'cuda:1',
        3,
    )


@pytest.mark.parametrize(
    ('device', 'hidden'),
    [('cpu', True), ('cuda', False), ('auto', False), (None, False)],
)
def test_hide_gpus(device, hidden, monkeypatch):
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '0')
    hide_gpus(device)
    assert os.environ['CUDA_VISIBLE_DEVICES'] == ('-1' if hidden else '0')


@pytest.mark.parametrize(
    ('config', 'options', 'device'),
    [
        ('device = "cpu"', [], 'cpu'),
        ('device = "cpu"', ['--device', 'cuda'], 'cuda'),
        ('device = "cpu"', ['--cfg-options', 'device=cuda:1'], 'cuda:1'),
        ('', [], None),
        (None, [], None),
    ],
)
def test_find_device(tmp_path, config, options, device):
    path = tmp_path / 'a.py'
    if config is not None:
        path.write_text(config)
    assert find_device(parse(str(path), *options)) == device

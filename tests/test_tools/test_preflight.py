"""The tool: exit codes, and what it prints."""

import pytest
from toy_ranks import load_tool

import mmext


@pytest.fixture
def main():
    return load_tool('preflight').main


def test_clean(main, capsys):
    config = mmext.config_path('pidnet/pidnet_small_shapes.py')
    argv = [str(config), '--batches', 'normal', '--image-size', '64', '64']
    assert main([*argv, '--no-labels']) == 0
    out = capsys.readouterr().out
    assert 'semantic' in out
    assert '0 errors' in out


def test_cannot_run(main, capsys):
    with pytest.raises(SystemExit) as error:
        main(['no/such.py'])
    assert error.value.code == 2
    assert 'config must be an existing file' in capsys.readouterr().err

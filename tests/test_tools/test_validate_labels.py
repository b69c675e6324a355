"""The tool: exit codes, and what it prints."""

import pytest
from helpers.label_data import write_pairs
from helpers.toy_ranks import load_tool
from PIL import Image


@pytest.fixture
def main():
    return load_tool('validate_labels').main


@pytest.fixture
def data(tmp_path):
    return write_pairs(tmp_path / 'data')


def argv(data, *more) -> list[str]:
    given = [
        '--masks', data / 'masks', '--images', data / 'images',
        '--num-classes', 3, '--store', data / 'facts.sqlite',
        '--workers', 1, *more,
    ]  # fmt: skip
    return [str(item) for item in given]


def test_clean_data(main, data, capsys):
    assert main(argv(data)) == 0
    assert '0 errors' in capsys.readouterr().out


def test_a_colour_mask(main, data, capsys, monkeypatch):
    monkeypatch.setenv('COLUMNS', '300')  # a long path is folded
    path = data / 'masks' / '3.png'
    Image.open(path).convert('RGB').save(path)
    assert main(argv(data)) == 1
    out = capsys.readouterr().out
    assert '3.png' in out
    assert 'remedy' in out


@pytest.mark.parametrize(
    'given',
    [
        [],
        ['no_such_config.py'],
        ['--masks', 'no/such/folder', '--num-classes', '3'],
    ],
)
def test_what_cannot_run_exits_with_2(main, given, tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        main([*given, '--store', str(tmp_path / 'facts.sqlite')])
    assert caught.value.code == 2
    assert capsys.readouterr().err


def test_lists_rules(main, capsys):
    assert main(['--list-rules']) == 0
    assert 'SEG001' in capsys.readouterr().out


def test_rules_may_be_selected_by_several_options(main, data, capsys):
    path = data / 'masks' / '3.png'
    Image.open(path).convert('RGB').save(path)
    both = ['--select', 'IMG', '--select', 'SEG', 'PAIR']
    assert main(argv(data, '--select', 'IMG')) == 0
    assert main(argv(data, *both)) == 1
    assert main(argv(data, *both, '--ignore', 'PAIR', '--ignore', 'SEG')) == 0

"""The tool: exit codes, and what it prints."""

import json
import os
from pathlib import Path

import mmseg
import pytest
from helpers.toy_ranks import load_tool

import mmext


@pytest.fixture
def main():
    return load_tool('preflight').main


def test_clean(main, capsys):
    config = mmext.config_path('pidnet/pidnet_small_shapes.py')
    argv = [str(config), '--batches', 'normal', '--image-size', '64', '64']
    assert main([*argv, '--no-labels']) == 0
    out = capsys.readouterr().out
    assert 'can be trained' in out
    assert '0 errors' in out


def test_cannot_run(main, capsys):
    with pytest.raises(SystemExit) as error:
        main(['no/such.py'])
    assert error.value.code == 2
    assert 'config must be an existing file' in capsys.readouterr().err


@pytest.mark.slow
def test_standard_output_has_the_report_only(main, capfd):
    """Also with processes of its own, which print on their own account."""
    config = mmext.config_path('pidnet/pidnet_small_shapes.py')
    argv = [str(config), '--batches', 'normal', '--image-size', '64', '64']
    assert main([*argv, '--no-labels', '--json', '-']) == 0
    printed = capfd.readouterr()
    assert json.loads(printed.out)['batches']
    assert '0 errors' in printed.err


@pytest.mark.slow
def test_mask2former_of_mmseg_with_fewer_classes_than_things(main, capsys):
    """Its head inherits num_things_classes=80 and does not use it."""
    config = (
        Path(mmseg.__file__).parent
        / '.mim/configs/mask2former'
        / 'mask2former_r50_8xb2-90k_cityscapes-512x1024.py'
    )
    argv = [str(config), '--batches', 'normal', '--image-size', '64', '64']
    assert main([*argv, '--no-labels']) == 0
    assert '0 errors' in capsys.readouterr().out


def test_unwritable_outputs_are_one_error(main, tmp_path, capsys):
    config = mmext.config_path('pidnet/pidnet_small_shapes.py')
    (tmp_path / 'file').write_text('')
    bad = [str(tmp_path / 'file' / name) for name in ('a', 'b', 'c.py', 'd')]
    outputs = ['--json', bad[0], '--html', bad[1], '--fix', bad[2]]
    with pytest.raises(SystemExit) as error:
        main([str(config), *outputs, '--store', bad[3]])
    assert error.value.code == 2
    message = capsys.readouterr().err
    assert all(f'{path}: ' in message for path in bad)


@pytest.mark.parametrize('base', [False, True])
def test_a_fifo_for_a_config(main, base, tmp_path, capsys):
    os.mkfifo(tmp_path / 'a.py')
    (tmp_path / 'b.py').write_text("_base_ = ['a.py']\n")
    with pytest.raises(SystemExit) as error:
        main([str(tmp_path / ('b.py' if base else 'a.py'))])
    assert error.value.code == 2
    assert f'{tmp_path}/a.py' in capsys.readouterr().err


@pytest.mark.parametrize('tool', ['preflight', 'validate_labels'])
@pytest.mark.parametrize(
    ('name', 'text', 'message'),
    [
        (
            'a.py',
            'x = dict(\n',
            "a.py:1 cannot be loaded: SyntaxError: '(' was",
        ),
        ('a.py', '\nx = y\n', 'a.py:2 cannot be loaded: NameError: name'),
        ('a.py', "_base_ = 'b.py'\n", 'b.py:3 cannot be loaded: ZeroDivision'),
        ('a.py', "_base_ = 'c.py'\n", "No such file or directory: '"),
        ('a.py', "_base_ = ['d.py', 'd.py']\n", 'Duplicate key'),
        (
            'a.py',
            "custom_imports = dict(imports=['no_such_module'])\n",
            "ModuleNotFoundError: No module named 'no_such_module'; modules "
            'of custom_imports must be installed',
        ),
        ('a.json', '{"a": ', 'a.json cannot be loaded: JSONDecodeError'),
        ('a.yml', 'a: [', 'a.yml cannot be loaded: ParserError'),
        ('a.py', 'model = \udcff', 'a.py cannot be loaded: UnicodeDecode'),
    ],
)
def test_one_line_says_what_is_wrong_in_a_config(
    tool, name, text, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    content = text.encode('utf-8', 'surrogateescape')
    (tmp_path / name).write_bytes(content)
    (tmp_path / 'b.py').write_text('\n\nx = 1 / 0\n')
    (tmp_path / 'd.py').write_text('x = 1\n')
    with pytest.raises(SystemExit) as error:
        load_tool(tool).main([name, '--store', 'facts.sqlite'])
    assert error.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ''
    (line,) = printed.err.splitlines()
    assert message in line


def test_devices_that_are_not_here(main, capsys):
    config = mmext.config_path('pidnet/pidnet_small_shapes.py')
    with pytest.raises(SystemExit) as error:
        main([str(config), '--device', 'nope'])
    assert error.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--device must be one that PyTorch can use here, got 'nope'" in line

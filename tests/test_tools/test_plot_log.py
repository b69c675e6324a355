"""The command line of the curves: exit code first."""

import json

import pytest
from helpers.toy_ranks import load_tool


@pytest.fixture
def tool():
    return load_tool('plot_log')


@pytest.fixture
def work_dir(tmp_path):
    folder = tmp_path / 'work' / '20261120_100000' / 'vis_data'
    folder.mkdir(parents=True)
    lines = [
        json.dumps({'loss': 3.0 / step, 'lr': 0.1, 'iter': step})
        for step in (10, 20)
    ]
    (folder / 'scalars.json').write_text('\n'.join([*lines, '{"lo']))
    return tmp_path / 'work'


def test_draws_and_reports_what_it_left_out(tool, work_dir, tmp_path, capsys):
    out = tmp_path / 'a.png'
    assert tool.main([str(work_dir), '--out', str(out)]) == 0
    assert out.is_file()
    printed = capsys.readouterr()
    assert str(out) in printed.out
    assert 'half written' in printed.err


def test_picture_goes_to_the_work_dir(tool, work_dir):
    assert tool.main([str(work_dir)]) == 0
    assert (work_dir / 'curves.png').is_file()


def test_fails_with_a_remedy(tool, tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        tool.main([str(tmp_path)])
    assert caught.value.code == 2
    assert 'give the --work-dir of a training' in capsys.readouterr().err

"""The benchmark of the label check times a map that is in order."""

import json

import numpy as np
import pytest
from helpers.toy_ranks import load_tool

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def tool():
    return load_tool('benchmarks/validate_labels')


def test_prints_and_writes(tool, capsys, tmp_path):
    file = tmp_path / 'figures.json'
    options = ['--height', '64', '--width', '96', '--repeats', '2']
    assert tool.main([*options, '--json', str(file)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith('96 x 64: check ')
    found = json.loads(file.read_text())
    assert set(found) == {'check_ms', 'loading_ms', 'ratio'}
    assert found['ratio'] == pytest.approx(
        found['check_ms'] / found['loading_ms']
    )
    assert f'ratio {100 * found["ratio"]:.2f} %' in printed


def test_map_has_all_classes_and_ignored_pixels(tool):
    label_map = tool.draw_map(100, 210)
    assert label_map.shape == (100, 210)
    assert label_map.flags.c_contiguous
    assert set(np.unique(label_map)) == {*range(19), 255}


def test_refuses_no_repeats(tool, capsys):
    with pytest.raises(SystemExit) as caught:
        tool.main(['--repeats', '0'])
    assert caught.value.code == 2
    assert '--repeats must be at least 1' in capsys.readouterr().err

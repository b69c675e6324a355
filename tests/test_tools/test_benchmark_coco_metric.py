"""The benchmark of COCO's figures compares what both compute."""

import re

import pytest
from helpers.toy_ranks import TOOLS, load_tool

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def tool():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOOLS / 'benchmarks'))
        yield load_tool('benchmarks/coco_metric')


def test_says_what_it_needs(tool, capsys, monkeypatch):
    monkeypatch.setattr(tool, 'find_spec', lambda name: None)
    with pytest.raises(SystemExit) as caught:
        tool.main([])
    assert caught.value.code == 2
    assert 'needs faster-coco-eval' in capsys.readouterr().err


def test_prints_both(tool, capsys, monkeypatch):
    # Without the package, ours computes as theirs does.
    monkeypatch.setattr(tool, 'find_spec', lambda name: True)
    assert tool.main(['--images', '4', '--repeats', '1']) == 0
    number = r'\d+\.\d\d'
    assert re.fullmatch(
        rf'4 images: ours {number} s, theirs {number} s, ratio {number}, '
        r'mAP 0\.\d+ of both\n',
        capsys.readouterr().out,
    )

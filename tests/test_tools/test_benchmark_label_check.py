"""The benchmark of the label check: all parts, on next to nothing."""

import json

import numpy as np
import pytest
from helpers.toy_ranks import TOOLS, load_tool

from mmext.checks.labels.readers.coco import read_coco

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def tool():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOOLS / 'benchmarks'))
        yield load_tool('benchmarks/label_check')


SMALL = ['--files=2', '--height=96', '--width=128', '--rounds=1']


def test_maps_and_coco(tool, capsys, tmp_path):
    pytest.importorskip('pycocotools')
    file = tmp_path / 'figures.json'
    options = [*SMALL, '--annotations', '40', '--json', str(file)]
    assert tool.main([*options, '--only', 'maps', 'coco']) == 0
    printed = capsys.readouterr().out
    found = json.loads(file.read_text())
    assert list(found) == ['maps', 'coco']
    assert list(found['maps']) == ['grey', 'palette', 'noise']
    for figures in (*found['maps'].values(), found['coco']):
        others = [name for name in figures if name.endswith(' / ours')]
        assert others
        for name in others:
            other = figures[name.removesuffix(' / ours')]
            assert figures[name] == pytest.approx(other / figures['ours'])
            assert f'{figures[name]:,.4f}' in printed


def test_memory_and_a_second_check(tool, tmp_path):
    file = tmp_path / 'figures.json'
    options = [*SMALL, '--entries', '30', '--json', str(file)]
    assert tool.main([*options, '--only', 'warm', 'memory']) == 0
    found = json.loads(file.read_text())
    assert set(found['warm']) == {'first', 'again'}
    few, many = (found['memory'][f'{n} pairs, MiB'] for n in (3, 30))
    assert found['memory']['ratio'] == pytest.approx(many / few)


def test_workers_read_all_files(tool, tmp_path):
    options = [*SMALL, '--repeats', '2']
    options = tool.make_parser().parse_args(options)
    found = tool.measure_workers(tmp_path, options)
    assert found['files'] == 4
    for how in ('with start', 'running'):
        one, two = found[f'1 {how}'], found[f'2 {how}']
        assert found[f'1 / 2 {how}'] == pytest.approx(one / two)


def test_refuses_data_with_errors(tool, tmp_path):
    (tmp_path / 'a.png').write_bytes(b'no image')
    with pytest.raises(ValueError, match='must be in order'):
        tool.check(str(tmp_path), None, tmp_path / 'facts.sqlite')


def test_data_are_the_same_each_time(tool, tmp_path):
    data = __import__('label_check_data')
    one, other = (
        data.draw_street(np.random.default_rng(3), 64, 96) for _ in range(2)
    )
    assert np.array_equal(one, other)
    assert one.max() == 255
    assert len(np.unique(one)) > 5
    for name in 'ab':
        data.write_coco(tmp_path / name, 20, np.random.default_rng(3))
    content = (tmp_path / 'a').read_bytes()
    assert content == (tmp_path / 'b').read_bytes()
    file = read_coco(content)
    assert file.errors == ()
    assert file.annotations.segmentation_fine.all()


def test_refuses_nothing(tool, capsys):
    with pytest.raises(SystemExit) as caught:
        tool.main(['--files', '0'])
    assert caught.value.code == 2
    assert '--files: must be at least 1' in capsys.readouterr().err

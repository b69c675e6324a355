"""A downstream project adds a layer, reads the error, and pastes the advice.

The error comes from a training in two processes; the lines that it prints are
put into the project's config as they are.
"""

import shutil
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from helpers.toy_ranks import load_tool, start_ranks

pytestmark = pytest.mark.xdist_group('processes')


def printed_advice(text: str) -> list[str]:
    """The lines for the config that an error holds."""
    blocks = text.split('\n\n')
    return [
        lines.strip()
        for advice, lines in pairwise(blocks)
        if advice.startswith('Advice') and advice.endswith('config:')
    ]


@pytest.fixture
def project(tmp_path, checkout, monkeypatch):
    folder = tmp_path / 'project'
    shutil.copytree(checkout / 'tests' / 'downstream_project', folder)
    shapes = ['--num-train', '4', '--num-val', '2', '--image-size', '64']
    load_tool('make_shapes_dataset').main(
        ['--out', str(folder / 'shapes'), *shapes]
    )
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in [n for n in sys.modules if n.partition('.')[0] == 'shapeshop']:
        del sys.modules[name]


def train(config: Path, out: Path) -> tuple[list[int], str]:
    """Exit codes of two processes, and what the first has written."""
    argv = [config, '--work-dir', out, '--device', 'cpu', '--cfg-options']
    options = ['data_root=shapes', 'train_cfg.max_epochs=1']
    ranks = start_ranks([*argv, *options], 2, f'{out}.out')
    codes = ranks.wait(120)
    return codes, ranks.output(0)


@pytest.mark.slow
def test_the_printed_advice_makes_it_train(project: Path):
    config = project / 'configs' / 'extra_layer.py'
    codes, text = train(config, project / 'broken')
    assert codes == [1, 1], text
    assert 'GradientSyncError' in text
    assert (
        '1 parameter got no gradient: never used in forward\n'
        '    query_head.class_embed\n' in text
    )
    assert not list((project / 'broken').glob('*.pth'))

    (lines,) = printed_advice(text.rpartition('GradientSyncError')[2])
    assert lines == 'find_unused_parameters = True'
    config.write_text(f'{config.read_text()}\n{lines}\n')
    codes, text = train(config, project / 'advised')
    assert codes == [0, 0], text
    assert (project / 'advised' / 'epoch_1.pth').is_file()

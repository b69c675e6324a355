"""The benchmark counts what autograd keeps, and compares equals; no times."""

import pytest
from helpers.reduce_config import reduce_model
from helpers.toy_ranks import TOOLS, cells, load_tool
from mmengine.config import Config

import mmext

pytestmark = pytest.mark.slow

HEADER = ['saved MiB', 'ratio', 's', 'ratio', 'RSS so far MiB']


@pytest.fixture(scope='module')
def tool():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOOLS / 'benchmarks'))
        yield load_tool('benchmarks/activation_checkpoint')


@pytest.fixture(scope='module')
def tiny(tmp_path_factory) -> str:
    """Config of a small model of the same structure."""
    path = mmext.config_path('_base_/models/co_dino_5scale_r50.py')
    model = reduce_model(Config.fromfile(path).to_dict()['model'])
    file = tmp_path_factory.mktemp('tiny') / 'tiny.py'
    Config({'model': model}).dump(str(file))
    return str(file)


def test_prints_all_variants(tool, tiny, capsys, monkeypatch):
    monkeypatch.setenv('COLUMNS', '100')
    options = ['--size', '160', '--repeats', '1', '--device', 'cpu']
    assert tool.main(['--config', tiny, *options]) == 0
    printed = capsys.readouterr().out
    assert '160 px, 10 boxes' in printed
    assert all(name in printed for name in HEADER)
    rows = cells(printed)
    assert [row[0] for row in rows] == ['none', 'config', 'all', 'theirs']
    saved = [float(row[2]) for row in rows]
    assert saved[0] == 1
    assert max(saved[1:]) < 1, 'checkpointing kept everything'
    assert float(rows[2][1]) < float(rows[1][1]), 'more kept more'
    assert all(float(row[3]) > 0 for row in rows)
    assert all(float(row[5]) > float(row[1]) for row in rows)


def result(tool, name: str, loss: float, gradient: float):
    return tool.Result(name, 1, None, 1, loss, gradient)


@pytest.mark.parametrize(
    ('loss', 'gradient', 'what'), [(1.01, 2.0, 'loss'), (1.0, 2.1, 'gradient')]
)
def test_rejects_variants_that_differ(tool, loss, gradient, what):
    one, two = result(tool, 'none', 1.0, 2.0), result(tool, 'all', 1.0, 2.0)
    tool.check_same([one, two])
    with pytest.raises(ValueError, match=f'have the same {what} .*theirs'):
        tool.check_same([one, two, result(tool, 'theirs', loss, gradient)])

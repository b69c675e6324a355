"""The sweep reports what it could build, and survives what it could not."""

import json

import pytest
from helpers.preflight_configs import detector
from helpers.toy_ranks import load_tool
from mmengine.config import Config

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def tool():
    return load_tool('benchmarks/preflight_sweep')


@pytest.fixture
def config(tmp_path):
    """Write a config; give its path."""

    def write(name='retinanet_r18', **options):
        path = tmp_path / f'{name}.py'
        Config(detector(**options)).dump(path)
        return path

    return write


def test_smallest_of_each_data_set_and_head(tool, config, tmp_path):
    folder = tmp_path / 'family'
    folder.mkdir()
    for name, classes in (('r18', 3), ('r50', 3), ('r18_other', 4)):
        head = {'bbox_head': {'type': 'FCOSHead'}} if classes == 4 else {}
        config(name, model=head).rename(folder / f'{name}.py')
    (folder / 'broken.py').write_text('import no_such_package')
    configs = tool.smallest_configs(tmp_path, by_head=True)
    names = sorted(path.name for path in configs)
    assert names == ['broken.py', 'r18.py', 'r18_other.py']


def test_tries_configs_and_writes_what_it_found(
    tool, config, tmp_path, capsys
):
    good, bad = config('good'), config('bad', model={'type': 'NoSuchModel'})
    table, rows = tmp_path / 'table.md', tmp_path / 'rows.json'
    code = tool.main(
        [
            *('--configs', str(good), str(bad)),
            *('--kinds', 'normal', 'empty'),
            *('--table', str(table), '--json', str(rows)),
        ]
    )
    assert code == 1
    assert '1 of 2 configs' in capsys.readouterr().out
    first, second = json.loads(rows.read_text())
    assert first['result'] == 'ok'
    assert first['task'] == 'detection'
    assert set(first['unused']) == {'normal', 'empty'}
    assert first['unused']['normal'] == 0
    assert second['result'].startswith('the model was not built: ')
    assert 'TYPE001!' in second['findings']
    assert first['setting'] == 'plain'
    assert 'NoSuchModel' in second['result']
    assert len(table.read_text().splitlines()) == 4
    assert '| normal 0, empty 0 |' in table.read_text()


def test_ends_what_takes_too_long(tool, config):
    row = tool.try_in_child(config(), ['normal'], 2, (0, 1))
    assert row['result'].endswith(': took more than 0 s of a processor')

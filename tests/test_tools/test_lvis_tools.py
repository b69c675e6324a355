"""The LVIS config goes through the tools, on a tiny LVIS set."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.lvis_set import write_config
from helpers.toy_ranks import load_tool
from mmengine.fileio import dump, load

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def config(tmp_path):
    return write_config(tmp_path)


def findings(tool: str, config: str, key: str) -> list[dict]:
    """What a tool reports, notes left out; none of it is an error."""
    told = Path(config).with_name('told.json')
    store = ['--store', str(told.with_name('store.sqlite'))]
    argv = [config, *store, '--json', str(told)]
    assert load_tool(tool).main(argv) == 0
    return [row for row in load(told)[key] if row['severity']]


def test_labels(config):
    """Lists of categories that contradict the file are named, no others."""
    (group,) = findings('validate_labels', config, 'groups')
    assert group['rule'] == 'CLS001'
    path = Path(config).with_name('data') / 'annotations/lvis_v1_train.json'
    content = load(path)
    # One that has objects, and two that are no category.
    content['images'][1]['neg_category_ids'] = [7, 5]
    content['images'][2]['neg_category_ids'] = [7, 70]
    content['images'][3]['not_exhaustive_category_ids'] = [90]
    dump(content, path)
    _, group = findings('validate_labels', config, 'groups')
    assert group['rule'] == 'COCO018'
    rows = [(row['position'], row['value']) for row in group['examples']]
    assert rows == [('images[1]', '5'), ('images[2], images[3]', '70, 90')]


@pytest.mark.slow
def test_preflight(config):
    """A class without objects is all that is found."""
    rows = findings('preflight', config, 'findings')
    assert [row['rule'] for row in rows] == ['CLS001']


@pytest.mark.slow
def test_trains_and_validates(config, tmp_path):
    command = [
        *(sys.executable, str(ROOT / 'tools/train.py')),
        *(config, '--work-dir', str(tmp_path / 'run'), '--cfg-options'),
        *('train_cfg.max_epochs=1', 'default_hooks.logger.interval=1'),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (log,) = (tmp_path / 'run').glob('*/vis_data/scalars.json')
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    # Eight samples of seven pictures: that of the rare class is repeated.
    assert len([row for row in rows if 'loss_cls' in row]) == 4
    assert all(0 <= rows[-1][f'lvis/bbox_AP{kind}'] <= 1 for kind in 'rcf')

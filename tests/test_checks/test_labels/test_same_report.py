"""The same report, byte by byte, wherever and in what order files are read."""

import os
import random
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from helpers.label_boxes import edit_xml
from helpers.label_data import write_pairs
from helpers.label_sets import clean
from PIL import Image

from mmext.checks.labels.check import check_sources, scan, work_items
from mmext.checks.labels.report import report_json
from mmext.checks.labels.run import sources_of
from mmext.checks.labels.store import (
    FactStore,
    read_batch,
    run_dask,
    run_joblib,
)

PAIRS = 100


def _masks(folder: Path) -> dict:
    """Errors in more files than are named as examples."""
    write_pairs(folder, PAIRS)
    for index in range(0, PAIRS, 3):
        path = folder / 'masks' / f'{index}.png'
        mask = np.array(Image.open(path))
        mask[index % 20 + 1, 5:9] = (7, 254, 99, index % 5)
        Image.fromarray(mask).save(path)
    for index in range(1, PAIRS, 9):
        path = folder / 'images' / f'{index}.png'
        path.write_bytes((folder / 'images' / '2.png').read_bytes())
        path = folder / 'masks' / f'{index}.png'
        path.write_bytes(path.read_bytes()[: -index - 9])
    return {
        'masks': folder / 'masks',
        'images': folder / 'images',
        'num_classes': 3,
    }


def _boxes(folder: Path) -> dict:
    """XML files, one of them damaged, two with a wrong box."""
    data = clean('voc_bare', folder)
    data.annotation(1).write_bytes(data.annotation(1).read_bytes()[:-9])
    for index in (2, 4):

        def change(root) -> None:
            root.find('object/bndbox/xmax').text = '999'

        edit_xml(data.annotation(index), change)
    return data.settings


DATA = {'masks': _masks, 'boxes': _boxes}


@pytest.fixture(scope='module', params=DATA)
def settings(request, tmp_path_factory):
    return DATA[request.param](tmp_path_factory.mktemp('data') / 'x')


@pytest.fixture(scope='module')
def wanted(settings, tmp_path_factory):
    """The report of one process."""
    folder = tmp_path_factory.mktemp('one')
    return checked(settings, folder / 'facts.sqlite')


def checked(settings: dict, store: Path, **options) -> bytes:
    sources = sources_of(**settings)
    with FactStore(store) as opened:
        return report_json(check_sources(sources, opened, **options))


def test_there_is_something_to_report(wanted):
    assert wanted.count(b'"rule"') > 4


def test_processes(settings, wanted, tmp_path):
    run = partial(run_joblib, workers=2)
    store = tmp_path / 'facts.sqlite'
    assert checked(settings, store, run=run) == wanted


def test_batches_in_any_order(settings, wanted, tmp_path):
    def shuffled(batches):
        batches = list(batches)
        random.shuffle(batches)
        for batch in batches:
            yield list(read_batch(batch))[::-1]

    store = tmp_path / 'facts.sqlite'
    assert checked(settings, store, run=shuffled) == wanted


@pytest.fixture(scope='module')
def cluster():
    """Two processes that Dask starts anew when they die."""
    distributed = pytest.importorskip('distributed', reason='needs Dask')
    with distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        dashboard_address=None,
        protocol='tcp://',
    ) as started:
        yield started


@pytest.mark.slow
def test_dask_with_a_process_that_is_killed(
    settings, wanted, cluster, tmp_path
):
    with cluster.get_client() as client:
        client.wait_for_workers(2, timeout=240)
        before = set(client.run(os.getpid).values())
    killed = []

    def kill(done: int) -> None:
        if not killed and done:
            killed.append(min(before))
            os.kill(killed[0], signal.SIGKILL)

    address = cluster.scheduler_address
    run = partial(run_dask, scheduler=address)
    sources = sources_of(**settings)
    store = FactStore(tmp_path / 'facts.sqlite')
    with store:
        # Some batches are at work as a process dies, others come later.
        read = scan(
            work_items(sources), store, run=run, progress=kill, batch_size=2
        )
        assert killed
        assert read == len(store)
        assert report_json(check_sources(sources, store)) == wanted
    with cluster.get_client() as client:
        client.wait_for_workers(2, timeout=240)
        after = set(client.run(os.getpid).values())
    assert len(before & after) == 1

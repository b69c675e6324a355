"""Data sets behind a prefix: a server of this machine, and an object store."""

import functools
import http.server
import sys
import threading
import types
from pathlib import Path

import pytest
from helpers.right_sets import (
    categories_of,
    check,
    coco_file,
    numbers,
)

from mmext.checks.findings import Severity
from mmext.checks.labels.run import refuse_fix, sources_of

_CLASSES = ('dog', 'cat', 'cow')


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        """Say nothing."""


@pytest.fixture
def server(tmp_path):
    """Address of a server, and the folder that it serves."""
    folder = tmp_path / 'served'
    folder.mkdir()
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f'http://127.0.0.1:{server.server_address[1]}', folder
        server.shutdown()
        thread.join()


@pytest.fixture
def petrel(tmp_path, monkeypatch):
    """An object store as its client shows it; the folder that it stores."""
    folder = tmp_path / 'stored'
    folder.mkdir()

    class Client:
        def __init__(self, *args, **kwargs):
            pass

        def Get(self, path, *args, **kwargs):
            path = folder / path.removeprefix('s3://bucket/')
            return memoryview(path.read_bytes()) if path.is_file() else None

    module = types.ModuleType('petrel_client')
    module.client = types.ModuleType('petrel_client.client')
    module.client.Client = Client
    monkeypatch.setitem(sys.modules, 'petrel_client', module)
    monkeypatch.setitem(sys.modules, 'petrel_client.client', module.client)
    return folder


def errors(report) -> list[str]:
    return [
        group['rule']
        for group in report['groups']
        if group['severity'] == Severity.ERROR
    ]


def boxes(root: Path, served: Path, prefix: str, **more) -> Path:
    """A config with annotations in ``root`` and images behind a prefix."""
    for split, first in (('train', 1), ('val', 7)):
        coco_file(
            root / f'{split}.json',
            numbers(first, 3),
            categories_of(_CLASSES),
            folder=served / f'images/{split}',
        )
    names = ', '.join(f'{key}={value!r}' for key, value in more.items())
    lines = [
        "default_scope = 'mmdet'",
        *(
            f'{split}_dataloader = dict(dataset=dict(type="CocoDataset", '
            f'ann_file={str(root / split)!r} ".json", '
            f'data_prefix=dict(img={prefix!r} "images/{split}/"), '
            f'metainfo=dict(classes={_CLASSES!r}), {names}))'
            for split in ('train', 'val')
        ),
    ]
    (root / 'config.py').write_text('\n'.join(lines))
    return root / 'config.py'


def test_images_of_a_server(server, tmp_path):
    address, served = server
    config = boxes(tmp_path, served, f'{address}/')
    code, report = check(tmp_path, config)
    assert (code, errors(report)) == (0, [])
    assert [split['num_images'] for split in report['splits']] == [3, 3]
    (served / 'images/train' / numbers(1, 3)[1]).unlink()
    code, report = check(tmp_path, config)
    assert (code, errors(report)) == (1, ['IMG001'])
    (group,) = [item for item in report['groups'] if item['severity'] == 2]
    file = group['examples'][0]['file']
    assert file == f'{address}/images/train/{numbers(1, 3)[1]}'


@pytest.mark.parametrize('mapped', [False, True])
def test_images_of_an_object_store(petrel, tmp_path, mapped):
    """By the prefix of the paths, or by what the backend makes of them."""
    args = {'backend': 'petrel'}
    if mapped:
        args['path_mapping'] = {'data/': 's3://bucket/'}
    prefix = 'data/' if mapped else 's3://bucket/'
    config = boxes(tmp_path, petrel, prefix, backend_args=args)
    for split in ('train', 'val'):
        # All of the data set is there, the annotations too.
        path = tmp_path / f'{split}.json'
        (petrel / f'{split}.json').write_bytes(path.read_bytes())
    text = config.read_text().replace(f'{tmp_path}/', prefix)
    config.write_text(text)
    code, report = check(tmp_path, config)
    assert (code, errors(report)) == (0, [])
    assert [split['num_images'] for split in report['splits']] == [3, 3]
    with pytest.raises(ValueError, match='not on a disk of this machine'):
        refuse_fix('out', sources_of(config))

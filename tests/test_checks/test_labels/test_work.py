"""One file at a time: facts as the readers give them, errors as facts."""

import io
import urllib.error

import msgspec
import numpy as np
import pytest
from mmengine.fileio import backends
from PIL import Image

from mmext.checks.labels.facts import ErrorKind, ReadError
from mmext.checks.labels.readers.image import read_mask_facts
from mmext.checks.labels.store import (
    WorkItem,
    read_batch,
    read_item,
    unpack,
)


def png() -> bytes:
    pixels = np.arange(48, dtype=np.uint8).reshape(6, 8) % 5
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, 'PNG')
    return file.getvalue()


def facts(item: WorkItem):
    return unpack(item.kind, read_item(item).facts)


@pytest.fixture
def image(tmp_path):
    path = tmp_path / 'a.png'
    path.write_bytes(png())
    return str(path)


def test_missing_and_unreadable_files_are_facts(tmp_path):
    items = [
        WorkItem(path=str(tmp_path / 'no.png'), kind='mask', stamp='absent'),
        WorkItem(path=str(tmp_path / 'gone.png'), kind='mask', stamp='1:2'),
        WorkItem(path=str(tmp_path), kind='image', stamp='1:2'),
        WorkItem(path='a\0b', kind='voc'),
        WorkItem(path='what://a', kind='mask'),
        WorkItem(path='a://b://c', kind='mask'),
    ]
    results = read_batch(items)
    errors = [unpack(i.kind, r.facts).error for i, r in zip(items, results)]
    missing = 'missing: No such file or directory'
    assert errors[:2] == [ReadError(ErrorKind.MISSING, missing)] * 2
    assert {error.kind for error in errors[2:]} == {ErrorKind.UNAVAILABLE}
    assert all(e.text.startswith('cannot be read: ') for e in errors[2:])
    assert "no file backend for 'what://a'" in errors[4].text
    # Only a file that was absent when it was looked at is remembered so.
    assert [r.stamp for r in results] == ['absent', '', '', '', '', '']


class Web(backends.BaseStorageBackend):
    """Stands for a backend over a network."""

    def __init__(self, files: dict):
        self.files = files

    def get(self, filepath):
        content = self.files.get(filepath)
        if isinstance(content, int):
            raise urllib.error.HTTPError(filepath, content, 'no', {}, None)
        return None if content is None else content.encode()

    def get_text(self, filepath, encoding='utf-8'):
        raise NotImplementedError


@pytest.fixture
def web(monkeypatch):
    table = dict(backends.registry_utils.backends)
    table['web'] = Web
    monkeypatch.setattr('mmengine.fileio.io.backends', table)
    files = {'ok': 'xyz', 'lost': 404, 'broken': 500}
    return {'backend': 'web', 'files': files}


def test_other_backends_and_their_errors(web):
    def of(path):
        return WorkItem(path=path, kind='mask', backend_args=web)

    assert facts(of('ok')) == read_mask_facts(b'xyz')
    assert facts(of('lost')).error.text.startswith('missing: HTTP Error 404')
    assert facts(of('none')).error.text.startswith('missing: the file backend')
    error = facts(of('broken')).error
    assert error.text.startswith('cannot be read: HTTPError: HTTP Error 500')


def test_known_bytes_are_not_decoded_again(web):
    item = WorkItem(path='ok', kind='mask', backend_args=web)
    first = read_item(item)
    assert first.stamp.startswith('sha256:')
    again = read_item(msgspec.structs.replace(item, known=first.stamp))
    assert (again.facts, again.stamp) == (b'', first.stamp)
    other = read_item(msgspec.structs.replace(item, known='sha256:0'))
    assert other == first


def test_rejects_unknown_file_backends(image):
    args = {'backend': 'nix'}
    item = WorkItem(path=image, kind='mask', backend_args=args)
    with pytest.raises(ValueError, match=r"backend_args\['backend'\].*'nix'"):
        read_item(item)

"""Damage to archives of torch.save, bit by bit."""

import os
import struct
import zipfile

import pytest
import torch

from mmext.utils.archive import DamagedFileError, check_archive
from mmext.utils.safe_load import load_torch

CONTENT = dict(
    meta=dict(iter=3, name='a'),
    state_dict=dict(a=torch.arange(5.0), b=torch.tensor([1, 2])),
)


def write(path, **options):
    torch.save(CONTENT, path, **options)
    return path


def flipped(content, position, bit):
    changed = bytearray(content)
    changed[position] ^= bit
    return bytes(changed)


def loads_the_same(path):
    try:
        loaded = load_torch(path)
    except ValueError:  # an error is no silent damage
        return True
    return loaded['meta'] == CONTENT['meta'] and all(
        torch.equal(loaded['state_dict'][name], value)
        for name, value in CONTENT['state_dict'].items()
    )


EVERY = pytest.mark.parametrize(
    'step', [13, pytest.param(1, marks=pytest.mark.slow)]
)


@EVERY
def test_a_file_loads_as_it_was_or_not_at_all(tmp_path, step):
    path = write(tmp_path / 'a.pth')
    assert check_archive(path)
    content = path.read_bytes()
    noticed = 0
    for position in range(0, len(content), step):
        path.write_bytes(flipped(content, position, 1 << position % 8))
        try:
            check_archive(path)
        except DamagedFileError:
            noticed += 1
        else:
            assert loads_the_same(path)
    assert noticed > len(content) / step / 3


def test_without_contents_only_tensors_are_left_out(tmp_path):
    path = write(tmp_path / 'a.pth')
    content = path.read_bytes()
    tensor = content.index(struct.pack('<5f', 0, 1, 2, 3, 4))
    path.write_bytes(flipped(content, tensor + 5, 2))
    assert check_archive(path, contents=False)
    path.write_bytes(flipped(content, content.index(b'iter'), 2))
    with pytest.raises(DamagedFileError, match=r"data.pkl'.*checksum"):
        check_archive(path, contents=False)


@pytest.mark.parametrize('size', [5, 100, 1000, -30, -1])
def test_cut_off(tmp_path, size):
    path = write(tmp_path / 'a.pth')
    os.truncate(path, size if size > 0 else path.stat().st_size + size)
    with pytest.raises(DamagedFileError):
        check_archive(path)


def test_what_has_no_checksums(tmp_path):
    old = write(tmp_path / 'old.pth', _use_new_zipfile_serialization=False)
    assert not check_archive(old)
    (tmp_path / 'text.pth').write_text('no checkpoint')
    assert not check_archive(tmp_path / 'text.pth')
    if not hasattr(torch.serialization, 'set_crc32_options'):
        pytest.skip('this PyTorch always writes checksums')
    torch.serialization.set_crc32_options(False)
    try:
        path = write(tmp_path / 'b.pth')
    finally:
        torch.serialization.set_crc32_options(True)
    assert not check_archive(path)


def test_something_appended_is_damage(tmp_path):
    path = write(tmp_path / 'a.pth')
    with open(path, 'ab') as file:
        file.write(b'more')
    with pytest.raises(DamagedFileError):
        check_archive(path)


def test_a_comment_is_no_damage(tmp_path):
    """Earlier versions of mmext wrote a checksum as one."""
    path = write(tmp_path / 'a.pth')
    with zipfile.ZipFile(path, 'a') as archive:
        archive.comment = b'mmext-crc32:01234567'
    assert check_archive(path)
    assert loads_the_same(path)

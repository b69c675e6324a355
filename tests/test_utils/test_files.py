"""Files appear whole or not at all."""

import os
import socket
from pathlib import Path

import pytest

from mmext.utils.files import atomic_path, new_tree, open_regular


def test_replaces_and_leaves_nothing_else(tmp_path):
    target = tmp_path / 'a' / 'b.json'
    for text in ('first', 'second'):
        with atomic_path(target) as temporary:
            assert temporary.parent == target.parent
            assert temporary.suffix == '.json'
            temporary.write_text(text)
        assert target.read_text() == text
    assert os.listdir(target.parent) == ['b.json']


def test_keeps_the_old_file_when_the_block_raises(tmp_path):
    target = tmp_path / 'a.txt'
    target.write_text('old')

    def write_half():
        with atomic_path(target) as temporary:
            temporary.write_text('ne')
            raise RuntimeError('halfway')

    with pytest.raises(RuntimeError, match='halfway'):
        write_half()
    assert target.read_text() == 'old'
    assert os.listdir(tmp_path) == ['a.txt']


def test_has_the_usual_permissions(tmp_path):
    plain, made = tmp_path / 'plain', tmp_path / 'made'
    plain.write_text('')
    with atomic_path(made) as temporary:
        temporary.write_text('')
        # As the writer of safetensors does.
        temporary.chmod(0o600)
    assert made.stat().st_mode == plain.stat().st_mode


def test_rejects_a_directory(tmp_path):
    with (
        pytest.raises(IsADirectoryError, match='path must be a file'),
        atomic_path(tmp_path),
    ):
        pass


def test_new_tree(tmp_path):
    out = tmp_path / 'a' / 'b' / 'out'
    with new_tree(out) as tree:
        (tree / 'x').write_text('1')
        assert not out.exists()
    assert (out / 'x').read_text() == '1'
    assert os.listdir(out.parent) == ['out']
    # Others may read it, as any new folder.
    (tmp_path / 'usual').mkdir()
    assert out.stat().st_mode == (tmp_path / 'usual').stat().st_mode


def test_new_tree_after_an_error(tmp_path):
    def write():
        with new_tree(tmp_path / 'out') as tree:
            (tree / 'x').write_text('1')
            raise KeyError('stop')

    with pytest.raises(KeyError, match='stop'):
        write()
    assert os.listdir(tmp_path) == []


def special_files(folder):
    """Name of the kind and path, for files that may block or never end."""
    os.mkfifo(folder / 'pipe.png')
    (folder / 'zero.png').symlink_to('/dev/zero')
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / 'socket.png'))
    return {
        'a named pipe (FIFO)': folder / 'pipe.png',
        'a character device': folder / 'zero.png',
        'a socket': folder / 'socket.png',
    }


def test_opens_regular_files_only(tmp_path, monkeypatch):
    (tmp_path / 'file').write_bytes(b'content')
    (tmp_path / 'link').symlink_to('file')
    for name in ('file', 'link'):
        with open_regular(tmp_path / name) as file:
            assert file.read() == b'content'
    monkeypatch.chdir(tmp_path)  # The name of a socket has 107 bytes.
    for kind, path in special_files(Path()).items():
        with pytest.raises(OSError, match='must be a regular file') as error:
            open_regular(path)
        assert repr(str(path)) in str(error.value)
        assert f'got {kind};' in str(error.value)
    with pytest.raises(IsADirectoryError, match='got a folder'):
        open_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / 'none')


def test_a_file_exchanged_for_a_pipe_does_not_block(tmp_path, monkeypatch):
    path = tmp_path / 'file'
    path.write_bytes(b'content')
    before = os.stat(path)
    path.unlink()
    os.mkfifo(path)
    # The check before opening sees the file, and the open gets the pipe.
    monkeypatch.setattr(os, 'stat', lambda path: before)
    with pytest.raises(OSError, match='got a named pipe'):
        open_regular(path)

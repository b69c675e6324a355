"""Files appear whole or not at all."""

import os

import pytest

from mmext.utils.files import atomic_path, new_tree


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

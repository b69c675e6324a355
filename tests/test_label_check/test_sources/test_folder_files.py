"""Files below a folder."""

from pathlib import Path

from mmext.label_check.sources.folder_files import (
    files_below,
    names_in,
    stem_below,
)


def test_in_the_order_of_names(tmp_path):
    for name in ('b/2.PNG', 'b/1.png', 'a/3.png', '0.png', 'a/x.txt'):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    names = [
        Path(path).relative_to(tmp_path).as_posix()
        for path in files_below(tmp_path, ('.png',))
    ]
    assert names == ['0.png', 'a/3.png', 'b/1.png', 'b/2.PNG']


def test_of_no_folder(tmp_path):
    assert list(files_below(tmp_path / 'none', ('.png',))) == []


def test_stems(tmp_path):
    root = str(tmp_path)
    assert stem_below(f'{root}/a/b.c.png', root) == 'a/b.c'
    assert stem_below(f'{root}/b_mask.png', root, '_mask.png') == 'b'
    assert stem_below(f'{root}/b.png', root, '_mask.png') == 'b'


def test_names(tmp_path):
    for name in ('b.png', 'a.PNG', 'x.txt'):
        (tmp_path / name).touch()
    (tmp_path / 'sub').mkdir()
    # A link to a folder above would have no end.
    (tmp_path / 'loop').symlink_to(tmp_path)
    assert names_in(str(tmp_path), ('.png',)) == (['a.PNG', 'b.png'], ['sub'])
    assert names_in(str(tmp_path / 'none'), ('.png',)) == ([], [])

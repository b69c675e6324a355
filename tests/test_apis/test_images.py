"""Which files are meant, and what their pictures are called."""

import os
from pathlib import Path

import pytest

from mmext.apis.images import list_images, output_paths


@pytest.fixture
def folder(tmp_path):
    for name in ('b.png', 'a.JPG', 'notes.txt', '.hidden.png', 'sub/c.jpg'):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def names(paths):
    return [path.name for path in paths]


def test_directory_gives_its_own_images_sorted(folder):
    assert names(list_images([folder])) == ['a.JPG', 'b.png']


def test_pattern_gives_images_sorted(folder):
    assert names(list_images([f'{folder}/**/*.*'])) == [
        'a.JPG',
        'b.png',
        'c.jpg',
    ]


def test_files_keep_their_order_and_come_once(folder):
    (folder / 'link.png').symlink_to(folder / 'b.png')
    found = list_images([folder / 'sub/c.jpg', folder / 'b.png', folder])
    assert names(found) == ['c.jpg', 'b.png', 'a.JPG']


def test_a_name_with_pattern_characters_is_a_file(tmp_path):
    (tmp_path / 'img[1].png').touch()
    found = list_images([str(tmp_path / 'img[1].png')])
    assert names(found) == ['img[1].png']


def test_a_file_of_any_suffix_is_taken(folder):
    assert names(list_images([folder / 'notes.txt'])) == ['notes.txt']


def test_rejects_what_is_not_there_and_names_all(folder):
    (folder / 'empty').mkdir()
    sources = [folder / 'b.png', folder / 'no.png', folder / 'empty']
    with pytest.raises(FileNotFoundError) as caught:
        list_images([*sources, f'{folder}/*.bmp'])
    for part in (
        'no.png (does not exist)',
        'empty (a directory without images)',
        '*.bmp (does not exist)',
    ):
        assert part in str(caught.value)
    assert 'b.png' not in str(caught.value)


def test_rejects_nothing():
    with pytest.raises(ValueError, match='images must name at least one'):
        list_images([])


def test_same_names_keep_their_folders():
    images = [Path('a/s/x.png'), Path('a/t/x.png'), Path('a/t/y.tif')]
    assert output_paths(images, 'out') == [
        Path('out/s/x.png'),
        Path('out/t/x.png'),
        Path('out/t/y.tif.png'),
    ]


def test_suffixes_cannot_make_two_names_one():
    found = output_paths([Path('x.png'), Path('x.bmp')], 'out')
    assert len(set(found)) == 2


@pytest.mark.parametrize('how', ['plain', 'link', 'relative'])
def test_rejects_writing_over_an_image(folder, how):
    out = folder
    if how == 'link':
        out = folder / 'out'
        out.symlink_to(folder)
    elif how == 'relative':
        out = os.path.relpath(folder)
    with pytest.raises(ValueError, match='out must not be a folder of the'):
        output_paths([folder / 'b.png'], out)

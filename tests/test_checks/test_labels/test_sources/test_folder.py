"""Pairs of images and label maps by their names."""

from pathlib import Path

import pytest

from mmext.checks.labels.expectations import Expectations
from mmext.checks.labels.sources import split_of_folders
from mmext.checks.labels.sources.folder import files_below


def touch(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def pairs(source) -> list[tuple[str, str]]:
    return [
        (Path(sample.image).name, Path(sample.mask).name)
        for sample in source.samples()
    ]


def test_pairs_by_name(tmp_path):
    masks = touch(tmp_path / 'masks', 'b/1.png', 'a.png', 'x.txt')
    images = touch(tmp_path / 'images', 'b/1.jpg', 'a.JPG', 'c.jpg')
    source = split_of_folders(masks, images, Expectations())
    assert pairs(source) == [
        ('a.JPG', 'a.png'),
        ('c.jpg', ''),
        ('1.jpg', '1.png'),
    ]
    assert [sample.index for sample in source.samples()] == [0, 1, 2]


def test_two_files_of_a_name(tmp_path):
    """One is read, the other is told of."""
    masks = touch(tmp_path / 'masks', 'a.png', 'a.tif')
    images = touch(tmp_path / 'images', 'a.jpg', 'a.webp')
    source = split_of_folders(masks, images, Expectations())
    assert pairs(source) == [('a.jpg', 'a.png')]
    assert [(Path(o.path).name, o.kind) for o in source.orphans()] == [
        ('a.tif', 'mask'),
        ('a.webp', 'image'),
    ]


def test_a_link_to_a_folder_above_has_an_end(tmp_path):
    path = touch(tmp_path, 'sub/a.PNG') / 'sub/a.PNG'
    (tmp_path / 'sub/loop').symlink_to(tmp_path)
    assert list(files_below(tmp_path, ('.png',))) == [str(path)]


def test_a_suffix_that_no_file_has(tmp_path):
    (tmp_path / 'a_gt.png').touch()
    with pytest.raises(ValueError, match=r'mask_suffix .* first is .a_gt.png'):
        split_of_folders(
            tmp_path, None, Expectations(), mask_suffix='_ids.png'
        )


def test_images_of_other_tasks_in_the_layout_of_voc(tmp_path):
    """Most images have boxes alone; what a list names must have a map."""
    for folder in ('SegmentationClass', 'JPEGImages'):
        (tmp_path / folder).mkdir()
    for name in 'abc':
        (tmp_path / f'JPEGImages/{name}.jpg').touch()
    (tmp_path / 'SegmentationClass/a.png').touch()
    lists = tmp_path / 'ImageSets/Segmentation'
    lists.mkdir(parents=True)
    (lists / 'train.txt').write_text('a\nb\n')
    source = split_of_folders(
        tmp_path / 'SegmentationClass', tmp_path / 'JPEGImages', Expectations()
    )
    assert pairs(source) == [('a.jpg', 'a.png'), ('b.jpg', '')]
    assert [path.path[-5:] for path in source.orphans()] == ['c.jpg']


def test_jpeg_is_a_mask_where_nothing_else_is(tmp_path):
    """Beside masks of another format, JPEG files are pictures."""
    masks = touch(tmp_path / 'masks', 'a.jpg', 'b/1.JPG')
    images = touch(tmp_path / 'images', 'a.png', 'b/1.png')
    source = split_of_folders(masks, images, Expectations())
    assert pairs(source) == [('a.png', 'a.jpg'), ('1.png', '1.JPG')]
    mixed = touch(tmp_path / 'mixed', 'a.jpg', 'a.png')
    assert pairs(split_of_folders(mixed, None, Expectations())) == [
        ('', 'a.png')
    ]
    source = split_of_folders(tmp_path / 'images', images, Expectations())
    assert [mask for _, mask in pairs(source)] == ['a.png', '1.png']
    alone = touch(tmp_path / 'alone', 'a.jpg')
    assert pairs(split_of_folders(alone, alone, Expectations())) == [
        ('a.jpg', '')
    ]

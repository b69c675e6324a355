"""Pairs of images and label maps by their names."""

from pathlib import Path

import pytest

from mmext.label_check.expectations import Expectations
from mmext.label_check.sources import split_of_folders


def touch(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def pairs(source) -> list[tuple[str, str]]:
    return [
        (Path(each.image).name, Path(each.mask).name)
        for each in source.samples()
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
    assert [each.index for each in source.samples()] == [0, 1, 2]


def test_suffixes(tmp_path):
    masks = touch(tmp_path / 'm', 'u_gtFine_labelTrainIds.png')
    images = touch(tmp_path / 'i', 'u_leftImg8bit.png')
    source = split_of_folders(
        masks,
        images,
        Expectations(),
        mask_suffix='_gtFine_labelTrainIds.png',
        image_suffix='_leftImg8bit.png',
    )
    assert pairs(source) == [
        ('u_leftImg8bit.png', 'u_gtFine_labelTrainIds.png')
    ]


def test_masks_alone(tmp_path):
    masks = touch(tmp_path, 'a.png', 'b.png')
    assert pairs(split_of_folders(masks, None, Expectations())) == [
        ('', 'a.png'),
        ('', 'b.png'),
    ]


def test_rejects_missing_folders(tmp_path):
    with pytest.raises(NotADirectoryError, match='masks must be an existing'):
        split_of_folders(tmp_path / 'no', None, Expectations())
    with pytest.raises(NotADirectoryError, match='images must be'):
        split_of_folders(tmp_path, tmp_path / 'no', Expectations())


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

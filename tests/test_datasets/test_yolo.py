"""Labels in YOLO's form, and the data set that reads them."""

import math
import os
from pathlib import Path

import numpy as np
import pytest
from mmengine.registry import DATASETS
from PIL import Image

from mmext.datasets import (
    find_yolo_data,
    read_yolo_labels,
    yolo_label_path,
    yolo_pictures,
)


def test_lines_of_boxes_and_outlines():
    boxes, problems = read_yolo_labels(
        '1 0.5 0.5 0.25 0.5\n\n0.0 0.1 0.2 0.4 0.2 0.4 0.9\n'
    )
    assert problems == []
    assert [(box.line, box.label) for box in boxes] == [(1, 1), (3, 0)]
    np.testing.assert_allclose(boxes[0].box, (0.375, 0.25, 0.625, 0.75))
    # Around the corners.
    np.testing.assert_allclose(boxes[1].box, (0.1, 0.2, 0.4, 0.9))


@pytest.mark.parametrize(
    ('line', 'kind', 'message'),
    [
        ('0 0.5 0.5 0.2', 'form', 'got 4 columns'),
        ('0 0.5 0.5 0.2 0.2 0.9', 'form', 'got 6 columns'),
        ('0 0.5 0.5 0.2 0.2 0.9 0.9 0.9', 'form', 'got 8 columns'),
        ('cat 0.5 0.5 0.2 0.2', 'form', "must be a number, got 'cat'"),
        ('-1 0.5 0.5 0.2 0.2', 'form', "whole number from 0 on, got '-1'"),
        ('1.5 0.5 0.5 0.2 0.2', 'form', "whole number from 0 on, got '1.5'"),
        ('nan 0.5 0.5 0.2 0.2', 'form', "whole number from 0 on, got 'nan'"),
        ('1e30 0.5 0.5 0.2 0.2', 'form', "number from 0 on, got '1e30'"),
        ('0 12 0.5 0.2 0.2', 'range', 'in [0, 1], got 12'),
        ('0 0.5 0.5 -0.2 0.2', 'range', 'in [0, 1], got -0.2'),
    ],
)
def test_wrong_lines(line, kind, message):
    boxes, problems = read_yolo_labels(f'\n{line}\n')
    ((number, actual, text),) = problems
    assert (number, actual) == (2, kind)
    assert message in text
    assert len(boxes) == (kind == 'range')
    assert all(math.isfinite(side) for box in boxes for side in box.box)


def test_locations_of_labels():
    for picture, labels in (
        ('images/a.jpg', 'labels/a.txt'),
        ('/x/images/images/b/a.JPG', '/x/images/labels/b/a.txt'),
        ('my_images/a.png', 'my_images/a.txt'),
        ('a.png', 'a.txt'),
    ):
        assert yolo_label_path(picture) == labels


def test_pictures_of_a_folder_and_of_a_list(tmp_path):
    folder = tmp_path / 'images'
    for name in ('b.PNG', 'a.jpg', 'c/d.webp', 'a.txt'):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    paths = yolo_pictures(str(folder))
    assert [os.path.relpath(path, folder) for path in paths] == [
        *('a.jpg', 'b.PNG', 'c/d.webp')
    ]
    listed = tmp_path / 'train.txt'
    listed.write_text('./images/a.jpg\n\nimages/b.PNG\n/x/c.jpg\n')
    assert yolo_pictures(str(listed), 'root') == [
        *(str(folder / 'a.jpg'), 'root/images/b.PNG', '/x/c.jpg')
    ]
    with pytest.raises(FileNotFoundError, match='a folder or a text file'):
        yolo_pictures(str(tmp_path / 'none'))


def write(root: Path, text: str | None, *folders: str) -> Path:
    for folder in folders:
        (root / folder).mkdir(parents=True)
    if text is not None:
        (root / 'data.yaml').write_text(text)
    return root


@pytest.mark.parametrize(
    ('text', 'folders', 'splits'),
    [
        ('train: a\nval: b\nnames: [x, y]', ('a', 'b'), {'train', 'val'}),
        ('train: [a, c]\nval: b\nnames: [x, y]', 'abc', {'train', 'val'}),
        ('path: in\ntrain: a\nnames: {1: y, 0: x}', ('in/a',), {'train'}),
        ('path: /gone\ntrain: a\nnc: 2\nnames: [x, y]', ('a',), {'train'}),
        # Roboflow: the folders are beside the file, whatever it says.
        ('train: ../a\ntest: ../t\nnames: [x, y]', ('a',), {'train'}),
    ],
)
def test_data_yaml(text, folders, splits, tmp_path):
    root = write(tmp_path, text, *folders)
    for path in (root, root / 'data.yaml'):
        data = find_yolo_data(path)
        assert data.names == ('x', 'y')
        assert set(data.splits) == splits
        assert all(
            folder.is_dir() for own in data.splits.values() for folder in own
        )
    assert find_yolo_data(root, ['u', 'v']).names == ('u', 'v')


@pytest.mark.parametrize(
    ('text', 'error', 'message'),
    [
        ('train: b\nnames: [x]', FileNotFoundError, 'train of .* no .*b'),
        ('train: a\nnames: [x]\nnc: 2', ValueError, 'number of names, 1'),
        ('train: a\nnames: {1: x}', ValueError, 'numbered from 0 on'),
        ('train: a\nnames: x', ValueError, "names of the classes, got 'x'"),
        ('names: [', ValueError, 'must be YAML'),
    ],
)
def test_wrong_data_yaml(text, error, message, tmp_path):
    root = write(tmp_path, text, 'a')
    with pytest.raises(error, match=message):
        find_yolo_data(root)


def test_code_in_data_yaml_does_not_run(tmp_path):
    text = f'names: !!python/object/apply:os.mkdir ["{tmp_path}/ran"]'
    with pytest.raises(ValueError, match='must be YAML'):
        find_yolo_data(write(tmp_path, text))
    assert not (tmp_path / 'ran').exists()


def test_folders_without_yaml(tmp_path):
    root = write(tmp_path, None, 'images/train', 'images/val', 'labels/train')
    with pytest.raises(ValueError, match='give them with --classes'):
        find_yolo_data(root)
    (root / 'classes.txt').write_text('x\ny\n')
    data = find_yolo_data(root)
    assert data.names == ('x', 'y')
    assert data.splits['val'] == (root / 'images/val',)
    with pytest.raises(ValueError, match='in the layout of YOLO'):
        find_yolo_data(write(tmp_path / 'other', None, 'pictures'))


def build(root: Path, **more):
    return DATASETS.build(
        {
            'type': 'mmext.YOLODataset',
            'data_root': str(root),
            'ann_file': 'images',
            'metainfo': {'classes': ('x', 'y')},
            'pipeline': [],
            **more,
        }
    )


@pytest.fixture
def root(tmp_path) -> Path:
    """Pictures of 20 x 10: two objects, none, and no file of labels."""
    (tmp_path / 'images').mkdir()
    (tmp_path / 'labels').mkdir()
    for name, text in (
        ('a', '1 0.5 0.5 0.5 0.4\n0 0.1 0.5 0.01 0.5\n'),
        ('b', ''),
        ('c', None),
    ):
        Image.new('RGB', (20, 10)).save(tmp_path / f'images/{name}.png')
        if text is not None:
            (tmp_path / f'labels/{name}.txt').write_text(text)
    return tmp_path


def test_data_set(root):
    dataset = build(root)
    assert len(dataset) == 3
    info = dataset.get_data_info(0)
    assert (info['width'], info['height'], info['img_id']) == (20, 10, 0)
    first, second = info['instances']
    np.testing.assert_allclose(first['bbox'], (5, 3, 15, 7))
    assert (first['bbox_label'], first['ignore_flag']) == (1, 0)
    # A fifth of a pixel wide.
    assert (second['bbox_label'], second['ignore_flag']) == (0, 1)
    assert [dataset.get_data_info(i)['instances'] for i in (1, 2)] == [[], []]


def test_pictures_that_are_left_out(root):
    for wanted, number in (
        ({'filter_empty_gt': True}, 1),
        ({'min_size': 11}, 0),
        ({'min_size': 10}, 3),
    ):
        assert len(build(root, filter_cfg=wanted, serialize_data=False)) == (
            number
        )
    wanted = {'filter_empty_gt': True}
    assert len(build(root, filter_cfg=wanted, test_mode=True)) == 3


def test_a_picture_that_exif_turns(root):
    """Boxes are of the picture as it is shown, and as loaders turn it."""
    picture = Image.new('RGB', (20, 10))
    exif = picture.getexif()
    exif[0x0112] = 6
    picture.save(root / 'images/a.png', exif=exif)
    info = build(root).get_data_info(0)
    assert (info['width'], info['height']) == (10, 20)
    np.testing.assert_allclose(info['instances'][0]['bbox'], (2.5, 6, 7.5, 14))


def test_wrong_labels_are_named(root):
    text = '2 0.5 0.5 0.5 0.5\n0 nan 0.5 0.5 0.5\n0 9 9 9 9\n0 1\n'
    path = root / 'labels/b.txt'
    path.write_text(text)
    with pytest.raises(ValueError, match='got 4 others') as error:
        build(root)
    for line, part in enumerate(
        ('must be below 2', 'not finite', 'in [0, 1], got 9', '2 columns'), 1
    ):
        assert f'{path}:{line}: ' in str(error.value)
        assert part in str(error.value)
    path.write_bytes(b'\xff')
    with pytest.raises(ValueError, match='must be text'):
        build(root)
    (root / 'empty').mkdir()
    with pytest.raises(ValueError, match='ann_file must have pictures'):
        build(root, ann_file='empty')

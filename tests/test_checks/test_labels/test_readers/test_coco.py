"""COCO files as columns, against json and pycocotools."""

import json

import numpy as np
import pytest
from pycocotools.coco import COCO

from mmext.checks.labels.readers.coco import mask_of, read_coco


def dataset(seed: int = 0, count: int = 60) -> dict:
    rng = np.random.default_rng(seed)
    shapes = (
        lambda: [rng.random(8).round(2).tolist()],
        lambda: {'size': [9, 9], 'counts': [3, 5, 73]},
        lambda: [],
        lambda: None,
        lambda: 'none',
    )
    annotations = [
        {
            'id': 1000 + number,
            'image_id': int(rng.integers(10)),
            'category_id': int(rng.integers(1, 4)),
            'bbox': (rng.random(4) * 100).round(3).tolist(),
            'area': float(rng.random()),
            'iscrowd': int(number % 7 == 0),
            'segmentation': shapes[number % len(shapes)](),
        }
        for number in range(count)
    ]
    return {
        'info': {'year': 2020},
        'images': [
            {'id': i, 'file_name': f'{i}.jpg', 'width': 640, 'height': 480}
            for i in range(10)
        ],
        'annotations': annotations,
        'categories': [
            {'id': i, 'name': f'class {i}', 'supercategory': 's'}
            for i in (3, 1, 2)
        ],
    }


PLAIN = dataset()
DELETED = 'deleted'


def encode(data: object) -> bytes:
    return json.dumps(data).encode()


def edited(key: str, index: int, **changes) -> bytes:
    data = json.loads(encode(PLAIN))
    record = data[key][index] | changes
    data[key][index] = {k: v for k, v in record.items() if v != DELETED}
    return encode(data)


def test_matches_pycocotools(tmp_path, capsys):
    path = tmp_path / 'ann.json'
    path.write_bytes(encode(PLAIN))
    coco = COCO(path)
    file = read_coco(path.read_bytes())
    assert file.errors == ()
    table = file.annotations
    assert table.id.tolist() == list(coco.anns)
    for row, record in enumerate(coco.anns.values()):
        for key in ('image_id', 'category_id', 'area', 'iscrowd'):
            assert getattr(table, key)[row] == record[key]
        assert table.bbox[row].tolist() == record['bbox']
        assert table.segmentation(row) == record['segmentation']
    assert table.has_bbox.all()
    assert table.has_area.all()
    assert not table.ignore.any()
    assert file.images.id.tolist() == list(coco.imgs)
    assert file.images.file_name == tuple(
        image['file_name'] for image in coco.imgs.values()
    )
    assert set(file.images.width) == {640.0}
    assert set(file.images.height) == {480.0}
    assert file.categories.id.tolist() == [3, 1, 2]
    assert file.categories.name == ('class 3', 'class 1', 'class 2')


@pytest.mark.parametrize(
    ('key', 'index', 'changes', 'location', 'message'),
    [
        ('annotations', 17, {'bbox': [1, 2, 3]}, '.bbox', 'of length 4'),
        ('annotations', 5, {'id': 1 << 63}, '.id', '`int` <= 9223372036854'),
        ('annotations', 6, {'bbox': [1, 2, None, 4]}, '.bbox[2]', '`null`: ['),
        ('annotations', 8, {'area': 10**400}, '.area', ''),
        ('annotations', 9, {'image_id': DELETED}, '', 'required field `ima'),
        ('images', 2, {'id': ['x' * 500]}, '.id', "got `array`: ['xxx"),
        ('categories', 1, {'name': None}, '.name', 'got `null`: None'),
    ],
)
def test_wrong_types_are_named_and_the_others_kept(
    key, index, changes, location, message
):
    file = read_coco(edited(key, index, **changes))
    (error,) = file.errors
    assert error.location == f'{key}[{index}]{location}'
    assert message in error.message
    assert len(error.message) < 150
    kept = [i for i in range(len(PLAIN[key])) if i != index]
    assert getattr(file, key).index.tolist() == kept
    assert getattr(file, key).id.tolist() == [
        PLAIN[key][i]['id'] for i in kept
    ]


def test_parts_that_are_missing():
    data = {key: PLAIN[key] for key in ('images', 'categories')}
    file = read_coco(encode(data | {'categories': {}}))
    assert [(error.location, error.message) for error in file.errors] == [
        ('annotations', 'the key is missing'),
        ('categories', 'must be an array, got dict'),
    ]
    assert len(file.images.id) == 10


def test_text_that_is_no_utf8():
    """In a key that is skipped, too: json, and a training, would fail."""
    text = encode(PLAIN).replace(b'2020', b'"\xff\xff"')
    (error,) = read_coco(text).errors
    assert error.message.startswith("malformed JSON: 'utf-8' codec")


def test_boxes_around_polygons():
    data = dataset(5, 200)
    for number, note in enumerate(data['annotations'][::5]):
        note['segmentation'] *= 1 + number % 3
        note['segmentation'][-1] = [1, -2.5, 1e3, 4, 0.5, 70 + number]
    table = read_coco(encode(data)).annotations
    fine = table.segmentation_kind == 1
    assert fine.sum() == 40
    assert table.segmentation_fine[fine].all()
    assert np.isnan(table.polygon_box[~fine]).all()
    for row in np.flatnonzero(fine):
        points = np.concatenate(
            [
                np.reshape(polygon, (-1, 2))
                for polygon in table.segmentation(row)
            ]
        )
        around = [*points.min(0), *points.max(0)]
        assert table.polygon_box[row].tolist() == around


def test_a_number_beyond_float_in_a_polygon():
    """Python has it; what is wrong with it is found when it is decoded."""
    data = dataset(5)
    data['annotations'][10]['segmentation'] = [[1, 2, 3, 4, 5, 10**350]]
    table = read_coco(encode(data)).annotations
    assert table.segmentation_kind[10] == 1
    assert not table.segmentation_fine[10]
    assert np.isnan(table.polygon_box[10]).all()
    assert table.segmentation(10) == data['annotations'][10]['segmentation']
    error, around = mask_of(table, 10, (480, 640))
    assert error == 'polygon 0 has a number that is not finite'
    assert around == ()

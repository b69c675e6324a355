"""COCO files as columns, against json and pycocotools."""

import io
import json
import math

import msgspec
import numpy as np
import pytest
from pycocotools.coco import COCO

from mmext.checks.labels.readers import coco as coco_reader
from mmext.checks.labels.readers import coco_stream
from mmext.checks.labels.readers.coco import (
    RawAnnotation,
    convert_record,
    read_coco,
)
from mmext.checks.labels.readers.coco_masks import mask_of
from mmext.checks.labels.readers.coco_stream import (
    UnusualFile,
    decode_records,
    record_batches,
)


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


def encode(data: object) -> bytes:
    return json.dumps(data).encode()


def edited(key: str, index: int, **changes) -> bytes:
    data = json.loads(encode(PLAIN))
    data[key][index].update(changes)
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
        each['file_name'] for each in coco.imgs.values()
    )
    assert set(file.images.width) == {640.0}
    assert set(file.images.height) == {480.0}
    assert file.categories.id.tolist() == [3, 1, 2]
    assert file.categories.name == ('class 3', 'class 1', 'class 2')


@pytest.mark.parametrize('indent', [None, 2])
@pytest.mark.parametrize('slow', [False, True])
def test_kinds_of_segmentations(indent, slow):
    data = json.loads(encode(PLAIN))
    if slow:
        data['annotations'][0]['area'] = math.nan
    file = read_coco(json.dumps(data, indent=indent).encode())
    kinds = [1, 2, 0, 0, 3] * 12
    assert file.annotations.segmentation_kind.tolist() == kinds
    for row in range(5):
        record = PLAIN['annotations'][row]
        assert file.annotations.segmentation(row) == record['segmentation']


def test_what_is_not_there():
    data = json.loads(encode(PLAIN))
    for key in ('bbox', 'area', 'iscrowd', 'segmentation'):
        del data['annotations'][5][key]
    data['annotations'][6]['ignore'] = 1
    del data['images'][0]['width']
    file = read_coco(encode(data))
    table = file.annotations
    assert file.errors == ()
    assert np.flatnonzero(~table.has_bbox).tolist() == [5]
    assert np.flatnonzero(~table.has_area).tolist() == [5]
    assert np.isnan(table.bbox[5]).all()
    assert np.isnan(table.area[5])
    assert table.iscrowd[5] == table.segmentation_kind[5] == 0
    assert table.segmentation(5) is None
    assert np.flatnonzero(table.ignore).tolist() == [6]
    assert file.images.width[0] == 0


@pytest.mark.parametrize('bad', [math.nan, math.inf, -math.inf])
def test_numbers_that_are_no_json_are_kept(bad):
    file = read_coco(edited('annotations', 4, bbox=[1, bad, 3, 4]))
    assert file.errors == ()
    assert np.array_equal(
        file.annotations.bbox[4], [1, bad, 3, 4], equal_nan=True
    )
    assert file.annotations.has_bbox.all()


@pytest.mark.parametrize(
    ('key', 'index', 'changes', 'place', 'message'),
    [
        ('annotations', 17, {'bbox': [1, 2, 3]}, '.bbox', 'of length 4'),
        ('annotations', 17, {'bbox': 'no'}, '.bbox', "got `str`: 'no'"),
        ('annotations', 3, {'id': []}, '.id', 'Expected `int`, got `array`'),
        ('annotations', 0, {'iscrowd': 'no'}, '.iscrowd', 'got `str`'),
        ('images', 9, {'height': '480'}, '.height', "got `str`: '480'"),
        ('categories', 1, {'name': None}, '.name', 'got `null`: None'),
    ],
)
def test_wrong_types_are_named_and_the_others_kept(
    key, index, changes, place, message
):
    file = read_coco(edited(key, index, **changes))
    (error,) = file.errors
    assert error.place == f'{key}[{index}]{place}'
    assert message in error.message
    kept = [i for i in range(len(PLAIN[key])) if i != index]
    assert getattr(file, key).index.tolist() == kept
    assert getattr(file, key).id.tolist() == [
        PLAIN[key][i]['id'] for i in kept
    ]


def test_every_wrong_record_is_named():
    data = json.loads(encode(PLAIN))
    del data['annotations'][2]['image_id']
    data['annotations'][8] = None
    data['images'][1]['id'] = []
    file = read_coco(encode(data))
    assert [error.place for error in file.errors] == [
        'images[1].id',
        'annotations[2]',
        'annotations[8]',
    ]
    assert len(file.annotations.id) == len(PLAIN['annotations']) - 2


@pytest.mark.parametrize(
    ('content', 'place', 'message'),
    [
        (b'', '', 'malformed JSON: Expecting value: line 1 column 1'),
        (encode(PLAIN)[:-9], '', 'malformed JSON: '),
        (b'\xff\xfe\xfd', '', 'malformed JSON: '),
        (b'[]', '', 'the top level must be an object, got list'),
        (b'{"a":' * 100_000, '', 'malformed JSON: '),
    ],
)
def test_malformed_files(content, place, message):
    file = read_coco(content)
    (error,) = file.errors
    assert error.place == place
    assert error.message.startswith(message)
    assert len(file.annotations.id) == len(file.images.id) == 0
    assert file.annotations.bbox.shape == (0, 4)


def test_parts_that_are_missing():
    data = {key: PLAIN[key] for key in ('images', 'categories')}
    file = read_coco(encode(data | {'categories': {}}))
    assert [(error.place, error.message) for error in file.errors] == [
        ('annotations', 'the key is missing'),
        ('categories', 'must be an array, got dict'),
    ]
    assert len(file.images.id) == 10


def test_empty_parts():
    file = read_coco(b'{"images": [], "annotations": [], "categories": []}')
    assert file.errors == ()
    assert file.annotations.bbox.shape == (0, 4)


def test_ids_are_as_equal_as_in_python():
    ids = 7, 7.0, '7', 7.5, '7', '', -3.0
    data = {'images': [{'id': i, 'file_name': 'a'} for i in ids]}
    data |= {'annotations': [], 'categories': []}
    file = read_coco(encode(data))
    assert file.errors == ()
    found = file.images.id.tolist()
    assert [found.index(each) for each in found] == [0, 0, 2, 3, 2, 5, 6]
    assert [file.ids.get(each, each) for each in found] == list(ids)
    assert max(file.ids) < -3


def test_byte_order_mark():
    """json refuses it in text, which is what loaders give it."""
    (error,) = read_coco(b'\xef\xbb\xbf' + encode(PLAIN)).errors
    assert error.message.startswith('malformed JSON: Unexpected UTF-8 BOM')


def test_text_that_is_no_utf8():
    """In a key that is skipped, too: json, and a training, would fail."""
    text = encode(PLAIN).replace(b'2020', b'"\xff\xff"')
    (error,) = read_coco(text).errors
    assert error.message.startswith("malformed JSON: 'utf-8' codec")


def test_rejects_numbers_of_thousands_of_digits():
    digits = b'9' * 5000
    text = encode(PLAIN).replace(b'"none"', b'[%s]' % digits, 1)
    file = read_coco(text)
    assert file.annotations.segmentation_kind[4] == 1
    assert not file.annotations.segmentation_fine[4]
    with pytest.raises(ValueError, match='Exceeds the limit'):
        file.annotations.segmentation(4)


def test_fuzzed_files_do_not_raise(rng):
    content = encode(dataset(1, 5))
    errors = 0
    for number in range(1000):
        changed = bytearray(content)
        if number % 4 == 0:
            del changed[int(rng.integers(len(content))) :]
        for _ in range(number % 4):
            position = int(rng.integers(len(content)))
            changed[position] = int(rng.integers(256))
        file = read_coco(bytes(changed))
        try:
            json.loads(bytes(changed))
        except ValueError:
            errors += 1
            assert file.errors
    assert errors > 400


COCO_RECORDS_PLAIN = {'id': 1, 'image_id': 2, 'category_id': 3}


def test_sound_records():
    record, place, message = convert_record('annotations', COCO_RECORDS_PLAIN)
    assert (place, message) == ('', '')
    assert isinstance(record, RawAnnotation)
    assert (record.id, record.image_id, record.category_id) == (1, 2, 3)
    assert (record.bbox, record.area, record.segmentation) == (None,) * 3
    image, _, _ = convert_record(
        'images', {'id': 1, 'file_name': 'a', 'width': 640.0, 'more': []}
    )
    assert (image.width, image.height) == (640, 0)


@pytest.mark.parametrize(
    ('change', 'place', 'message'),
    [
        ({'id': 'a'}, '.id', "Expected `int`, got `str`: 'a'"),
        ({'id': 1.5}, '.id', 'Expected `int`, got `float`: 1.5'),
        ({'id': 1 << 63}, '.id', 'Expected `int` <= 9223372036854775807'),
        ({'bbox': [1, 2, 3]}, '.bbox', 'Expected `array` of length 4'),
        (
            {'bbox': [1, 2, None, 4]},
            '.bbox[2]',
            'Expected `float`, got `null`: [1, 2, None, 4]',
        ),
        ({'area': '7'}, '.area', "Expected `float | null`, got `str`: '7'"),
    ],
)
def test_wrong_types_have_their_place(change, place, message):
    record, where, what = convert_record(
        'annotations', COCO_RECORDS_PLAIN | change
    )
    assert record is None
    assert where == place
    assert what.startswith(message)


def test_missing_and_foreign():
    assert convert_record('annotations', {'id': 1}) == (
        None,
        '',
        "Object missing required field `image_id`: ['id']",
    )
    assert convert_record('images', 7)[2] == 'Expected `object`, got `int`'
    long = convert_record('images', {'id': 'x' * 500})[2]
    assert len(long) < 120
    assert long.endswith('...')


def test_numbers_beyond_float_are_errors():
    record, _, message = convert_record(
        'annotations', COCO_RECORDS_PLAIN | {'area': 10**400}
    )
    assert record is None
    assert message


def test_records_leave_segmentations_undecoded():
    records = [
        COCO_RECORDS_PLAIN | {'segmentation': [[1, 2]]},
        COCO_RECORDS_PLAIN,
    ]
    text = msgspec.json.encode(records)[1:-1]
    assert [
        bytes(each.segmentation)
        for each in decode_records(text, RawAnnotation)
    ] == [b'[[1,2]]', b'']


def as_lists(file):
    """All that is known of a file, to compare it."""
    tables = {
        key: {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in msgspec.structs.asdict(
                getattr(file, key)
            ).items()
            if name != 'segmentations'
        }
        for key in ('images', 'annotations', 'categories')
    }
    rows = range(len(file.annotations.id))
    shapes = [file.annotations.segmentation(row) for row in rows]
    return str((tables, shapes, file.errors))


@pytest.mark.parametrize('indent', [None, 1])
@pytest.mark.parametrize('last', ['images', 'annotations', 'info'])
def test_pieces_of_any_size_give_the_same(monkeypatch, indent, last):
    """Texts and objects that look like the end of a record are none."""
    data = dataset(3)
    for number, note in enumerate(data['annotations']):
        note['note'] = ['}, {', ' } ] ', '\\"},{', 'é}]', ''][number % 5]
        note['parts'] = [{'a': 1}, {'b': [{}]}][: number % 3]
    data['notes'] = [{'a': '}], {'}, {'b': None}]
    data['empty'] = []
    data[last] = data.pop(last)
    text = json.dumps(data, indent=indent, ensure_ascii=False).encode()
    monkeypatch.setattr(coco_stream, '_TRIES', 50)
    whole = as_lists(read_coco(text))
    assert '[1000, 1001, ' in whole
    batches = []
    for size in (60, 333, 2000):
        monkeypatch.setattr(coco_stream, '_BLOCK', size)
        assert as_lists(read_coco(text)) == whole
        kinds = coco_reader._RAW
        batches.append(sum(1 for _ in record_batches(io.BytesIO(text), kinds)))
    assert batches[0] > batches[-1] > 3


@pytest.mark.parametrize(
    'text',
    [
        b'{"images": [], "annotations": [], "annotations": [], '
        b'"categories": []}',
        b'{"images": [], "annotations": [], "categories": []} x',
        b'{"images": [], "annotations": [], "categories": []',
        b'{"images": [1, {}], "annotations": [], "categories": []}',
        b'{"images": {}, "annotations": [], "categories": []}',
        b'[{"images": [], "annotations": [], "categories": []}]',
        b'{"images": [], "annotations": [], "categories": [],}',
    ],
)
def test_unusual_files_are_left_to_the_other_reader(text):
    with pytest.raises((UnusualFile, msgspec.DecodeError)):
        list(record_batches(io.BytesIO(text), coco_reader._RAW))


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
            [np.reshape(each, (-1, 2)) for each in table.segmentation(row)]
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


def test_a_file_is_not_held_in_memory(tmp_path):
    """Segmentations are read again; that it has changed is an error."""
    path = tmp_path / 'a.json'
    path.write_bytes(encode(PLAIN))
    with path.open('rb') as file:
        table = read_coco(file).annotations
        for row, record in enumerate(PLAIN['annotations']):
            assert table.segmentation(row) == record['segmentation']
        with path.open('r+b') as other:
            other.truncate(700)
        table.segmentations._loaded = -1
        with pytest.raises(ValueError, match='has changed since it was read'):
            table.segmentation(0)

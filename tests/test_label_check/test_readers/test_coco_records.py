"""Types of single COCO records."""

import msgspec
import pytest

from mmext.label_check.readers._coco_records import (
    CocoRecords,
    RawAnnotation,
    convert_record,
)

PLAIN = {'id': 1, 'image_id': 2, 'category_id': 3}


def test_sound_records():
    record, place, message = convert_record('annotations', PLAIN)
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
    record, where, what = convert_record('annotations', PLAIN | change)
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
        'annotations', PLAIN | {'area': 10**400}
    )
    assert record is None
    assert message


def test_records_leave_segmentations_undecoded():
    text = msgspec.json.encode(
        {
            'images': [],
            'categories': [],
            'annotations': [PLAIN | {'segmentation': [[1, 2]]}, PLAIN],
        }
    )
    records = msgspec.json.decode(text, type=CocoRecords)
    assert [bytes(each.segmentation) for each in records.annotations] == [
        b'[[1,2]]',
        b'',
    ]

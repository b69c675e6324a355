"""Annotations that go, are cut, are filled."""

import json

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from PIL import Image, ImageDraw

from mmext.checks.labels import Expectations
from mmext.checks.labels.fix.coco_boxes import (
    area_of,
    clip_box,
    clip_boxes,
    clip_polygon,
    fill_fields,
    remove_dangling,
    remove_repeated,
    remove_without_area,
)
from mmext.checks.labels.fix.coco_draft import CocoDraft
from mmext.checks.labels.fix.json_records import JsonRecords
from mmext.checks.labels.readers.coco import read_coco

RULES = (
    'COCO005',
    'COCO006',
    'COCO011',
    'COCO014',
    'DET001',
    'DET002',
    'DET004',
    'DET005',
    'DET010',
)
FINE = {'image_id': 1, 'category_id': 1, 'bbox': [1, 2, 10, 9]}
WITH_CROWD = {**FINE, 'area': 90, 'iscrowd': 0}


def draft_of(*notes, rules=RULES, **more) -> CocoDraft:
    content = {
        'images': [{'id': 1, 'file_name': 'a', 'width': 64, 'height': 48}],
        'annotations': [
            {'id': number, **note} for number, note in enumerate(notes)
        ],
        'categories': [{'id': 1, 'name': 'cat'}],
        **more,
    }
    text = json.dumps(content).encode()
    return CocoDraft(
        read_coco(text),
        JsonRecords(text, list(content)),
        Expectations(),
        rules,
    )


def notes_of(draft: CocoDraft) -> list[dict]:
    return json.loads(draft.records.render())['annotations']


def clip(draft: CocoDraft) -> None:
    clip_boxes(draft, np.array([[64.0, 48.0]]), np.array([True]))


def test_dangling():
    draft = draft_of(FINE, {**FINE, 'image_id': 9}, {**FINE, 'category_id': 9})
    remove_dangling(draft)
    assert [each['id'] for each in notes_of(draft)] == [0]
    assert [each.rule for each in draft.changes] == ['COCO005', 'COCO006']


def test_dangling_for_want_of_a_record():
    draft = draft_of(FINE, {**FINE, 'category_id': 9}, categories=[{'id': 9}])
    remove_dangling(draft)
    assert draft.changes == []
    assert draft.left[0].reason == 'some of the categories cannot be read'


def test_not_all_are_removed():
    draft = draft_of({**FINE, 'image_id': 9})
    remove_dangling(draft)
    assert draft.changes == []
    assert draft.left[0].reason == 'no annotation would remain'


@pytest.mark.parametrize(
    ('box', 'rule'),
    [
        ([1, 2, float('nan'), 4], 'DET001'),
        ([float('-inf'), 2, 3, 4], 'DET001'),
        ([1e308, 2, 1e308, 4], 'DET001'),
        ([1, 2, 0, 4], 'DET002'),
        ([1, 2, 3, -4], 'DET002'),
        ([1e17, 2, 1, 4], 'DET002'),
        ([1, 2, 0.1, 4], ''),
        (None, ''),
    ],
)
def test_without_area(box, rule):
    draft = draft_of(FINE, {**FINE, 'bbox': box})
    remove_without_area(draft)
    assert [each.rule for each in draft.changes] == ([rule] if rule else [])
    assert draft.alive.tolist() == [True, not rule]


@pytest.mark.parametrize(
    ('box', 'after'),
    [
        ([-1, -1, 66, 50], [-1, -1, 66, 50]),
        ([-2, 3, 20, 9], [0, 3, 18, 9]),
        ([50, 40, 16, 20], [50, 40, 14, 8]),
        ([64, 3, 20, 9], None),
        ([3, -9, 20, 9], None),
        ([-30, 3, 30.5, 9], [-30, 3, 30.5, 9]),
    ],
)
def test_clipped(box, after):
    draft = draft_of(FINE, {**FINE, 'bbox': box})
    clip(draft)
    boxes = [each['bbox'] for each in notes_of(draft)]
    assert boxes == [FINE['bbox'], *([] if after is None else [after])]
    if after is not None:
        assert draft.box[1].tolist() == after


def test_area_follows_the_box_if_it_was_the_area_of_the_box():
    box = [-10, 0, 20, 10]
    for area, after in ((200, 100), (200.4, 100), (77, 77), (None, None)):
        draft = draft_of({**FINE, 'bbox': box, 'area': area})
        clip(draft)
        assert notes_of(draft)[0]['area'] == after


def test_uncertain_sizes_are_not_used():
    draft = draft_of({**FINE, 'bbox': [-10, 0, 20, 10]})
    clip_boxes(draft, np.array([[64.0, 48.0]]), np.array([False]))
    assert draft.changes == []
    assert [each.rule for each in draft.left] == ['DET005']


def test_filled():
    triangle = {**FINE, 'segmentation': [[0, 0, 8, 0, 0, 8]]}
    broken = {**FINE, 'segmentation': [[0, 0]]}
    ignored = {**FINE, 'ignore': 1}
    draft = draft_of(WITH_CROWD, FINE, triangle, broken, ignored)
    fill_fields(draft)
    areas = [each.get('area') for each in notes_of(draft)]
    assert areas == [90, 90, 32, None, None]
    assert all(each['iscrowd'] == 0 for each in notes_of(draft))
    assert [each.reason for each in draft.left] == [
        'its segmentation gives no area'
    ]


def test_repeated():
    draft = draft_of(
        WITH_CROWD,
        {**WITH_CROWD, 'bbox': [1.0, 2.0, 10.0, 9.0]},
        {**WITH_CROWD, 'by': 'me'},
        WITH_CROWD,
        {**WITH_CROWD, 'bbox': [2, 2, 10, 9]},
    )
    remove_repeated(draft)
    assert [each['id'] for each in notes_of(draft)] == [0, 1, 2, 4]
    (left,) = draft.left
    assert left.place == 'annotations[0]'
    assert 'differ in' in left.reason


def test_a_box_that_was_cut_goes_before_one_that_was_not():
    beyond = {**WITH_CROWD, 'bbox': [-5, 2, 15, 9], 'area': 135}
    draft = draft_of(beyond, {**WITH_CROWD, 'bbox': [0, 2, 10, 9]})
    clip(draft)
    remove_repeated(draft)
    assert [each['id'] for each in notes_of(draft)] == [1]


def test_rules_that_are_not_chosen():
    draft = draft_of(
        FINE,
        FINE,
        {**FINE, 'bbox': [-9, 0, 20, 10]},
        {**FINE, 'bbox': [1, 1, 0, 0]},
        {**FINE, 'image_id': 9},
        rules=(),
    )
    remove_dangling(draft)
    remove_without_area(draft)
    clip(draft)
    fill_fields(draft)
    remove_repeated(draft)
    assert draft.changes == draft.left == []


numbers = st.integers(-30, 60) | st.floats(-30, 60)


@given(
    st.tuples(numbers, numbers, st.floats(1, 50), st.floats(1, 50)),
)
def test_boxes(box):
    left, top, wide, high = clip_box(box, 32, 24)
    right, low = box[0] + box[2], box[1] + box[3]
    assert left == max(box[0], 0)
    assert top == max(box[1], 0)
    assert left + wide == pytest.approx(min(right, 32))
    assert top + high == pytest.approx(min(low, 24))
    if left == box[0] and right <= 32:
        assert wide == box[2]


def test_whole_numbers_stay_whole():
    assert clip_box([-3, -4, 50, 60], 32, 24) == [0, 0, 32, 24]
    cut = clip_box([-3, -4, 50, 60], 32, 24)
    assert all(type(side) is int for side in cut)
    cut = clip_polygon([-4, -4, 40, -4, 40, 30, -4, 30], 32, 24)
    assert all(type(side) is int for side in cut)


def drawn(polygon, scale: int = 8) -> np.ndarray:
    """Pixels of the image that a polygon covers, finely."""
    margin = 40
    side = (100 + margin) * scale
    image = Image.new('1', (side, side))
    points = [
        ((x + margin) * scale, (y + margin) * scale)
        for x, y in zip(polygon[::2], polygon[1::2])
    ]
    if points:
        ImageDraw.Draw(image).polygon(points, fill=1)
    inner = slice(margin * scale, None)
    return np.asarray(image)[inner, inner][: 24 * scale, : 32 * scale]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(numbers, numbers), min_size=3, max_size=6))
def test_polygons_cover_the_same_part_of_the_image(points):
    polygon = [float(number) for point in points for number in point]
    cut = clip_polygon(polygon, 32, 24)
    assert all(0 <= x <= 32 + 1e-9 for x in cut[::2])
    assert all(0 <= y <= 24 + 1e-9 for y in cut[1::2])
    before, after = drawn(polygon), drawn(cut)
    # Edges may run through other subpixels, within two of the line.
    other = before != after
    assert other.mean() < 0.03
    assert clip_polygon(cut, 32 + 1e-9, 24 + 1e-9) == cut


def test_polygon_outside():
    assert clip_polygon([40, 0, 50, 0, 50, 9], 32, 24) == []
    inside = [1, 1, 5, 1, 5, 5]
    assert clip_polygon(inside, 32, 24) == inside


@pytest.mark.parametrize(
    'segmentation',
    [
        None,
        [],
        [[]],
        [[0, 0, 1, 1]],
        [[0, 0, 1, 1, 2]],
        [[0, 0, 1, 1, 2, 'x']],
        [[0, 0, 1, float('nan'), 2, 2]],
        {'size': [1, 1], 'counts': ''},
        'text',
    ],
)
def test_no_area(segmentation):
    assert area_of(segmentation) is None


def test_area():
    square = [100000, 5, 100004, 5, 100004, 9, 100000, 9]
    assert area_of([square]) == 16
    assert area_of([square[::-1]]) == 16
    assert area_of([square, [0, 0, 2, 0, 0, 2]]) == 18

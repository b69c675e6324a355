"""What holds for the repair of any annotation file."""

import copy
import json

import hypothesis.strategies as st
from helpers.coco_to_fix import EXPECTED, GOOD, encoded, images_of
from hypothesis import given, settings

from mmext.checks.labels.fix.coco import fix_coco

sides = st.sampled_from([-70, -5, -1, 0, 0.5, 1, 2, 40, 63, 64, 100])
numbers = sides | st.just(float('nan')) | st.floats(-100, 100)
notes = st.fixed_dictionaries(
    {
        'id': st.integers(1, 6),
        'image_id': st.sampled_from([1, 1, 2, 3, 4, 9]),
        'category_id': st.sampled_from([7, 7, 8, 9, 70]),
        'bbox': st.tuples(numbers, sides, numbers, sides).map(list)
        | st.just([1, 2, 10, 20]),
    },
    optional={
        'area': st.sampled_from([200, 0, -1, 7.5]),
        'iscrowd': st.sampled_from([0, 1]),
        'segmentation': st.sampled_from(
            [[], [[0, 0, 70, 0, 70, 60]], {'size': [1, 1], 'counts': 'a'}]
        ),
        'ignore': st.sampled_from([0, 1]),
        'by': st.sampled_from(['me', None]),
    },
)
pictures = st.fixed_dictionaries(
    {
        'id': st.integers(1, 4),
        'file_name': st.sampled_from(['1.jpg', '2.jpg', '3.jpg', '4.jpg']),
    },
    optional={
        'width': st.sampled_from([64, 64, 0, 100]),
        'height': st.sampled_from([48, 48, 50]),
    },
)
kinds = st.permutations(GOOD['categories'])
files = st.fixed_dictionaries(
    {
        'images': st.lists(pictures, max_size=4),
        'annotations': st.lists(notes, max_size=6),
        'categories': kinds,
    }
)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(['size', 'counts', 'x']), inner)
    ),
    max_leaves=6,
)


@settings(max_examples=50, deadline=None)
@given(
    files,
    st.lists(
        st.tuples(
            st.sampled_from(['images', 'annotations', 'categories']),
            st.sampled_from(
                ['id', 'bbox', 'area', 'segmentation', 'width', 'file_name']
            ),
            anything,
        ),
        max_size=3,
    ),
)
def test_whatever_a_record_holds(content, odd):
    content = copy.deepcopy(content)
    for kind, key, value in odd:
        if content[kind]:
            content[kind][-1][key] = value
    before = encoded(content)
    fixed = fix_coco(before, EXPECTED)
    again = fix_coco(fixed.content, EXPECTED)
    assert (again.content, again.changes) == (fixed.content, ())
    if not fixed.changes:
        assert fixed.content == before


def is_right(note: dict, content: dict) -> bool:
    """Whether an annotation has nothing that is to be repaired."""
    left, top, wide, high = note['bbox']
    known = [
        image for image in content['images'] if image['id'] == note['image_id']
    ]
    return (
        len(known) == 1
        and note['category_id'] in (7, 8, 9)
        and 'area' in note
        and 'iscrowd' in note
        and wide > 0
        and high > 0
        and left >= 0
        and top >= 0
        and left + wide <= 60
        and top + high <= 48
        and sum(n['id'] == note['id'] for n in content['annotations']) == 1
    )


@settings(max_examples=50, deadline=None)
@given(files, st.booleans())
def test_right_annotations_stay(content, with_images):
    before = encoded(content)
    images = images_of(content) if with_images else []
    fixed = fix_coco(before, EXPECTED, images)
    after = json.loads(fixed.content)
    kept = [
        {key: value for key, value in annotation.items() if key != 'id'}
        for annotation in after['annotations']
    ]
    for note in content['annotations']:
        if is_right(note, content):
            own = {key: note[key] for key in note if key != 'id'}
            assert own in kept
    images = images_of(after) if with_images else []
    again = fix_coco(fixed.content, EXPECTED, images)
    assert (again.content, again.changes) == (fixed.content, ())

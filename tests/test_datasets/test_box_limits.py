"""The transform, the rules and the prefilter say the same of every box."""

import json
import math
import warnings

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mmdet.structures.mask import PolygonMasks

from mmext.checks.labels import Expectations
from mmext.checks.labels.facts import BoxFacts, ImageFacts, Sample, SampleFacts
from mmext.checks.labels.readers.coco import read_coco
from mmext.checks.labels.rules import RULES
from mmext.checks.labels.sources.coco import suspicious_rows
from mmext.datasets import box_limits
from mmext.datasets.transforms import LabelError, ValidateLabels

WIDTH, HEIGHT = 40, 30
SHARED = ('DET001', 'DET002', 'DET003', 'DET004', 'DET005', 'DET008')
EXPECTED = Expectations(task='instance', num_classes=1, classes=('cat',))


def from_rules(sides, around=()) -> set[str]:
    """Rules of the label check that object to a box."""
    box = BoxFacts(
        box=tuple(sides), label=0, class_name='cat', mask_box=tuple(around)
    )
    facts = SampleFacts(
        split='train',
        sample=Sample(index=0, boxes=(box,)),
        image=ImageFacts(width=WIDTH, height=HEIGHT),
    )
    return {
        rule for rule in SHARED for _ in RULES[rule].check(facts, EXPECTED)
    }


def from_transform(sides, around=()) -> set[str]:
    """The same of the transform, with the limit of the loaders for sizes."""
    results = {
        'img_shape': (HEIGHT, WIDTH),
        'gt_bboxes': np.array([sides], np.float64),
        'gt_bboxes_labels': np.zeros(1, np.int64),
    }
    if around:
        x1, y1, x2, y2 = around
        outline = [np.array([x1, y1, x2, y1, x2, y2, x1, y2])]
        results['gt_masks'] = PolygonMasks([outline], HEIGHT, WIDTH)
    check = ValidateLabels(1, min_size=box_limits.MIN_SIZE)
    try:
        check(results)
    except LabelError as error:
        return {problem.rule for problem in error.problems}
    return set()


def is_suspicious(box) -> bool:
    """Whether the prefilter lists a box (left, top, width, height)."""
    note = {'id': 1, 'image_id': 1, 'category_id': 1, 'bbox': list(box)}
    content = {
        'images': [
            {'id': 1, 'file_name': 'a', 'width': WIDTH, 'height': HEIGHT}
        ],
        'annotations': [note],
        'categories': [{'id': 1, 'name': 'cat'}],
    }
    file = read_coco(json.dumps(content).encode())
    return bool(suspicious_rows(file, ('cat',))[0])


numbers = st.one_of(
    st.floats(-4, 45),
    st.integers(-4, 45).map(float),
    st.sampled_from([math.nan, math.inf, -math.inf, 1e300, 0.1, 1.0]),
)
four = st.tuples(numbers, numbers, numbers, numbers)


@settings(max_examples=200, deadline=None)
@given(four)
@example((20.3, 8.0, 1.0, 9.0))
@example((40.0, 8.0, 1.0, 1.0))
@example((-1.0, -1.0, 42.0, 32.0))
@example((1e300, 1e300, 1e300, 1e300))
def test_all_three_agree(box):
    left, top, width, height = box
    sides = (left, top, left + width, top + height)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        rules = from_rules(sides)
        assert from_transform(sides) == rules
        assert is_suspicious(box) == bool(rules)
    assert len(rules) <= 2


# So long that the shifted ends are not exchanged.
spans = st.tuples(st.floats(0, 10), st.floats(9, 19)).map(
    lambda span: (span[0], span[0] + span[1])
)
inner = st.tuples(spans, spans).map(
    lambda spans: (spans[0][0], spans[1][0], spans[0][1], spans[1][1])
)


@settings(max_examples=100, deadline=None)
@given(inner, st.tuples(*[st.floats(-4, 4)] * 4))
@example((10.0, 10.0, 20.0, 20.0), (3.0, 0.0, 0.0, 0.0))
@example((10.0, 10.0, 20.0, 20.0), (2.0, 0.0, 0.0, -2.0))
def test_masks_and_boxes(sides, shifts):
    around = tuple(side + by for side, by in zip(sides, shifts))
    assert from_transform(sides, around) == from_rules(sides, around)

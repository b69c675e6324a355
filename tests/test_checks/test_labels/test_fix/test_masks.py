"""Label maps before and after their fix, as the loader sees them."""

import io

import hypothesis.strategies as st
import numpy as np
import pytest
from helpers.image_bytes import png, saved
from hypothesis import given, settings
from PIL import Image

from mmext.checks.labels import Expectations
from mmext.checks.labels.expectations import load_value
from mmext.checks.labels.facts import Sample, SampleFacts
from mmext.checks.labels.fix.masks import fix_mask
from mmext.checks.labels.readers.image import read_mask_facts
from mmext.checks.labels.rules import RULES

CLASSES = ('road', 'car', 'sky')
EXPECTED = Expectations(num_classes=3, classes=CLASSES)
WITH_CV2 = Expectations(num_classes=3, classes=CLASSES, loader_backend='cv2')
IGNORES_254 = Expectations(num_classes=3, classes=CLASSES, ignore_index=254)
LABELS = np.array([[0, 1, 2, 255], [2, 2, 1, 0], [0, 0, 0, 255]], np.uint8)
NO_VOID = np.where(LABELS == 255, 0, LABELS).astype(np.uint8)


def pixels_of(content: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(content)) as image:
        return np.asarray(image)


def rules_of(content: bytes, expected: Expectations) -> set[str]:
    """Ids of rules that object to a label map."""
    facts = SampleFacts(
        split='train',
        sample=Sample(index=0, mask='a.png'),
        mask=read_mask_facts(content),
    )
    return {
        finding.rule
        for rule in RULES.values()
        if rule.scope == 'sample'
        for finding in rule.check(facts, expected)
        if finding.rule.startswith('SEG')
    }


def palette(labels: np.ndarray, kind: str = 'PNG') -> bytes:
    image = Image.fromarray(labels).convert('L')
    image = Image.fromarray(np.asarray(image), 'L')
    new = Image.new('P', image.size)
    new.putpalette([9, 9, 9, 200, 0, 0, 0, 200, 0] + [3, 4, 5] * 253)
    new.putdata(labels.reshape(-1).tolist())
    return saved(new, kind)


def wide(labels: np.ndarray) -> bytes:
    labels = labels.astype(np.uint16)
    return png(np.where(labels == 255, 65535, labels).astype(np.uint16))


def with_minus_one(labels: np.ndarray) -> bytes:
    wide = labels.astype(np.int32)
    return saved(Image.fromarray(np.where(wide == 255, -1, wide)), 'TIFF')


def channels(labels: np.ndarray, *more: int) -> bytes:
    grey = [labels] * 3 + [np.full_like(labels, item) for item in more]
    return png(np.dstack(grey))


def grey_and_alpha(labels: np.ndarray) -> bytes:
    alpha = np.full_like(labels, 255)
    return png(np.dstack([labels, alpha]))


# What the plants of test_fix_labels.py do not have; name: (rule, file, what
# the loader expects, labels after the fix)
FIXED = {
    'palette_tiff': ('SEG011', palette(LABELS, 'TIFF'), WITH_CV2, LABELS),
    'minus_one': ('SEG008', with_minus_one(LABELS), EXPECTED, LABELS),
    'rgba': ('SEG010', channels(LABELS, 7), EXPECTED, LABELS),
    'la': ('SEG010', grey_and_alpha(LABELS), EXPECTED, LABELS),
    'reduced': (
        'SEG008',
        wide(LABELS),
        Expectations(num_classes=2, reduce_zero_label=True),
        LABELS,
    ),
}


@pytest.mark.parametrize('case', FIXED)
def test_fixes(case):
    rule, content, expected, labels = FIXED[case]
    assert rule in rules_of(content, expected)
    fixed = fix_mask(content, expected)
    assert rules_of(fixed.content, expected) == set()
    assert {change.rule for change in fixed.changes} == {rule}
    np.testing.assert_array_equal(pixels_of(fixed.content), labels)
    before = Image.open(io.BytesIO(content))
    after = Image.open(io.BytesIO(fixed.content))
    assert (after.mode, after.format) == ('L', before.format)
    again = fix_mask(fixed.content, expected)
    assert (again.content, again.changes) == (fixed.content, ())


def test_says_what_was_changed():
    (change,) = fix_mask(wide(LABELS), EXPECTED).changes
    assert (change.location, change.was, change.now) == (
        'y=0, x=3',
        '65535',
        '255',
    )
    assert change.count == 2
    (change,) = fix_mask(palette(LABELS), WITH_CV2).changes
    assert (change.was, change.now) == ('mode P', 'mode L')


def beyond(labels):
    labels = labels.astype(np.uint16)
    return png(np.where(labels == 2, 300, labels).astype(np.uint16))


def colours(labels):
    return png(np.dstack([labels, labels, labels ^ 1]))


def half_transparent(labels):
    return png(np.dstack([labels] * 3 + [labels]))


BLACK_AND_WHITE = np.where(LABELS > 0, 255, 0).astype(np.uint8)
# name: (rule, file, what the loader expects)
LEFT = {
    'palette_bmp': ('SEG011', palette(LABELS, 'BMP'), WITH_CV2),
    'wide_not_ignored': ('SEG002', wide(LABELS), IGNORES_254),
    'void_not_ignored': ('SEG004', png(LABELS), IGNORES_254),
    'wraps': ('SEG002', beyond(NO_VOID), EXPECTED),
    'wraps_and_void': ('SEG002', beyond(LABELS), EXPECTED),
    'colours': ('SEG010', colours(LABELS), EXPECTED),
    'alpha': ('SEG010', half_transparent(LABELS), EXPECTED),
    # Greys that are the index of no class.
    'grey_levels': ('SEG010', channels(LABELS * 60), EXPECTED),
    # White may be a class.
    'white_rgb': (
        'SEG010',
        channels(BLACK_AND_WHITE),
        Expectations(num_classes=2),
    ),
    'nothing_ignored': (
        'SEG004',
        png(LABELS),
        Expectations(num_classes=3, ignore_index=None),
    ),
    'ignores_a_class': (
        'SEG004',
        png(LABELS),
        Expectations(num_classes=3, ignore_index=0),
    ),
    # The loader makes 255 of 0.
    'reduced_zero': (
        'SEG004',
        png(NO_VOID),
        Expectations(num_classes=2, reduce_zero_label=True, ignore_index=254),
    ),
    'gif': (
        'SEG011',
        saved(Image.open(io.BytesIO(palette(NO_VOID))), 'GIF'),
        WITH_CV2,
    ),
    'lossy': (
        'SEG010',
        saved(Image.fromarray(np.zeros((8, 8, 3), np.uint8)), 'JPEG'),
        EXPECTED,
    ),
    'frames': (
        'SEG011',
        saved(
            Image.open(io.BytesIO(palette(LABELS))),
            'TIFF',
            save_all=True,
            append_images=[Image.open(io.BytesIO(palette(NO_VOID)))],
        ),
        WITH_CV2,
    ),
}


@pytest.mark.parametrize('case', LEFT)
def test_leaves_what_would_be_a_guess(case):
    rule, content, expected = LEFT[case]
    assert rule in rules_of(content, expected)
    fixed = fix_mask(content, expected)
    assert fixed.content == content
    assert fixed.changes == ()


def test_maps_of_panoptic_ids_are_left():
    expected = Expectations(task='panoptic', num_classes=3)
    content = channels(LABELS)
    assert fix_mask(content, expected).content == content


@st.composite
def masks(draw):
    """Bytes of a label map, often with an error, and its split."""
    shape = draw(st.tuples(st.integers(2, 6), st.integers(2, 6)))
    values = draw(
        st.lists(
            st.sampled_from([0, 1, 2, 3, 7, 254, 255, 256, 300, 65535, -1]),
            min_size=1,
            max_size=4,
        )
    )
    seed = draw(st.integers(0, 99))
    labels = np.random.default_rng(seed).choice(values, shape)
    expected = Expectations(
        num_classes=draw(st.sampled_from([2, 3, 8, 200])),
        ignore_index=draw(st.sampled_from([255, 254, 100, 0, None])),
        reduce_zero_label=draw(st.booleans()),
        loader_backend=draw(st.sampled_from(['pillow', 'cv2'])),
        label_map=draw(st.sampled_from([(), ((0, 1), (2, 255), (7, 0))])),
    )
    kind = draw(st.sampled_from(['L', 'P', 'wide', 'RGB', 'LA', '1']))
    if kind == 'wide':
        return saved(
            Image.fromarray(labels.astype(np.int32)), 'TIFF'
        ), expected
    labels = labels.astype(np.uint8)
    makers = {'L': png, 'P': palette, 'RGB': channels, 'LA': grey_and_alpha}
    if kind == '1':
        return saved(Image.fromarray(labels > 1)), expected
    return makers[kind](labels), expected


def label_of(value: int, expected: Expectations) -> int | None:
    """What the loss gets of a stored value, None for what it ignores."""
    loaded = load_value(value, expected)
    return None if loaded == expected.ignore_index else loaded


@settings(max_examples=100, deadline=None)
@given(masks())
def test_right_pixels_keep_their_labels(case):
    content, expected = case
    fixed = fix_mask(content, expected)
    assert fix_mask(fixed.content, expected).content == fixed.content
    if not fixed.changes:
        assert fixed.content == content
        return
    before, after = pixels_of(content), pixels_of(fixed.content)
    if before.ndim == 3:
        before = before[..., 0]
    assert before.shape == after.shape
    for old, new in zip(
        before.reshape(-1).tolist(), after.reshape(-1).tolist()
    ):
        assert label_of(new, expected) == label_of(int(old), expected)

"""Names stay inside the picture and out of each other's way."""

import numpy as np
import pytest

from mmext.apis._labels import (
    draw_labels,
    font_size,
    ink_on,
    text_size,
    title_bar,
)

COLOR = (255, 0, 0)


def paper(height=200, width=300):
    return np.full((height, width, 3), 128, np.uint8)


def touched(canvas, picture):
    """Rows and columns from the first to behind the last changed pixel."""
    rows, columns = np.nonzero((canvas != picture).any(axis=2))
    return rows.min(), rows.max() + 1, columns.min(), columns.max() + 1


@pytest.mark.parametrize(
    'box',
    [
        (100, 80, 160, 120),
        (0, 0, 300, 200),
        (0, 0, 5, 5),
        (290, 190, 300, 200),
        (290, 0, 300, 200),
        (0, 100, 300, 100),
    ],
)
def test_a_name_is_never_cut_off(box):
    text, canvas = 'abc 0.98', paper()
    size = font_size(300)
    wide, high = text_size(text, size)
    picture = draw_labels(canvas, np.array([box]), [text], [COLOR])
    top, bottom, left, right = touched(canvas, picture)
    assert bottom - top == high
    assert right - left == wide + 2 * max(2, size // 6)


def test_a_name_stands_above_its_box():
    canvas = paper()
    boxes = np.array([(100, 80, 160, 120)])
    picture = draw_labels(canvas, boxes, ['a'], [COLOR])
    top, bottom, left, _ = touched(canvas, picture)
    assert (bottom, left) == (80, 100)
    assert (picture[top, left] == COLOR).all()


def test_names_of_one_place_do_not_overlap():
    names = ['one', 'two', 'three', 'four', 'five', 'six', 'seven']
    boxes = np.array([(100, 80, 160, 120)] * len(names))
    colors = [(10 * i, 0, 0) for i in range(1, 8)]
    canvas = paper()
    picture = draw_labels(canvas, boxes, names, colors)
    size = font_size(300)
    pad = max(2, size // 6)
    for name, color in zip(names, colors):
        wide, high = text_size(name, size)
        alone = draw_labels(canvas, boxes[:1], [name], [color])
        area = (wide + 2 * pad) * high
        ink = (alone != canvas).any(axis=2).sum()
        assert ink == area
        shown = (picture == color).all(axis=2).sum()
        assert shown == (alone == color).all(axis=2).sum()


def test_a_long_name_ends_in_an_ellipsis():
    canvas = paper(60, 80)
    boxes = np.array([(5, 30, 60, 50)])
    picture = draw_labels(canvas, boxes, ['x' * 200], [COLOR])
    _, _, left, right = touched(canvas, picture)
    assert 60 < right - left <= 80


def test_no_names_change_nothing():
    canvas = paper()
    picture = draw_labels(canvas, np.zeros((0, 4)), [], [])
    np.testing.assert_array_equal(picture, canvas)
    assert picture is not canvas


def test_does_not_change_inputs():
    canvas, boxes = paper(), np.array([[10.0, 20.0, 60.0, 70.0]])
    draw_labels(canvas, boxes, ['a'], [COLOR])
    np.testing.assert_array_equal(canvas, paper())
    assert boxes.tolist() == [[10.0, 20.0, 60.0, 70.0]]


@pytest.mark.parametrize(
    ('color', 'ink'),
    [
        ((255, 255, 0), (0, 0, 0)),
        ((255, 255, 255), (0, 0, 0)),
        ((0, 0, 142), (255, 255, 255)),
        ((119, 11, 32), (255, 255, 255)),
    ],
)
def test_ink_is_readable(color, ink):
    assert ink_on(color) == ink


def test_font_grows_with_the_picture_within_bounds():
    sizes = [font_size(side) for side in (64, 640, 1333, 9000)]
    assert sizes == sorted(sizes)
    assert sizes[0] >= 11
    assert sizes[-1] <= 26


def test_title_bar():
    bar = title_bar('hello', 120, 14)
    assert bar.shape[1:] == (120, 3)
    assert bar.shape[0] >= text_size('hello', 14)[1]
    assert bar.min() < 100 < bar.max()
    long = title_bar('hello ' * 50, 120, 14)
    assert long.shape == bar.shape

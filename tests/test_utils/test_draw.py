"""Pictures show what they were given, where it is."""

import os

import numpy as np
import pytest

from mmext.utils.draw import (
    class_palette,
    draw_instances,
    draw_labels,
    font_size,
    picture_scale,
    text_size,
    tile_sheet,
    write_picture,
)

RED, GREEN = (255, 0, 0), (0, 255, 0)
CLASSES = ('a', 'b')
PALETTE = [RED, GREEN]


def grey(height=64, width=48, value=128):
    return np.full((height, width, 3), value, np.uint8)


def draw(boxes, labels, image=None, **options):
    return draw_instances(
        grey() if image is None else image,
        np.array(boxes, dtype=float).reshape(-1, 4),
        np.array(labels, dtype=int),
        classes=CLASSES,
        palette=PALETTE,
        **options,
    )


def extent(picture, color):
    rows, columns = np.nonzero((picture == color).all(axis=2))
    return columns.min(), rows.min(), columns.max(), rows.max()


def test_palette_of_the_data_set_only_when_it_has_one_per_class():
    given = [(1, 2, 3), (4, 5, 6)]
    assert class_palette(2, given) == given
    own = class_palette(3)
    for other in (given, 'random', None, []):
        assert class_palette(3, other) == own


@pytest.mark.parametrize('count', [0, 1, 10, 11, 80, 365])
def test_palette_has_a_colour_for_each_class(count):
    colors = class_palette(count)
    assert len(colors) == count == len(set(colors))
    assert all(0 <= part <= 255 for color in colors for part in color)


@pytest.mark.parametrize(
    ('size', 'scale'),
    [((64, 64), 10), ((100, 300), 2), ((640, 640), 1), ((800, 1333), 1)],
)
def test_small_images_are_enlarged_by_a_whole_factor(size, scale):
    assert picture_scale(*size) == scale


def test_box_is_where_it_is_in_the_enlarged_picture():
    picture = draw([(10, 20, 30, 60)], [1])
    assert picture.shape == (640, 480, 3)
    left, _, right, bottom = extent(picture, GREEN)
    # The line is two pixels wide and centred on the edge.
    assert abs(left - 100) <= 2
    assert abs(right - 300) <= 2
    assert abs(bottom - 600) <= 2
    row = picture[400]
    inside = row[110:290]
    assert (inside == 128).all()
    assert (row[:90] == 128).all()


def test_outside_is_cut_off():
    inside = draw([(0, 0, 48, 64)], [0])
    outside = draw([(-50, -99, 1000, 70)], [0])
    np.testing.assert_array_equal(inside, outside)


def test_best_is_on_top():
    boxes = [(10, 10, 40, 40)] * 2
    for scores, color in (((0.9, 0.2), RED), ((0.2, 0.9), GREEN)):
        picture = draw(boxes, [0, 1], scores=np.array(scores))
        assert (picture[250, 100] == color).all()


def test_holes_of_masks_have_an_outline():
    mask = np.zeros((1, 64, 48), bool)
    mask[0, 10:50, 8:40] = True
    mask[0, 20:40, 16:32] = False
    picture = draw([(2, 2, 46, 62)], [0], masks=mask)
    scale = len(picture) // 64
    # Around the hole the colour is full, not mixed with the image.
    rim = picture[30 * scale, 16 * scale - 1]
    inside = picture[30 * scale, 12 * scale]
    hole = picture[30 * scale, 24 * scale]
    assert len({tuple(pixel.tolist()) for pixel in (rim, inside, hole)}) == 3


def test_does_not_change_inputs():
    image, boxes = grey(), np.array([[1.0, 2.0, 90.0, 30.0]])
    masks = np.ones((1, 64, 48), bool)
    draw_instances(image, boxes, np.array([0]), classes=CLASSES, masks=masks)
    assert (image == 128).all()
    assert boxes.tolist() == [[1.0, 2.0, 90.0, 30.0]]
    assert masks.all()


@pytest.mark.parametrize(
    ('side', 'label', 'message'),
    [
        (np.nan, 0, r'boxes must be finite.*at 1'),
        (np.inf, 0, r'boxes must be finite.*at 1'),
        (4, -1, r'labels must be in \[0, 2\)'),
        (4, 2, r'labels must be in \[0, 2\)'),
    ],
)
def test_rejects(side, label, message):
    with pytest.raises(ValueError, match=message):
        draw([(1, 2, 3, 4), (1, 2, side, 4)], [0, label])


@pytest.mark.parametrize('name', ['a.gif', 'a'])
def test_rejects_other_formats(tmp_path, name):
    with pytest.raises(ValueError, match='path must end in'):
        write_picture(tmp_path / name, grey())
    assert not os.listdir(tmp_path)


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
    text, canvas = 'abc 0.98', grey(200, 300)
    size = font_size(300)
    wide, high = text_size(text, size)
    picture = draw_labels(canvas, np.array([box]), [text], [RED])
    top, bottom, left, right = touched(canvas, picture)
    assert bottom - top == high
    assert right - left == wide + 2 * max(2, size // 6)


def test_a_name_stands_above_its_box():
    canvas = grey(200, 300)
    boxes = np.array([(100, 80, 160, 120)])
    picture = draw_labels(canvas, boxes, ['a'], [RED])
    top, bottom, left, _ = touched(canvas, picture)
    assert (bottom, left) == (80, 100)
    assert (picture[top, left] == RED).all()


def test_names_of_one_place_do_not_overlap():
    names = ['one', 'two', 'three', 'four', 'five', 'six', 'seven']
    boxes = np.array([(100, 80, 160, 120)] * len(names))
    colors = [(10 * i, 0, 0) for i in range(1, 8)]
    canvas = grey(200, 300)
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
    canvas = grey(60, 80)
    boxes = np.array([(5, 30, 60, 50)])
    picture = draw_labels(canvas, boxes, ['x' * 200], [RED])
    _, _, left, right = touched(canvas, picture)
    assert 60 < right - left <= 80


def test_tiles_fill_rows():
    tiles = [grey(20 + index, 30, index) for index in range(5)]
    sheet = tile_sheet(tiles, columns=3, gap=4)
    assert sheet.shape == (4 + 22 + 4 + 24 + 4, 4 + 3 * 34, 3)
    assert (sheet[4:26, 72:102] == 2).all()
    assert (sheet[30:53, 4:34] == 3).all()
    assert (sheet[30:, 72:] == 250).all()

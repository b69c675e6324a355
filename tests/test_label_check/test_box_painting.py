"""Boxes over an image: those that are wrong can be seen."""

import math

import numpy as np
import pytest

from mmext.label_check._box_painting import FINE, paint_boxes
from mmext.label_check._painting import OTHER, OUTSIDE, WRONG

GREY = np.full((60, 80, 3), 128, np.uint8)


def painted(*wrong, fine=(), other=(), side=80) -> np.ndarray:
    return paint_boxes(GREY, (80, 60), wrong, fine, side, other)


def where(picture: np.ndarray, colour: tuple) -> tuple | None:
    """Box around the pixels of a colour: x1, y1, x2, y2, the last inside."""
    found = np.argwhere((picture == colour).all(-1))
    if not len(found):
        return None
    (y1, x1), (y2, x2) = found.min(0), found.max(0)
    return x1, y1, x2, y2


def test_a_box_inside():
    picture = painted((20, 10, 60, 40), fine=[(2, 3, 9, 30)], side=80)
    # Pictures below 240 pixels are enlarged; here there is no room.
    assert picture.shape == (60, 80, 3)
    assert where(picture, WRONG) == (19, 9, 61, 41)
    assert (picture[13:38, 23:57] == 128).all()
    assert where(picture, FINE) == (2, 3, 9, 30)
    assert (picture[50:, 64:] == 128).all()


def test_scaled_with_the_picture():
    picture = painted((20, 10, 60, 40), side=480)
    assert picture.shape == (180, 240, 3)
    x1, y1, x2, y2 = where(picture, WRONG)
    assert (x1 + 1, y1 + 1, x2 - 1, y2 - 1) == (60, 30, 180, 120)
    reduced = paint_boxes(
        GREY, (8000, 6000), [(2000, 1000, 6000, 4000)], (), 80
    )
    assert where(reduced, WRONG) == (19, 9, 61, 41)


def test_reaching_beyond_shows_what_is_outside():
    picture = painted((60, 20, 88, 40), side=240)
    hatched = np.zeros(picture.shape[:2], bool)
    for colour in OUTSIDE:
        hatched |= (picture == colour).all(-1)
    columns = np.flatnonzero(hatched.any(0))
    # 80 of 90.5 columns are the image.
    width = picture.shape[1]
    assert columns.min() == pytest.approx(width * 80 / 90.5, abs=2)
    assert where(picture, WRONG)[2] < width
    assert (picture[:, : columns.min() - 1] != OUTSIDE[0]).any(-1).all()


@pytest.mark.parametrize(
    'box',
    [
        (30, 20, 30, 20),
        (30, 20, 30, 21),
        (30.2, 20.2, 30.5, 20.5),
        (31, 21, 30, 20),
        (0, 0, 0, 0),
        (80, 60, 80, 60),
    ],
)
def test_without_area(box):
    picture = painted(box)
    assert where(picture, WRONG) is not None
    assert where(picture, (255, 255, 255)) is not None


@pytest.mark.parametrize(
    ('box', 'side'),
    [
        ((900, 20, 950, 40), 'right'),
        ((-9e6, 20, -8e6, 40), 'left'),
        ((30, 1e9, 40, 2e9), 'bottom'),
        ((30, -900, 40, -800), 'top'),
    ],
)
def test_far_outside(box, side):
    picture = painted(box, side=240)
    height, width = picture.shape[:2]
    x1, y1, x2, y2 = where(picture, WRONG)
    near = {
        'right': x2 >= width - 4,
        'left': x1 <= 3,
        'bottom': y2 >= height - 4,
        'top': y1 <= 3,
    }
    assert near.pop(side)
    assert not any(near.values())
    assert max(picture.shape) <= 240


@pytest.mark.parametrize(
    'box',
    [
        (math.nan, 10, 40, 40),
        (10, 10, math.inf, 40),
        (-math.inf, -math.inf, math.inf, math.inf),
        (math.nan,) * 4,
        (-1e300, -1e300, 1e300, 1e300),
    ],
)
def test_not_finite(box):
    assert where(painted(box), WRONG) is not None


def test_fine_boxes_that_cannot_be_drawn_are_left_out():
    picture = painted(fine=[(math.nan, 0, 9, 9), (-50, -50, -20, -20)])
    assert (picture == 128).all()


def test_what_a_box_is_compared_with():
    picture = painted((20, 10, 60, 40), other=[(5, 5, 70, 55)])
    x1, y1, x2, y2 = where(picture, OTHER)
    assert (x1, y1) <= (5, 5)
    assert (x2, y2) >= (70, 55)
    assert where(picture, WRONG) == (19, 9, 61, 41)


def test_an_image_of_one_pixel():
    image = np.zeros((1, 1, 3), np.uint8)
    picture = paint_boxes(image, (1, 1), [(0, 0, 1, 1)], (), 64)
    assert where(picture, WRONG) is not None


def test_any_box_can_be_drawn():
    """Sides of any size, and those that are no numbers."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        sides = rng.normal(30, 30, 8) * 10.0 ** rng.integers(0, 9)
        odd = rng.random(8) < 0.1
        sides[odd] = rng.choice([np.nan, np.inf, -np.inf, 1e308, 0], odd.sum())
        wrong, fine = sides.reshape(2, 4).tolist()
        size = tuple(rng.integers(1, 200, 2).tolist())
        picture = paint_boxes(GREY, size, [wrong], [fine], 96, [fine])
        assert max(picture.shape) <= 96
        assert where(picture, WRONG) is not None, (wrong, size)

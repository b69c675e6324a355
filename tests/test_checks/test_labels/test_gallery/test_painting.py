"""What is painted over label maps, by value."""

import base64
import io
import math

import numpy as np
import pytest
from helpers.image_bytes import photo
from PIL import Image, features

from mmext.checks.findings.page import data_uri
from mmext.checks.labels.gallery.painting import (
    BEHIND,
    FINE,
    OTHER,
    OUTSIDE,
    WRONG,
    class_colours,
    dimmed,
    fitted_size,
    half_size,
    nearest,
    paint_boxes,
    paint_pixels,
    pool_any,
    resized,
    together,
)


@pytest.mark.parametrize(
    ('size', 'most', 'fitted'),
    [
        ((1024, 2048), 480, (240, 480)),
        ((480, 100), 480, (480, 100)),
        ((1, 9000), 480, (1, 480)),
        ((2, 2), 480, (32, 32)),
        ((24, 32), 64, (48, 64)),
        ((24, 32), 40, (24, 32)),
    ],
)
def test_fitted_size(size, most, fitted):
    assert fitted_size(*size, most) == fitted


def test_no_single_flag_is_lost():
    rng = np.random.default_rng(0)
    for _ in range(50):
        height, width = rng.integers(1, 200, 2)
        flags = np.zeros((height, width), bool)
        y, x = rng.integers(height), rng.integers(width)
        flags[y, x] = True
        small = pool_any(flags, *fitted_size(height, width, 32))
        assert small.any()
        assert pool_any(~flags, height, width).sum() == flags.size - 1


def test_pooled_and_nearest_cells_agree():
    pixels = np.arange(7 * 5).reshape(7, 5)
    small = nearest(pixels, 3, 2)
    assert small.tolist() == [[0, 2], [10, 12], [20, 22]]
    for value in range(pixels.size):
        pooled = pool_any(pixels == value, 3, 2)
        assert pooled.sum() == 1
        assert (value in small) <= (small[pooled][0] == value)


def test_enlarged_pixels_are_squares():
    flags = np.array([[False, True]])
    assert pool_any(flags, 2, 4).tolist() == [[False, False, True, True]] * 2
    image = np.array([[[0] * 3, [90] * 3]], np.uint8)
    assert resized(image, 2, 4)[..., 0].tolist() == [[0, 0, 90, 90]] * 2


def test_large_areas_show_what_is_below():
    ground = np.full((10, 10, 3), 100, np.uint8)
    wrong = np.zeros((10, 10), bool)
    wrong[:5] = True
    other = np.zeros((10, 10), bool)
    other[5:8] = True
    picture = paint_pixels(ground, wrong, wrong | other)
    for rows, colour in (
        (slice(0, 5), WRONG),
        (slice(5, 8), OTHER),
    ):
        mixed = [round(0.7 * c + 0.3 * 100) for c in colour]
        assert abs(picture[rows].astype(int) - mixed).max() <= 1
    assert (picture[8:] == 100).all()
    assert (ground == 100).all()


def test_a_single_pixel_has_a_ring():
    ground = np.full((100, 100, 3), 100, np.uint8)
    wrong = np.zeros((100, 100), bool)
    wrong[40, 60] = wrong[90, 5] = True
    picture = paint_pixels(ground, wrong, wrong)
    for y, x in ((40, 60), (90, 5)):
        assert (picture[y - 2 : y + 3, x - 2 : x + 3] == WRONG).all()
    white = np.argwhere((picture == 255).all(-1))
    # Around the first in reading order, and not on top of it.
    reach = np.hypot(*(white - (40, 60)).T)
    assert len(white) > 30
    assert reach.min() > 8
    assert reach.max() < 16
    assert (picture == BEHIND).all(-1).any()


def test_nothing_wrong():
    ground = photo(0, 20, 20)
    none = np.zeros((20, 20), bool)
    assert (paint_pixels(ground, none, none) == ground).all()


def test_colours_of_classes_differ():
    colours = class_colours().astype(int)
    apart = np.abs(colours[:150, None] - colours[None, :150]).sum(-1)
    apart += 999 * np.eye(150, dtype=int)
    assert apart.min() >= 8
    neighbours = np.abs(np.diff(colours[:20], axis=0)).sum(-1)
    assert neighbours.min() > 60
    # Marks are none of them.
    for mark in (WRONG, OTHER):
        assert np.abs(colours - mark).sum(-1).min() > 60


def test_dimmed_is_darker_and_greyer():
    image = np.array([[[250, 10, 10]]], np.uint8)
    red, green, blue = dimmed(image)[0, 0].tolist()
    assert red < 250
    assert green == blue > 10
    assert (dimmed(np.full((1, 1, 3), 255, np.uint8)) < 200).all()


@pytest.mark.parametrize('stacked', [True, False])
@pytest.mark.parametrize('size', [(300, 900), (900, 300), (500, 500), (3, 9)])
def test_two_in_one_fit(size, stacked):
    own = half_size(*size, 200, stacked)
    picture = np.ones((*own, 3), np.uint8)
    both = together(picture, picture, stacked)
    assert max(both.shape) <= 200
    assert both.shape[1 - stacked] == 2 * own[1 - stacked] + 8
    assert (both == 1).all(-1).sum() == 2 * own[0] * own[1]


def test_two_in_one_of_different_sizes():
    one = np.full((4, 6, 3), 1, np.uint8)
    other = np.full((2, 3, 3), 2, np.uint8)
    both = together(one, other, stacked=True)
    assert both.shape == (14, 6, 3)
    assert (both[:4] == 1).all()
    assert (both[12:, :3] == 2).all()
    assert (both[4:12] == OUTSIDE[0]).all()
    assert (both[12:, 3:] == OUTSIDE[0]).all()


def decoded(uri: str) -> tuple[str, np.ndarray]:
    head, _, body = uri.partition(';base64,')
    image = Image.open(io.BytesIO(base64.b64decode(body, validate=True)))
    return head, np.asarray(image.convert('RGB'))


def test_small_pictures_keep_their_values():
    picture = np.zeros((30, 40, 3), np.uint8)
    picture[3:9] = WRONG
    head, pixels = decoded(data_uri(picture))
    assert head == 'data:image/png'
    assert (pixels == picture).all()


def test_photos_are_small_without_webp_too(monkeypatch):
    picture = photo(0, 300, 400, blur=2)
    plain = io.BytesIO()
    Image.fromarray(picture).save(plain, 'PNG')
    kinds = set()
    for webp in (features.check('webp'), False):
        monkeypatch.setattr(features, 'check', lambda _, found=webp: found)
        uri = data_uri(picture)
        head, pixels = decoded(uri)
        kinds.add(head)
        assert len(uri) < plain.tell() / 2
        assert np.abs(pixels - picture.astype(int)).mean() < 6
    assert 'data:image/jpeg' in kinds


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

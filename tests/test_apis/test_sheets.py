"""Pictures side by side keep their pixels."""

import numpy as np
import pytest

from mmext.apis.sheets import side_by_side, tile_sheet


def plain(height, width, value):
    return np.full((height, width, 3), value, np.uint8)


def test_panels_keep_their_pixels_and_get_a_title():
    left, right = plain(100, 80, 10), plain(60, 70, 20)
    whole = side_by_side([left, right], ['one', 'two'], gap=5)
    bar = whole.shape[0] - 100
    assert whole.shape[1] == 80 + 5 + 70
    assert bar > 10
    assert (whole[bar:, :80] == 10).all()
    assert (whole[bar : bar + 60, 85:] == 20).all()
    assert (whole[bar + 60 :, 85:] == 250).all()
    for title in (whole[:bar, :80], whole[:bar, 85:]):
        assert title.min() < 150


@pytest.mark.parametrize(('panels', 'titles'), [(0, 0), (1, 2), (2, 1)])
def test_rejects_panels_without_titles(panels, titles):
    with pytest.raises(ValueError, match='panels must be at least one'):
        side_by_side([plain(9, 9, 0)] * panels, ['a'] * titles)


def test_tiles_fill_rows():
    tiles = [plain(20 + index, 30, index) for index in range(5)]
    sheet = tile_sheet(tiles, columns=3, gap=4)
    assert sheet.shape == (4 + 22 + 4 + 24 + 4, 4 + 3 * 34, 3)
    assert (sheet[4:26, 72:102] == 2).all()
    assert (sheet[30:53, 4:34] == 3).all()
    assert (sheet[30:, 72:] == 250).all()


def test_no_empty_columns():
    assert tile_sheet([plain(9, 9, 0)], columns=4, gap=2).shape == (13, 13, 3)


@pytest.mark.parametrize(('count', 'columns'), [(0, 2), (2, 0)])
def test_rejects_no_tiles_and_no_columns(count, columns):
    with pytest.raises(ValueError, match='tiles and columns must be'):
        tile_sheet([plain(9, 9, 0)] * count, columns=columns)

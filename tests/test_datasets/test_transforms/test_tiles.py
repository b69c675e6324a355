"""Tiles cover a picture, and say where they are."""

import numpy as np
import pytest

from mmext.datasets.transforms import TileViews


def keep(results):
    """In the place of what packs."""
    return {'inputs': results['img'], 'data_samples': results['tile']}


@pytest.mark.parametrize('size', [(300, 200), (100, 100), (99, 260), (7, 5)])
@pytest.mark.parametrize('overlap', [0, 0.25, 0.9])
def test_each_pixel_and_each_small_object_is_in_a_tile(size, overlap):
    width, height = size
    transform = TileViews(100, [keep], overlap=overlap)
    image = np.random.default_rng(0).integers(0, 255, (height, width, 3))
    views = transform({'img': image, 'ori_shape': (height, width)})
    whole, *tiles = views['data_samples']
    assert whole == (0, 0, width, height)
    assert (views['inputs'][0] == image).all()
    if max(size) <= 100:
        assert not tiles
        return
    for (x1, y1, x2, y2), part in zip(tiles, views['inputs'][1:]):
        assert (part == image[y1:y2, x1:x2]).all()
        assert (x2 - x1, y2 - y1) == (min(100, width), min(100, height))
    # As large as the overlap, wherever it lies.
    side = int(100 * overlap) or 1
    for x in range(max(width - side, 0) + 1):
        for y in (0, max(height - side, 0) // 3, max(height - side, 0)):
            assert any(
                x1 <= x
                and y1 <= y
                and min(x + side, width) <= x2
                and min(y + side, height) <= y2
                for x1, y1, x2, y2 in tiles
            )


def test_views_of_views_are_one_list():
    twice = TileViews(4, [lambda results: {'inputs': [results['tile']] * 2}])
    views = twice({'img': np.zeros((4, 6, 3), np.uint8)})
    assert len(views['inputs']) == 2 * 3
    assert 'size=4' in repr(twice)


@pytest.mark.parametrize(
    ('options', 'message'),
    [({'size': 0}, 'at least 1 pixel'), ({'overlap': 1}, r'in \[0, 1\)')],
)
def test_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        TileViews(**{'size': 4, 'transforms': [], **options})

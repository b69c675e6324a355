"""Run lengths, against those that pycocotools writes."""

import numpy as np
import pytest

from mmext.label_check.readers._rle import rle_error

SIZE = (7, 9)


def plain(**fields) -> dict:
    return {'size': [7, 9], 'counts': [10, 50, 3]} | fields


@pytest.mark.parametrize('seed', range(20))
def test_what_pycocotools_writes_is_right(seed: int):
    mask_tools = pytest.importorskip('pycocotools.mask')
    rng = np.random.default_rng(seed)
    height, width = rng.integers(1, 200, 2).tolist()
    mask = rng.random((height, width)) < rng.choice([0, 0.01, 0.5, 1])
    value = mask_tools.encode(np.asfortranarray(mask, np.uint8))
    value['counts'] = value['counts'].decode()
    assert rle_error(value, (height, width)) == ''
    assert rle_error(value, (0.0, 0.0)) == ''
    assert 'the image of' in rle_error(value, (height + 1, width))
    assert rle_error(value | {'size': [height, width + 1]}, (0, 0)) != ''
    if len(value['counts']) > 1:
        cut = value | {'counts': value['counts'][:-1]}
        assert rle_error(cut, (height, width)) != ''


def test_lengths_that_are_written_out():
    assert rle_error(plain(), SIZE) == ''
    text = rle_error(plain(counts=[10, 50]), SIZE)
    assert text.startswith('the counts of the RLE are 60 pixels together')


@pytest.mark.parametrize('size', [None, [7], [7, 9.5], [7, -9], '7, 9'])
def test_size(size):
    assert 'must be [height, width]' in rle_error(plain(size=size), SIZE)


@pytest.mark.parametrize('counts', [None, [1, -1, 63], [1.5], 'no!', True])
def test_counts(counts):
    assert 'must be lengths' in rle_error(plain(counts=counts), SIZE)

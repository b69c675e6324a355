import numpy as np
import pytest
import torch
from mmengine.structures import BaseDataElement

from mmext.datasets.transforms import PackImages, RandomResizedCrop


def test_crops_have_the_drawn_area_and_ratio():
    crop = RandomResizedCrop(8, area=(0.2, 0.5), ratio=(0.5, 2.0))
    boxes = np.array([crop.draw(400, 300) for _ in range(300)])
    left, top, width, height = boxes.T
    assert (left >= 0).all()
    assert (left + width <= 300).all()
    assert (top + height <= 400).all()
    area = width * height / (400 * 300)
    assert area.min() > 0.19
    assert area.max() < 0.51
    assert area.std() > 0.05
    ratio = np.log(width / height)
    assert abs(ratio).max() < np.log(2) + 0.02
    assert abs(ratio.mean()) < 0.15


@pytest.mark.parametrize('size', [(100, 2), (2, 100)])
def test_narrow_pictures_get_the_centre(size):
    """Of 2 x 100 pixels no crop of this area has a permitted shape."""
    left, top, width, height = RandomResizedCrop(8, (0.9, 1.0)).draw(*size)
    assert max(width, height) <= 3
    assert abs(left + width / 2 - size[1] / 2) <= 1
    assert abs(top + height / 2 - size[0] / 2) <= 1


def test_size_and_content():
    image = np.zeros((40, 60, 3), np.uint8)
    image[..., 1] = 90
    crop = RandomResizedCrop((16, 12))
    results = crop({'img': image, 'img_shape': (40, 60)})
    assert results['img'].shape == (12, 16, 3)
    assert results['img_shape'] == (12, 16)
    assert np.unique(results['img'][..., 1]).tolist() == [90]


def test_shrinking_is_smooth():
    """A fine pattern becomes grey, which cv2's bicubic does not do."""
    board = np.indices((64, 64)).sum(0) % 2 * 255
    image = np.repeat(board[..., None], 3, 2).astype(np.uint8)
    whole = dict(scale=8, area=(1.0, 1.0), ratio=(1.0, 1.0))
    small = RandomResizedCrop(**whole)({'img': image})['img']
    assert abs(small.astype(int) - 127).max() < 16


@pytest.mark.parametrize(
    'kwargs',
    [dict(area=(0, 1)), dict(area=(0.5, 0.2)), dict(ratio=(2, 1))],
)
def test_wrong_intervals(kwargs):
    with pytest.raises(ValueError, match='must be two rising'):
        RandomResizedCrop(8, **kwargs)


def test_packed():
    image = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    packed = PackImages()({'img': image, 'img_path': 'a.png', 'x': 1})
    assert torch.equal(
        packed['inputs'], torch.from_numpy(image).permute(2, 0, 1)
    )
    assert isinstance(packed['data_samples'], BaseDataElement)
    assert packed['data_samples'].metainfo == {'img_path': 'a.png'}
    assert PackImages()({'img': image[..., 0]})['inputs'].shape == (1, 2, 4)

import pytest
import torch
from torch.testing import assert_close

from mmext.models.mae.model import draw_noise, make_mask


@pytest.mark.parametrize('grid', [(4, 4), (3, 5)])
@pytest.mark.parametrize('ratio', [0.1, 0.5, 0.75, 0.9])
def test_each_patch_is_kept_or_masked(grid, ratio):
    count = grid[0] * grid[1]
    mask = make_mask(draw_noise(6, count, (0,)), grid, ratio)
    assert mask.keep.shape == (6, int(count * (1 - ratio)))
    both = torch.cat(mask, 1).sort(1).values
    assert_close(both, torch.arange(count).expand(6, -1))
    for row, keep in zip(mask.mask, mask.keep):
        assert set((row == 0).nonzero().flatten().tolist()) == set(
            keep.tolist()
        )


@pytest.mark.parametrize('block', [2, 4])
def test_blocks_stay_whole(block):
    grid = (8, 4 * block)
    count = grid[0] * grid[1] // block**2
    mask = make_mask(draw_noise(5, count, (1,)), grid, 0.5, block).mask
    blocks = mask.reshape(5, grid[0] // block, block, -1, block)
    assert_close(blocks.amax((2, 4)), blocks.amin((2, 4)))
    assert mask.sum() == 5 * grid[0] * grid[1] / 2


@pytest.mark.parametrize(
    ('grid', 'ratio', 'block', 'text'),
    [
        ((4, 4), 0.75, 3, 'mask_block must divide'),
        ((4, 4), 0.99, 1, 'mask_ratio must leave'),
        ((4, 4), 0.0, 1, 'mask_ratio must leave'),
        ((4, 4), 0.75, 4, 'of which 0 would stay'),
    ],
)
def test_impossible_masks(grid, ratio, block, text):
    with pytest.raises(ValueError, match=text):
        make_mask(torch.rand(1, 1), grid, ratio, block)


def test_noise_depends_on_the_key_alone():
    first = draw_noise(2, 9, (0, 1, 2))
    state = torch.get_rng_state()
    assert torch.equal(draw_noise(2, 9, (0, 1, 2)), first)
    assert torch.equal(torch.get_rng_state(), state)
    for other in ((0, 1, 3), (0, 2, 1), (1, 1, 2), (0, 1)):
        assert not torch.equal(draw_noise(2, 9, other), first)
    assert 0.3 < draw_noise(4, 100, (5,)).mean() < 0.7

"""The registered heads against those of MMSegmentation."""

import pytest
from helpers.tiny_segmentation import CHANNELS, assert_same_as_host

ONE_MAP = {'in_channels': 8, 'in_index': 2}
ALL_MAPS = {'in_channels': CHANNELS, 'in_index': (0, 1, 2, 3)}
HEADS = {
    'FCNHead': {**ONE_MAP, 'num_convs': 1},
    'PSPHead': {**ONE_MAP, 'pool_scales': (1, 2)},
    'ASPPHead': {**ONE_MAP, 'dilations': (1, 2)},
    'DepthwiseSeparableASPPHead': {
        **ONE_MAP,
        'dilations': (1, 2),
        'c1_in_channels': 4,
        'c1_channels': 3,
    },
    'UPerHead': {**ALL_MAPS, 'pool_scales': (1, 2)},
    'SegformerHead': ALL_MAPS,
}


@pytest.mark.parametrize('name', HEADS)
def test_losses_and_gradients_are_those_of_mmseg(name):
    assert_same_as_host(name, **HEADS[name])

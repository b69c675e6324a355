"""DeepLabV3+'s head against that of MMSegmentation."""

from mmseg.models import decode_heads
from tiny_segmentation import assert_same_as_host

from mmext.models.decode_heads import (
    DepthwiseSeparableASPPHead,
    ResizedLossMixin,
)


def test_losses_and_gradients_are_those_of_mmseg():
    assert_same_as_host(
        'DepthwiseSeparableASPPHead',
        in_channels=8,
        in_index=2,
        dilations=(1, 2),
        c1_in_channels=4,
        c1_channels=3,
    )


def test_is_the_host_with_other_losses():
    assert DepthwiseSeparableASPPHead.__bases__ == (
        ResizedLossMixin,
        decode_heads.DepthwiseSeparableASPPHead,
    )

"""DeepLabV3's head against that of MMSegmentation."""

from mmseg.models import decode_heads
from tiny_segmentation import assert_same_as_host

from mmext.models.decode_heads import ASPPHead, ResizedLossMixin


def test_losses_and_gradients_are_those_of_mmseg():
    assert_same_as_host(
        'ASPPHead',
        in_channels=8,
        in_index=2,
        dilations=(1, 2),
    )


def test_is_the_host_with_other_losses():
    assert ASPPHead.__bases__ == (
        ResizedLossMixin,
        decode_heads.ASPPHead,
    )

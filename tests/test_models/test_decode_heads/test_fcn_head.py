"""The fully convolutional head against that of MMSegmentation."""

from mmseg.models import decode_heads
from tiny_segmentation import assert_same_as_host

from mmext.models.decode_heads import FCNHead, ResizedLossMixin


def test_losses_and_gradients_are_those_of_mmseg():
    assert_same_as_host(
        'FCNHead',
        in_channels=8,
        in_index=2,
        num_convs=1,
    )


def test_is_the_host_with_other_losses():
    assert FCNHead.__bases__ == (
        ResizedLossMixin,
        decode_heads.FCNHead,
    )

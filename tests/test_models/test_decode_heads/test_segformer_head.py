"""SegFormer's head against that of MMSegmentation."""

from mmseg.models import decode_heads
from tiny_segmentation import CHANNELS, assert_same_as_host

from mmext.models.decode_heads import ResizedLossMixin, SegformerHead


def test_losses_and_gradients_are_those_of_mmseg():
    assert_same_as_host(
        'SegformerHead',
        in_channels=CHANNELS,
        in_index=(0, 1, 2, 3),
    )


def test_is_the_host_with_other_losses():
    assert SegformerHead.__bases__ == (
        ResizedLossMixin,
        decode_heads.SegformerHead,
    )

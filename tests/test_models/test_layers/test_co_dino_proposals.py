"""Proposals and encodings against mmdet's functions and plain formulas."""

import math
from types import SimpleNamespace

import pytest
import torch
from mmdet.models.detectors.deformable_detr import DeformableDETR
from reference.co_dino_parts import CHANNELS, SHAPES, sine_of, tiny_batch
from torch import Tensor, nn

from mmext.models.layers.co_dino_proposals import (
    EncodedImage,
    box_sine_encoding,
    encoder_proposals,
)


def encoded_image(
    masks: list[Tensor], *, has_padding: bool = True
) -> EncodedImage:
    """Random memory below padding masks ``(B, H, W)`` of every level."""
    shapes = [tuple(mask.shape[1:]) for mask in masks]
    padding = torch.cat([mask.flatten(1) for mask in masks], 1)
    return EncodedImage(
        memory=torch.randn(*padding.shape, CHANNELS),
        padding_mask=padding,
        valid_ratios=torch.ones(len(padding), len(masks), 2),
        shapes=shapes,
        spatial_shapes=torch.tensor(shapes),
        level_start_index=torch.zeros(len(masks), dtype=torch.int64),
        has_padding=has_padding,
    )


def test_maps_are_the_tokens_level_by_level():
    encoded = encoded_image(tiny_batch().masks)
    maps = encoded.maps()
    assert [tuple(m.shape) for m in maps] == [
        (2, CHANNELS, *shape) for shape in SHAPES
    ]
    token = 0
    for level in maps:
        for y in range(level.shape[2]):
            for x in range(level.shape[3]):
                assert torch.equal(level[:, :, y, x], encoded.memory[:, token])
                token += 1


def test_attention_is_masked_where_there_is_padding_only():
    masks = tiny_batch().masks
    encoded = encoded_image(masks)
    assert encoded.attention_padding is encoded.padding_mask
    assert encoded_image(masks, has_padding=False).attention_padding is None


def test_box_sine_encoding_matches_the_formula():
    boxes = torch.rand(2, 3, 4)
    boxes[0, 0] = torch.tensor([0.0, 1.0, 0.5, 0.25])
    encoded = box_sine_encoding(boxes, 8)
    expected = [
        [[v for x in box for v in sine_of(x, 8)] for box in image]
        for image in boxes.tolist()
    ]
    assert encoded.dtype == torch.float32
    torch.testing.assert_close(
        encoded, torch.tensor(expected), rtol=0, atol=1e-5
    )


def test_box_sine_encoding_gradcheck():
    boxes = torch.rand(1, 2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: box_sine_encoding(x, 6), boxes)


def test_limit_box_sine_encoding_of_nothing():
    assert box_sine_encoding(torch.rand(2, 0, 4), 8).shape == (2, 0, 32)
    zeros = box_sine_encoding(torch.zeros(1, 1, 4), 4)[0, 0]
    assert zeros.tolist() == [0.0, 1.0] * 8


@pytest.mark.parametrize('padded', [False, True])
def test_encoder_proposals_match_mmdet(padded: bool):
    encoded = encoded_image(tiny_batch(padded=padded).masks)
    detector = SimpleNamespace(
        memory_trans_fc=nn.Identity(), memory_trans_norm=nn.Identity()
    )
    memory, expected = DeformableDETR.gen_encoder_output_proposals(
        detector, encoded.memory, encoded.padding_mask, encoded.shapes
    )
    logits, usable = encoder_proposals(encoded)
    torch.testing.assert_close(logits, expected)
    assert torch.equal(usable, memory.ne(0).any(-1))


def test_limit_proposal_sizes():
    """0.05 of the image on level 0, doubled by level; none beyond 0.99."""
    sizes = [(4, 4)] * 6
    masks = [torch.zeros(1, *size, dtype=torch.bool) for size in sizes]
    logits, usable = encoder_proposals(encoded_image(masks))
    assert logits.dtype == torch.float32
    boxes = logits.sigmoid().view(6, 16, 4)
    for level in range(5):
        torch.testing.assert_close(
            boxes[level, :, 2:], torch.full((16, 2), 0.05 * 2**level)
        )
    assert torch.equal(
        usable.view(6, 16).all(1), torch.tensor([True] * 5 + [False])
    )
    assert logits.view(6, 16, 4)[5].eq(math.inf).all()


def test_limit_one_valid_pixel():
    """Its centre is at 0.5 of the valid area, the rest is no proposal."""
    mask = torch.ones(1, 3, 3, dtype=torch.bool)
    mask[0, 0, 0] = False
    logits, usable = encoder_proposals(encoded_image([mask]))
    assert usable.tolist() == [[True] + [False] * 8]
    torch.testing.assert_close(
        logits[0, 0].sigmoid(), torch.tensor([0.5, 0.5, 0.05, 0.05])
    )
    assert logits[0, 1:].eq(math.inf).all()


def test_does_not_change_inputs():
    encoded = encoded_image(tiny_batch().masks)
    memory, mask = encoded.memory.clone(), encoded.padding_mask.clone()
    encoder_proposals(encoded)
    boxes = torch.rand(2, 3, 4)
    before = boxes.clone()
    box_sine_encoding(boxes, 8)
    assert torch.equal(boxes, before)
    assert torch.equal(encoded.memory, memory)
    assert torch.equal(encoded.padding_mask, mask)


def test_proposals_on_every_device(device: torch.device):
    masks = [mask.to(device) for mask in tiny_batch().masks]
    logits, usable = encoder_proposals(encoded_image(masks))
    assert logits.device.type == usable.device.type == device.type
    boxes = torch.rand(1, 2, 4, device=device)
    assert box_sine_encoding(boxes, 8).device.type == device.type

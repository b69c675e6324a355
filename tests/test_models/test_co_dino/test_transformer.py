"""The transformer against mmdet's functions and against plain formulas."""

import ast
import copy
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mmcv.ops.multi_scale_deform_attn import MultiScaleDeformableAttnFunction
from mmdet.models.detectors.deformable_detr import DeformableDETR
from mmdet.registry import MODELS as MMDET_MODELS
from reference.co_dino_parts import (
    CHANNELS,
    SHAPES,
    STACK,
    Batch,
    encode,
    grads,
    inverse_sigmoid,
    sine_of,
    tiny_batch,
    tiny_branches,
    tiny_transformer,
)
from torch import Tensor, nn

from mmext.models.co_dino import attention
from mmext.models.co_dino.transformer import (
    CoDINOTransformer,
    EncodedImage,
    box_sine_encoding,
    encoder_proposals,
)

ORACLES = Path(__file__).resolve().parents[2] / 'oracles'
CLASSES = 5


def mmdet_proposals(
    transformer: CoDINOTransformer,
    encoded: EncodedImage,
    cls_branch: nn.Module,
    reg_branch: nn.Module,
) -> tuple[Tensor, Tensor]:
    """Class logits and box logits of every token, by mmdet's DINO."""
    detector = SimpleNamespace(
        memory_trans_fc=transformer.enc_output,
        memory_trans_norm=transformer.enc_output_norm,
    )
    tokens, logits = DeformableDETR.gen_encoder_output_proposals(
        detector, encoded.memory, encoded.padding_mask, encoded.shapes
    )
    return cls_branch(tokens), reg_branch(tokens) + logits


@pytest.mark.parametrize('padded', [False, True])
def test_proposals_match_mmdet(padded: bool):
    """Logits, choice, boxes, and all gradients."""
    transformer = tiny_transformer()
    batch = tiny_batch(padded=padded)
    branches = tiny_branches(CLASSES, 1)[0], tiny_branches(4, 1)[0]
    encoded = encode(transformer, batch)
    scores, boxes = mmdet_proposals(transformer, encoded, *branches)

    found = transformer.propose(encode(transformer, batch), *branches)
    best = torch.topk(scores.max(-1).values, 12, dim=1).indices[..., None]
    scores = scores.gather(1, best.expand(-1, -1, CLASSES))
    boxes = boxes.gather(1, best.expand(-1, -1, 4)).sigmoid()
    torch.testing.assert_close(found.scores, scores)
    torch.testing.assert_close(found.boxes, boxes)
    assert torch.equal(found.references, found.boxes.detach())
    assert not found.references.requires_grad

    expected = grads(transformer, scores.square().sum() + boxes.sum())
    gradients = grads(
        transformer, found.scores.square().sum() + found.boxes.sum()
    )
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(
            gradients[name], gradient, rtol=1e-3, atol=1e-4
        )


def test_limit_proposals_of_a_small_image():
    """Fewer tokens than queries: all of them propose, best first."""
    transformer = tiny_transformer(num_queries=50)
    encoded = encode(transformer, tiny_batch(shapes=[(3, 4), (2, 2), (1, 1)]))
    branches = tiny_branches(CLASSES, 1)[0], tiny_branches(4, 1)[0]
    found = transformer.propose(encoded, *branches)
    assert found.scores.shape == (2, 17, CLASSES)
    assert found.boxes.shape == (2, 17, 4)
    best = found.scores.max(-1).values
    assert torch.equal(best, best.sort(descending=True).values)
    assert transformer.content_queries(2, 17).shape == (2, 17, CHANNELS)
    sum_of_all = found.scores.sum() + found.boxes.sum()
    for name, gradient in grads(transformer, sum_of_all).items():
        assert gradient.isfinite().all(), name


class Recorder(nn.Module):
    """Stands in for the encoder and keeps what it is given."""

    def forward(self, tokens: Tensor, **kwargs) -> Tensor:
        self.given = {'tokens': tokens, **kwargs}
        return tokens


def test_encode_flattens_level_by_level():
    transformer = tiny_transformer()
    transformer.encoder = recorder = Recorder()
    batch = tiny_batch()
    encoded = encode(transformer, batch)
    given = recorder.given
    token = 0
    for level, (height, width) in enumerate(SHAPES):
        assert encoded.level_start_index[level] == token
        for y in range(height):
            for x in range(width):
                feat, pos, mask = (
                    maps[level][..., y, x]
                    for maps in (batch.feats, batch.pos, batch.masks)
                )
                assert torch.equal(given['tokens'][:, token], feat)
                assert torch.equal(
                    given['pos'][:, token],
                    pos + transformer.level_embeds[level],
                )
                assert torch.equal(encoded.padding_mask[:, token], mask)
                token += 1
    assert token == encoded.memory.shape[1]
    assert encoded.spatial_shapes.tolist() == [list(s) for s in SHAPES]
    assert encoded.spatial_shapes.dtype == torch.int64
    ratios = [DeformableDETR.get_valid_ratio(mask) for mask in batch.masks]
    assert torch.equal(encoded.valid_ratios, torch.stack(ratios, 1))
    for level, feat in zip(encoded.maps(), batch.feats):
        assert torch.equal(level, feat)


def test_padding_is_only_masked_where_there_is_some():
    transformer = tiny_transformer()
    transformer.encoder = recorder = Recorder()
    encoded = encode(transformer, tiny_batch(padded=False))
    assert recorder.given['padding_mask'] is None
    assert encoded.attention_padding is None
    encoded = encode(transformer, tiny_batch())
    assert torch.equal(recorder.given['padding_mask'], encoded.padding_mask)
    assert encoded.attention_padding is encoded.padding_mask


def test_level_starts_are_those_that_a_gpu_reads(monkeypatch):
    """The operator of the GPU finds levels by their start, the CPU's not."""
    transformer = tiny_transformer()
    batch = tiny_batch()
    expected = encode(transformer, batch).memory

    def sample(*inputs: torch.Tensor) -> torch.Tensor:
        # Less the sizes in Python's integers, which come last.
        return MultiScaleDeformableAttnFunction.apply(*inputs[:5], 64)

    monkeypatch.setattr(attention, 'multi_scale_deform_attn', sample)
    torch.testing.assert_close(encode(transformer, batch).memory, expected)


def test_rejects_another_number_of_maps():
    transformer = tiny_transformer()
    batch = tiny_batch()
    short = Batch(batch.feats[:2], batch.masks[:2], batch.pos[:2])
    with pytest.raises(
        ValueError,
        match=r'feats must hold num_feature_levels=3 maps, got 2; .*num_outs',
    ):
        encode(transformer, short)


@pytest.mark.parametrize('with_coord_feat', [False, True])
def test_co_queries_match_the_formula(with_coord_feat: bool):
    transformer = tiny_transformer(with_coord_feat=with_coord_feat).double()
    boxes = torch.rand(2, 4, 4).double()
    boxes[0, 0] = torch.tensor([0.0, 1.0, 1.0, 0.0])
    feats = torch.randn(2, 4, CHANNELS).double()
    for index in range(2):
        clipped = inverse_sigmoid(boxes, 1e-5).sigmoid()
        sine = torch.tensor(
            [
                [
                    [v for x in box for v in sine_of(x, CHANNELS // 2)]
                    for box in image
                ]
                for image in clipped.tolist()
            ],
            dtype=torch.float64,
        )
        expected = transformer.aux_pos_trans_norm[index](
            transformer.aux_pos_trans[index](sine)
        )
        if with_coord_feat:
            expected = expected + transformer.pos_feats_norm[index](
                transformer.pos_feats_trans[index](feats)
            )
        query = transformer.co_queries(boxes, feats, index)
        torch.testing.assert_close(query, expected, rtol=0, atol=1e-5)


def test_content_queries_are_the_learned_ones():
    transformer = tiny_transformer()
    queries = transformer.content_queries(3, 12)
    assert queries.shape == (3, 12, CHANNELS)
    for image in queries:
        assert torch.equal(image, transformer.query_embed.weight)


def test_decode_hands_all_to_the_decoder():
    transformer = tiny_transformer()
    transformer.decoder = recorder = Recorder()
    encoded = encode(transformer, tiny_batch())
    query, boxes = torch.randn(2, 3, CHANNELS), torch.rand(2, 3, 4)
    masks = {'attn_mask': object(), 'key_padding_mask': object()}
    recorder.forward = lambda *args, **kwargs: (args, kwargs)
    args, kwargs = transformer.decode(encoded, query, boxes, [], **masks)
    assert args == (query, boxes)
    assert kwargs == {
        'memory': encoded.memory,
        'padding_mask': encoded.padding_mask,
        'valid_ratios': encoded.valid_ratios,
        'spatial_shapes': encoded.spatial_shapes,
        'level_start_index': encoded.level_start_index,
        'level_sizes': encoded.shapes,
        'reg_branches': [],
        **masks,
    }


@pytest.mark.parametrize('with_coord_feat', [False, True])
def test_names_and_shapes_are_the_ports(with_coord_feat: bool):
    with torch.device('meta'):
        transformer = CoDINOTransformer(with_coord_feat=with_coord_feat)
    ours = {
        f'query_head.transformer.{name}': tuple(tensor.shape)
        for name, tensor in transformer.state_dict().items()
        if 'pos_feats' not in name
    }
    theirs = {
        name: ast.literal_eval(shape)
        for name, shape, _ in (
            line.split('\t')
            for line in (ORACLES / 'codetr_r50_keys.tsv').open()
        )
        if name.startswith('query_head.transformer.')
    }
    assert ours == theirs
    extra = [name for name in transformer.state_dict() if 'pos_feats' in name]
    assert len(extra) == (8 if with_coord_feat else 0)


def test_builds_from_registry():
    cfg = {
        'type': 'mmext.CoDINOTransformer',
        'embed_dims': CHANNELS,
        'encoder': dict(STACK),
        'decoder': {**STACK, 'with_cp': True},
    }
    before = copy.deepcopy(cfg)
    transformer = MMDET_MODELS.build(cfg)
    assert type(transformer) is CoDINOTransformer
    assert transformer.decoder.num_checkpointed == 2
    assert transformer.encoder.num_checkpointed == 0
    assert cfg == before


def test_does_not_change_inputs():
    transformer = tiny_transformer()
    batch = tiny_batch()
    before = copy.deepcopy(batch)
    encoded = encode(transformer, batch)
    kept = copy.deepcopy(encoded.memory.detach())
    transformer.propose(
        encoded, tiny_branches(CLASSES, 1)[0], tiny_branches(4, 1)[0]
    )
    boxes = torch.tensor([[[0.0, 1.0, 2.0, 0.5]]]).expand(2, 1, 4)
    transformer.co_queries(boxes, None, 0)
    assert boxes[0, 0].tolist() == [0.0, 1.0, 2.0, 0.5]
    assert torch.equal(encoded.memory, kept)
    for name, maps in vars(before).items():
        for given, old in zip(getattr(batch, name), maps):
            assert torch.equal(given, old), name


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


def test_co_dino_proposals_does_not_change_inputs():
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

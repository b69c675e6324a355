"""The transformer against mmdet's functions and against plain formulas."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mmcv.ops.multi_scale_deform_attn import MultiScaleDeformableAttnFunction
from mmdet.models.detectors.deformable_detr import DeformableDETR
from reference.co_dino_parts import (
    CHANNELS,
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

    proposals = transformer.propose(encode(transformer, batch), *branches)
    best = torch.topk(scores.max(-1).values, 12, dim=1).indices[..., None]
    scores = scores.gather(1, best.expand(-1, -1, CLASSES))
    boxes = boxes.gather(1, best.expand(-1, -1, 4)).sigmoid()
    torch.testing.assert_close(proposals.scores, scores)
    torch.testing.assert_close(proposals.boxes, boxes)
    assert torch.equal(proposals.references, proposals.boxes.detach())
    assert not proposals.references.requires_grad

    expected = grads(transformer, scores.square().sum() + boxes.sum())
    gradients = grads(
        transformer, proposals.scores.square().sum() + proposals.boxes.sum()
    )
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(
            gradients[name], gradient, rtol=1e-3, atol=1e-4
        )


class Recorder(nn.Module):
    """Stands in for the encoder and keeps what it is given."""

    def forward(self, tokens: Tensor, **kwargs) -> Tensor:
        self.given = {'tokens': tokens, **kwargs}
        return tokens


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

"""The transformer in training: gradients, precision, copies, first weights."""

import copy
import math

import pytest
import torch
from helpers.torch_versions import cpu_autocast
from mmcv.ops import MultiScaleDeformableAttention
from reference.co_dino_parts import (
    CHANNELS,
    SHAPES,
    STACK,
    encode,
    grads,
    tiny_batch,
    tiny_branches,
    tiny_transformer,
)
from torch import Tensor

from mmext.models.co_dino.transformer import CoDINOTransformer, Proposals

CLASSES = 5
NORMAL = ('level_embeds', 'query_embed.weight')
ZERO = ('offsets.weight', 'attention_weights.weight')


def seeded_transformer(with_cp=False, dropout=0.0) -> CoDINOTransformer:
    torch.manual_seed(3)
    part = {'with_cp': with_cp, 'dropout': dropout}
    return tiny_transformer(encoder=part, decoder=part)


def step(
    transformer: CoDINOTransformer, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, dict[str, Tensor]]:
    """Encode, propose, decode; a loss of all, and its gradients."""
    torch.manual_seed(7)
    cls_branch = tiny_branches(CLASSES, 1)[0]
    reg_branches = tiny_branches(4, 3)
    batch = tiny_batch()
    with cpu_autocast(dtype):
        encoded = encode(transformer, batch)
        proposals: Proposals = transformer.propose(
            encoded, cls_branch, reg_branches[2]
        )
        co = [
            transformer.co_queries(proposals.references, None, i)
            for i in range(2)
        ]
        hidden, boxes = transformer.decode(
            encoded,
            torch.cat(
                [transformer.matching_queries(proposals.references), *co], 1
            ),
            torch.cat([proposals.references] * 3, 1),
            reg_branches,
        )
    assert proposals.boxes.dtype == boxes[-1].dtype == torch.float32
    loss = sum(
        tensor.float().square().mean()
        for tensor in (hidden, *boxes, proposals.boxes, proposals.scores)
    )
    return loss, grads(transformer, loss)


@pytest.mark.parametrize(
    'dtype', [torch.float32, torch.bfloat16, torch.float16]
)
@pytest.mark.parametrize('dropout', [0.0, 0.3])
@pytest.mark.parametrize('with_cp', [1, True])
def test_checkpointing_changes_no_number(with_cp, dropout, dtype):
    plain_loss, plain = step(seeded_transformer(False, dropout), dtype)
    loss, gradients = step(seeded_transformer(with_cp, dropout), dtype)
    assert torch.equal(loss, plain_loss)
    for name, gradient in plain.items():
        assert gradient.isfinite().all(), name
        assert torch.equal(gradients[name], gradient), name


def test_init_weights_is_dinos():
    transformer = tiny_transformer(num_queries=300)
    transformer.init_weights()
    for name, parameter in transformer.named_parameters():
        if name in NORMAL:
            assert abs(parameter.std() - 1) < 0.25, name
        elif name.endswith(ZERO):
            assert parameter.eq(0).all(), name
        elif parameter.dim() > 1:
            bound = math.sqrt(6 / sum(parameter.shape))
            assert 0.9 * bound < parameter.abs().max() <= bound, name
    fresh = MultiScaleDeformableAttention(
        CHANNELS,
        num_heads=STACK['num_heads'],
        num_levels=len(SHAPES),
        num_points=STACK['num_points'],
    )
    for module in transformer.modules():
        if isinstance(module, MultiScaleDeformableAttention):
            assert torch.equal(
                module.sampling_offsets.bias, fresh.sampling_offsets.bias
            )


def test_built_without_init_weights_is_defined():
    """The port leaves ``level_embeds`` as uninitialised memory."""
    for _ in range(3):
        transformer = CoDINOTransformer(
            embed_dims=CHANNELS, encoder=STACK, decoder=STACK
        )
        assert 0.5 < transformer.level_embeds.std() < 2


def test_init_cfg_has_the_last_word():
    cfg = {'type': 'Constant', 'layer': 'LayerNorm', 'val': 7.0, 'bias': 2.0}
    before = copy.deepcopy(cfg)
    transformer = tiny_transformer(init_cfg=cfg)
    transformer.init_weights()
    assert transformer.enc_output_norm.weight.eq(7).all()
    assert transformer.decoder.norm.bias.eq(2).all()
    assert cfg == before
    once = copy.deepcopy(transformer.state_dict())
    transformer.init_weights()
    for name, tensor in transformer.state_dict().items():
        assert torch.equal(tensor, once[name]), name

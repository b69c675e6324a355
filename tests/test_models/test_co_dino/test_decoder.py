"""The decoder against mmdet's DINO decoder, weights copied."""

import inspect

import pytest
import torch
from helpers.torch_versions import cpu_autocast
from mmcv.cnn.bricks.transformer import MultiheadAttention
from mmdet.models.layers import DinoTransformerDecoder
from mmdet.models.layers.transformer import dino_layers
from reference.co_dino_parts import (
    CHANNELS,
    SHAPES,
    STACK,
    grads,
    randomize,
    tiny_branches,
)
from torch import Tensor, nn

from mmext.models.co_dino.decoder import (
    CoDINODecoder,
    SelfAttention,
)

QUERIES = 7
RATIOS = torch.tensor(
    [
        [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]],
        [[0.625, 0.8], [0.75, 0.67], [0.5, 1.0]],
    ]
)


class WithBranches(nn.Module):
    """A decoder with its box branches, whose gradients count as well."""

    def __init__(self, decoder: nn.Module):
        super().__init__()
        self.decoder = decoder
        self.branches = tiny_branches(4, STACK['num_layers'])


@pytest.fixture(autouse=True)
def _default_dropout(monkeypatch):
    """Undo what others left: mmcv writes ``dropout`` into its own default."""
    init = inspect.unwrap(MultiheadAttention.__init__)
    default = inspect.signature(init).parameters['dropout_layer'].default
    monkeypatch.setitem(default, 'drop_prob', 0.0)


def make_decoder(**kwargs) -> WithBranches:
    torch.manual_seed(5)
    decoder = CoDINODecoder(
        embed_dims=CHANNELS, num_levels=len(SHAPES), **{**STACK, **kwargs}
    )
    randomize(decoder)
    return WithBranches(decoder)


def make_inputs() -> dict:
    torch.manual_seed(6)
    areas = [height * width for height, width in SHAPES]
    mask = torch.rand(QUERIES, QUERIES) < 0.3
    return {
        'query': torch.randn(2, QUERIES, CHANNELS),
        'references': torch.rand(2, QUERIES, 4),
        'memory': torch.randn(2, sum(areas), CHANNELS),
        'padding_mask': torch.rand(2, sum(areas)) < 0.3,
        'valid_ratios': RATIOS,
        'spatial_shapes': torch.tensor(SHAPES),
        'level_start_index': torch.tensor([0, *areas[:-1]]).cumsum(0),
        'attn_mask': mask.fill_diagonal_(False),
    }


def loss_of(hidden: Tensor, references: list[Tensor]) -> Tensor:
    """A scalar in which every hidden state and every box counts."""
    weight = torch.linspace(-1, 1, hidden.numel()).view(hidden.shape)
    boxes = torch.stack(tuple(references))
    return (hidden.float() * weight).sum() + (boxes**2).sum()


def run(
    module: WithBranches, dtype: torch.dtype = torch.float32, **changed
) -> tuple[Tensor, list[Tensor], dict[str, Tensor]]:
    """Output and gradients; the backward pass runs outside of autocast."""
    inputs = {**make_inputs(), **changed}
    with cpu_autocast(dtype):
        hidden, references = module.decoder(
            **inputs, reg_branches=module.branches
        )
    results = grads(module, loss_of(hidden, references))
    assert len(results) == len(list(module.parameters()))
    return hidden.detach(), references, results


def mmdet_decoder(module: WithBranches) -> WithBranches:
    attention = {
        'embed_dims': CHANNELS,
        'num_heads': STACK['num_heads'],
        'batch_first': True,
    }
    oracle = DinoTransformerDecoder(
        num_layers=STACK['num_layers'],
        return_intermediate=True,
        layer_cfg={
            'self_attn_cfg': {**attention, 'attn_drop': 0.0},
            'cross_attn_cfg': {
                **attention,
                'num_levels': len(SHAPES),
                'num_points': STACK['num_points'],
                'dropout': 0.0,
            },
            'ffn_cfg': {
                'embed_dims': CHANNELS,
                'feedforward_channels': STACK['feedforward_channels'],
                'ffn_drop': 0.0,
            },
        },
        post_norm_cfg=None,
    )
    # This mmdet encodes boxes twice as wide as DINO does, which gives the
    # head that reads them another shape. See narrow_encoding below.
    oracle.ref_point_head.layers[0] = nn.Linear(2 * CHANNELS, CHANNELS)
    twin = WithBranches(oracle)
    twin.load_state_dict(
        {in_mmdet(k): value for k, value in module.state_dict().items()}
    )
    return twin


def in_mmdet(name: str) -> str:
    for ours, theirs in (
        ('attentions.0', 'self_attn'),
        ('attentions.1', 'cross_attn'),
        ('ffns.0', 'ffn'),
        ('ref_point_head.0', 'ref_point_head.layers.0'),
        ('ref_point_head.2', 'ref_point_head.layers.1'),
    ):
        name = name.replace(ours, theirs)
    return name


@pytest.fixture
def narrow_encoding(monkeypatch):
    original = dino_layers.coordinate_to_encoding
    monkeypatch.setattr(
        dino_layers,
        'coordinate_to_encoding',
        lambda boxes, **_: original(boxes, num_feats=CHANNELS // 2),
    )


def test_matches_mmdet(narrow_encoding):
    """Hidden states, references, all gradients: look forward twice."""
    module = make_decoder().double()
    twin = mmdet_decoder(module).double()
    inputs = {
        name: tensor.double() if tensor.is_floating_point() else tensor
        for name, tensor in make_inputs().items()
    }
    corners = torch.tensor([[0.0, 1.0, 0.0, 1.0], [1e-6, 0.5, 1, 0.2]])
    inputs['references'][0, :2] = corners
    hidden, references, output = run(module, **inputs)
    expected, boxes = twin.decoder(
        query=inputs['query'],
        value=inputs['memory'],
        key_padding_mask=inputs['padding_mask'],
        self_attn_mask=inputs['attn_mask'],
        reference_points=inputs['references'],
        spatial_shapes=inputs['spatial_shapes'],
        level_start_index=inputs['level_start_index'],
        valid_ratios=inputs['valid_ratios'],
        reg_branches=twin.branches,
    )
    torch.testing.assert_close(hidden, expected)
    torch.testing.assert_close(torch.stack(references), boxes)
    renamed = {in_mmdet(name): value for name, value in output.items()}
    theirs = grads(twin, loss_of(expected, list(boxes)))
    assert renamed.keys() == theirs.keys()
    for name, gradient in theirs.items():
        torch.testing.assert_close(renamed[name], gradient)


def test_self_attention_drops_of_its_output():
    """With the probability of the weights' dropout, which is off here."""
    module = SelfAttention(32, 4, 0.5).train()
    module.attn.dropout = 0.0
    query = torch.randn(2, 50, 32)
    added = module(query, torch.zeros_like(query), None, None) - query
    dropped = (added == 0).float().mean()
    assert 0.4 < float(dropped) < 0.6
    added = module.eval()(query, torch.zeros_like(query), None, None) - query
    assert (added != 0).float().mean() > 0.99


def test_autocast_refines_in_float32():
    """Offsets are rounded once; the box that they are added to never is."""
    module = make_decoder()
    with torch.no_grad():
        for branch in module.branches:
            branch.weight.zero_()
            branch.bias.zero_()
    boxes = torch.rand(2, QUERIES, 4) * 0.9 + 0.05
    _, references, _ = run(module, torch.bfloat16, references=boxes)
    assert (references[-1] - boxes).abs().max() < 1e-6
    assert (boxes.bfloat16().float() - boxes).abs().max() > 1e-3

"""The encoder against mmdet's Deformable DETR encoder, weights copied."""

import torch
from helpers.torch_versions import cpu_autocast
from mmdet.models.layers import DeformableDetrTransformerEncoder
from reference.co_dino_parts import (
    CHANNELS,
    SHAPES,
    STACK,
    grads,
    randomize,
)
from torch import Tensor

from mmext.models.co_dino.encoder import (
    CoDINOEncoder,
    encoder_reference_points,
)

RATIOS = torch.tensor(
    [
        [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]],
        [[0.625, 0.8], [0.75, 0.67], [0.5, 1.0]],
    ]
)


def make_encoder(**kwargs) -> CoDINOEncoder:
    torch.manual_seed(5)
    encoder = CoDINOEncoder(
        embed_dims=CHANNELS, num_levels=len(SHAPES), **{**STACK, **kwargs}
    )
    randomize(encoder)
    return encoder


def make_inputs() -> dict:
    torch.manual_seed(6)
    areas = [height * width for height, width in SHAPES]
    return {
        'tokens': torch.randn(2, sum(areas), CHANNELS),
        'pos': torch.randn(2, sum(areas), CHANNELS),
        'padding_mask': torch.rand(2, sum(areas)) < 0.3,
        'reference_points': encoder_reference_points(SHAPES, RATIOS),
        'spatial_shapes': torch.tensor(SHAPES),
        'level_start_index': torch.tensor([0, *areas[:-1]]).cumsum(0),
    }


def run(
    encoder: CoDINOEncoder, dtype: torch.dtype = torch.float32, **changed
) -> tuple[Tensor, dict[str, Tensor]]:
    """Output and gradients; the backward pass runs outside of autocast."""
    inputs = {**make_inputs(), **changed}
    with cpu_autocast(dtype):
        output = encoder(**inputs)
    loss = (output * torch.linspace(-1, 1, CHANNELS)).sum()
    results = grads(encoder, loss)
    assert len(results) == len(list(encoder.parameters()))
    return output.detach(), results


def mmdet_encoder(encoder: CoDINOEncoder) -> DeformableDetrTransformerEncoder:
    oracle = DeformableDetrTransformerEncoder(
        num_layers=STACK['num_layers'],
        layer_cfg={
            'self_attn_cfg': {
                'embed_dims': CHANNELS,
                'num_heads': STACK['num_heads'],
                'num_levels': len(SHAPES),
                'num_points': STACK['num_points'],
                'dropout': 0.0,
                'batch_first': True,
            },
            'ffn_cfg': {
                'embed_dims': CHANNELS,
                'feedforward_channels': STACK['feedforward_channels'],
                'ffn_drop': 0.0,
            },
        },
    )
    oracle.load_state_dict(
        {in_mmdet(k): value for k, value in encoder.state_dict().items()}
    )
    return oracle


def in_mmdet(name: str) -> str:
    return name.replace('attentions.0', 'self_attn').replace('ffns.0', 'ffn')


def test_matches_mmdet():
    """Values and all gradients."""
    encoder = make_encoder().double()
    oracle = mmdet_encoder(encoder).double()
    inputs = {
        name: tensor.double() if tensor.is_floating_point() else tensor
        for name, tensor in make_inputs().items()
    }
    output, results = run(encoder, **inputs)
    expected = oracle(
        query=inputs['tokens'],
        query_pos=inputs['pos'],
        key_padding_mask=inputs['padding_mask'],
        spatial_shapes=inputs['spatial_shapes'],
        level_start_index=inputs['level_start_index'],
        valid_ratios=RATIOS,
    )
    torch.testing.assert_close(output, expected)
    loss = (expected * torch.linspace(-1, 1, CHANNELS)).sum()
    for name, gradient in grads(oracle, loss).items():
        ours = {in_mmdet(key): value for key, value in results.items()}[name]
        torch.testing.assert_close(ours, gradient)

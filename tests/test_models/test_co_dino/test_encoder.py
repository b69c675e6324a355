"""The encoder against mmdet's Deformable DETR encoder, weights copied."""

import copy
import inspect
import pickle

import pytest
import torch
from mmdet.models.layers import DeformableDetrTransformerEncoder
from reference.co_dino_parts import (
    CHANNELS,
    SHAPES,
    STACK,
    grads,
    graph_leaves,
    randomize,
)
from torch import Tensor

from mmext.models.checkpointing.checkpoint import is_checkpointed
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
    with torch.autocast('cpu', dtype, enabled=dtype != torch.float32):
        output = encoder(**inputs)
    loss = (output * torch.linspace(-1, 1, CHANNELS)).sum()
    found = grads(encoder, loss)
    assert len(found) == len(list(encoder.parameters()))
    return output.detach(), found


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
    output, found = run(encoder, **inputs)
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
        ours = {in_mmdet(key): value for key, value in found.items()}[name]
        torch.testing.assert_close(ours, gradient)


def test_reference_points_match_mmdet():
    expected = DeformableDetrTransformerEncoder.get_encoder_reference_points(
        SHAPES, RATIOS, 'cpu'
    )
    points = encoder_reference_points(SHAPES, RATIOS)
    assert points.dtype == torch.float32
    torch.testing.assert_close(points, expected, rtol=1e-6, atol=0)


def test_limit_reference_points_of_a_full_image():
    """Without padding every level sees the centre of the pixel."""
    points = encoder_reference_points([(2, 4)], torch.ones(1, 1, 2))
    assert points.shape == (1, 8, 1, 2)
    x, y = points[0, :, 0].unbind(-1)
    assert x.tolist() == [0.125, 0.375, 0.625, 0.875] * 2
    assert y.tolist() == [0.25] * 4 + [0.75] * 4


def test_limit_padding_has_no_influence():
    """Valid tokens do not depend on what padding tokens hold."""
    encoder = make_encoder()
    inputs = make_inputs()
    mask = inputs['padding_mask']
    outputs = [
        encoder(
            **{
                **inputs,
                'tokens': inputs['tokens'].masked_fill(mask[..., None], junk),
            }
        )[~mask]
        for junk in (0.0, 100.0)
    ]
    assert torch.equal(*outputs)


def test_limit_nothing_is_padded():
    encoder = make_encoder()
    inputs = make_inputs()
    nothing = torch.zeros_like(inputs['padding_mask'])
    assert torch.equal(
        encoder(**{**inputs, 'padding_mask': None}),
        encoder(**{**inputs, 'padding_mask': nothing}),
    )


@pytest.mark.parametrize('dropout', [0.0, 0.3])
@pytest.mark.parametrize('with_cp', [True, 1])
def test_checkpointing_changes_no_number(with_cp, dropout: float):
    plain = run(make_encoder(dropout=dropout))
    ours = run(make_encoder(dropout=dropout, with_cp=with_cp))
    assert torch.equal(ours[0], plain[0])
    for name, gradient in plain[1].items():
        assert torch.equal(ours[1][name], gradient), name


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_half_and_autocast(dtype: torch.dtype):
    """Finite, near float32, and the same with checkpointing."""
    full = run(make_encoder())[0]
    plain = run(make_encoder(), dtype)
    ours = run(make_encoder(with_cp=True), dtype)
    assert (plain[0] - full).abs().mean() < 0.1 * full.abs().mean()
    assert torch.equal(ours[0], plain[0])
    for name, gradient in plain[1].items():
        assert gradient.isfinite().all(), name
        assert torch.equal(ours[1][name], gradient), name


def test_parameters_are_found_by_a_walk_of_the_graph():
    encoder = make_encoder(with_cp=True)
    leaves = graph_leaves(encoder(**make_inputs()))
    assert leaves == {id(parameter) for parameter in encoder.parameters()}


@pytest.mark.parametrize(
    'duplicate',
    [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))],
    ids=['deepcopy', 'pickle'],
)
def test_copy_computes_with_its_own_weights(duplicate):
    encoder = make_encoder(with_cp=True)
    copied = duplicate(encoder)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.zero_()
    expected = run(make_encoder())
    output, found = run(copied)
    assert torch.equal(output, expected[0])
    for name, gradient in expected[1].items():
        assert torch.equal(found[name], gradient), name


@pytest.mark.parametrize(
    ('with_cp', 'count'), [(False, 0), (True, 2), (0, 0), (1, 1), (2, 2)]
)
def test_with_cp_counts_leading_layers(with_cp, count: int):
    encoder = make_encoder(with_cp=with_cp)
    assert encoder.num_checkpointed == count
    assert [is_checkpointed(layer) for layer in encoder.layers] == [
        i < count for i in range(2)
    ]
    assert encoder.state_dict().keys() == make_encoder().state_dict().keys()


def test_rejects_with_cp_of_another_type():
    with pytest.raises(TypeError, match=r"encoder\.with_cp must.*got '4'"):
        make_encoder(with_cp='4')


@pytest.mark.parametrize('with_cp', [-1, 3])
def test_rejects_with_cp_out_of_range(with_cp: int):
    with pytest.raises(ValueError, match=r'encoder\.with_cp .* in \[0, 2\]'):
        make_encoder(with_cp=with_cp)


def test_defaults_are_those_of_the_paper():
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(
            CoDINOEncoder
        ).parameters.items()
    }
    assert defaults == {
        'embed_dims': 256,
        'num_levels': 5,
        'num_layers': 6,
        'num_heads': 8,
        'num_points': 4,
        'feedforward_channels': 2048,
        'dropout': 0.0,
        'with_cp': False,
    }


def test_does_not_change_inputs():
    inputs = make_inputs()
    make_encoder()(**inputs).sum().backward()
    for name, tensor in make_inputs().items():
        assert torch.equal(inputs[name], tensor), name

"""Deformable attention against mmcv's, and against the sum written out."""

import pytest
import torch
from helpers.torch_versions import cpu_autocast
from mmcv.ops import MultiScaleDeformableAttention
from reference.co_dino_parts import SHAPES, grads, randomize

from mmext.models.co_dino import attention as co_dino_attention
from mmext.models.co_dino.attention import DeformableAttention

DIMS = 16
SIZES = {'num_heads': 4, 'num_levels': len(SHAPES), 'num_points': 2}


def make_attention(**kwargs) -> DeformableAttention:
    attention = DeformableAttention(DIMS, **{**SIZES, **kwargs})
    randomize(attention)
    return attention


def make_inputs(
    box_dims: int,
    *,
    shapes: list[tuple[int, int]] = SHAPES,
    queries: int = 5,
) -> dict:
    areas = [height * width for height, width in shapes]
    return {
        'query': torch.randn(2, queries, DIMS),
        'value': torch.randn(2, sum(areas), DIMS),
        'query_pos': torch.randn(2, queries, DIMS),
        'padding_mask': None,
        'reference_points': torch.rand(2, queries, len(shapes), box_dims),
        'spatial_shapes': torch.tensor(shapes),
        'level_start_index': torch.tensor([0, *areas[:-1]]).cumsum(0),
    }


def mmcv_output(oracle: MultiScaleDeformableAttention, inputs: dict):
    """The same call in mmcv's words."""
    renamed = {**inputs}
    renamed['key_padding_mask'] = renamed.pop('padding_mask')
    return oracle(**renamed)


def mmcv_twin(attention: DeformableAttention) -> MultiScaleDeformableAttention:
    oracle = MultiScaleDeformableAttention(
        DIMS,
        num_heads=attention.num_heads,
        num_levels=attention.num_levels,
        num_points=attention.num_points,
        batch_first=True,
        dropout=0.0,
    )
    oracle.load_state_dict(attention.state_dict())
    return oracle


@pytest.mark.slow
def test_level_sizes_make_no_graph_break(monkeypatch):
    """For any size of the maps, with PyTorch's back end."""
    monkeypatch.setenv('MMEXT_OPS', 'pytorch')
    attention = make_attention().eval()
    compiled = torch.compile(
        attention, backend='eager', dynamic=True, fullgraph=True
    )
    for shapes in (SHAPES, [(h + 3, w + 2) for h, w in SHAPES]):
        inputs = {**make_inputs(4, shapes=shapes), 'level_sizes': shapes}
        torch.testing.assert_close(compiled(**inputs), attention(**inputs))


@pytest.mark.parametrize('padded', [False, True])
@pytest.mark.parametrize('box_dims', [2, 4])
def test_matches_mmcv(box_dims: int, padded: bool):
    """Values and gradients of inputs and parameters."""
    attention = make_attention()
    inputs = make_inputs(box_dims)
    if padded:
        inputs['padding_mask'] = torch.rand(inputs['value'].shape[:2]) < 0.3
    names = ('query', 'value', 'query_pos', 'reference_points')
    for name in names:
        inputs[name].requires_grad_()
    results = []
    for module, output in (
        (attention, attention(**inputs)),
        (oracle := mmcv_twin(attention), mmcv_output(oracle, inputs)),
    ):
        loss = (output * torch.linspace(-1, 1, DIMS)).sum()
        inputs_grad = torch.autograd.grad(
            loss, [inputs[name] for name in names], retain_graph=True
        )
        results.append(
            {
                'output': output,
                **dict(zip(names, inputs_grad)),
                **grads(module, loss),
            }
        )
    ours, theirs = results
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=2e-5)


@pytest.mark.parametrize(('queries', 'kept'), [(5, False), (60, True)])
def test_values_are_kept_where_queries_are_many(
    queries: int, kept: bool, monkeypatch
):
    """Computed again, those of all tokens, in the backward of a decoder."""
    calls = []
    original = co_dino_attention.multi_scale_deform_attn

    def counted(*inputs):
        calls.append(inputs)
        return original(*inputs)

    monkeypatch.setattr(co_dino_attention, 'multi_scale_deform_attn', counted)
    make_attention()(**make_inputs(4, queries=queries)).sum().backward()
    assert len(calls) == (1 if kept else 2)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_samples_where_float32_samples(dtype: torch.dtype, monkeypatch):
    """Autocast moves no sampling point, not by one bit.

    Rounding them to the dtype of autocast would move them by a good part of
    a pixel.
    """
    shapes = [(4, 320)]
    attention = make_attention(num_levels=1)
    inputs = make_inputs(4, shapes=shapes, queries=50)

    seen = []
    original = co_dino_attention.multi_scale_deform_attn

    def recorded(value, shapes, starts, locations, *others):
        seen.append(locations)
        return original(value, shapes, starts, locations, *others)

    monkeypatch.setattr(co_dino_attention, 'multi_scale_deform_attn', recorded)
    for used in (torch.float32, dtype):
        with cpu_autocast(used):
            attention(**inputs)
    full, low = seen
    assert low.dtype == torch.float32
    assert torch.equal(low, full)
    moved = (full.to(dtype).float() - full)[..., 0].abs().max() * 320
    assert moved > (0.5 if dtype == torch.bfloat16 else 0.05)


def test_dropout_in_training_only():
    attention = make_attention(dropout=0.5)
    inputs = make_inputs(4)
    assert not torch.equal(attention(**inputs), attention(**inputs))
    attention.eval()
    assert torch.equal(attention(**inputs), attention(**inputs))


def test_rejects_unknown_arguments():
    """mmcv swallows them, a misspelt mask included."""
    with pytest.raises(TypeError, match='key_padding_mask'):
        make_attention()(**make_inputs(4), key_padding_mask=None)


def test_rejects_heads_that_do_not_divide():
    with pytest.raises(ValueError, match='divisible by num_heads'):
        DeformableAttention(15, **SIZES)

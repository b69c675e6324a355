"""Deformable attention against mmcv's, and against the sum written out."""

import math

import pytest
import torch
from mmcv.ops import MultiScaleDeformableAttention, multi_scale_deform_attn
from mmcv.ops.multi_scale_deform_attn import MultiScaleDeformableAttnFunction
from reference.co_dino_parts import SHAPES, bilinear, grads, randomize
from torch import Tensor

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
    found = []
    for module, output in (
        (attention, attention(**inputs)),
        (oracle := mmcv_twin(attention), mmcv_output(oracle, inputs)),
    ):
        loss = (output * torch.linspace(-1, 1, DIMS)).sum()
        inputs_grad = torch.autograd.grad(
            loss, [inputs[name] for name in names], retain_graph=True
        )
        found.append(
            {
                'output': output,
                **dict(zip(names, inputs_grad)),
                **grads(module, loss),
            }
        )
    ours, theirs = found
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=2e-5)


def test_matches_the_formula():
    """Heads, levels and points summed in loops, with a bilinear of our own."""
    attention = make_attention()
    inputs = make_inputs(4, queries=2)
    inputs['reference_points'] *= 1.2
    with torch.no_grad():
        output = attention(**inputs)
        for image in range(2):
            torch.testing.assert_close(
                output[image],
                attention.output_proj(summed(attention, inputs, image))
                + inputs['query'][image],
            )


def summed(attention: DeformableAttention, inputs: dict, image: int) -> Tensor:
    """Heads side by side, ``(N, C)``, before the output projection."""
    located = (inputs['query'] + inputs['query_pos'])[image]
    heads, levels, points = SIZES.values()
    values = attention.value_proj(inputs['value'][image])
    values = values.view(len(values), heads, -1)
    weights = attention.attention_weights(located)
    weights = weights.view(len(located), heads, -1).softmax(-1)
    offsets = attention.sampling_offsets(located)
    offsets = offsets.view(len(located), heads, levels, points, 2)
    result = torch.zeros(len(located), heads, values.shape[-1])
    for n, query_offsets in enumerate(offsets):
        for head in range(heads):
            for level, (height, width) in enumerate(SHAPES):
                start = inputs['level_start_index'][level]
                grid = values[start : start + height * width, head]
                cx, cy, w, h = inputs['reference_points'][image, n, level]
                for point in range(points):
                    dx, dy = query_offsets[head, level, point] / points / 2
                    x, y = float(cx + dx * w), float(cy + dy * h)
                    weight = weights[n, head, level * points + point]
                    result[n, head] += weight * bilinear(
                        grid.view(height, width, -1),
                        x * width - 0.5,
                        y * height - 0.5,
                    )
    return result.flatten(1)


def test_limit_uniform_weights_average_one_pixel():
    """No offsets, equal weights, identity projections: the pixel itself."""
    attention = make_attention()
    for layer in (attention.sampling_offsets, attention.attention_weights):
        torch.nn.init.zeros_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
    for layer in (attention.value_proj, attention.output_proj):
        torch.nn.init.eye_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
    inputs = make_inputs(2, queries=1)
    for level, (height, width) in enumerate(SHAPES):
        inputs['reference_points'][:, :, level, 0] = 1.5 / width
        inputs['reference_points'][:, :, level, 1] = 0.5 / height
    pixels = inputs['value'][:, inputs['level_start_index'] + 1]
    torch.testing.assert_close(
        attention(**inputs), inputs['query'] + pixels.mean(1, keepdim=True)
    )


def test_padding_tokens_have_no_influence():
    attention = make_attention()
    inputs = make_inputs(4)
    mask = torch.rand(inputs['value'].shape[:2]) < 0.5
    outputs = []
    for junk in (0.0, 1e4):
        value = inputs['value'].masked_fill(mask[..., None], junk)
        outputs.append(
            attention(**{**inputs, 'value': value, 'padding_mask': mask})
        )
    assert torch.equal(*outputs)
    nothing = torch.zeros_like(mask)
    assert torch.equal(
        attention(**inputs), attention(**{**inputs, 'padding_mask': nothing})
    )


def test_gradcheck_in_float64():
    """Double stays double."""
    attention = make_attention(num_heads=2, num_levels=1).double()
    inputs = make_inputs(4, shapes=[(3, 2)], queries=2)
    names = ('query', 'value', 'query_pos', 'reference_points')
    leaves = [inputs[name].double().requires_grad_() for name in names]

    def call(*tensors: Tensor) -> Tensor:
        return attention(**{**inputs, **dict(zip(names, tensors))})

    assert call(*leaves).dtype == torch.float64
    assert torch.autograd.gradcheck(call, leaves, fast_mode=True)


def sampled_at(module, name: str, call, monkeypatch) -> Tensor:
    """The locations that a call hands to the sampling function."""
    seen = []
    original = getattr(module, name)

    def recorded(value, shapes, starts, locations, *others):
        seen.append(locations)
        return original(value, shapes, starts, locations, *others)

    with monkeypatch.context() as patch:
        patch.setattr(module, name, recorded)
        call()
    (locations,) = seen
    return locations


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_samples_where_float32_samples(dtype: torch.dtype, monkeypatch):
    """Autocast moves no sampling point, not by one bit.

    Rounding them to the dtype of autocast would move them by a good part of
    a pixel.
    """
    shapes = [(4, 320)]
    attention = make_attention(num_levels=1)
    inputs = make_inputs(4, shapes=shapes, queries=50)

    def locations(enabled: bool) -> Tensor:
        def call():
            with torch.autocast('cpu', dtype, enabled=enabled):
                attention(**inputs)

        name = 'multi_scale_deform_attn'
        return sampled_at(co_dino_attention, name, call, monkeypatch)

    full, low = locations(False), locations(True)
    assert low.dtype == torch.float32
    assert torch.equal(low, full)
    moved = (full.to(dtype).float() - full)[..., 0].abs().max() * 320
    assert moved > (0.5 if dtype == torch.bfloat16 else 0.05)


def as_on_a_gpu(value, shapes, locations, weights) -> Tensor:
    """What mmcv's module calls there, with its cast of the locations."""
    starts = shapes.prod(1).cumsum(0) - shapes.prod(1)
    return MultiScaleDeformableAttnFunction.apply(
        value, shapes, starts, locations, weights.to(value.dtype), 64
    )


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
@pytest.mark.parametrize('where', ['cpu', 'gpu'])
def test_closer_to_float32_than_mmcv(where: str, dtype, monkeypatch):
    """Same weights, same autocast, mean error on a wide map of noise."""
    attention = make_attention(num_levels=1)
    oracle = mmcv_twin(attention)
    inputs = make_inputs(4, shapes=[(4, 320)], queries=400)
    if where == 'gpu':
        monkeypatch.setattr(
            multi_scale_deform_attn,
            'multi_scale_deformable_attn_pytorch',
            as_on_a_gpu,
        )
    with torch.no_grad():
        exact = attention(**inputs)
        with torch.autocast('cpu', dtype):
            ours = attention(**inputs)
            theirs = mmcv_output(oracle, inputs)
    error = (ours - exact).abs().mean()
    assert 20 * error < (theirs - exact).abs().mean()
    assert error < 3e-3 * exact.abs().mean()


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_half_and_autocast(dtype: torch.dtype):
    inputs = make_inputs(4)
    inputs['padding_mask'] = torch.rand(inputs['value'].shape[:2]) < 0.3
    attention = make_attention()
    with torch.autocast('cpu', dtype):
        output = attention(**inputs)
    assert all(
        gradient.isfinite().all()
        for gradient in grads(attention, output.float().sum()).values()
    )
    names = ('query', 'value', 'query_pos')
    halved = {**inputs, **{name: inputs[name].to(dtype) for name in names}}
    output = make_attention().to(dtype)(**halved)
    assert output.dtype == dtype
    assert output.isfinite().all()


def test_shapes():
    attention = make_attention()
    for queries in (0, 1, 7):
        inputs = make_inputs(4, queries=queries)
        assert attention(**inputs).shape == (2, queries, DIMS)


def test_names_and_initialisation_are_mmcvs():
    ours = DeformableAttention(DIMS, **SIZES).state_dict()
    theirs = MultiScaleDeformableAttention(DIMS, **SIZES).state_dict()
    assert ours.keys() == theirs.keys()
    for name in ('sampling_offsets.bias', 'attention_weights.weight'):
        assert torch.equal(ours[name], theirs[name])
    assert math.isclose(ours['sampling_offsets.bias'].max(), 2)


def test_dropout_in_training_only():
    attention = make_attention(dropout=0.5)
    inputs = make_inputs(4)
    assert not torch.equal(attention(**inputs), attention(**inputs))
    attention.eval()
    assert torch.equal(attention(**inputs), attention(**inputs))


def test_does_not_change_inputs():
    inputs = make_inputs(4)
    inputs['padding_mask'] = torch.rand(inputs['value'].shape[:2]) < 0.3
    before = {name: tensor.clone() for name, tensor in inputs.items()}
    make_attention()(**inputs)
    for name, tensor in before.items():
        assert torch.equal(inputs[name], tensor), name


def test_rejects_unknown_arguments():
    """mmcv swallows them, a misspelt mask included."""
    with pytest.raises(TypeError, match='key_padding_mask'):
        make_attention()(**make_inputs(4), key_padding_mask=None)


def test_rejects_heads_that_do_not_divide():
    with pytest.raises(ValueError, match='divisible by num_heads'):
        DeformableAttention(15, **SIZES)

"""Deformable convolutions against recorded and compiled runs, and a loop."""

import pytest
import torch
from mmcv.ops import (
    ModulatedDeformConv2d,
    deform_conv2d,
    modulated_deform_conv2d,
)
from mmdet.models.necks.dyhead import DyHeadBlock
from reference import slow_ops
from reference.op_checks import assert_same, values_and_grads

from mmext.ops.deform_conv import corner_terms

# Stride, padding, dilation, groups, deformable groups.
RECORDED = (2, 1, 1, 2, 2)
OPTIONS = [(1, 1, 1, 1, 1), (2, 0, 1, 2, 1), (1, 2, 2, 1, 2), (2, 1, 1, 4, 2)]


def make_inputs(options: tuple, *, size=(5, 6), images=2) -> dict:
    stride, padding, dilation, groups, deform_groups = options
    out = [(n + 2 * padding - 2 * dilation - 1) // stride + 1 for n in size]
    return {
        'input': torch.randn(images, 4, *size),
        'offset': torch.randn(images, deform_groups * 18, *out) * 1.5,
        'mask': torch.rand(images, deform_groups * 9, *out),
        'weight': torch.randn(4, 4 // groups, 3, 3),
        'bias': torch.randn(4),
    }


def modulated(options: tuple):
    return lambda input, offset, mask, weight, bias: modulated_deform_conv2d(
        input, offset, mask, weight, bias, *options
    )


def plain(options: tuple):
    return lambda input, offset, weight: deform_conv2d(
        input, offset, weight, *options
    )


def without(inputs: dict, *names: str) -> dict:
    return {key: x for key, x in inputs.items() if key not in names}


@pytest.mark.parametrize(
    ('name', 'function'),
    [('deform_conv2d', plain), ('modulated_deform_conv2d', modulated)],
)
def test_matches_recorded_runs(name, function, oracle, device):
    call = oracle(name)
    actual = values_and_grads(
        function(RECORDED),
        {key: x.to(device) for key, x in call['inputs'].items()},
        call['grads']['_cotangent'].to(device),
    )
    expected = {'output': call['outputs'][0], **call['grads']}
    assert_same(actual, without(expected, '_cotangent'), atol=1e-4)


@pytest.mark.parametrize('options', OPTIONS)
@pytest.mark.parametrize('with_mask', [True, False])
def test_matches_plain_loop(with_mask, options):
    names = ('stride', 'padding', 'dilation', 'groups', 'deform_groups')
    settings = dict(zip(names, options))
    inputs = {
        key: x.double()
        for key, x in make_inputs(options, size=(3, 4), images=1).items()
    }
    if with_mask:
        actual = values_and_grads(modulated(options), inputs)
        expected = values_and_grads(
            lambda input, offset, mask, weight, bias: (
                slow_ops.deform_conv(input, offset, mask, weight, **settings)
                + bias[:, None, None]
            ),
            inputs,
        )
    else:
        inputs = without(inputs, 'mask', 'bias')
        actual = values_and_grads(plain(options), inputs)
        expected = values_and_grads(
            lambda input, offset, weight: slow_ops.deform_conv(
                input, offset, None, weight, **settings
            ),
            inputs,
        )
    assert_same(actual, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize('options', OPTIONS)
@pytest.mark.parametrize('function', [plain, modulated])
@pytest.mark.parametrize('displaced', [True, False])
def test_matches_compiled(displaced, function, options, compiled_run):
    """Also at whole pixels and the border, where the slope is one-sided."""
    inputs = make_inputs(options, size=(12, 17))
    if function is plain:
        inputs = without(inputs, 'mask', 'bias')
    if not displaced:
        inputs['offset'].round_()

    def run():
        return values_and_grads(function(options), inputs)

    assert_same(run(), compiled_run(run), atol=1e-4)


def larger(maps: torch.Tensor) -> torch.Tensor:
    """Maps of a level above, as a part of a larger tensor, as in DyHead."""
    images, channels, height, width = maps.shape
    shape = images, channels + 3, 2 * height + 1, 2 * width
    return torch.randn(shape, dtype=maps.dtype)[:, 3:]


@pytest.mark.parametrize('options', OPTIONS)
def test_larger_maps_are_read_as_compiled_kernels_read(options):
    names = ('stride', 'padding', 'dilation', 'groups', 'deform_groups')
    inputs = make_inputs(options, size=(3, 4))
    inputs = {key: x.double() for key, x in inputs.items()}
    inputs |= {key: larger(inputs[key]) for key in ('offset', 'mask')}
    actual = values_and_grads(modulated(options), inputs)
    expected = values_and_grads(
        lambda input, offset, mask, weight, bias: (
            slow_ops.compiled_deform_conv(
                input, offset, mask, weight, **dict(zip(names, options))
            )
            + bias[:, None, None]
        ),
        inputs,
    )
    assert (expected['offset'] == 0).float().mean() > 0.5
    assert_same(actual, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize('options', OPTIONS)
def test_larger_maps_match_compiled(options, compiled_run):
    inputs = make_inputs(options, size=(12, 17))
    inputs |= {key: larger(inputs[key]) for key in ('offset', 'mask')}

    def run():
        return values_and_grads(modulated(options), inputs)

    assert_same(run(), compiled_run(run), atol=1e-4)


def test_dyhead_of_mmdet(monkeypatch):
    """It gives the offsets of a level to the smaller one above, too."""
    block = DyHeadBlock(32, 32, zero_init_offset=False)
    for parameter in block.spatial_conv_offset.parameters():
        torch.nn.init.normal_(parameter)
    levels = [torch.randn(2, 32, size, size) for size in (4, 2, 1)]
    with torch.no_grad():
        actual = block(levels)
        monkeypatch.setattr(
            ModulatedDeformConv2d,
            'forward',
            lambda self, x, offset, mask: slow_ops.compiled_deform_conv(
                x,
                offset,
                mask,
                self.weight,
                stride=self.stride[0],
                padding=1,
                dilation=1,
                groups=1,
                deform_groups=1,
            ),
        )
        expected = block(levels)
    for ours, theirs in zip(actual, expected):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_no_bias():
    inputs = make_inputs(OPTIONS[0])
    with_bias = modulated(OPTIONS[0])(**inputs)
    inputs['bias'], bias = None, inputs['bias']
    actual = values_and_grads(modulated(OPTIONS[0]), inputs)
    expected = with_bias - bias[:, None, None]
    torch.testing.assert_close(actual['output'], expected)
    assert set(actual) == {'output', 'input', 'offset', 'mask', 'weight'}


def test_chunks_do_not_change_the_result(monkeypatch):
    inputs = make_inputs(OPTIONS[3])
    wholes = [
        values_and_grads(modulated(OPTIONS[3]), inputs),
        values_and_grads(plain(OPTIONS[3]), without(inputs, 'mask', 'bias')),
    ]
    monkeypatch.setattr('mmext.ops.deform_conv._VALUES', 200)
    parts = [
        values_and_grads(modulated(OPTIONS[3]), inputs),
        values_and_grads(plain(OPTIONS[3]), without(inputs, 'mask', 'bias')),
    ]
    for part, whole in zip(parts, wholes):
        assert_same(part, whole)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half(dtype, device):
    inputs = {
        key: x.to(device, dtype) for key, x in make_inputs(OPTIONS[2]).items()
    }
    half = values_and_grads(modulated(OPTIONS[2]), inputs)
    wide = {key: x.float() for key, x in inputs.items()}
    full = values_and_grads(modulated(OPTIONS[2]), wide)
    assert half['output'].dtype == half['offset'].dtype == dtype
    assert all(x.isfinite().all() for x in half.values())
    assert_same(half, {'output': full['output']}, rtol=2e-2, atol=2e-1)


def test_not_contiguous():
    inputs = make_inputs(OPTIONS[0])
    turned = {
        key: x.movedim(0, -1).contiguous().movedim(-1, 0)
        for key, x in inputs.items()
    }
    actual = values_and_grads(modulated(OPTIONS[0]), turned)
    assert_same(actual, values_and_grads(modulated(OPTIONS[0]), inputs))


@pytest.mark.parametrize(
    ('name', 'wrong', 'message'),
    [
        ('offset', (2, 18, 5, 5), r'offset must have shape \(2, 18, 5, 6\)'),
        ('offset', (2, 20, 5, 6), r'offset must have shape \(2, 18, 5, 6\)'),
        ('mask', (2, 8, 5, 6), r'mask must have shape \(2, 9, 5, 6\)'),
        ('input', (2, 3, 5, 6), 'deform_groups=2 channels, got 3'),
    ],
)
@pytest.mark.parametrize('function', [plain, modulated])
def test_rejects(function, name, wrong, message):
    if function is plain and name == 'mask':
        pytest.skip('has no mask')
    options = (1, 1, 1, 1, 2 if name == 'input' else 1)
    inputs = {**make_inputs(options), name: torch.zeros(wrong)}
    inputs['weight'] = torch.zeros(4, inputs['input'].shape[1], 3, 3)
    if function is plain:
        inputs = without(inputs, 'mask', 'bias')
    with pytest.raises(ValueError, match=message):
        function(options)(**inputs)


@pytest.mark.parametrize(
    ('position', 'total'),
    [
        ([-0.25, 0.0], 0.75),
        ([3.5, 4.5], 0.25),
        ([-1.0, 2.0], 0),
        ([2.0, 5.0], 0),
        ([-7.0, 1.0], 0),
        ([torch.nan, 1.0], 0),
        ([1.0, torch.inf], 0),
    ],
)
def test_corner_terms_at_and_beyond_the_border(position, total):
    pixels, weights = corner_terms(torch.tensor(position), (4, 5))
    assert ((pixels >= 0) & (pixels < 20)).all()
    assert weights.sum() == total


def test_corner_terms_have_no_slope_a_pixel_outside():
    """Compiled mmcv says so; a new layer with padding 1 samples there."""
    location = torch.tensor([[-1.0, 1.0], [-0.999, 1.0]], requires_grad=True)
    _, weights = corner_terms(location, (4, 5))
    weights[..., 2].sum().backward()
    assert location.grad[:, 0].tolist() == [0, 1]

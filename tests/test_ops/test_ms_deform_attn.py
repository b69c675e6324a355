"""Deformable attention against a recorded run and mmcv's PyTorch function."""

import json
import os
import subprocess
import sys
from multiprocessing import SimpleQueue, get_context

import pytest
import torch
from helpers import deformops_interpreter
from helpers.torch_versions import needs_torch
from mmcv.ops.multi_scale_deform_attn import (
    MultiScaleDeformableAttnFunction,
    multi_scale_deformable_attn_pytorch,
)
from reference.op_checks import assert_same, values_and_grads
from torch import Tensor

from mmext.ops import multi_scale_deform_attn
from mmext.ops.ms_deform_attn import (
    _attend_compiled,
    _attend_deformops,
)

SHAPES = torch.tensor([[6, 8], [3, 4], [1, 2]])


pytestmark = pytest.mark.usefixtures('backend')


def make_inputs(queries: int = 7, *, images: int = 2) -> dict[str, Tensor]:
    """Locations reach past the maps on every side."""
    pixels = int(SHAPES.prod(1).sum())
    return {
        'value': torch.randn(images, pixels, 3, 4),
        'location': torch.rand(images, queries, 3, 3, 2, 2) * 1.6 - 0.3,
        'weight': torch.rand(images, queries, 3, 3, 2),
    }


def attend(
    value: Tensor, location: Tensor, weight: Tensor, shapes: Tensor = SHAPES
) -> Tensor:
    shapes = shapes.to(value.device)
    return MultiScaleDeformableAttnFunction.apply(
        value, shapes, starts_of(shapes), location, weight, 64
    )


def mmcv_attend(value: Tensor, location: Tensor, weight: Tensor) -> Tensor:
    return multi_scale_deformable_attn_pytorch(
        value, SHAPES.to(value.device), location, weight
    )


def test_matches_recorded_run(oracle, device):
    call = oracle('ms_deform_attn')
    names = {'value': 'value', 'loc': 'location', 'attn': 'weight'}
    actual = values_and_grads(
        lambda **inputs: attend(**inputs, shapes=call['inputs']['shapes']),
        {new: call['inputs'][old].to(device) for old, new in names.items()},
        call['grads']['_cotangent'].to(device),
    )
    expected = {new: call['grads'][old] for old, new in names.items()}
    assert_same(actual, {'output': call['outputs'][0], **expected}, atol=1e-4)


def test_matches_mmcv_pytorch(device):
    inputs = {
        key: x.to(device, torch.float64) for key, x in make_inputs().items()
    }
    actual = values_and_grads(attend, inputs)
    expected = values_and_grads(mmcv_attend, inputs)
    assert_same(actual, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half(dtype, device):
    inputs = {key: x.to(device, dtype) for key, x in make_inputs().items()}
    half = values_and_grads(attend, inputs)
    full = values_and_grads(
        attend, {key: x.float() for key, x in inputs.items()}
    )
    assert {x.dtype for x in half.values()} == {dtype}
    assert all(x.isfinite().all() for x in half.values())
    assert_same(half, {'output': full['output']}, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_values_at_float32_locations(dtype):
    starts = torch.tensor([0, 48, 60])

    def call(value: Tensor, location: Tensor, weight: Tensor) -> Tensor:
        return multi_scale_deform_attn(
            value, SHAPES, starts, location, weight
        ).float()

    inputs = make_inputs()
    inputs['value'] = inputs['value'].to(dtype)
    half = values_and_grads(call, inputs)
    full = values_and_grads(
        call, {key: x.float() for key, x in inputs.items()}
    )
    assert half['value'].dtype == dtype
    for name, expected in full.items():
        # The output and what comes back to it are rounded, nothing else.
        error = (half[name] - expected).norm() / expected.norm()
        assert error < torch.finfo(dtype).eps, name


def test_not_contiguous():
    inputs = make_inputs()
    turned = {
        key: x.movedim(0, -1).contiguous().movedim(-1, 0)
        for key, x in inputs.items()
    }
    assert_same(
        values_and_grads(attend, turned), values_and_grads(attend, inputs)
    )


def test_no_queries():
    actual = values_and_grads(attend, make_inputs(0))
    assert actual['output'].shape == (2, 0, 12)
    assert not actual['value'].any()


def starts_of(shapes: Tensor) -> Tensor:
    ends = shapes.prod(1).cumsum(0)
    return torch.cat([ends.new_zeros(1), ends[:-1]])


def attend_on_cpu(value: Tensor, location: Tensor, weight: Tensor) -> Tensor:
    return multi_scale_deform_attn(
        value, SHAPES, starts_of(SHAPES), location, weight
    )


@pytest.mark.parametrize('threads', [1, 2, 5])
def test_threads_do_not_change_a_bit(threads):
    """Each writes to heads of its own."""
    inputs = make_inputs()
    expected = values_and_grads(attend_on_cpu, inputs)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        actual = values_and_grads(attend_on_cpu, inputs)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(actual[key], expected[key]) for key in expected)


def _attend_in_child(inputs: dict[str, Tensor], results: SimpleQueue) -> None:
    results.put(attend_on_cpu(**inputs).tolist())


def test_after_a_fork():
    """The threads of the parent are not in the child."""
    inputs = make_inputs()
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        expected = attend_on_cpu(**inputs)
        context = get_context('fork')
        results = context.SimpleQueue()
        child = context.Process(
            target=_attend_in_child, args=(inputs, results)
        )
        child.start()
        child.join(60)
        assert child.exitcode == 0
        assert results.get() == expected.tolist()
    finally:
        torch.set_num_threads(before)


def test_on_the_edges_of_pixels():
    """Centres, borders and corners, where the gradient has two sides."""
    inputs = {key: x.double() for key, x in make_inputs(12).items()}
    sizes = SHAPES.flip(1)[:, None].double()
    steps = torch.arange(12.0, dtype=torch.float64)[:, None, None, None, None]
    inputs['location'] = (
        ((steps - 2) / 2 / sizes)
        .expand(12, 3, 3, 2, 2)
        .repeat(2, 1, 1, 1, 1, 1)
    )
    actual = values_and_grads(attend_on_cpu, inputs)
    expected = values_and_grads(mmcv_attend, inputs)
    for key in ('output', 'value', 'weight'):
        torch.testing.assert_close(actual[key], expected[key])


def test_locations_that_are_no_numbers_reach_the_loss():
    inputs = make_inputs()
    inputs['location'][0, 0, 0, 0, 0, 0] = torch.nan
    output = attend_on_cpu(**inputs)
    assert output[0, 0, :4].isnan().all()
    assert output[0, 0, 4:].isfinite().all()
    assert output[:, 1:].isfinite().all()


def test_levels_beyond_the_pixels_are_refused(backend):
    inputs = make_inputs()
    inputs['value'] = inputs['value'][:, :-1]
    if backend != 'pytorch':
        with pytest.raises(ValueError, match='must have the 62 pixels'):
            attend_on_cpu(**inputs)
    else:
        with pytest.raises(RuntimeError):
            attend_on_cpu(**inputs)


@pytest.mark.parametrize('backend', ['numba'], indirect=True)
@pytest.mark.parametrize(
    ('dims', 'points', 'queries'), [(32, 2, 700), (40, 107, 3)]
)
def test_any_number_of_channels_and_samples(dims, points, queries):
    """More than one vector of channels, more than one table of samples."""
    inputs = {
        'value': torch.randn(2, 62, 2, dims),
        'location': torch.rand(2, queries, 2, 3, points, 2) * 1.6 - 0.3,
        'weight': torch.rand(2, queries, 2, 3, points),
    }
    # At most 320 samples of a query: 321 are refused.
    if points == 107:
        with pytest.raises(ValueError, match='must be at most 320'):
            attend_on_cpu(**inputs)
        inputs = {
            'value': inputs['value'],
            'location': inputs['location'][..., :106, :],
            'weight': inputs['weight'][..., :106],
        }
    actual = values_and_grads(attend_on_cpu, inputs)
    expected = values_and_grads(mmcv_attend, inputs)
    assert_same(actual, expected, rtol=1e-4, atol=1e-3)


@needs_torch(2, 4, why='operators in a graph')
@pytest.mark.parametrize('backend', ['numba'], indirect=True)
def test_export():
    """The operator is one node of a graph."""
    inputs = make_inputs()
    inputs['location'].requires_grad_()

    class Module(torch.nn.Module):
        def forward(self, value, location, weight):
            return attend_on_cpu(value, location, weight)

    program = torch.export.export(Module(), (), inputs)
    names = [str(node.target) for node in program.graph.nodes]
    assert 'mmext.deform_attn.default' in names
    assert torch.equal(program.module()(**inputs), attend_on_cpu(**inputs))


def test_level_sizes_spare_reading_the_device():
    sizes = [tuple(size) for size in SHAPES.tolist()]
    inputs = make_inputs()
    inputs = inputs['value'], inputs['location'], inputs['weight']

    def attend_with_sizes(value, location, weight):
        levels = SHAPES.to(value.device), starts_of(SHAPES).to(value.device)
        return multi_scale_deform_attn(value, *levels, location, weight, sizes)

    assert torch.equal(attend_with_sizes(*inputs), attend_on_cpu(*inputs))
    output = attend_with_sizes(*(tensor.to('meta') for tensor in inputs))
    assert output.is_meta
    assert output.shape == (2, 7, 12)


@pytest.mark.slow
@pytest.mark.parametrize('backend', ['numba'], indirect=True)
def test_compiled_models_have_no_graph_break():
    """For any number of queries."""
    compiled = torch.compile(
        attend_on_cpu, backend='aot_eager', dynamic=True, fullgraph=True
    )
    for queries in (7, 9, 11):
        inputs = make_inputs(queries)
        assert_same(
            values_and_grads(compiled, inputs),
            values_and_grads(attend_on_cpu, inputs),
        )


@pytest.mark.parametrize('images', [1, 3])
def test_mmcv_is_called_for_any_number_of_images(images):
    """Its compiled operator wants a divisor of it; here it calls ours."""
    inputs = make_inputs(images=images)
    turned = inputs['location'].transpose(1, 2).contiguous().transpose(1, 2)

    def attend_by_mmcv(value, location, weight):
        inputs = value, SHAPES, starts_of(SHAPES), location, weight
        return _attend_compiled(*inputs)

    assert_same(
        values_and_grads(attend_by_mmcv, {**inputs, 'location': turned}),
        values_and_grads(mmcv_attend, inputs),
    )


def test_deformops_off_a_gpu():
    """Its plain path, by which a CPU can tell that it is called rightly."""
    pytest.importorskip('deformops', reason='needs deformops')

    def attend_by_deformops(value, location, weight):
        inputs = value, SHAPES, starts_of(SHAPES), location, weight
        return _attend_deformops(*inputs)

    for inputs in (make_inputs(), make_inputs(0)):
        actual = values_and_grads(attend_by_deformops, inputs)
        assert_same(actual, values_and_grads(mmcv_attend, inputs))


@pytest.mark.slow
def test_deformops_under_the_interpreter_of_triton():
    for name in ('deformops', 'triton'):
        pytest.importorskip(name, reason='needs deformops and Triton')
    run = subprocess.run(
        [sys.executable, deformops_interpreter.__file__],
        env={**os.environ, 'TRITON_INTERPRET': '1', 'MMEXT_OPS': 'pytorch'},
        capture_output=True,
        text=True,
        timeout=300,
    )
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(lines) == len(deformops_interpreter.CASES), run.stderr
    cases = zip(deformops_interpreter.CASES, lines)
    for (dtype, *_), (*off, nan) in cases:
        assert max(off) < (1e-5 if dtype == torch.float32 else 2e-3)
        assert nan == 0

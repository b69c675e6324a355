"""RoIAlign against recorded and compiled runs, and a plain loop."""

import tracemalloc
from functools import partial

import pytest
import torch
from mmcv.ops import RoIAlign, roi_align
from reference import slow_ops
from reference.op_checks import assert_same, values_and_grads
from torch import Tensor

both_backends = pytest.mark.usefixtures('backend')

ORACLES = [
    f'roi_align_avg_aligned{aligned}_sr{ratio}'
    for aligned in (0, 1)
    for ratio in (0, 2)
]
# Inside, over each edge, far outside, a line, a point, tiny, the whole map.
ROIS = torch.tensor(
    [
        [0, 4.3, 8.1, 40.7, 30.2],
        [1, -20, -13, 15, 11],
        [0, 60, 50, 140, 120],
        [1, 300, 300, 340, 350],
        [0, 12, 3, 12, 33],
        [1, 20, 20, 20, 20],
        [1, 10.2, 10.3, 10.9, 11.1],
        [0, 0, 0, 88, 72],
    ]
)


def pool(input: Tensor, *, rois: Tensor, bins=(3, 2), **options) -> Tensor:
    options = {'scale': 0.25, 'ratio': 0, 'mode': 'avg', **options}
    return roi_align(
        input,
        rois,
        bins,
        options['scale'],
        options['ratio'],
        options['mode'],
        options.get('aligned', True),
    )


@both_backends
@pytest.mark.parametrize('name', ORACLES)
def test_matches_recorded_runs(name, oracle, device):
    call = oracle(name)
    inputs = call['inputs']
    layer = RoIAlign(
        **{
            key: value
            for key, value in inputs.items()
            if key not in ('input', 'rois')
        }
    )
    rois = inputs['rois'].to(device)
    actual = values_and_grads(
        lambda input: layer(input, rois),
        {'input': inputs['input'].to(device)},
        call['grads']['_cotangent'].to(device),
    )
    assert_same(
        actual,
        {'output': call['outputs'][0], 'input': call['grads']['input']},
    )


@both_backends
@pytest.mark.parametrize('aligned', [True, False])
@pytest.mark.parametrize('ratio', [0, 1, 3])
def test_matches_plain_loop(ratio, aligned):
    maps = torch.randn(2, 2, 18, 22, dtype=torch.float64)
    rois = ROIS.double()
    options = {'scale': 0.25, 'ratio': ratio, 'aligned': aligned}
    actual, expected = (
        values_and_grads(function, {'input': maps})
        for function in (
            lambda input: pool(input, rois=rois, **options),
            lambda input: slow_ops.roi_align(input, rois, (3, 2), **options),
        )
    )
    assert_same(actual, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize('options', [{}, {'ratio': 2}])
@pytest.mark.parametrize('size', [9, 64])
def test_matches_compiled(options, size, compiled_run):
    low = torch.rand(300, 2) * size * 3
    wide = torch.rand(300, 2) ** 2 * size * 3
    image = torch.randint(0, 3, (300, 1)).float()
    rois = torch.cat([image, low, low + wide], 1)
    inputs = {'input': torch.randn(3, 8, size, size)}

    def run() -> dict[str, Tensor]:
        return values_and_grads(
            lambda input: pool(input, rois=rois, bins=(7, 7), **options),
            inputs,
        )

    assert_same(run(), compiled_run(run))


def test_chunks_do_not_change_the_result(monkeypatch):
    """Limits of one region per chunk; few pixels, then most of the map."""
    module = 'mmext.ops.roi_align'
    maps = torch.randn(2, 2, 18, 22)
    for rois in (ROIS, ROIS[[0, 6]]):
        run = partial(values_and_grads, partial(pool, rois=rois))
        whole = run({'input': maps})
        with monkeypatch.context() as patch:
            patch.setattr(f'{module}._TERMS', 1)
            parts = run({'input': maps})
        assert_same(parts, whole)


@both_backends
def test_no_regions():
    actual = values_and_grads(
        lambda input: pool(input, rois=ROIS[:0]),
        {'input': torch.randn(2, 3, 8, 8)},
    )
    assert actual['output'].shape == (0, 3, 3, 2)
    assert not actual['input'].any()


@both_backends
def test_no_image_without_regions_is_touched():
    """NaN elsewhere in the batch does not reach the result."""
    maps = torch.randn(3, 2, 18, 22)
    maps[2] = torch.nan
    actual = values_and_grads(partial(pool, rois=ROIS), {'input': maps})
    assert actual['output'].isfinite().all()
    assert not actual['input'][2].any()


@both_backends
def test_a_region_of_each_of_many_maps_takes_little_memory():
    """As mmdet crops masks: a map for each region."""
    maps = torch.rand(32, 1, 256, 256)
    rois = torch.tensor([[i, 9, 9, 60, 40] for i in range(32)])
    rois = rois.float()
    expected = pool(maps, rois=rois, scale=1.0)
    tracemalloc.start()
    try:
        assert torch.equal(pool(maps, rois=rois, scale=1.0), expected)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Four bytes, and one. PyTorch's tensors do not count.
    assert peak < 7 * maps.numel()


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half(dtype, device):
    maps = torch.randn(2, 3, 18, 22, device=device)
    rois = ROIS.to(device)
    half = values_and_grads(
        lambda input: pool(input, rois=rois.to(dtype)),
        {'input': maps.to(dtype)},
    )
    full = values_and_grads(
        lambda input: pool(input, rois=rois.to(dtype).float()),
        {'input': maps.to(dtype).float()},
    )
    assert half['output'].dtype == half['input'].dtype == dtype
    assert_same(
        {'output': half['output']},
        {'output': full['output']},
        rtol=1e-2,
        atol=1e-2,
    )
    assert half['input'].isfinite().all()


@both_backends
def test_not_contiguous():
    maps = torch.randn(2, 22, 3, 18).permute(0, 2, 3, 1)
    rois = torch.cat([ROIS, ROIS], 1)[:, :5]
    actual, expected = (
        values_and_grads(partial(pool, rois=rois), {'input': x})
        for x in (maps, maps.contiguous())
    )
    assert_same(actual, expected, rtol=0, atol=0)


@both_backends
@pytest.mark.parametrize('threads', [1, 2, 5])
def test_threads_do_not_change_a_bit(threads):
    """Each writes to channels of its own; 70 of them are two blocks."""
    inputs = {'input': torch.randn(2, 70, 18, 22)}
    expected = values_and_grads(partial(pool, rois=ROIS), inputs)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        actual = values_and_grads(partial(pool, rois=ROIS), inputs)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(actual[key], expected[key]) for key in expected)


@both_backends
@pytest.mark.parametrize('value', [torch.nan, torch.inf])
def test_values_that_are_no_numbers_spoil_their_bins_only(value):
    maps = torch.randn(2, 2, 18, 22)
    expected = pool(maps, rois=ROIS)
    maps[0, 1, 3, 5] = value
    actual = pool(maps, rois=ROIS)
    spoilt = ~actual.isfinite()
    assert spoilt.any()
    # Of the first channel none, nor of the other image.
    assert not spoilt[:, 0].any()
    assert not spoilt[ROIS[:, 0] == 1].any()
    torch.testing.assert_close(actual[~spoilt], expected[~spoilt])


@both_backends
@pytest.mark.parametrize(
    'roi', [[2, 0, 0, 4, 4], [-1, 0, 0, 4, 4], [0, 0, torch.nan, 4, 4]]
)
def test_rejects_rois_outside_the_batch(roi):
    rois = torch.tensor([[0, 0, 0, 4, 4], roi], dtype=torch.float)
    with pytest.raises(ValueError, match=r'image index in \[0, 2\).*index 1'):
        pool(torch.zeros(2, 1, 4, 4), rois=rois)


def test_rejects_the_maximum():
    with pytest.raises(
        ValueError, match=r"pool_mode must .*'max'; .*build mm"
    ):
        pool(torch.zeros(1, 1, 4, 4), rois=ROIS[:1], mode='max')


@both_backends
def test_rejects_reversed_rois():
    rois = torch.tensor([[0.0, 5, 5, 4, 9]])
    message = r'rois must .*not end before they begin.*index 0'
    with pytest.raises(ValueError, match=message):
        pool(torch.zeros(1, 1, 4, 4), rois=rois)
    # Without `aligned` the compiled operator makes it one pixel wide.
    assert pool(torch.ones(1, 1, 4, 4), rois=rois, aligned=False).all()

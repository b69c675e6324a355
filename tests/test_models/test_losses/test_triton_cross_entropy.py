"""The Triton kernels give the results of the strips, on any GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import triton_interpreter

from mmext.models.losses._resized_cross_entropy import (
    PixelTargets,
    strip_cross_entropy,
)
from mmext.models.losses._triton_cross_entropy import (
    HAS_TRITON,
    can_use_triton,
    triton_cross_entropy,
)

needs_triton = pytest.mark.skipif(not HAS_TRITON, reason='needs triton')
needs_gpu = pytest.mark.skipif(
    not (HAS_TRITON and torch.cuda.is_available()),
    reason='needs triton and a GPU',
)


def test_the_cpu_uses_strips():
    assert not can_use_triton(torch.zeros(1, 2, 4, 4))


@needs_gpu
def test_a_gpu_uses_kernels_except_in_float64():
    logits = torch.zeros(1, 2, 4, 4, device='cuda')
    assert can_use_triton(logits)
    assert can_use_triton(logits.half())
    assert not can_use_triton(logits.double())


@needs_triton
def test_interpreted_kernels_match_the_strips():
    run = subprocess.run(
        [sys.executable, Path(triton_interpreter.__file__)],
        env={**os.environ, 'TRITON_INTERPRET': '1'},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    lines = [line for line in run.stdout.splitlines() if line[:1] == '[']
    assert len(lines) == len(triton_interpreter.CASES), run.stdout
    for line in lines:
        loss, grad, pixel, hits, same_bits = json.loads(line)
        assert loss < 1e-6
        assert grad < 1e-5
        assert pixel < 1e-5
        assert hits == 0
        assert same_bits


@needs_gpu
@pytest.mark.parametrize(
    ('classes', 'source', 'size'),
    [
        (19, (64, 128), (512, 1024)),
        (150, (128, 128), (512, 512)),
        (7, (33, 50), (100, 77)),
        (2, (97, 90), (31, 29)),
    ],
)
@pytest.mark.parametrize('smoothing', [0.0, 0.1])
@pytest.mark.parametrize('align_corners', [False, True])
def test_kernels_match_the_strips(
    classes, source, size, align_corners, smoothing
):
    logits = torch.randn(2, classes, *source, device='cuda') * 3
    label = torch.randint(0, classes, (2, *size), device='cuda')
    valid = torch.rand(2, *size, device='cuda') > 0.2
    targets = PixelTargets(
        label.masked_fill(~valid, 10**6),
        valid,
        classes,
        torch.float32,
        torch.rand(classes, device='cuda'),
        torch.rand(2, *size, device='cuda'),
        smoothing,
    )
    args = (logits, size, align_corners, targets)
    wanted = strip_cross_entropy(*args, with_grad=True, with_map=True)
    loss = triton_cross_entropy(*args, with_grad=True, with_map=True)
    again = triton_cross_entropy(*args, with_grad=True, with_map=True)
    torch.testing.assert_close(loss.total, wanted.total, atol=0, rtol=1e-6)
    torch.testing.assert_close(loss.loss, wanted.loss, atol=1e-5, rtol=1e-5)
    off = (loss.grad - wanted.grad).norm() / wanted.grad.norm()
    assert off < 1e-5
    # Rounding may decide between equal logits.
    hits = loss.num_correct - wanted.num_correct
    assert hits.abs() <= 1e-4 * label.numel()
    assert torch.equal(loss.grad, again.grad)
    assert torch.equal(loss.total, again.total)

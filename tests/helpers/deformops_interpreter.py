"""Run the Triton kernels of deformops on the CPU, and compare with PyTorch.

Started as a process of its own with TRITON_INTERPRET=1, which has to be set
before the kernels are loaded. Prints one JSON list per case: the largest
differences of the output and of the gradients of values, locations and
weights, each by the largest value; and how many elements are NaN in one of
both only.
"""

import contextlib
import json
from importlib import import_module

import torch
from torch import Tensor

from mmext.ops import choose_ops_backend, multi_scale_deform_attn

SHAPES = torch.tensor([[6, 8], [3, 4], [1, 2]])
STARTS = torch.tensor([0, 48, 60])
# Type of values and weights, images, heads, channels, queries, points, lost.
CASES = [
    (torch.float32, 2, 3, 4, 7, 2, None),
    (torch.float32, 1, 2, 32, 40, 4, None),
    (torch.float16, 2, 3, 4, 5, 2, None),
    (torch.float32, 1, 3, 4, 7, 2, torch.nan),
    (torch.float32, 1, 3, 4, 7, 2, 1e12),
]


def results(attend, inputs: list[Tensor], cotangent: Tensor) -> list[Tensor]:
    """Output and gradients of values, locations and weights."""
    value, location, weight = (x.clone().requires_grad_() for x in inputs)
    out = attend(value, SHAPES, STARTS, location, weight)
    out.backward(cotangent.to(out.dtype))
    return [out.detach(), value.grad, location.grad, weight.grad]


def compare(dtype, images, heads, dims, queries, points, lost) -> list:
    """Differences between the kernels and PyTorch in float32."""
    shape = images, queries, heads, len(SHAPES), points
    # Past the maps on every side.
    location = torch.rand(*shape, 2) * 1.6 - 0.3
    if lost is not None:
        location[0, 0, 0, 0, 0, 0] = lost
    value = torch.randn(images, int(SHAPES.prod(1).sum()), heads, dims)
    inputs = [value.to(dtype), location, torch.rand(shape).to(dtype)]
    cotangent = torch.randn(images, queries, heads * dims)
    kernels = import_module(
        'deformops.backends.triton.msda_query_tiled_fp32acc'
    )
    output = results(kernels.forward, inputs, cotangent)
    wanted = results(
        multi_scale_deform_attn, [x.float() for x in inputs], cotangent
    )
    # The gradients of what is lost may differ.
    pairs = list(zip(output, wanted))[: 4 if lost is None else 1]
    off = [
        ((a.float() - b).nan_to_num().abs().max() / b.nan_to_num().max())
        for a, b in pairs
    ]
    nan = sum(int((a.isnan() != b.isnan()).sum()) for a, b in pairs)
    return [*map(float, off), nan]


if __name__ == '__main__':
    torch.manual_seed(0)
    torch.set_num_threads(1)
    choose_ops_backend('pytorch')
    # The interpreter takes CPU tensors; these two know GPUs only.
    torch.library.wrap_triton = lambda kernel: kernel
    torch.cuda.device = lambda device: contextlib.nullcontext()
    for case in CASES:
        print(json.dumps(compare(*case)), flush=True)

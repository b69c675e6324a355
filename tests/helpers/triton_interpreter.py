"""Run the Triton kernels on the CPU, and print how far off they are.

Started as a process of its own with TRITON_INTERPRET=1, which has to be set
before the kernels are loaded. Prints one JSON list per case: relative
difference of the loss, of the gradient (by norm) and of the loss of each
pixel (largest, absolute), the difference of the hits, and whether a second
run gave the same bits.
"""

import json

import torch
from torch import Tensor

from mmext.models.losses._resized_cross_entropy import (
    PassResult,
    PixelTargets,
    strip_cross_entropy,
)
from mmext.models.losses._triton_cross_entropy import triton_cross_entropy

# Classes, source, size, align_corners, dtype, weights and smoothing, lowest.
CASES = [
    (3, (5, 7), (11, 13), False, torch.float32, False, None),
    (3, (5, 7), (11, 13), True, torch.float32, True, None),
    (2, (18, 20), (37, 40), False, torch.bfloat16, True, None),
    (2, (2, 4), (3, 300), True, torch.float16, False, None),
    (4, (20, 33), (7, 9), False, torch.float32, True, None),
    (2, (6, 1), (6, 1), False, torch.float32, False, None),
    (3, (4, 4), (12, 12), True, torch.float32, False, -torch.inf),
]


def flat(result: PassResult) -> Tensor:
    """All numbers of a result."""
    return torch.cat([result.total[None], result.grad.flatten()])


def compare(
    classes: int,
    source: tuple[int, int],
    size: tuple[int, int],
    align_corners: bool,
    dtype: torch.dtype,
    weighted: bool,
    lowest: float | None,
) -> list:
    """Differences between the kernels and the strips."""
    logits = torch.randn(2, classes, *source).mul_(3).to(dtype)
    label = torch.randint(0, classes, (2, *size))
    valid = torch.rand(2, *size) > 0.3
    if lowest is not None:
        logits[:, -1] = lowest
        valid &= label < classes - 1
    targets = PixelTargets(
        label.masked_fill(~valid, 10**6),
        valid,
        classes,
        torch.float32,
        torch.rand(classes) if weighted else None,
        torch.rand(2, *size) if weighted else None,
        0.1 if weighted else 0.0,
    )
    args = (logits, size, align_corners, targets)
    wanted = strip_cross_entropy(*args, with_grad=True, with_map=True)
    loss = triton_cross_entropy(*args, with_grad=True, with_map=True)
    again = triton_cross_entropy(*args, with_grad=True)
    off = (loss.grad - wanted.grad).norm() / wanted.grad.norm()
    return [
        (loss.total / wanted.total - 1).abs().item(),
        off.item(),
        (loss.loss - wanted.loss).abs().max().item(),
        (loss.num_correct - wanted.num_correct).item(),
        torch.equal(flat(loss), flat(again)),
    ]


if __name__ == '__main__':
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for case in CASES:
        print(json.dumps(compare(*case)), flush=True)

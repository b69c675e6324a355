"""What the benchmark of the losses compares: data, and who computes on it."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F

import mmext.utils.quiet_hosts  # noqa: F401  (first: it is quiet then)

# isort: split
from mmengine.structures import PixelData
from mmseg.models.losses import accuracy
from mmseg.models.utils import resize
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample
from torch import Tensor, nn

from mmext.models.losses import ResizedLogits

IGNORED = 255
OURS, MMSEG, TORCH = 'mmext', 'mmseg', 'torch'
ACCURATE = 'mmseg with accuracy'


class Side(NamedTuple):
    """One way to compute the loss of a case."""

    name: str
    run: Callable[[], Tensor]


class Case(NamedTuple):
    """Logits that need a gradient, and sides that compute the same loss."""

    name: str
    title: str
    logits: list[Tensor]
    sides: list[Side]
    full_bytes: int  # of the logits at the size of the labels, float32


class Shape(NamedTuple):
    """Images, classes, pixels of a side of the labels, and stride."""

    images: int
    classes: int
    size: int
    stride: int


CASES = {
    'ade20k': Shape(4, 150, 512, 4),
    'cityscapes_b2': Shape(2, 19, 1024, 8),
    'cityscapes_b6': Shape(6, 19, 1024, 8),
    'pidhead': Shape(6, 19, 1024, 8),
}


GRID = {
    f'c{classes}_s{stride}': Shape(1, classes, 512, stride)
    for classes in (2, 4, 8, 19, 150)
    for stride in (1, 2, 4, 8)
}


def scaled(shape: Shape, scale: float) -> Shape:
    """The same with smaller images; at least four logits per side."""
    small = max(4, round(shape.size * scale / shape.stride))
    return shape._replace(size=small * shape.stride)


def make_labels(shape: Shape, device: torch.device) -> Tensor:
    """Patches of 16 pixels of one class, a twentieth of them ignored."""
    patches = -(-shape.size // 16)
    label = torch.randint(shape.classes, (shape.images, patches, patches))
    label[torch.rand(label.shape) < 0.05] = IGNORED
    label = label.repeat_interleave(16, 1).repeat_interleave(16, 2)
    return label[:, : shape.size, : shape.size].contiguous().to(device)


def make_logits(shape: Shape, channels: int, device: torch.device) -> Tensor:
    """Random logits, sure of their class as those of half a training are."""
    side = shape.size // shape.stride
    logits = torch.randn(shape.images, channels, side, side) * 3
    return logits.to(device).requires_grad_()


def cross_entropy_case(name: str, shape: Shape, device: torch.device) -> Case:
    """Resize, cross-entropy, mean over what is not ignored.

    Without class weights: with them, mmseg 1.2's ends in an error as soon as
    a pixel is ignored.
    """
    label = make_labels(shape, device)
    logits = make_logits(shape, shape.classes, device)
    size = label.shape[1:]
    ours = MODELS.build(
        {'type': 'mmext.CheckedCrossEntropyLoss', 'denominator': 'valid'}
    ).to(device)
    theirs = MODELS.build(
        {'type': 'mmseg.CrossEntropyLoss', 'avg_non_ignore': True}
    ).to(device)

    def run_ours() -> Tensor:
        return ours(ResizedLogits(logits, size), label, ignore_index=IGNORED)

    def run_theirs() -> Tensor:
        full = resize(logits, size, mode='bilinear', align_corners=False)
        return theirs(full, label, ignore_index=IGNORED)

    def run_accurate() -> Tensor:
        full = resize(logits, size, mode='bilinear', align_corners=False)
        accuracy(full, label, ignore_index=IGNORED)
        return theirs(full, label, ignore_index=IGNORED)

    def run_torch() -> Tensor:
        full = F.interpolate(logits, size, mode='bilinear')
        return F.cross_entropy(full, label, ignore_index=IGNORED)

    sides = [
        Side(OURS, run_ours),
        Side(MMSEG, run_theirs),
        Side(TORCH, run_torch),
    ]
    if name in GRID:
        sides[1] = Side(ACCURATE, run_accurate)
    return _case(name, 'resize and cross-entropy', shape, [logits], sides)


def head_config(scope: str, prefix: str, shape: Shape) -> dict:
    """A PIDHead; only its losses are used here."""
    pixels = shape.images * shape.size**2
    ohem = {
        'type': f'{scope}.{prefix}OhemCrossEntropy',
        'thres': 0.9,
        'min_kept': pixels // 48,  # 131,072 of 6 x 1024 x 1024
    }
    return {
        'type': f'{scope}.PIDHead',
        'in_channels': 8,
        'channels': 8,
        'num_classes': shape.classes,
        'align_corners': True,
        'loss_decode': [
            {
                'type': f'{scope}.{prefix}CrossEntropyLoss',
                'loss_weight': 0.4,
            },
            ohem,
            {'type': f'{scope}.{prefix}BoundaryLoss', 'loss_weight': 20.0},
            dict(ohem),
        ],
    }


def make_samples(label: Tensor) -> list[SegDataSample]:
    """Labels, and edges where the next pixel has another one."""
    edge = torch.zeros_like(label)
    edge[:, :, 1:] |= (label[:, :, 1:] != label[:, :, :-1]).long()
    edge[:, 1:] |= (label[:, 1:] != label[:, :-1]).long()
    samples = []
    for item, border in zip(label, edge):
        sample = SegDataSample()
        sample.gt_sem_seg = PixelData(data=item[None])
        sample.gt_edge_map = PixelData(data=border[None])
        samples.append(sample)
    return samples


def pid_head_case(name: str, shape: Shape, device: torch.device) -> Case:
    """All losses of PIDNet's head and the accuracy, as in a training step.

    Without class weights, see :func:`cross_entropy_case`.
    """
    samples = make_samples(make_labels(shape, device))
    channels = (shape.classes, shape.classes, 1)
    logits = [make_logits(shape, count, device) for count in channels]
    sides = []
    for scope, prefix in ((OURS, 'Checked'), (MMSEG, '')):
        head = MODELS.build(head_config(scope, prefix, shape)).to(device)

        def run(head: nn.Module = head) -> Tensor:
            losses = head.loss_by_feat(tuple(logits), samples)
            return sum(v for k, v in losses.items() if 'loss' in k)

        sides.append(Side(scope, run))
    return _case(name, 'losses of PIDHead', shape, logits, sides)


def _case(
    name: str, what: str, shape: Shape, logits: list, sides: list
) -> Case:
    pixels = shape.images * shape.classes * shape.size**2
    title = (
        f'{name}: {what}, {shape.images} x {shape.classes} x {shape.size} x '
        f'{shape.size} from stride {shape.stride}'
    )
    return Case(name, title, logits, sides, 4 * pixels)


def make_case(name: str, scale: float, device: torch.device) -> Case:
    """A case, the same at every call."""
    torch.manual_seed(0)
    make = pid_head_case if name == 'pidhead' else cross_entropy_case
    return make(name, scaled((CASES | GRID)[name], scale), device)

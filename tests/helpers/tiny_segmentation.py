"""Heads of MMSegmentation and ours with the same weights, and data."""

import copy

import torch
from mmengine.structures import PixelData
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample
from torch import nn

CHANNELS = (4, 6, 8, 8)


def make_pair(
    kind: str, loss: dict | list, their_loss: dict | list, **options
) -> tuple[nn.Module, nn.Module]:
    """The head of MMSegmentation, and ours, with the same weights.

    Args:
        kind: Name of the head in both packages.
        loss: Config of our losses.
        their_loss: Config of theirs.
        **options: Of the head.

    Returns:
        Theirs and ours, in training mode without dropout.
    """
    options = {'num_classes': 5, 'dropout_ratio': 0, **options}
    theirs = MODELS.build(
        {'type': f'mmseg.{kind}', 'loss_decode': their_loss, **options}
    )
    ours = MODELS.build(
        {'type': f'mmext.{kind}', 'loss_decode': loss, **options}
    )
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
    return theirs.train(), ours.train()


def make_samples(
    size: tuple[int, int] = (23, 31),
    num_classes: int = 5,
    ignore: int | None = 255,
    edges: bool = False,
    dtype: torch.dtype = torch.int64,
) -> list[SegDataSample]:
    """Random labels of two images, a fifth of which is to be ignored.

    Args:
        size: Height and width.
        num_classes: Labels are below it.
        ignore: Value that is ignored; None for none.
        edges: Add an edge map.
        dtype: Of the labels.
    """
    samples = []
    for index in range(2):
        label = torch.randint(0, num_classes, (1, *size))
        if ignore is not None:
            label[torch.rand(1, *size) < 0.2] = ignore
        sample = SegDataSample(metainfo={'img_path': f'{index}.png'})
        sample.gt_sem_seg = PixelData(data=label.to(dtype))
        if edges:
            edge = (torch.rand(1, *size) < 0.2).to(torch.uint8)
            sample.gt_edge_map = PixelData(data=edge)
        samples.append(sample)
    return samples


def step(head: nn.Module, inputs: list, samples: list) -> tuple[dict, dict]:
    """Losses, and the gradients of all parameters and inputs.

    Args:
        head: In training mode.
        inputs: Feature maps; copies of them need gradients.
        samples: With labels.
    """
    torch.manual_seed(0)
    inputs = [item.detach().clone().requires_grad_() for item in inputs]
    losses = head.loss(tuple(inputs), samples, {})
    total = sum(value for name, value in losses.items() if 'loss' in name)
    named = dict(head.named_parameters())
    named |= {f'input {i}': item for i, item in enumerate(inputs)}
    gradients = torch.autograd.grad(
        total, list(named.values()), allow_unused=True
    )
    return losses, dict(zip(named, gradients))


def same_step(
    theirs: nn.Module, ours: nn.Module, inputs: list, samples: list
) -> dict:
    """Assert that both heads give the same losses and gradients; ours."""
    expected, their_gradients = step(theirs, inputs, samples)
    losses, gradients = step(ours, inputs, samples)
    assert list(losses) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(
            losses[name], value, rtol=1e-5, atol=1e-6, check_dtype=False
        )
    for name, value in their_gradients.items():
        assert (gradients[name] is None) == (value is None), name
        if value is not None:
            torch.testing.assert_close(
                gradients[name], value, rtol=1e-4, atol=1e-6
            )
    return losses


def assert_same_as_host(kind: str, **options) -> None:
    """Both ways to resize, in float64, from the maps of a backbone.

    Args:
        kind: Name of the head in both packages.
        **options: Of the head; maps have ``CHANNELS`` channels.
    """
    sizes = ((12, 10), (6, 5), (3, 3), (3, 3))
    inputs = [
        torch.randn(2, channels, *size, dtype=torch.float64)
        for channels, size in zip(CHANNELS, sizes)
    ]
    options = {'channels': 8, 'norm_cfg': {'type': 'BN'}, **options}
    for align_corners in (False, True):
        theirs, ours = make_pair(
            kind,
            {'type': 'mmext.CheckedCrossEntropyLoss'},
            {'type': 'mmseg.CrossEntropyLoss'},
            align_corners=align_corners,
            **options,
        )
        assert isinstance(ours, type(theirs))
        data = make_samples()
        losses = same_step(theirs.double(), ours.double(), inputs, data)
        assert list(losses) == ['loss_ce', 'acc_seg']
        assert losses['loss_ce'] > 0
        assert not hasattr(ours, '_fallback_reported')

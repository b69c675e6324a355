"""Small CO-DINO parts with inputs, and slow formulas to check them against.

Shape letters: B images, S tokens, C channels, L levels, P boxes.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mmext.models.co_dino.transformer import CoDINOTransformer, EncodedImage

CHANNELS = 32
SHAPES = [(6, 8), (3, 4), (2, 2)]
STACK = {
    'num_layers': 2,
    'num_heads': 4,
    'num_points': 2,
    'feedforward_channels': 48,
}


@dataclass
class Batch:
    """Maps, padding masks and positional maps, one per level."""

    feats: list[Tensor]
    masks: list[Tensor]
    pos: list[Tensor]


def tiny_batch(
    *, padded: bool = True, shapes: list[tuple[int, int]] = SHAPES
) -> Batch:
    """Two images, the second one padded at the right and at the bottom."""
    batch = Batch([], [], [])
    for height, width in shapes:
        mask = torch.zeros((2, height, width), dtype=torch.bool)
        if padded:
            mask[1, :, math.ceil(width * 0.6) :] = True
            mask[1, math.ceil(height * 0.7) :] = True
        batch.feats.append(torch.randn(2, CHANNELS, height, width))
        batch.masks.append(mask)
        batch.pos.append(torch.randn(2, CHANNELS, height, width))
    return batch


def tiny_transformer(**kwargs) -> CoDINOTransformer:
    """A transformer of two and two layers, every parameter random."""
    kwargs = {
        'embed_dims': CHANNELS,
        'num_queries': 12,
        'num_feature_levels': len(SHAPES),
        'num_co_heads': 2,
        **kwargs,
        'encoder': {**STACK, **kwargs.get('encoder', {})},
        'decoder': {**STACK, **kwargs.get('decoder', {})},
    }
    transformer = CoDINOTransformer(**kwargs)
    randomize(transformer)
    return transformer


def randomize(module: nn.Module) -> None:
    """Random values for all, so that no term is zero or one by default."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.25)


def tiny_branches(width: int, count: int) -> nn.ModuleList:
    """Prediction branches, ``(B, S, C)`` to ``(B, S, width)``."""
    branches = nn.ModuleList(nn.Linear(CHANNELS, width) for _ in range(count))
    randomize(branches)
    return branches


def encode(transformer: CoDINOTransformer, batch: Batch) -> EncodedImage:
    """The batch, encoded."""
    padded = any(bool(mask.any()) for mask in batch.masks)
    return transformer.encode(
        batch.feats, batch.masks, batch.pos, has_padding=padded
    )


def grads(module: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    """Gradients of a scalar by parameter name; the module stays clean."""
    names, parameters = zip(*module.named_parameters())
    values = torch.autograd.grad(loss, parameters, allow_unused=True)
    return {k: v for k, v in zip(names, values) if v is not None}


def graph_leaves(output: Tensor) -> set[int]:
    """Ids of the leaves that a walk of the autograd graph meets.

    It is the walk by which ``find_unused_parameters`` tells the used ones.
    """
    seen, leaves, todo = set(), set(), [output.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, 'variable'):
            leaves.add(id(node.variable))
        todo += [parent for parent, _ in node.next_functions]
    return leaves


def sine_of(value: float, num_feats: int) -> list[float]:
    """Sine encoding of one coordinate in [0, 1], by the formula."""
    encoded = []
    for i in range(num_feats // 2):
        angle = 2 * math.pi * value / 10000 ** (2 * i / num_feats)
        encoded += [math.sin(angle), math.cos(angle)]
    return encoded


def inverse_sigmoid(x: Tensor, eps: float) -> Tensor:
    """Logit of probabilities, each side clipped at ``eps``."""
    return torch.log(x.clamp(min=eps)) - torch.log((1 - x).clamp(min=eps))

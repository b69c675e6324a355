"""What the encoder hands to the decoder: memory, masks and proposals.

Shape letters: B images, S tokens of all levels, P boxes, Q proposals, C
channels, K classes, L feature levels.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = [
    'EncodedImage',
    'Proposals',
    'box_sine_encoding',
    'encoder_proposals',
]

# A proposal on level l spans 0.05 * 2^l of the valid image area.
PROPOSAL_SCALE = 0.05
PROPOSAL_MARGIN = 0.01


@dataclass(frozen=True)
class EncodedImage:
    """Encoder output of a batch, with all that the decoder asks for.

    Attributes:
        memory: ``(B, S, C)``.
        padding_mask: ``(B, S)`` bool, True where padding.
        valid_ratios: ``(B, L, 2)`` float32, valid share of width and height.
        shapes: Height and width per level, ``L`` pairs.
        spatial_shapes: The same as an ``(L, 2)`` int64 tensor.
        level_start_index: ``(L,)`` int64.
        has_padding: Whether any token is padding.
    """

    memory: Tensor
    padding_mask: Tensor
    valid_ratios: Tensor
    shapes: list[tuple[int, int]]
    spatial_shapes: Tensor
    level_start_index: Tensor
    has_padding: bool

    @property
    def attention_padding(self) -> Tensor | None:
        """The padding mask, or None where masking would change nothing."""
        return self.padding_mask if self.has_padding else None

    def maps(self) -> list[Tensor]:
        """The memory as ``L`` feature maps ``(B, C, H, W)``."""
        batch, _, channels = self.memory.shape
        # Contiguous: compiled RoIAlign reads its input as if it were.
        levels = self.memory.split([h * w for h, w in self.shapes], 1)
        return [
            level.transpose(1, 2)
            .reshape(batch, channels, height, width)
            .contiguous()
            for level, (height, width) in zip(levels, self.shapes)
        ]


@dataclass(frozen=True)
class Proposals:
    """The encoder's best boxes.

    Attributes:
        scores: ``(B, Q, K)``, class logits with gradient.
        boxes: ``(B, Q, 4)`` float32, cx cy w h in [0, 1], with gradient.
        references: The same boxes without gradient.
        tokens: ``(B, Q, C)``, the encoder's tokens that propose them, as the
            branches see them.
    """

    scores: Tensor
    boxes: Tensor
    references: Tensor
    tokens: Tensor


def box_sine_encoding(boxes: Tensor, num_feats: int) -> Tensor:
    """Sine encoding of boxes in the order cx, cy, w, h.

    Args:
        boxes: ``(B, P, 4)`` float32, in [0, 1].
        num_feats: Features per coordinate, even.

    Returns:
        ``(B, P, 4 * num_feats)`` float32.

    Source:
        DINO, arXiv 2203.03605; compatible with the public port's
        ``get_proposal_pos_embed``, temperature 10000. (The decoder's own
        encoding puts cy before cx.)

    Examples:
        >>> import torch
        >>> box_sine_encoding(torch.rand(2, 3, 4), 8).shape
        torch.Size([2, 3, 32])
    """
    index = torch.arange(num_feats, dtype=torch.float32, device=boxes.device)
    period = 10000 ** (2 * (index // 2) / num_feats)
    angle = (boxes * (2 * math.pi))[..., None] / period
    return torch.stack(
        (angle[..., 0::2].sin(), angle[..., 1::2].cos()), -1
    ).flatten(2)


def encoder_proposals(encoded: EncodedImage) -> tuple[Tensor, Tensor]:
    """One box per token, and which tokens may propose.

    Args:
        encoded: The encoder output.

    Returns:
        Two items: box logits ``(B, S, 4)`` float32, inf where the token is
        invalid; and a ``(B, S)`` bool mask, True where the token is valid,
        that is, not padding and with all four coordinates in (0.01, 0.99).
    """
    boxes = []
    counts = [height * width for height, width in encoded.shapes]
    paddings = encoded.padding_mask.split(counts, 1)
    for level, (height, width) in enumerate(encoded.shapes):
        count = counts[level]
        padding = paddings[level].view(-1, height, width)
        valid = torch.stack(
            ((~padding[:, 0, :]).sum(1), (~padding[:, :, 0]).sum(1)), -1
        )
        y, x = torch.meshgrid(
            torch.arange(height, dtype=torch.float32, device=valid.device),
            torch.arange(width, dtype=torch.float32, device=valid.device),
            indexing='ij',
        )
        centre = (torch.stack((x, y), -1).view(1, count, 2) + 0.5) / valid[
            :, None
        ]
        size = torch.full_like(centre, PROPOSAL_SCALE * 2.0**level)
        boxes.append(torch.cat((centre, size), -1))
    proposals = torch.cat(boxes, 1)
    inside = (
        (proposals > PROPOSAL_MARGIN) & (proposals < 1 - PROPOSAL_MARGIN)
    ).all(-1)
    usable = inside & ~encoded.padding_mask
    logits = torch.log(proposals / (1 - proposals))
    return logits.masked_fill(~usable[..., None], math.inf), usable

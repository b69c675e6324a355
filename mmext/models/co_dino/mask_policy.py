"""Which part of a padded batch counts as image.

Images of a batch are padded to one canvas. ``'valid'`` takes each image's own
``img_shape`` for attention masks, box normalisation, denoising and box
decoding. ``'canvas'`` takes the whole canvas, as large-scale-jitter training
does, where every canvas has the same size and masks would cost time and
change nothing.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from mmdet.structures import DetDataSample
from torch import Tensor

MASK_POLICIES = ('valid', 'canvas')


def check_mask_policy(policy: str) -> str:
    """Return ``policy`` if it is one."""
    if policy not in MASK_POLICIES:
        raise ValueError(
            f'mask_policy must be one of {MASK_POLICIES}, got {policy!r}'
        )
    return policy


def apply_mask_policy(
    data_samples: Sequence[DetDataSample], policy: str
) -> list[DetDataSample]:
    """Data samples whose ``img_shape`` is what the policy counts as image.

    ``data_samples``: Samples with ``img_shape`` and ``batch_input_shape``, as
    ``DetDataPreprocessor`` leaves them. Not edited. Returns the given samples
    for ``'valid'``; for ``'canvas'`` new ones that share the annotations and
    differ in ``img_shape``.
    """
    if policy == 'valid':
        return list(data_samples)
    results = []
    for sample in data_samples:
        if 'batch_input_shape' not in sample.metainfo:
            raise ValueError(
                "data_samples must carry 'batch_input_shape' for "
                "mask_policy='canvas', got metainfo keys "
                f'{sorted(sample.metainfo)}; use DetDataPreprocessor'
            )
        metainfo = {**sample.metainfo, 'img_shape': sample.batch_input_shape}
        copied = type(sample)(metainfo=metainfo)
        copied.set_data(dict(sample.items()))
        results.append(copied)
    return results


def level_padding_masks(
    batch_img_metas: Sequence[dict] | None, feats: Sequence[Tensor]
) -> tuple[list[Tensor], bool]:
    """Padding masks of every feature level.

    ``batch_img_metas``: Per image ``img_shape`` and ``batch_input_shape``,
    both height and width in pixels, or None if every image fills the canvas;
    ``feats``: Maps ``(B, C, H, W)``. Returns
    two items: per level a ``(B, H, W)`` bool mask, True where the nearest
    pixel is padding; and whether any image is smaller than the canvas.
    """
    if batch_img_metas is None:
        masks = [torch.zeros_like(feat[:, 0], dtype=bool) for feat in feats]
        return masks, False
    height, width = batch_img_metas[0]['batch_input_shape']
    shapes = [tuple(meta['img_shape'][:2]) for meta in batch_img_metas]
    device = feats[0].device
    row = torch.arange(height, device=device)[:, None]
    column = torch.arange(width, device=device)
    padding = torch.stack(
        [
            (row >= valid_height) | (column >= valid_width)
            for valid_height, valid_width in shapes
        ]
    ).float()
    masks = [
        F.interpolate(padding[None], size=feat.shape[-2:])[0].bool()
        for feat in feats
    ]
    return masks, any(shape != (height, width) for shape in shapes)

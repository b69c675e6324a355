"""Batches of samples that have a truth for several tasks."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from mmengine.model import ImgDataPreprocessor
from mmengine.structures import PixelData
from torch import Tensor
from torch.nn import functional as F

from ...registry import MODELS


@MODELS.register_module()
class MultiTaskDataPreprocessor(ImgDataPreprocessor):
    """Normalizes and stacks inputs, in training pads the truth of each task.

    Images ``(C, H, W)`` of different sizes are padded at the bottom and on
    the right, and so is, in training, each ``gt_*`` field that is a
    ``PixelData``: label maps (integers) with ``seg_pad_val``, others with 0,
    which marks depth and normals that are not valid. Vectors ``(F,)`` are
    stacked as they are.

    Args:
        mean: Of the channels, after their exchange; None for no
            normalization.
        std: Of the channels.
        pad_size_divisor: Height and width become multiples of it.
        pad_value: For images, after the normalization.
        seg_pad_val: For label maps; the ``ignore_index`` of the head.
        bgr_to_rgb: Exchange channels 0 and 2.
        rgb_to_bgr: The same.
        non_blocking: Whether copies to the device may overlap.
    """

    def __init__(
        self,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        pad_size_divisor: int = 1,
        pad_value: float = 0,
        seg_pad_val: int = 255,
        bgr_to_rgb: bool = False,
        rgb_to_bgr: bool = False,
        non_blocking: bool | None = False,
    ) -> None:
        super().__init__(
            mean,
            std,
            pad_size_divisor,
            pad_value,
            bgr_to_rgb,
            rgb_to_bgr,
            non_blocking,
        )
        self.seg_pad_val = seg_pad_val

    def forward(
        self, data: Mapping[str, Any], training: bool = False
    ) -> dict[str, Any]:
        """Make a batch.

        Args:
            data: ``inputs``, a list of N tensors or a stacked one, and
                ``data_samples``, N samples or None.
            training: Whether the truth is padded to the size of the batch:
                losses need it, metrics compare with the original size.

        Returns:
            ``inputs`` ``(N, C, H, W)`` or ``(N, F)``, and ``data_samples``.

        Raises:
            ValueError: If vectors have different lengths, or a map of a
                sample is larger than the batch.
        """
        if data['inputs'][0].ndim == 1:
            data = self.cast_data(data)
            lengths = {len(vector) for vector in data['inputs']}
            if len(lengths) > 1:
                raise ValueError(
                    'inputs that are vectors must have one length, got '
                    f'{sorted(lengths)} in a batch'
                )
            inputs = data['inputs']
            if not isinstance(inputs, Tensor):
                inputs = torch.stack(list(inputs))
            return {
                'inputs': inputs,
                'data_samples': data.get('data_samples'),
            }
        data = super().forward(data, training)
        data.setdefault('data_samples', None)
        size = tuple(data['inputs'].shape[-2:])
        for sample in data['data_samples'] or ():
            sample.set_metainfo({'batch_input_shape': size})
            for name, value in sample.items():
                if (
                    training
                    and name.startswith('gt_')
                    and isinstance(value, PixelData)
                ):
                    sample.set_data({name: self._pad(value, size, name)})
        return data

    def _pad(
        self, value: PixelData, size: tuple[int, int], name: str
    ) -> PixelData:
        right = size[1] - value.data.shape[-1]
        bottom = size[0] - value.data.shape[-2]
        if right < 0 or bottom < 0:
            raise ValueError(
                f'{name} must not be larger than its batch of images, {size}, '
                f'got {tuple(value.data.shape[-2:])}; check the pipeline'
            )
        if not right and not bottom:
            return value
        fill = 0 if value.data.is_floating_point() else self.seg_pad_val
        return PixelData(
            data=F.pad(value.data, (0, right, 0, bottom), value=fill)
        )

"""What takes the place of parts of the hosts while a graph is recorded.

They compute the same, but where those decide by the size or the number of
pictures in Python, or have another operator than ONNX.

Shape letters: B images, N boxes, S side of what is pooled, C channels.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from mmcv.ops import roi_align
from mmdet.models.roi_heads.roi_extractors import SingleRoIExtractor
from torch import Tensor, nn


def attend_in_windows(
    attention: nn.Module, query: Tensor, hw_shape: tuple[int, int]
) -> Tensor:
    """``forward`` of Swin's ``ShiftWindowMSA``, for any number and size.

    Args:
        attention: Of mmdet or mmseg.
        query: ``(B, H * W, C)``.
        hw_shape: H and W.

    Returns:
        ``(B, H * W, C)``.
    """
    side, shift = attention.window_size, attention.shift_size
    (batch, _, channels), (height, width) = query.shape, hw_shape
    # Rests are filled and cut off even where there are none.
    rows, columns = (n + (side - n % side) % side for n in hw_shape)
    maps = query.view(batch, height, width, channels)
    maps = F.pad(maps, (0, 0, 0, columns - width, 0, rows - height))
    mask = None
    if shift:
        maps = maps.roll((-shift, -shift), (1, 2))
        # Pixels that come from another border are strangers.
        of_row, of_column = (
            (location >= number - side).int()
            + (location >= number - shift).int()
            for number in (rows, columns)
            for location in [torch.arange(number, device=query.device)]
        )
        parts = 3 * of_row[:, None] + of_column
        parts = attention.window_partition(parts[None, ..., None])
        parts = parts.view(-1, side**2)
        strangers = parts[:, None] != parts[..., None]
        mask = strangers.to(query.dtype) * -100.0
    windows = attention.window_partition(maps).view(-1, side**2, channels)
    grid = attention.w_msa(windows, mask=mask).view(
        -1, rows // side, columns // side, side, side, channels
    )
    maps = grid.permute(0, 1, 3, 2, 4, 5).reshape(-1, rows, columns, channels)
    if shift:
        maps = maps.roll((shift, shift), (1, 2))
    maps = maps[:, :height, :width].reshape(batch, -1, channels)
    return attention.drop(maps)


def pool_boxes(
    extractor: SingleRoIExtractor, maps: Sequence[Tensor], boxes: Tensor
) -> Tensor:
    """``forward`` of mmdet's extractor with ONNX's own ``RoiAlign``.

    A graph chooses no boxes: each is pooled from each map, and what is of the
    map for its size is taken.

    Args:
        extractor: With layers that average and are aligned.
        maps: ``(B, C, H, W)``, finest first.
        boxes: ``(B, N, 4)`` xyxy in pixels.

    Returns:
        ``(B * N, C, S, S)``.
    """
    image = torch.arange(
        boxes.shape[0], device=boxes.device, dtype=boxes.dtype
    )
    image = image[:, None, None].expand(-1, boxes.shape[1], 1)
    rois = torch.cat((image, boxes), -1).flatten(0, 1)
    maps = maps[: extractor.num_inputs]
    level = extractor.map_roi_levels(rois, len(maps))[:, None, None, None]
    pooled = 0.0
    for i, (of_level, layer) in enumerate(zip(maps, extractor.roi_layers)):
        of_map = _RoIAlign.apply(
            of_level,
            rois,
            *layer.output_size,
            layer.spatial_scale,
            layer.sampling_ratio,
        )
        pooled = pooled + torch.where(level == i, of_map, 0.0)
    return pooled


class _RoIAlign(torch.autograd.Function):
    """mmcv's operator, and the name that ONNX has for it.

    mmcv's own translation shifts the regions, which ONNX does itself since
    opset 16.
    """

    @staticmethod
    def forward(
        ctx: Any,
        maps: Tensor,
        rois: Tensor,
        height: int,
        width: int,
        scale: float,
        ratio: int,
    ) -> Tensor:
        return roi_align(
            maps, rois, (height, width), scale, ratio, 'avg', True
        )

    @staticmethod
    def symbolic(
        g: Any,
        maps: Any,
        rois: Any,
        height: int,
        width: int,
        scale: float,
        ratio: int,
    ) -> Any:
        def columns(*index: int) -> Any:
            return g.op(
                'Gather',
                rois,
                g.op('Constant', value_t=torch.tensor(index)),
                axis_i=1,
            )

        flat = g.op('Constant', value_t=torch.tensor([-1]))
        image = g.op('Reshape', columns(0), flat)
        return g.op(
            'RoiAlign',
            maps,
            columns(1, 2, 3, 4),
            g.op('Cast', image, to_i=torch.onnx.TensorProtoDataType.INT64),
            coordinate_transformation_mode_s='half_pixel',
            mode_s='avg',
            output_height_i=height,
            output_width_i=width,
            sampling_ratio_i=max(ratio, 0),
            spatial_scale_f=scale,
        )

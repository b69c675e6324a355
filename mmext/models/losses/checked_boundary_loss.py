"""Balanced sigmoid cross-entropy of edge maps, labels checked."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...registry import MODELS
from ...utils.tensors import wide_type
from .label_range import LabelRangeMonitor
from .reduction import divide
from .resized_logits import ResizedLogits

_NUM_KINDS = 2
_DEFAULT_IGNORE_INDEX = 255


@MODELS.register_module()
class CheckedBoundaryLoss(nn.Module):
    """Boundary loss of PIDNet, without waiting for the device.

    Replaces MMSegmentation's ``BoundaryLoss``. The weight of an edge pixel is
    the share of other pixels, that of another pixel the share of edges.

    Args:
        loss_weight: Factor of the result.
        loss_name: Key in the dict of losses.
        ignore_index: Pixels of the edge map with this value have weight 0;
            None for the value of the call, or 255.
        out_of_range: ``'raise'``, or ``'ignore'`` to give pixels that are
            neither 0, 1 nor ``ignore_index`` the weight 0, with one warning.

    Raises:
        ValueError: If ``out_of_range`` is neither of both.

    Source:
        Compatible with ``BoundaryLoss`` of MMSegmentation and PIDNet.

    Examples:
        >>> loss = CheckedBoundaryLoss()
        >>> edges = torch.tensor([[[0, 1], [1, 1]]])
        >>> round(loss(torch.zeros(1, 1, 2, 2), edges).item(), 4)
        0.2599
    """

    def __init__(
        self,
        loss_weight: float = 1.0,
        loss_name: str = 'loss_boundary',
        *,
        ignore_index: int | None = None,
        out_of_range: str = 'raise',
    ) -> None:
        super().__init__()
        self.loss_weight = loss_weight
        self.ignore_index = ignore_index
        self.loss_name = loss_name
        self.label_range = LabelRangeMonitor(out_of_range, loss_name)

    def forward(
        self,
        bd_pre: Tensor | ResizedLogits,
        bd_gt: Tensor,
        ignore_index: int | None = None,
    ) -> Tensor:
        """The loss.

        Args:
            bd_pre: Logits ``(N, 1, H, W)``, any floating dtype, or
                low-resolution ones, which are resized: there is one channel.
            bd_gt: Edge map ``(N, H, W)``: 1 for an edge, 0 for none; any
                integer dtype.
            ignore_index: Value of padding, if the constructor got none.

        Returns:
            Scalar: the mean over all pixels, those without weight included.

        Raises:
            LabelRangeError: If a pixel of the edge map is out of range.
            TypeError: If ``bd_gt`` has no integer dtype.
            ValueError: If shapes do not fit.
        """
        if (
            len(bd_pre.shape) != 4
            or bd_pre.shape[1] != 1
            or (bd_gt.shape != (bd_pre.shape[0], *bd_pre.shape[2:]))
        ):
            raise ValueError(
                'bd_pre must be (N, 1, H, W) and bd_gt (N, H, W), got '
                f'{tuple(bd_pre.shape)} and {tuple(bd_gt.shape)}'
            )
        if isinstance(bd_pre, ResizedLogits):
            bd_pre = bd_pre.dense()
        if self.ignore_index is not None:
            ignore_index = self.ignore_index
        elif ignore_index is None:
            ignore_index = _DEFAULT_IGNORE_INDEX
        valid = self.label_range.check(bd_gt, _NUM_KINDS, ignore_index)
        dtype = wide_type(bd_pre)
        logits = bd_pre.squeeze(1).to(dtype)
        edge = (bd_gt == 1) & valid
        num_edge = torch.count_nonzero(edge)
        num_valid = torch.count_nonzero(valid)
        weight = torch.where(
            edge,
            divide((num_valid - num_edge).to(dtype), num_valid),
            divide(num_edge.to(dtype), num_valid),
        ).masked_fill_(~valid, 0)
        losses = F.binary_cross_entropy_with_logits(
            logits, edge.to(dtype), weight, reduction='sum'
        )
        return self.loss_weight * divide(losses, bd_gt.numel())

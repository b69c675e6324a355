"""Head of PIDNet, its four losses from low-resolution logits."""

import torch
from mmseg.models import decode_heads
from mmseg.models.utils import resize
from torch import Tensor, nn

from ...registry import MODELS
from ..losses.checked_boundary_loss import CheckedBoundaryLoss
from ..losses.checked_cross_entropy import CheckedCrossEntropyLoss
from ..losses.checked_ohem_cross_entropy import CheckedOhemCrossEntropy
from ..losses.reduction import check_class_weight
from ..losses.resized_logits import ResizedLogits
from .heads import accuracy_of, called, warn_once

_EDGE_PROBABILITY = 0.8
_LOSSES = (
    CheckedCrossEntropyLoss,
    CheckedOhemCrossEntropy,
    CheckedBoundaryLoss,
    CheckedOhemCrossEntropy,
)


@MODELS.register_module()
class PIDHead(decode_heads.PIDHead):
    """Head of PIDNet, its losses from low-resolution logits.

    MMSegmentation's head, with the same losses and gradients. The softmax of
    each logit map is computed once: the second and the fourth loss share it
    and differ in their pixels only.

    For that, ``loss_decode`` has to be :class:`mmext.CheckedCrossEntropyLoss`
    (softmax), :class:`mmext.CheckedOhemCrossEntropy`,
    :class:`mmext.CheckedBoundaryLoss` and another
    ``mmext.CheckedOhemCrossEntropy``, in this order. With others it works as
    MMSegmentation's does, with one warning.

    All arguments are those of ``mmseg.PIDHead``. Losses that have an
    ``ignore_label`` get ``ignore_index`` for it.

    Raises:
        ValueError: If ``loss_decode`` has not four losses, or one of them
            has another ``ignore_label``.
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        losses = self.loss_decode
        count = len(losses) if isinstance(losses, nn.ModuleList) else 1
        if count != len(_LOSSES):
            raise ValueError(
                'loss_decode of PIDHead must be a list of 4 losses (of the '
                'P branch, of the I branch, of the boundary, of the I branch '
                f'near boundaries), got {count}'
            )
        for module in losses:
            _ignore(module, self.ignore_index)

    def loss_by_feat(
        self,
        seg_logits: tuple[Tensor, Tensor, Tensor],
        batch_data_samples: list,
    ) -> dict:
        """Losses and accuracy.

        Args:
            seg_logits: Logits of the P and I branches, ``(N, C, h, w)``, and
                of the boundary, ``(N, 1, h, w)``.
            batch_data_samples: With label maps and edge maps ``(1, H, W)``.

        Returns:
            ``loss_sem_p``, ``loss_sem_i``, ``loss_bd``, ``loss_sem_bd``, and
            ``acc_seg``, percent, ``(1,)``, of the I branch.

        Raises:
            LabelRangeError: If a label is neither a class nor ignored.
            ValueError: If samples have no edge map, or one of another size
                than the label map.
        """
        _check_edges(batch_data_samples, self.ignore_index)
        reason = self._needs_full_resolution()
        if reason:
            warn_once(self, reason)
            return super().loss_by_feat(seg_logits, batch_data_samples)
        label, edge = (
            label.squeeze(1)
            for label in self._stack_batch_gt(batch_data_samples)
        )
        if edge.shape != label.shape:
            raise ValueError(
                'gt_edge_map must have the shape of gt_sem_seg, '
                f'{tuple(label.shape)}, got {tuple(edge.shape)}'
            )
        size = label.shape[1:]
        p_logits, i_logits = (
            ResizedLogits(logits, size, self.align_corners)
            for logits in seg_logits[:2]
        )
        d_logits = resize(
            seg_logits[2],
            size,
            mode='bilinear',
            align_corners=self.align_corners,
        )
        p_loss, _, d_loss, _ = self.loss_decode
        losses = {
            'loss_sem_p': p_loss(
                p_logits, label, ignore_index=self.ignore_index
            )
        }
        near = torch.sigmoid(d_logits.detach()[:, 0]) > _EDGE_PROBABILITY
        losses['loss_sem_i'], near_value = self._hard_losses(
            i_logits, label, near
        )
        # The host pads both maps with one value.
        padding = self.ignore_index
        losses['loss_bd'] = d_loss(
            d_logits, edge, None if padding in (0, 1) else padding
        )
        losses['loss_sem_bd'] = near_value
        losses['acc_seg'] = accuracy_of(
            i_logits.num_correct, label, self.out_channels, self.ignore_index
        )
        return losses

    def _hard_losses(
        self, logits: ResizedLogits, label: Tensor, near: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Those of the I branch: of all pixels, and near boundaries."""
        _, i_loss, _, near_loss = self.loss_decode
        for loss in (i_loss, near_loss):
            check_class_weight(loss.class_weight, self.out_channels)
        valid = i_loss.label_range.check(
            label, self.out_channels, i_loss.ignored(self.ignore_index)
        )
        nll = logits.nll(label, valid)
        return (
            i_loss.loss_of_map(nll, label, valid),
            near_loss.loss_of_map(nll, label, valid & near),
        )

    def _needs_full_resolution(self) -> str:
        """The reason, if the logits have to be resized first."""
        for module, kind in zip(self.loss_decode, _LOSSES):
            # Another forward of a subclass would not be called.
            same = type(module).forward is kind.forward
            if not (same and getattr(module, 'can_resize', True)):
                return f'{called(module)}, not {kind.__name__}, needs them'
        return ''


def _ignore(module: nn.Module, ignore_index: int | None) -> None:
    """Let a loss ignore what the head ignores."""
    label = getattr(module, 'ignore_label', ignore_index)
    if isinstance(module, CheckedOhemCrossEntropy) and label is None:
        # MMSegmentation's loss_by_feat, where it is used, does not pass it.
        module.ignore_label = ignore_index
    elif label != ignore_index:
        raise ValueError(
            f'ignore_label={label} of {type(module).__name__} in loss_decode '
            f"must be the head's ignore_index={ignore_index}"
        )


def _check_edges(samples: list, ignore_index: int | None) -> None:
    for index, sample in enumerate(samples):
        if 'gt_edge_map' not in sample:
            path = getattr(sample, 'img_path', 'no path')
            raise ValueError(
                f'PIDHead needs gt_edge_map, which sample {index} ({path}) '
                "does not have; add dict(type='mmseg.GenerateEdge', "
                f'edge_width=4, ignore_index={ignore_index}) to the train '
                'pipeline, after all that changes the shape and before '
                'PackSegInputs'
            )

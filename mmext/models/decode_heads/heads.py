"""MMSegmentation's decode heads with losses from low-resolution logits."""

import logging
from typing import Any

import torch
from mmengine.logging import print_log
from mmseg.models import decode_heads
from mmseg.models.utils import resize
from torch import Tensor, nn

from ...registry import MODELS
from ..losses.checked_binary_cross_entropy import CheckedBoundaryLoss
from ..losses.checked_cross_entropy import CheckedCrossEntropyLoss
from ..losses.checked_ohem_cross_entropy import CheckedOhemCrossEntropy
from ..losses.label_range import valid_labels
from ..losses.reduction import check_class_weight
from ..losses.resized_logits import ResizedLogits

_REPLACED = ('CrossEntropyLoss', 'OhemCrossEntropy')
_EPS = torch.finfo(torch.float32).eps
_EDGE_PROBABILITY = 0.8
_PID_LOSSES = (
    CheckedCrossEntropyLoss,
    CheckedOhemCrossEntropy,
    CheckedBoundaryLoss,
    CheckedOhemCrossEntropy,
)


def accuracy_of(
    num_correct: Tensor, label: Tensor, num_classes: int, ignore: int | None
) -> Tensor:
    """Accuracy as MMSegmentation's heads give it.

    ``num_correct``: Scalar, pixels whose most probable class is the label;
    ``label``: ``(N, H, W)``, any integer dtype. Returns ``(1,)`` float32,
    percent of the pixels in range and not ignored.
    """
    total = torch.count_nonzero(valid_labels(label, num_classes, ignore))
    return ((num_correct + _EPS) * (100 / (total + _EPS))).reshape(1)


def warn_once(head: nn.Module, reason: str) -> None:
    """Warn once per head that it uses full-resolution logits."""
    if not getattr(head, '_fallback_reported', False):
        head._fallback_reported = True
        print_log(
            f'{type(head).__name__}: losses are computed from full-resolution '
            f'logits, which takes more memory: {reason}',
            'current',
            logging.WARNING,
        )


class ResizedLossMixin:
    """Gives a decode head of MMSegmentation the losses of mmext.

    The head's logits are not resized to the label map: losses and accuracy
    come from the low-resolution logits, with the same values and gradients,
    in a fraction of the memory. For a head of your own::

        @MODELS.register_module()
        class MyHead(ResizedLossMixin, MyHeadOfMMSegmentation):
            '''My head.'''

    Where a loss needs full-resolution logits (any but
    :class:`mmext.CheckedCrossEntropyLoss` with softmax and
    :class:`mmext.CheckedOhemCrossEntropy`), or a pixel sampler does, the
    head computes its losses as MMSegmentation's does, with one warning.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        hosts = cls.__mro__[cls.__mro__.index(ResizedLossMixin) + 1 :]
        owner = next(
            (host for host in hosts if 'loss_by_feat' in vars(host)), None
        )
        if owner is not decode_heads.decode_head.BaseDecodeHead:
            what = 'no head' if owner is None else owner.__name__
            raise TypeError(
                f'{cls.__name__}: ResizedLossMixin must stand before a head '
                'that has the loss_by_feat of BaseDecodeHead, got that of '
                f'{what}; write a loss_by_feat with ResizedLogits for it'
            )

    def loss_by_feat(
        self, seg_logits: Tensor, batch_data_samples: list
    ) -> dict:
        """Losses and accuracy.

        ``seg_logits``: ``(N, C, h, w)``; ``batch_data_samples``: With label
        maps ``(1, H, W)``. Returns name to loss, and ``acc_seg``, percent,
        ``(1,)``.
        """
        if not isinstance(seg_logits, Tensor):
            raise TypeError(
                f'{type(self).__name__} must return one tensor of logits '
                f'for ResizedLossMixin, got a {type(seg_logits).__name__}; '
                'write a loss_by_feat with ResizedLogits for it'
            )
        reason = self._needs_full_resolution()
        if reason:
            warn_once(self, reason)
            return super().loss_by_feat(seg_logits, batch_data_samples)
        label = self._stack_batch_gt(batch_data_samples).squeeze(1)
        resized = ResizedLogits(
            seg_logits, label.shape[1:], self.align_corners
        )
        losses: dict[str, Any] = {}
        for module in self._losses():
            value = module(resized, label, ignore_index=self.ignore_index)
            name = module.loss_name
            losses[name] = losses[name] + value if name in losses else value
        classes, ignore = self.out_channels, self.ignore_index
        if resized.num_correct is None:
            # No loss went through them: a loss of the user's may not.
            with torch.no_grad():
                resized.nll(label, valid_labels(label, classes, ignore))
        losses['acc_seg'] = accuracy_of(
            resized.num_correct, label, classes, ignore
        )
        return losses

    def _losses(self) -> list[nn.Module]:
        if isinstance(self.loss_decode, nn.ModuleList):
            return list(self.loss_decode)
        return [self.loss_decode]

    def _needs_full_resolution(self) -> str:
        """The reason, if the logits have to be resized first."""
        if self.sampler is not None:
            return f'sampler {type(self.sampler).__name__} chooses pixels'
        for module in self._losses():
            if not getattr(module, 'can_resize', False):
                kind = type(module).__name__
                hint = f', mmext.Checked{kind} does not'
                return f'{called(module)} needs them' + (
                    hint if kind in _REPLACED else ''
                )
        return ''


def called(module: nn.Module) -> str:
    """Name a loss as the user knows it."""
    options = [
        f'{name}={getattr(module, name)!r}'
        for name in ('loss_name', 'use_sigmoid', 'use_mask', 'reduction')
        if getattr(module, name, None) not in (None, False, 'mean')
    ]
    return f'{type(module).__name__}({", ".join(options)})'


@MODELS.register_module()
class FCNHead(ResizedLossMixin, decode_heads.FCNHead):
    """Head of FCN, and auxiliary head; arguments of ``mmseg.FCNHead``."""


@MODELS.register_module()
class PSPHead(ResizedLossMixin, decode_heads.PSPHead):
    """Pyramid pooling head of PSPNet; arguments of ``mmseg.PSPHead``."""


@MODELS.register_module()
class ASPPHead(ResizedLossMixin, decode_heads.ASPPHead):
    """Head of DeepLabV3; arguments of ``mmseg.ASPPHead``."""


@MODELS.register_module()
class DepthwiseSeparableASPPHead(
    ResizedLossMixin, decode_heads.DepthwiseSeparableASPPHead
):
    """Head of DeepLabV3+; arguments of the head of that name in mmseg."""


@MODELS.register_module()
class UPerHead(ResizedLossMixin, decode_heads.UPerHead):
    """Head of UPerNet; arguments of ``mmseg.UPerHead``."""


@MODELS.register_module()
class SegformerHead(ResizedLossMixin, decode_heads.SegformerHead):
    """Head of SegFormer; arguments of ``mmseg.SegformerHead``."""


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
        if count != len(_PID_LOSSES):
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
        for module, kind in zip(self.loss_decode, _PID_LOSSES):
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

"""Classification on data where most categories of an image are unknown."""

from collections.abc import Sequence
from typing import Any

import torch
from mmdet.models.losses import QualityFocalLoss
from torch import Tensor

from ...registry import MODELS
from .reduction import read_class_weight

_SURELY_NOT = -1e4


@MODELS.register_module()
class FederatedQualityFocalLoss(QualityFocalLoss):
    """Quality focal loss of some categories a step, for LVIS.

    An image of a federated data set has no labels for most categories, so
    that a loss of all of them teaches that unlabelled objects are background.
    Here a step counts the categories that have objects in its images, and as
    many others, drawn without replacement, that there are ``num_sampled``.
    The probability of a category goes with its images in the training set to
    the power ``power``. Where more have objects, all of these count.

    One draw is for all queries of a call, and so for all decoder layers.
    Each process draws for its own images, as Detectron2 does: nothing is
    exchanged.

    Args:
        class_counts: Images of the training set that have each class, all
            above 0: ``image_count`` in LVIS's categories. A list, or a file
            with one (``.json``, ``.npy``, ``.yaml``).
        num_sampled: Categories that count, at least.
        power: Of the counts.
        beta: Of the quality focal loss.
        loss_weight: Factor of the loss.

    Raises:
        ValueError: If an argument is out of its range, or the logits have
            another number of classes than ``class_counts``.

    Source:
        Zhou, Koltun and Kraehenbuehl, Probabilistic two-stage detection,
        arXiv 2103.07461; numbers as in Detectron2 (``FED_LOSS_NUM_CLASSES``,
        ``FED_LOSS_FREQ_WEIGHT_POWER``). That of the public CO-DETR for LVIS
        is not published.
    """

    def __init__(
        self,
        class_counts: Sequence[float] | str,
        *,
        num_sampled: int = 50,
        power: float = 0.5,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        counts = read_class_weight(class_counts)
        if counts is None or not bool((counts > 0).all()):
            raise ValueError(
                'class_counts must be above 0 for each class, got '
                f'{class_counts!r}'
            )
        if self.activated:
            raise ValueError('activated must be False, got True')
        if num_sampled < 1:
            raise ValueError(
                f'num_sampled must be 1 or more, got {num_sampled}'
            )
        self.num_sampled = num_sampled
        # Not in checkpoints: the config has it.
        self.register_buffer(
            'fed_loss_weight', counts**power, persistent=False
        )

    def sample(self, labels: Tensor) -> Tensor:
        """Which classes count, ``(K,)`` bool; no value goes to the host.

        Args:
            labels: Class indices of any shape, ``K`` for the background.
        """
        weights = self.fed_loss_weight
        present = weights.new_zeros(len(weights) + 1)
        present = present.scatter(0, labels.flatten(), 1.0)[:-1].bool()
        # The largest of weight / Exp(1) are a draw without replacement.
        keys = weights / torch.empty_like(weights).exponential_()
        keys = keys.masked_fill(present, float('inf'))
        best = keys.topk(min(self.num_sampled, len(weights))).indices
        return present.scatter(0, best, True)

    def masked(self, pred: Tensor, labels: Tensor) -> Tensor:
        """Logits without loss and gradient where a class does not count.

        Args:
            pred: ``(N, K)`` logits.
            labels: ``(N,)`` int64, ``K`` for a negative.
        """
        if pred.shape[1] != len(self.fed_loss_weight):
            raise ValueError(
                'class_counts must have one number for each of the '
                f'{pred.shape[1]} classes, got {len(self.fed_loss_weight)}; '
                'set loss_cls.class_counts to those of the data'
            )
        # The sigmoid is 0, and so is the loss of a negative.
        return pred.masked_fill(~self.sample(labels), _SURELY_NOT)

    def forward(
        self, pred: Tensor, target: tuple[Tensor, Tensor], *args, **kwargs
    ) -> Tensor:
        """As ``mmdet.QualityFocalLoss``, of the classes that count.

        Args:
            pred: ``(N, K)`` logits.
            target: Labels ``(N,)`` int64, ``K`` for a negative, and
                qualities ``(N,)`` in [0, 1].
            *args: ``weight``, ``avg_factor`` and ``reduction_override``.
            **kwargs: The same.
        """
        pred = self.masked(pred, target[0])
        return super().forward(pred, target, *args, **kwargs)

"""CO-DINO head that classifies by the cosine to class embeddings.

Shape letters: B images, Q matching queries, T queries of all groups, C
channels, D dimensions of the embedding space, K classes.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmdet.structures import DetDataSample
from mmengine.model import bias_init_with_prob
from torch import Tensor, nn
from torch.nn import functional as F

from ...registry import MODELS
from ...utils.tensors import float32_region, to_float32
from .class_embeddings import (
    ClassEmbeddings,
    given_embeddings,
    keep_given,
    read_class_embeddings,
    training_dims,
)
from .losses import LayerTargets, class_losses
from .positives import CoPositives
from .query_head import CoDINOHead
from .transformer import EncodedImage, Proposals

COSINE_EPS = 1e-6
"""Vectors shorter than this are divided by it: a zero vector stays zero."""

LOG_TEMPERATURE_INIT = math.log(1 / 0.07)
LOG_TEMPERATURE_RANGE = (0.0, math.log(100.0))
"""A factor in [1, 100] that starts at 14.3."""

PRIOR_BIAS = bias_init_with_prob(0.01)
"""Logit of 0.01, about -4.6: at first nothing is an object."""


def cosine_logits(
    hidden: Tensor,
    class_embed: Tensor,
    embeddings: Tensor,
    log_temperature: Tensor,
    bias: Tensor,
) -> Tensor:
    """Class logits from the direction of a query in the embedding space.

    ``exp(log_temperature) * cos(hidden @ class_embed, embeddings) + bias``,
    in float32 also under autocast. Lengths do not matter, neither of a query
    nor of an embedding. A zero vector has cosine 0 with all others and a
    finite gradient.

    Args:
        hidden: ``(*, C)``, float.
        class_embed: ``(C, D)``, the projection.
        embeddings: ``(K, D)``, one per class.
        log_temperature: ``(1,)``; outside :data:`LOG_TEMPERATURE_RANGE` it
            counts as the end of the range that is nearer.
        bias: ``(1,)``, added to all logits.

    Returns:
        ``(*, K)`` float32, in ``bias`` plus or minus the temperature.

    Source:
        The temperature, its start at 1 / 0.07 and its limit of 100 are CLIP's
        (arXiv 2103.00020); with a bias for sigmoid losses as in YOLO-World
        (arXiv 2401.17270), here from the prior 0.01 of RetinaNet (arXiv
        1708.02002).
    """
    with float32_region(hidden):
        queries = to_float32(hidden) @ to_float32(class_embed)
        queries = F.normalize(queries, dim=-1, eps=COSINE_EPS)
        classes = F.normalize(to_float32(embeddings), dim=-1, eps=COSINE_EPS)
        scale = to_float32(log_temperature).clamp(*LOG_TEMPERATURE_RANGE).exp()
        return scale * (queries @ classes.t()) + to_float32(bias)


def bound_log_temperature(log_temperature: Tensor) -> None:
    """Clamp a log temperature to its range, in place.

    A parameter outside the range would get no gradient, and so never return.
    Autograd does not record the change, so an earlier loss can still run
    backward.

    ``log_temperature``: ``(1,)``.
    """
    log_temperature.data.clamp_(*LOG_TEMPERATURE_RANGE)


def init_class_embed(class_embed: Tensor) -> None:
    """Standard normal.

    The cosine does not depend on the length, but a step of Adam does: it
    changes entries of size 1 by about the learning rate, and a logit then
    changes as fast as that of a linear classifier. With CLIP's ``C ** -0.5``
    it would be ``C ** 0.5`` times as fast, too fast for rare classes.

    ``class_embed``: ``(C, D)``, filled in place.
    """
    nn.init.normal_(class_embed)


def init_prototypes(prototypes: Tensor) -> None:
    """Orthogonal rows of length ``D ** 0.5``, with entries of their own.

    Entry ``d`` is not zero in the row ``d % K`` only, with a random sign.
    Adam gives each entry of a parameter steps of the same size: where a
    class has entries of its own, in the prototypes and in the columns of the
    projection, a rare one learns as fast as a frequent one, as with a linear
    classifier. With more classes than dimensions, rows share entries and are
    normal.

    ``prototypes``: ``(K, D)``, filled in place.
    """
    count, dims = prototypes.shape
    if count > dims:
        nn.init.normal_(prototypes)
        return
    column = torch.arange(dims, device=prototypes.device)
    owned = (
        column % count == torch.arange(count, device=column.device)[:, None]
    )
    signs = torch.randint_like(prototypes, 2) * 2 - 1
    with torch.no_grad():
        prototypes.copy_(F.normalize(signs * owned, dim=1) * dims**0.5)


CLASS_EMBED_MODES = ('classifier', 'auxiliary')
_DIMS = 512
_KEY = 'class_embeddings'


@MODELS.register_module()
class CoDINOClassEmbedHead(CoDINOHead):
    """CO-DINO head with classes as directions of an embedding space.

    One projection ``class_embed`` takes the queries of all decoder layers,
    of denoising and of the auxiliary heads, and the encoder's proposals, into
    the space of the class embeddings. The logit of a class is

        ``temperature * cos(query @ class_embed, embedding) + bias``

    with a learned temperature and a learned bias for all classes.

    Args:
        num_classes: ``K`` of the training.
        transformer: As in :class:`~mmext.models.CoDINOHead`.
        dn_cfg: As there.
        class_embeddings: File with ``K`` embeddings, see
            :func:`~mmext.models.co_dino.class_embeddings.read_class_embeddings`.
            They are a buffer, of length 1, and do not learn. None learns one
            prototype per class instead.
        class_embed_dims: ``D``; with a file it is the file's, else 512.
        mode: ``'classifier'`` replaces the linear classifiers by the cosine.
            ``'auxiliary'`` matches and predicts with the linear classifiers,
            and trains the cosine in addition, on the same targets.
        loss_weight: In ``'auxiliary'`` mode, factor of the additional
            losses, multiplied with that of ``loss_cls``. With 0 they are not
            computed, and the parameters get zero gradients.
        **kwargs: As in :class:`~mmext.models.CoDINOHead`. ``loss_cls`` must
            use sigmoids. ``test_cfg.class_embeddings`` names a file with the
            classes to predict, as :meth:`set_class_embeddings` sets them.

    Attributes:
        class_embed: Parameter ``(C, D)``, standard normal.
        class_embeddings: Buffer ``(K, D)`` from the file, or parameter with
            orthogonal rows, see ``init_prototypes``. In the state dict either
            way. A file in the config has precedence over a checkpoint.
        class_log_temperature: Parameter ``(1,)``, in [0, log 100], from
            log(1 / 0.07).
        class_bias: Parameter ``(1,)``, from the logit of 0.01.

    Raises:
        FileNotFoundError: If there is no such file.
        TypeError: If embeddings are not floating point.
        ValueError: If embeddings are not ``(K, D)``, finite and without rows
            of zeros; if ``mode``, ``class_embed_dims`` or ``loss_weight`` is
            out of range; or if ``loss_cls`` uses a softmax.

    Source:
        The projection is CLIP's (arXiv 2103.00020), the use on DETR queries
        follows OV-DETR (arXiv 2203.11876) and CORA (arXiv 2303.13076).
    """

    # Besides those of CoDINOHead.
    test_cfg_keys = frozenset({_KEY})

    def __init__(
        self,
        num_classes: int,
        transformer: dict,
        dn_cfg: dict,
        *,
        class_embeddings: str | Path | None = None,
        class_embed_dims: int | None = None,
        mode: str = 'classifier',
        loss_weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        _check_mode(mode, loss_weight)
        # mmdet builds the classifiers while it is being constructed.
        self._mode = mode
        super().__init__(num_classes, transformer, dn_cfg, **kwargs)
        if not self.loss_cls.use_sigmoid:
            raise ValueError(
                'loss_cls must have use_sigmoid=True, got False; a cosine has '
                'no background class'
            )
        self.loss_weight = loss_weight
        self.train_vocabulary: ClassEmbeddings | None = None
        self.test_vocabulary: ClassEmbeddings | None = None
        if class_embeddings is not None:
            self.train_vocabulary = read_class_embeddings(class_embeddings)
        dims = training_dims(
            self.train_vocabulary, num_classes, class_embed_dims, _DIMS
        )
        self.class_embed = nn.Parameter(torch.empty(self.embed_dims, dims))
        self.class_log_temperature = nn.Parameter(torch.empty(1))
        self.class_bias = nn.Parameter(torch.empty(1))
        if self.train_vocabulary is None:
            self.class_embeddings = nn.Parameter(
                torch.empty(num_classes, dims)
            )
        else:
            self.register_buffer(_KEY, self.train_vocabulary.vectors.clone())
        # Not in the state dict: a checkpoint has the classes of the training.
        self.register_buffer('test_class_embeddings', None, persistent=False)
        self._init_class_embed()
        file = self.test_cfg.get(_KEY)
        if file is not None:
            self.set_class_embeddings(file)

    @property
    def mode(self) -> str:
        """``'classifier'`` or ``'auxiliary'``."""
        return self._mode

    def _init_layers(self) -> None:
        """Build the branches; without classifiers where the cosine is one."""
        super()._init_layers()
        if self._mode == 'classifier':
            self.cls_branches = nn.ModuleList()

    def _init_class_embed(self) -> None:
        """Give the parameters the values that the class documents."""
        init_class_embed(self.class_embed)
        nn.init.constant_(self.class_log_temperature, LOG_TEMPERATURE_INIT)
        nn.init.constant_(self.class_bias, PRIOR_BIAS)
        if self.train_vocabulary is None:
            init_prototypes(self.class_embeddings)

    def init_weights(self) -> None:
        """Initialise branches, transformer and what the class documents."""
        if not self.is_init:
            self._init_class_embed()
        super().init_weights()

    def set_class_embeddings(
        self,
        embeddings: Tensor | np.ndarray | str | Path | None,
        classes: Sequence[str] | None = None,
    ) -> None:
        """Choose the classes that are predicted in evaluation.

        Training is not changed, and neither is the state dict.

        Args:
            embeddings: ``(K', D)``, or the file that holds them, for any
                number ``K'`` of classes. None goes back to the classes of
                the training.
            classes: ``K'`` names; by default those in the file.

        Raises:
            FileNotFoundError: If there is no such file.
            TypeError: If the embeddings are not floating point.
            ValueError: If they are not ``(K', D)``, finite and without rows
                of zeros, names do not fit, or the linear classifier predicts
                (``mode='auxiliary'``).
        """
        if embeddings is None:
            self.test_vocabulary = self.test_class_embeddings = None
            return
        if self._mode == 'auxiliary':
            raise ValueError(
                "class_embeddings can only be replaced with mode='classifier',"
                " got 'auxiliary', where linear classifiers predict; a "
                "checkpoint of it also loads with mode='classifier'"
            )
        given = given_embeddings(
            embeddings, classes, self.class_embed.shape[1]
        )
        self.test_vocabulary = given
        self.test_class_embeddings = given.vectors.to(self.class_embed.device)

    def class_vocabulary(self, training: bool) -> ClassEmbeddings | None:
        """The embeddings in force in training, or else in evaluation.

        Returns:
            Those that a file gave or that were set, with their names where
            these are known; None where prototypes are learned.
        """
        if not training and self.test_vocabulary is not None:
            return self.test_vocabulary
        return self.train_vocabulary

    def class_logits(self, hidden: Tensor) -> Tensor:
        """Cosine logits of queries.

        Args:
            hidden: ``(..., C)``.

        Returns:
            ``(..., K)`` float32; in evaluation ``(..., K')`` of the classes
            that :meth:`set_class_embeddings` chose.
        """
        embeddings = self.class_embeddings
        if not self.training and self.test_class_embeddings is not None:
            embeddings = self.test_class_embeddings
        return cosine_logits(
            hidden,
            self.class_embed,
            embeddings,
            self.class_log_temperature,
            self.class_bias,
        )

    def classify(self, layer: int, hidden: Tensor) -> Tensor:
        """Logits ``(..., K)`` that match and predict, of any layer."""
        if self._mode == 'auxiliary':
            return super().classify(layer, hidden)
        return self.class_logits(hidden)

    def loss(
        self,
        encoded: EncodedImage,
        batch_data_samples: Sequence[DetDataSample],
        co_positives: Sequence[CoPositives] = (),
        draw: Callable[[Tensor], tuple[Tensor, Callable]] | None = None,
    ) -> dict:
        """All losses of the decoder, from one pass.

        Args:
            encoded: The encoder output.
            batch_data_samples: Samples with ``gt_instances``.
            co_positives: What each auxiliary head assigned.
            draw: As of :class:`~mmext.models.CoDINOHead`.

        Returns:
            The losses of :class:`~mmext.models.CoDINOHead`. In
            ``'auxiliary'`` mode also ``loss_class_embed``, divided by the
            same numbers as ``loss_cls`` and with the same prefixes and
            suffixes; with ``loss_weight=0`` only ``loss_class_embed``, which
            is 0.

        Raises:
            RuntimeError: In evaluation mode, if :meth:`set_class_embeddings`
                has set other classes.
        """
        if not self.training and self.test_class_embeddings is not None:
            raise RuntimeError(
                'losses need the classes of the training, got '
                f'{len(self.test_class_embeddings)} others; call train(), or '
                'set_class_embeddings(None)'
            )
        bound_log_temperature(self.class_log_temperature)
        return super().loss(encoded, batch_data_samples, co_positives, draw)

    def _further_losses(
        self,
        hidden: Tensor,
        proposals: Proposals,
        decoded: LayerTargets,
        proposed: LayerTargets,
    ) -> dict[str, Tensor]:
        """Losses of the cosine beside the linear classifiers."""
        name = 'loss_class_embed'
        if self._mode == 'classifier':
            return {}
        if self.loss_weight == 0:
            # With a gradient of 0 for all that the cosine learns.
            learned = (
                self.class_embed,
                self.class_embeddings,
                self.class_log_temperature,
                self.class_bias,
            )
            return {name: sum(value.sum() * 0 for value in learned)}
        losses = {}
        for states, targets in (
            (hidden, decoded),
            (proposals.tokens[None], proposed),
        ):
            losses |= class_losses(
                self.loss_cls, self.class_logits(states), targets, name
            )
        return {key: self.loss_weight * value for key, value in losses.items()}

    def _load_from_state_dict(
        self, state_dict: dict, prefix: str, *args: Any
    ) -> None:
        """Load; embeddings from a file are kept."""
        if self.train_vocabulary is not None:
            keep_given(state_dict, f'{prefix}{_KEY}', self.train_vocabulary)
        super()._load_from_state_dict(state_dict, prefix, *args)


def _check_mode(mode: str, loss_weight: float) -> None:
    if mode not in CLASS_EMBED_MODES:
        raise ValueError(
            f'mode must be one of {CLASS_EMBED_MODES}, got {mode!r}'
        )
    if not 0 <= loss_weight < float('inf'):
        raise ValueError(f'loss_weight must be at least 0, got {loss_weight}')
    if mode == 'classifier' and loss_weight != 1:
        raise ValueError(
            "loss_weight is for mode='auxiliary', got "
            f"{loss_weight} with mode='classifier'; set loss_cls.loss_weight"
        )

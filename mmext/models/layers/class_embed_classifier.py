"""Classes as directions: scaled cosine between queries and embeddings.

Shape letters: C channels of a query, D dimensions of the embedding space, K
classes, ``*`` any leading dims.
"""

import math

import torch
from mmengine.model import bias_init_with_prob
from torch import Tensor, nn
from torch.nn import functional as F

from ..utils.precision import float32_region, to_float32

__all__ = [
    'COSINE_EPS',
    'LOG_TEMPERATURE_INIT',
    'LOG_TEMPERATURE_RANGE',
    'PRIOR_BIAS',
    'bound_log_temperature',
    'cosine_logits',
    'init_class_embed',
    'init_prototypes',
]

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

    Examples:
        >>> import torch
        >>> one = torch.ones(1)
        >>> cosine_logits(
        ...     torch.tensor([[3.0, 0.0]]), torch.eye(2), torch.eye(2),
        ...     0 * one, -1 * one,
        ... )
        tensor([[ 0., -1.]])
    """
    with float32_region(hidden):
        queries = to_float32(hidden) @ to_float32(class_embed)
        queries = F.normalize(queries, dim=-1, eps=COSINE_EPS)
        classes = F.normalize(to_float32(embeddings), dim=-1, eps=COSINE_EPS)
        scale = to_float32(log_temperature).clamp(*LOG_TEMPERATURE_RANGE).exp()
        return scale * (queries @ classes.t()) + to_float32(bias)


def bound_log_temperature(log_temperature: Tensor) -> None:
    """Put it back into its range, in place.

    A parameter outside the range would get no gradient, and so never return.
    Autograd does not see it, so that an earlier loss can still go backward.

    Args:
        log_temperature: ``(1,)``.

    Examples:
        >>> import torch
        >>> log_temperature = torch.tensor([-3.0])
        >>> bound_log_temperature(log_temperature)
        >>> log_temperature
        tensor([0.])
    """
    log_temperature.data.clamp_(*LOG_TEMPERATURE_RANGE)


def init_class_embed(class_embed: Tensor) -> None:
    """Standard normal.

    The cosine does not see the length, but Adam does: a step of it turns
    entries of size 1 by about the learning rate, and a logit then changes as
    fast as that of a linear classifier. With CLIP's ``C ** -0.5`` it would
    be ``C ** 0.5`` times as fast, which rare classes do not bear.

    Args:
        class_embed: ``(C, D)``, filled in place.
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

    Args:
        prototypes: ``(K, D)``, filled in place.
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

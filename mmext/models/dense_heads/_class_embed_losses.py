"""A second set of logits, trained on the targets of the first.

Shape letters: B images, P denoising queries, Q matching queries, K classes,
D decoder layers.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

__all__ = ['LossCall', 'QueryLogits', 'recorded_calls', 'replayed_losses']

NAME = 'loss_class_embed'


class LossCall(NamedTuple):
    """One call of a classification loss.

    Attributes:
        num_queries: How many queries it classified.
        args: Positional arguments but the logits: targets, weights.
        kwargs: Further arguments, such as ``avg_factor``.
    """

    num_queries: int
    args: tuple
    kwargs: dict


class QueryLogits(NamedTuple):
    """Logits of one step, by what the queries are for.

    Attributes:
        matching: ``(D, B, Q, K)``.
        proposals: ``(B, Q, K)``.
        denoising: ``(D, B, P, K)``; ``P`` is 0 if there is no box.
        co_heads: Per auxiliary head ``(D, B, its queries, K)``.
    """

    matching: Tensor
    proposals: Tensor
    denoising: Tensor
    co_heads: Sequence[Tensor]


@contextmanager
def recorded_calls(loss: nn.Module) -> Iterator[list[LossCall]]:
    """Note what a loss is called with.

    The targets of a query (its match, its weight, the IoU that is asked for,
    what the sum is divided by) are made inside the host's head. This is where
    all of them can be seen, once they are made, without matching again.

    Args:
        loss: Called as ``loss(logits, target, weight, avg_factor=...)``.

    Yields:
        A list that grows with every call.

    Examples:
        >>> import torch
        >>> loss = torch.nn.BCEWithLogitsLoss()
        >>> with recorded_calls(loss) as calls:
        ...     value = loss(torch.zeros(3, 2), torch.ones(3, 2))
        >>> calls[0].num_queries, calls[0].args[0].shape
        (3, torch.Size([3, 2]))
    """
    calls: list[LossCall] = []

    def note(module: nn.Module, args: tuple, kwargs: dict, _: Any) -> None:
        calls.append(LossCall(len(args[0]), args[1:], kwargs))

    handle = loss.register_forward_hook(note, with_kwargs=True)
    try:
        yield calls
    finally:
        handle.remove()


def _in_order(logits: QueryLogits) -> Iterator[tuple[str, Tensor]]:
    """Names and logits, in the order in which the head calls its loss."""

    def per_layer(name: str, layers: Tensor) -> Iterator[tuple[str, Tensor]]:
        for i, layer in enumerate(layers):
            last = i == len(layers) - 1
            yield (name if last else f'd{i}.{name}'), layer

    yield from per_layer(NAME, logits.matching)
    yield f'enc_{NAME}', logits.proposals
    yield from per_layer(f'dn_{NAME}', logits.denoising)
    for i, layers in enumerate(logits.co_heads):
        yield from per_layer(f'{NAME}_aux{i}', layers)


def replayed_losses(
    loss: nn.Module,
    calls: Sequence[LossCall],
    logits: QueryLogits,
    weight: float,
) -> dict[str, Tensor]:
    """Losses of other logits of the same queries, on the same targets.

    Args:
        loss: The loss that was recorded.
        calls: What :func:`recorded_calls` noted: of every decoder layer the
            matching queries; the proposals; of every layer the denoising
            queries, if there are any; and per auxiliary head, of every layer
            its queries.
        logits: The other logits, float32.
        weight: Factor of all losses.

    Returns:
        Scalars ``loss_class_embed`` with the prefixes and suffixes of
        ``loss_cls``. Without denoising queries theirs are 0 and in the graph.

    Raises:
        RuntimeError: If the calls are not those of these queries.
    """
    expected = list(_in_order(logits))
    pending = list(calls)
    losses = {}
    for name, scores in expected:
        flat = scores.flatten(0, -2)
        if len(flat) == 0:
            losses[name] = flat.sum() * weight
            continue
        call = pending.pop(0) if pending else None
        if call is None or call.num_queries != len(flat):
            found = 'no call' if call is None else f'{call.num_queries}'
            raise RuntimeError(
                f'loss_cls must have been called with {len(flat)} queries for '
                f'{name}, got {found}; this mmdet computes its losses in '
                "another order, use mode='classifier'"
            )
        losses[name] = loss(flat, *call.args, **call.kwargs) * weight
    if pending:
        raise RuntimeError(
            f'loss_cls must have been called {len(calls) - len(pending)} '
            f'times, got {len(calls)}; this mmdet has further losses, use '
            "mode='classifier'"
        )
    return losses

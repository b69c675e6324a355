"""Make the batches of a model that was built for a preflight."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mmengine.registry import DefaultScope

from .fake_samples import fake_batch
from .kinds import check_kinds, kinds_of
from .real import real_batches

if TYPE_CHECKING:
    from ..building import Built

__all__ = ['make_batches']


def make_batches(
    built: 'Built',
    kinds: Sequence[str] = ('normal', 'empty', 'one-class', 'crowded'),
    *,
    steps: int = 2,
    batch_size: int = 2,
    size: tuple[int, int] | None = None,
    seed: int = 0,
) -> dict[str, list[Any]]:
    """Make batches of several kinds for a model.

    A made-up sample is packed by the steps of the training pipeline, so it
    has the fields that the training would have, and no others.

    Args:
        built: Of :func:`~mmext.preflight.build_for_preflight`.
        kinds: Of :data:`~mmext.preflight.batches.KINDS`.
        steps: Batches of each kind, at least 1.
        batch_size: Samples of a batch, of each data set; at least 1. Batch
            normalisation of a 1x1 map needs 2.
        size: Height and width of made-up pictures in pixels; by default
            what suits the model.
        seed: Same seed, same batches.

    Returns:
        Kind to its batches, as the data loader would give them. Without
        kinds that mean nothing to the task.

    Raises:
        ValueError: If a kind is not known or a number is out of range.
        CannotBuildError: If a step of the training pipeline cannot be built
            or fails, or real data were asked for and cannot be read.
    """
    check_kinds(kinds)
    if steps < 1 or batch_size < 1:
        raise ValueError(
            'steps and batch_size must be at least 1, got '
            f'{steps} and {batch_size}'
        )
    recipe = built.recipe
    if size is not None:
        recipe = replace(recipe, size=size)
    suited = kinds_of(built.task)
    batches = {}
    with DefaultScope.overwrite_default_scope(built.scope):
        for kind in kinds:
            if kind == 'real':
                batches[kind] = real_batches(
                    built.cfg, steps=steps, batch_size=batch_size, seed=seed
                )
            elif kind in suited:
                batches[kind] = [
                    fake_batch(
                        recipe,
                        kind,
                        step=step,
                        batch_size=batch_size,
                        seed=seed,
                    )
                    for step in range(steps)
                ]
    return batches

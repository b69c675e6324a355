"""Build the model of a config and train it for some steps, as asked."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mmengine.config import Config
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from .batches import make_batches
from .building import Built, build_for_preflight
from .cannot_build import CannotBuildError
from .proof import Proof, prove
from .settings import PreflightSettings

__all__ = ['Examined', 'examine', 'fit_batch_size']

# What a layer raises that a picture is too small for.
_OF_SIZE = ('AssertionError', 'RuntimeError', 'ValueError')


@dataclass
class Examined:
    """What came of it.

    Attributes:
        built: The model and what belongs to it; None if it was not built.
        proof: What was seen; None if no batch was made.
        notes: What was changed to build and to train it.
        not_done: What could not be done, and why.
    """

    built: Built | None = None
    proof: Proof | None = None
    notes: list[str] = field(default_factory=list)
    not_done: list[str] = field(default_factory=list)


def fit_batch_size(model: nn.Module) -> int:
    """Fewest samples of a batch that a model can be trained with.

    Args:
        model: It is put into training mode.

    Returns:
        2 if a norm computes statistics of single channels, as it may meet a
        map of one pixel, else 1.
    """
    model.train()
    return 1 + any(
        (isinstance(each, _BatchNorm) and each.training)
        or (
            isinstance(each, nn.GroupNorm)
            and each.num_groups == each.num_channels
        )
        for each in model.modules()
    )


def examine(
    cfg: Config,
    settings: PreflightSettings,
    tell: Callable[[str], Any] = lambda text: None,
) -> Examined:
    """Build a model and prove what its training does.

    Made-up pictures are small; a model that fails on them is tried once more
    on pictures as large as those of its training.

    Args:
        cfg: The config.
        settings: Kinds of batches, steps, sizes and device.
        tell: Called with what is being done.

    Returns:
        The model, the proof, and what could not be done.
    """
    size = settings.image_size
    # Real pictures are as large as they are.
    if size is None and 'real' in settings.batches:
        size = 'declared'
    found = _examine(cfg, settings, size, tell)
    if size is None and _may_be_too_small(found):
        tell('once more, with pictures as large as those of the training')
        again = _examine(cfg, settings, 'declared', tell)
        if again.proof is not None and next(iter(again.proof.steps.values())):
            again.notes.append(
                f'pictures of {found.built.recipe.size} are too small for it '
                f'({found.proof.crashes[0].message}); they have '
                f'{again.built.recipe.size}'
            )
            return again
    return found


def _may_be_too_small(found: Examined) -> bool:
    """Whether the first step of the first kind ended with such an error."""
    if found.proof is None or not found.proof.crashes:
        return False
    crash, recipe = found.proof.crashes[0], found.built.recipe
    return (
        crash.kind == next(iter(found.proof.steps))
        and crash.step == 0
        and crash.error in _OF_SIZE
        and tuple(recipe.size) != tuple(recipe.declared_size)
    )


def _examine(
    cfg: Config,
    settings: PreflightSettings,
    size: tuple[int, int] | str | None,
    tell: Callable[[str], Any],
) -> Examined:
    found = Examined()
    tell('building the model')
    try:
        built = build_for_preflight(cfg, device=settings.device, size=size)
    except CannotBuildError as error:
        found.not_done.append(f'the model was not built: {error}')
        return found
    found.built = built
    found.notes += built.notes
    tell('making batches')
    try:
        batches = make_batches(
            built,
            settings.batches,
            steps=settings.steps,
            batch_size=settings.batch_size or fit_batch_size(built.model),
        )
    except CannotBuildError as error:
        found.not_done.append(f'no batches were made: {error}')
        return found
    left = [kind for kind in settings.batches if kind not in batches]
    if left:
        found.not_done.append(
            f'batches of kind {", ".join(left)} mean nothing to a task of '
            f'{built.task}'
        )
    if 'empty' in batches and built.recipe.drops_empty:
        found.notes.append(
            'the data set leaves out pictures without objects, so that empty '
            'batches do not occur'
        )
    if built.optim_wrapper is None:
        found.not_done.append(f'no optimizer was built: {built.optim_error}')
    if batches:
        tell(f'training {settings.steps} steps of {", ".join(batches)}')
        found.proof = prove(
            built.model,
            batches,
            optim_wrapper=built.optim_wrapper,
            cfg=built.cfg,
            steps=settings.steps,
            later_steps=1,
        )
    return found

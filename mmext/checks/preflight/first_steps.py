"""Build the model of a config, make batches and train for a few steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmengine.config import Config
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..config import RightPlaces, RunnerKind
from ..ddp import bypassed_methods, has_own_train_step
from ..findings import Finding, Severity
from .batches.making import SIGNATURE, make_batches
from .build import Built, build_for_preflight
from .dry_run.facts import DryRun
from .dry_run.run import dry_run_model
from .parts import Failure
from .rules.registry import contained
from .sandbox import CannotBuildError

# What a layer raises that a picture is too small for.
_SIZE_ERRORS = ('AssertionError', 'RuntimeError', 'ValueError')


@dataclass
class FirstSteps:
    """What came of building a model and running it."""

    built: Built | None = None
    dry_run: DryRun | None = None
    # What was changed to build and to train it.
    notes: list[str] = field(default_factory=list)
    # What could not be done, and why.
    not_done: list[str] = field(default_factory=list)
    # Parts that could not be built.
    failures: list[Failure] = field(default_factory=list)
    # Of parts of the preflight that ended with an exception.
    findings: list[Finding] = field(default_factory=list)

    def clean_kinds(self) -> tuple[str, ...]:
        """Kinds of batches that went through."""
        crashed = {crash.kind for crash in self.dry_run.crashes}
        steps = self.dry_run.steps
        return tuple(k for k in steps if steps[k] and k not in crashed)


def run_first_steps(
    cfg: Config,
    *,
    kinds: Sequence[str],
    steps: int,
    batch_size: int,
    image_size: tuple[int, int] | None,
    device: str,
    progress: Callable[[str], Any],
) -> FirstSteps:
    """Build a model and run it dry; arguments as of ``check_config``.

    Made-up pictures are small; a model that fails on them is tried once more
    on pictures as large as those of its training.
    """

    def attempt(size: tuple[int, int] | str | None) -> FirstSteps:
        result = FirstSteps()
        progress('building the model')
        with contained(
            result.findings,
            'building the model',
            key='model',
            severity=Severity.ERROR,
        ):
            _build(result, cfg, device, size)
        if result.built is not None:
            progress('making batches')
            with contained(
                result.findings,
                'training steps of the model',
                severity=Severity.ERROR,
            ):
                _run(result, cfg, kinds, steps, batch_size, progress)
        return result

    # Real pictures are as large as they are.
    size = 'declared' if 'real' in kinds else None
    first = attempt(image_size or size)
    if image_size or size or not _may_be_too_small(first):
        return first
    progress('once more, with pictures as large as those of the training')
    again = attempt('declared')
    if not (again.dry_run and next(iter(again.dry_run.steps.values()))):
        return first
    again.notes.append(
        f'pictures of {first.built.recipe.size} are too small for it '
        f'({first.dry_run.crashes[0].message}); they have '
        f'{again.built.recipe.size}'
    )
    return again


def _may_be_too_small(result: FirstSteps) -> bool:
    """Whether the first step of the first kind ended with such an error."""
    if result.dry_run is None or not result.dry_run.crashes:
        return False
    crash, recipe = result.dry_run.crashes[0], result.built.recipe
    return (
        crash.kind == next(iter(result.dry_run.steps))
        and crash.step == 0
        and crash.error in _SIZE_ERRORS
        and tuple(recipe.size) != tuple(recipe.declared_size)
    )


def _build(
    result: FirstSteps,
    cfg: Config,
    device: str,
    size: tuple[int, int] | str | None,
) -> None:
    """Build the model, and say what was not built."""
    try:
        built = build_for_preflight(cfg, device=device, size=size)
    except CannotBuildError as error:
        result.not_done.append(f'the model was not built: {error}')
        if error.failure is not None:
            result.failures.append(Failure(error.path, error.failure))
        return
    result.built = built
    result.notes += built.notes
    if built.optim_failure is not None:
        failure = Failure(('optim_wrapper',), built.optim_failure)
        result.failures.append(failure)
    elif built.optim_wrapper is None:
        result.not_done.append('the config has no optim_wrapper')


def _run(
    result: FirstSteps,
    cfg: Config,
    kinds: Sequence[str],
    steps: int,
    batch_size: int,
    progress: Callable[[str], Any],
) -> None:
    """Make batches and train on them."""
    built = result.built
    notes: list[str] = []
    try:
        batches = make_batches(
            built,
            kinds,
            steps=steps,
            batch_size=batch_size or fit_batch_size(built.model),
            notes=notes,
        )
    except CannotBuildError as error:
        result.not_done.append(f'no batches were made: {error}')
        return
    result.notes += notes
    left = [kind for kind in kinds if kind not in batches]
    if left:
        result.not_done.append(
            f'batches of kind {", ".join(left)} mean nothing to a task of '
            f'{built.task}'
        )
    if 'empty' in batches and built.recipe.drops_empty:
        result.notes.append(
            'the data set leaves out pictures without objects, so that empty '
            'batches do not occur'
        )
    if _trains_in_its_own_way(built.model, cfg):
        result.not_done.append(
            'no step was run: the model has a train_step of its own, which '
            'the model wrapper calls, and what it does is not predicted; '
            'train some steps in several processes'
        )
        return
    if not batches:
        return
    progress(f'training {steps} steps of {", ".join(batches)}')
    dry_run = dry_run_model(
        built.model,
        batches,
        optim_wrapper=built.optim_wrapper,
        cfg=built.cfg,
        steps=steps,
        later_steps=1,
    )
    if dry_run.crashes and any(SIGNATURE in note for note in notes):
        # The error may be one of the batches.
        crash = dry_run.crashes[0]
        result.not_done.append(
            f'no step was run to its end: it ended with {crash.error}: '
            f'{crash.message} ({crash.place}), perhaps since the batches are '
            f'made up {SIGNATURE} only; run it where the data are'
        )
        return
    result.dry_run = dry_run
    if any(dry_run.usages()) and not dry_run.is_telling:
        result.not_done.append(
            'unused parameters and settings of DDP were not judged: no '
            f'step with a batch of kind {next(iter(batches))!r} ran to '
            'its end, and the others are special cases'
        )


def _trains_in_its_own_way(model: nn.Module, cfg: Config) -> bool:
    """Whether a training in several processes does not go by forward."""
    right = RightPlaces(cfg.to_dict())
    if right.kind is RunnerKind.FLEXIBLE:
        return False
    return has_own_train_step(model) and not bypassed_methods(
        model, right.wrapper_class
    )


def fit_batch_size(model: nn.Module) -> int:
    """Fewest samples of a batch that a model, put into training mode, needs.

    2 if a norm computes statistics of single channels, as it may meet a map
    of one pixel, else 1.
    """
    model.train()
    return 1 + any(
        (isinstance(module, _BatchNorm) and module.training)
        or (
            isinstance(module, nn.GroupNorm)
            and module.num_groups == module.num_channels
        )
        for module in model.modules()
    )

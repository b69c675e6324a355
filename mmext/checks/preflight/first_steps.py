"""Build the model of a config, make batches and train for a few steps."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from mmengine.config import Config
from mmengine.registry import DefaultScope
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD

from ..config import SECTIONS, RunnerKind, find_component, join_key
from ..ddp import bypassed_methods, has_own_train_step
from ..findings import ErrorCatcher, Finding, Severity
from .batches import SIGNATURE, make_batches
from .build import Built, build_for_preflight
from .causes import Trial, read_settings, try_settings
from .dry_run.crashes import Cause, Crash
from .dry_run.rehearsal import try_step
from .dry_run.run import ConfigOptions, DryRun, dry_run_model
from .loaders import Failure
from .rules.optimizer import optimizer_findings
from .rules.registry import catch_errors
from .sandbox import (
    CannotBuildError,
    find_part,
    no_traces,
    part_at,
    quiet,
)

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
    # About the optimizer, and of parts of the preflight that ended with an
    # exception.
    findings: list[Finding] = field(default_factory=list)


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
        with catch_errors(
            result.findings,
            'building the model',
            key='model',
            severity=Severity.ERROR,
        ):
            try:
                result.built = build_for_preflight(
                    cfg, device=device, size=size
                )
            except CannotBuildError as error:
                text = f'the model was not built: {error}'
                result.not_done.append(text)
                if error.failure is not None:
                    result.failures.append(Failure(error.path, error.failure))
        if result.built is not None:
            progress('making batches')
            with catch_errors(
                result.findings,
                'training steps of the model',
                severity=Severity.ERROR,
            ):
                _run(result, cfg, kinds, steps, batch_size, progress)
        return result

    # Real pictures are as large as they are.
    size = image_size or ('declared' if 'real' in kinds else None)
    first = attempt(size)
    crashes = first.dry_run.crashes if first.dry_run else ()
    if not crashes:
        return first
    crash, recipe = crashes[0], first.built.recipe
    if (
        not size
        and crash.kind == next(iter(first.dry_run.steps))
        and not crash.step
        and crash.error in _SIZE_ERRORS
        and tuple(recipe.size) != tuple(recipe.declared_size)
        and _is_of_size(crash, cfg, recipe.size, device, batch_size)
    ):
        progress('once more, with pictures as large as those of the training')
        again = attempt('declared')
        if again.dry_run and again.dry_run.is_telling:
            again.notes.append(
                f'pictures of {recipe.size} are too small for it '
                f'({crash.message}); they have {again.built.recipe.size}'
            )
            return again
    if first.dry_run.fails:
        progress('looking for the setting that causes the error')
        first.dry_run = _explain_crash(
            first.dry_run, cfg, size, device, batch_size
        )
    return first


def _is_of_size(
    crash: Crash,
    cfg: Config,
    size: tuple[int, int],
    device: str,
    batch_size: int,
) -> bool:
    """Whether pictures of twice the size change an error, or end it."""
    twice = 2 * size[0], 2 * size[1]
    try:
        built = build_for_preflight(cfg, device=device, size=twice)
    except CannotBuildError:
        return True
    number = batch_size or fit_batch_size(built.model)
    return str(try_step(built, crash.kind, number)) != crash.message


def find_cause(
    failure: Failure, cfg: Config, device: str = 'cpu'
) -> Trial | None:
    """Another value of a setting, with which a part is built; None if none."""
    if failure.action != 'be built' or not failure.path:
        return None
    top, section = cfg.to_dict(), str(failure.path[0])
    scope = cfg.get('default_scope') or 'mmengine'
    part = find_part(
        failure.error, part_at(top, failure.path), failure.path
    ).path

    def is_built(other: Config) -> bool:
        failed: list[Exception] = []
        with ErrorCatcher(failed.append):
            if section in ('model', 'optim_wrapper'):
                built = build_for_preflight(other, device=device)
                failed += filter(None, [built.optim_failure])
            else:
                _build_part(part_at(other.to_dict(), part), section, scope)
        return not failed

    return try_settings(
        cfg, read_settings(failure.error, top, section), is_built
    )


def _build_part(part: dict, section: str, scope: str) -> None:
    """Build what a dict of a section says, alone."""
    if section == 'param_scheduler':
        # Of epochs, as those of iterations need to know the data.
        part.pop('convert_to_iter_based', None)
        part['optimizer'] = SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    with DefaultScope.overwrite_default_scope(scope), no_traces(), quiet():
        for registry in SECTIONS.get(section, ()):
            if find_component(part.get('type'), (registry,), scope):
                registry.build(part)
                return
    raise CannotBuildError(f'{section} has no part that can be built alone')


def _explain_crash(
    dry_run: DryRun,
    cfg: Config,
    size: tuple[int, int] | str | None,
    device: str,
    batch_size: int,
) -> DryRun:
    """Name a setting with which a step that ended with an error does not."""
    crash = dry_run.crashes[0]

    def goes_through(other: Config) -> bool:
        with suppress(CannotBuildError):
            built = build_for_preflight(other, device=device, size=size)
            number = batch_size or fit_batch_size(built.model)
            late = crash.phase in ('backward', 'optimizer')
            return try_step(built, crash.kind, number, backward=late) is None
        return False

    trial = try_settings(cfg, crash.settings, goes_through)
    if trial is None:
        return dry_run
    known = crash.cause or Cause('', certain=False)
    text = f'it comes of {trial.setting.in_words()}'
    cause = replace(
        known,
        text=f'{known.text}; {text}' if known.certain else text,
        remedy=trial.remedy,
        key=join_key(trial.setting.path),
    )
    crash = replace(crash, cause=cause)
    return replace(dry_run, crashes=(crash, *dry_run.crashes[1:]))


def _run(
    result: FirstSteps,
    cfg: Config,
    kinds: Sequence[str],
    steps: int,
    batch_size: int,
    progress: Callable[[str], Any],
) -> None:
    """Make batches and train on them; say what was not built, or changed."""
    built, notes = result.built, []
    result.notes += built.notes
    if cfg.get('train_cfg', ...) is None:
        result.not_done.append(
            'no step was run: the config has no training (train_cfg is None)'
        )
        return
    if built.optim_failure is not None:
        failure = Failure(('optim_wrapper',), built.optim_failure)
        result.failures.append(failure)
    elif built.optim_wrapper is None:
        result.not_done.append('the config has no optim_wrapper')
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
    options = ConfigOptions(cfg)
    if 'empty' in batches and options.rarely_empty:
        result.notes.append(f'batches of kind empty: {options.rarely_empty}')
    # A strategy calls what the model has.
    if (
        options.locations.kind is not RunnerKind.FLEXIBLE
        and has_own_train_step(built.model)
        and not bypassed_methods(built.model, options.locations.wrapper_class)
    ):
        result.not_done.append(
            'no step was run: the model has a train_step of its own, which '
            'the model wrapper calls, and what it does is not predicted; '
            'train some steps in several processes'
        )
        return
    if not batches:
        return
    # Before steps that freeze or unfreeze parameters.
    of_optimizer = list(
        optimizer_findings(built.model, built.optim_wrapper, built.cfg)
    )
    progress(f'training {steps} steps of {", ".join(batches)}')
    dry_run = dry_run_model(
        built.model,
        batches,
        optim_wrapper=built.optim_wrapper,
        cfg=built.cfg,
        steps=steps,
        later_steps=1,
        random_weights=built.random_weights,
    )
    if dry_run.crashes and any(SIGNATURE in note for note in notes):
        # The error may be one of the batches.
        crash = dry_run.crashes[0]
        result.not_done.append(
            f'no step was run to its end: it ended with {crash.error}: '
            f'{crash.message} ({crash.location}), perhaps since the batches '
            f'are made up {SIGNATURE} only; run it where the data are'
        )
        return
    result.dry_run = dry_run
    result.findings += of_optimizer
    if any(dry_run.usages()) and not dry_run.is_telling:
        result.not_done.append(
            'unused parameters and settings of DDP were not judged: no '
            f'step with a batch of kind {next(iter(batches))!r} ran to '
            'its end, and the others are special cases'
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

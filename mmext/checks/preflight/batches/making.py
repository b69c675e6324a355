"""Make the batches of a model that was built for a preflight."""

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from mmengine.registry import DATASETS, DefaultScope

from ..sandbox import CannotBuildError, seeded
from .fake import collate_function, fake_batch


def real_batches(
    cfg: Mapping, *, steps: int = 2, batch_size: int = 2, seed: int = 0
) -> list[Any]:
    """The first batches of the training data, read in this process.

    Fewer, and the last one smaller, if there are not enough data.
    """
    loader = cfg.get('train_dataloader')
    if not loader or not loader.get('dataset'):
        raise CannotBuildError(
            'config must have train_dataloader for batches of kind '
            f"'real', got keys {sorted(cfg)}; use made-up ones"
        )
    dataset = loader['dataset']
    scope = cfg.get('default_scope') or 'mmengine'
    batches = []
    try:
        with DefaultScope.overwrite_default_scope(scope), seeded(seed):
            collate = collate_function(loader.get('collate_fn'))
            if isinstance(dataset, Mapping):
                dataset = DATASETS.build(dict(dataset))
            if hasattr(dataset, 'full_init'):
                dataset.full_init()
            # The next ones of each part of the data set.
            ends = list(getattr(dataset, 'cumulative_sizes', [len(dataset)]))
            for step in range(steps):
                indices = [
                    index
                    for start, end in zip([0, *ends[:-1]], ends)
                    for index in range(start, end)[step * batch_size :][
                        :batch_size
                    ]
                ]
                if indices:
                    batches.append(collate([dataset[i] for i in indices]))
    except Exception as error:
        raise CannotBuildError(
            'train_dataloader.dataset must give samples, got '
            f'{type(error).__name__}: {error}; check its paths, or use '
            'made-up batches'
        ) from error
    return batches


# 'real' is read from the data of the config, the others are made up.
KINDS = ('normal', 'empty', 'one-class', 'crowded', 'real')
_FEW = {
    'depth': ('normal', 'real'),
    'classification': ('normal', 'one-class', 'real'),
    'multi-label': ('normal', 'empty', 'one-class', 'real'),
    'pretraining': ('normal', 'real'),
    'data set': ('normal', 'real'),
}


def kinds_of(task: str) -> tuple[str, ...]:
    """Kinds of batches that exist for a task.

    A picture of a classification always has a class, and a pre-training looks
    at no labels, so that some kinds mean nothing to them. Samples of a data
    set without a pipeline cannot be made up: the first of its own are taken.
    """
    return _FEW.get(task, KINDS)


def check_kinds(kinds: Sequence[str]) -> None:
    """ValueError if a kind of batch is not known, or there is none."""
    unknown = [kind for kind in kinds if kind not in KINDS]
    if isinstance(kinds, str) or not kinds:
        unknown = kinds
    if unknown or not kinds:
        raise ValueError(f'kinds must be some of {KINDS}, got {unknown!r}')


if TYPE_CHECKING:
    from ..build import Built


def make_batches(
    built: 'Built',
    kinds: Sequence[str] = ('normal', 'empty', 'one-class', 'crowded'),
    *,
    steps: int = 2,
    batch_size: int = 2,
    seed: int = 0,
    notes: list[str] | None = None,
) -> dict[str, list[Any]]:
    """Batches of each kind, as the data loader would give them.

    A made-up sample is packed by the steps of the training pipeline, so it has
    the fields that the training would have, and no others. Kinds that mean
    nothing to the task are left out. A batch has ``batch_size`` samples of
    each data set; batch normalisation of a 1x1 map needs 2. CannotBuildError
    where a step of the pipeline or real data fail.

    Of a data set whose samples are its own, ``'normal'`` are the first of the
    data; where these are not here, what the signature of ``forward`` asks
    for. ``notes`` get which.
    """
    suited = kinds_of(built.task)
    batches = {}
    with DefaultScope.overwrite_default_scope(built.scope):
        for kind in kinds:
            if kind == 'normal' and built.task == 'data set':
                given, note = _own_batches(built, steps, batch_size, seed)
                batches[kind] = given
                if notes is not None:
                    notes.append(note)
            elif kind == 'real':
                batches[kind] = real_batches(
                    built.cfg, steps=steps, batch_size=batch_size, seed=seed
                )
            elif kind in suited:
                batches[kind] = [
                    fake_batch(
                        built.recipe,
                        kind,
                        step=step,
                        batch_size=batch_size,
                        seed=seed,
                    )
                    for step in range(steps)
                ]
    return batches


# Height and width in pixels.
_SMALL = (64, 64)
# What the first and the other arguments of a forward usually are.
_PICTURES = re.compile(r'(batch_)?(x|inputs?|img|imgs|images?|pixel_values)')
_LABELS = re.compile(r'y|(gt_)?labels?|targets?')
SIGNATURE = 'by the signature of forward'


def _own_batches(
    built: 'Built', steps: int, batch_size: int, seed: int
) -> tuple[list[Any], str]:
    """Batches of a model whose samples are not those of a host; their origin.

    What the data set gives, in its own pipeline; else what forward takes.
    """
    kind = type(built.model).__name__
    try:
        given = real_batches(
            built.cfg, steps=steps, batch_size=batch_size, seed=seed
        )
    except CannotBuildError as error:
        absent = isinstance(error.__cause__, FileNotFoundError)
        if error.__cause__ is not None and not absent:
            raise
        with seeded(seed):
            made = [
                _batch_of_signature(built, batch_size) for _ in range(steps)
            ]
        names = ', '.join(made[0])
        return made, (
            f'samples of {kind} are its own, and the training data are not '
            f'here: batches are made up {SIGNATURE}({names})'
        )
    return given, (
        f'samples of {kind} are its own: batches are the first of the '
        'training data, by their own pipeline'
    )


def _batch_of_signature(built: 'Built', batch_size: int) -> dict[str, Any]:
    """Pictures and labels, as far as a forward says that it takes them."""
    parameters = inspect.signature(built.model.forward).parameters
    channels, (height, width) = built.recipe.channels, _SMALL
    batch: dict[str, Any] = {}
    for name, parameter in parameters.items():
        if name == 'mode' or parameter.kind in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        ):
            continue
        if not batch and _PICTURES.fullmatch(name):
            batch[name] = torch.rand(batch_size, channels, height, width)
        elif batch and _LABELS.fullmatch(name):
            batch[name] = torch.zeros(batch_size, dtype=torch.long)
        elif parameter.default is parameter.empty:
            raise CannotBuildError(
                f'samples of {type(built.model).__name__} are its own, the '
                'training data are not here, and its forward takes '
                f'{name!r}, of which only the data tell what it is; run it '
                'where the data are'
            )
    if not batch:
        raise CannotBuildError(
            f'samples of {type(built.model).__name__} are its own, the '
            'training data are not here, and its forward names no picture; '
            'run it where the data are'
        )
    return batch

"""Steps of a config that are tried by themselves.

One on a GPU, rehearsed, with what would need less memory; and a forward with
a single sample.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from mmengine.config import Config
from mmengine.registry import DefaultScope
from torch import nn

from ...config import copy_tree
from ...ddp import restored, run_training_forward
from ...device import MemoryForecast, Rehearsal, rehearse
from ...findings import ErrorCatcher
from ..batches import make_batches
from ..build import Built, build_for_preflight
from ..recipe import step_name
from ..sandbox import quiet, seeded
from .crashes import modules_of_error

GIB = 2**30
# What PyTorch says of a channel without a variance.
_REFUSED = 'Expected more than 1 value per channel'
_PLAIN = (None, 'OptimWrapper', 'mmengine.OptimWrapper')


@dataclass
class RehearsedStep:
    """What a step does on a GPU, or why it fails there."""

    # Of the GPU in GiB, where it is known.
    gpu_memory: float | None
    # Height and width in pixels, and number of pictures.
    size: tuple[int, int]
    batch_size: int
    # Of mixed precision; empty without.
    dtype: str = ''
    # Whether weights that the config names were left out.
    random_weights: bool = False
    done: Rehearsal | None = None
    failure: Exception | None = None
    # Settings that need less -> what they need, or why they fail.
    others: dict[str, MemoryForecast | Exception] = field(default_factory=dict)


def rehearse_config(
    cfg: Config,
    *,
    image_size: tuple[int, int] | None,
    batch_size: int,
    world: int,
    gpu_memory: float | None,
    progress: Callable[[str], Any],
) -> RehearsedStep:
    """Rehearse a step of a config; arguments as of ``check_config``.

    Pictures and batch are as large as those of the training, where nothing
    else is said, and pictures are full of objects. If it does not fit, other
    settings are rehearsed as well.
    """

    def build(cfg: Config) -> Built:
        return build_for_preflight(cfg, size=image_size or 'declared')

    def run(built: Built, batch_size: int) -> Rehearsal | Exception:
        failures: list[Exception] = []
        with quiet(), seeded(0):
            # The last that the task has.
            (*_, (batch,)) = make_batches(
                built, ('normal', 'full'), steps=1, batch_size=batch_size
            ).values()
            with (
                DefaultScope.overwrite_default_scope(built.scope),
                ErrorCatcher(failures.append),
            ):
                return rehearse(
                    built.model,
                    batch,
                    built.cfg.get('optim_wrapper'),
                    world=max(world, 1),
                )
        return failures[0]

    loader = cfg.get('train_dataloader') or {}
    batch_size = batch_size or loader.get('batch_size') or 2
    built = build(cfg)
    wrapper = built.cfg.get('optim_wrapper') or {}
    step = RehearsedStep(
        gpu_memory,
        built.recipe.size,
        batch_size,
        dtype=str(wrapper.get('dtype') or 'float16')
        if step_name(wrapper).startswith('Amp')
        else '',
        random_weights=built.random_weights,
    )
    progress(
        f'rehearsing a step on a GPU: {batch_size} pictures of {step.size}'
    )
    result = run(built, batch_size)
    if isinstance(result, Exception):
        step.failure = result
        return step
    step.done = result
    if gpu_memory is None or result.memory.most <= gpu_memory * GIB:
        return step
    for text, options, size in _smaller(built, batch_size):
        progress(f'rehearsing it with {text}')
        other = Config(copy_tree(cfg.to_dict()))
        other.merge_from_dict(options)
        result = run(build(other), size)
        step.others[text] = getattr(result, 'memory', result)
    return step


def _smaller(
    built: Built, batch_size: int
) -> Iterator[tuple[str, Mapping[str, Any], int]]:
    """Settings that need less memory: in words, for the config, and batch."""
    amp, checkpoints = {}, {}
    wrapper = built.cfg.get('optim_wrapper')
    if wrapper is not None and wrapper.get('type') in _PLAIN:
        amp = {'optim_wrapper.type': 'AmpOptimWrapper'}
        yield 'mixed precision (--amp)', amp, batch_size
    backbone = getattr(built.model, 'backbone', nn.Identity())
    # Blocks may say False where the model checkpoints them from outside.
    given = (built.cfg.model.get('backbone') or {}).get('with_cp')
    if given is not True and any(
        getattr(m, 'with_cp', None) is False for m in backbone.modules()
    ):
        checkpoints = {'model.backbone.with_cp': True}
        yield 'model.backbone.with_cp=True', checkpoints, batch_size
    if batch_size > 1:
        half = batch_size // 2
        yield f'train_dataloader.batch_size={half}', {}, half
    if bool(amp) + bool(checkpoints) + (batch_size > 1) > 1:
        yield (
            'all of these, and a batch of 1',
            {**amp, **checkpoints},
            1,
        )


def try_step(
    built: Built, kind: str, batch_size: int, *, backward: bool = False
) -> Exception | None:
    """The error of a training step; None if it goes through."""
    model, failures = built.model, []
    with quiet(), seeded(0):
        ((batch,),) = make_batches(
            built, (kind,), steps=1, batch_size=batch_size
        ).values()
        with (
            DefaultScope.overwrite_default_scope(built.scope),
            ErrorCatcher(failures.append),
        ):
            model.train()
            data = model.data_preprocessor(batch, True)
            outputs = run_training_forward(model, data)
            loss = model.parse_losses(outputs)[0]
            if backward and loss.requires_grad:
                loss.backward()
    # What it holds, the tensors of a step, is freed with it.
    return failures.pop() if failures else None


def norm_of_one(cfg: Config, built: Built) -> tuple[str, nn.Module] | None:
    """The norm that refuses a single sample of the training's size, if any.

    A larger picture has no fewer values, so that a small one that goes through
    is enough.
    """
    sizes = built.recipe.size, built.recipe.declared_size
    for size in dict.fromkeys(map(tuple, sizes)):
        if size != tuple(built.recipe.size):
            built = build_for_preflight(cfg, size=size)
        model = built.model
        with restored(model), torch.no_grad():
            failure = try_step(built, 'normal', batch_size=1)
        if failure is None or _REFUSED not in str(failure):
            return None
    inside = modules_of_error(failure, model)
    return (inside[-1], model.get_submodule(inside[-1])) if inside else None

"""Build a model and its optimizer from a config, on CPU, without downloads."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from mmengine.config import Config
from mmengine.logging import MessageHub
from mmengine.model import revert_sync_batchnorm
from mmengine.optim import OptimWrapper, build_optim_wrapper
from mmengine.optim.optimizer.amp_optimizer_wrapper import GradScaler
from mmengine.registry import MODELS, DefaultScope
from torch import nn
from torch.nn.parameter import is_lazy

from ...ops import active_backend
from ...registry import HOOKS
from ...utils.broken_libraries import BrokenLibraryError
from ...utils.training import freeze_modules
from ..config import Steps, copy_tree, join_key, split_key, walk_dicts
from ..findings import ErrorCatcher
from .recipe import Recipe, fit_to_pictures, make_recipe, step_name
from .sandbox import (
    CannotBuildError,
    explain_failure,
    find_part,
    no_network,
    quiet,
    seeded,
)

# Keys whose value is where weights are.
_WEIGHTS = ('pretrained', 'teacher_ckpt', 'checkpoint_file')


def drop_weights(model: Any) -> list[str]:
    """Let a config of a model load no weights; returns the changes."""
    notes: list[str] = []
    for path, part in walk_dicts(model, split_key('model')):
        for name in list(part):
            inner, value = join_key((*path, name)), part[name]
            dropped: list[str] = []
            if name in _WEIGHTS and isinstance(value, str | bool) and value:
                part[name] = None if isinstance(value, str) else False
                dropped = [value]
            elif name == 'init_cfg':
                part[name], dropped = _without_pretrained(value)
                if not part[name]:
                    del part[name]
            notes += [
                f'{inner}: weights {source!r} are not loaded'
                for source in dropped
            ]
    return notes


def _without_pretrained(init: Any) -> tuple[Any, list[str]]:
    """What is left of ``init_cfg``, and the weights it named."""
    if isinstance(init, Mapping):
        # Some backbones name weights without a type.
        if step_name(init) in ('Pretrained', 'PretrainedInit') or (
            'type' not in init and init.get('checkpoint')
        ):
            return None, [str(init.get('checkpoint'))]
        return init, []
    if isinstance(init, (list, tuple)):
        kept, dropped = [], []
        for item in init:
            left, names = _without_pretrained(item)
            dropped += names
            if left is not None:
                kept.append(left)
        return kept or None, dropped
    return init, []


def drop_init_weights(model: nn.Module) -> list[str]:
    """Let the modules of a built model load no weights; returns the changes.

    Some weights are given by default arguments, which no config shows.
    """
    notes = []
    for name, module in model.named_modules():
        init = getattr(module, 'init_cfg', None)
        left, dropped = _without_pretrained(init)
        if dropped:
            module.init_cfg = left
            notes += [
                f'{name}: weights {source!r} are not loaded'
                for source in dropped
            ]
        if isinstance(getattr(module, 'pretrained', None), str):
            notes.append(
                f'{name}: weights {module.pretrained!r} are not loaded'
            )
            module.pretrained = None
    return notes


_HOSTS = ('mmdet', 'mmseg', 'mmpretrain')
# Wrappers that need a GPU, and what they are without mixed precision.
_PLAIN = {
    'AmpOptimWrapper': 'OptimWrapper',
    'AmpGradientSurgeryOptimWrapper': 'mmext.GradientSurgeryOptimWrapper',
}
_AMP_ONLY = ('dtype', 'loss_scale', 'use_fsdp')


def without_amp(optim_wrapper: Mapping) -> Any:
    """A copy of a config of an optimizer wrapper that needs no GPU."""
    options = copy.deepcopy(optim_wrapper)
    plain = _PLAIN.get(step_name(options))
    if plain:
        options['type'] = plain
        for key in _AMP_ONLY:
            options.pop(key, None)
    return options


@dataclass(frozen=True)
class Built:
    """A model and what belongs to it."""

    # Not wrapped, with random weights.
    model: nn.Module = field(repr=False)
    # What it was built of, a copy with the changes of ``notes``.
    cfg: Config = field(repr=False)
    optim_wrapper: OptimWrapper | None = field(repr=False)
    # What building the optimizer raised.
    optim_failure: Exception | None
    # What is learned, and how batches are made up.
    task: str
    recipe: Recipe
    # Name of the registry that names without one belong to.
    scope: str
    # What was changed to build it, each in words.
    notes: tuple[str, ...]
    # Whether weights that the config names were left out.
    random_weights: bool = False


def build_for_preflight(
    cfg: Config | Mapping,
    *,
    device: str = 'cpu',
    size: tuple[int, int] | str | None = None,
    seed: int = 0,
) -> Built:
    """The model of a config with its optimizer; the config is not edited.

    No weights are loaded, nothing is downloaded and no data are needed:
    weights are random, drawn with ``seed``, and pictures will be small.
    ``size`` is the height and width of made-up pictures in pixels, which the
    model is made for; ``'declared'`` for those of the training, which real
    data have and a model may need that fails on small ones. Parts that ask
    MMEngine's message hub for the iteration find that of the start of a
    training. CannotBuildError names the key, where it is known, and what
    helps.
    """
    given = cfg.to_dict() if isinstance(cfg, Config) else dict(cfg)
    cfg = Config(copy_tree(given))
    if not cfg.get('model'):
        raise CannotBuildError(
            f'config must have a model, got keys {sorted(cfg)}'
        )
    if cfg.get('data_preprocessor') is not None:
        # As the runner does.
        cfg.model.setdefault('data_preprocessor', cfg.data_preprocessor)
    scope = _scope_of(cfg)
    with (
        DefaultScope.overwrite_default_scope(scope),
        no_network() as asked,
        seeded(seed),
        quiet(),
    ):
        size, declared, notes = fit_to_pictures(cfg, size)
        try:
            model, dropped = _build_model(cfg, notes)
        except BrokenLibraryError:
            raise
        except Exception as error:
            key = join_key(find_part(error, cfg.model, ('model',)).whole)
            raise CannotBuildError(
                explain_failure(key, error, asked),
                failure=None
                if asked or isinstance(error, FileNotFoundError)
                else error,
            ) from error
        if cfg.get('freeze'):
            try:
                frozen = freeze_modules(model, cfg['freeze'])
            except (TypeError, ValueError) as error:
                raise CannotBuildError(
                    str(error), failure=error, path=('freeze',)
                ) from error
            notes.append(f'freeze: {", ".join(frozen)} is not trained')
        recipe = make_recipe(cfg, model, size, declared)
        model.to(device)
        _begin_training(cfg)
        wrapper, failed = None, []
        if cfg.get('optim_wrapper'):
            options = without_amp(cfg.optim_wrapper)
            with ErrorCatcher(failed.append):
                wrapper = build_optim_wrapper(model, options)
                scale = cfg.optim_wrapper.get('loss_scale')
                if isinstance(scale, Mapping):
                    GradScaler(**scale)
            name, plain = map(step_name, (cfg.optim_wrapper, options))
            if name != plain:
                notes.append(
                    f'{name} is {plain}: float32 on a CPU; --rehearse takes a '
                    'step in mixed precision'
                )
        notes += _checkpoint(model, cfg)
    if active_backend() == 'mmext':
        notes.append("mmcv's operators are those of mmext.ops")
    return Built(
        model=model,
        cfg=cfg,
        optim_wrapper=wrapper,
        optim_failure=next(iter(failed), None),
        task=recipe.task,
        recipe=recipe,
        scope=scope,
        notes=(*dropped, *notes),
        random_weights=bool(dropped or cfg.get('load_from')),
    )


@contextmanager
def _empty_is_nan() -> Iterator[None]:
    """Inside, memory that nothing is written to is NaN."""
    before = torch.get_deterministic_debug_mode()
    # use_deterministic_algorithms() would import a compiler.
    torch.set_deterministic_debug_mode('warn')
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


def _build_model(cfg: Config, notes: list[str]) -> tuple[nn.Module, list[str]]:
    """The model and what weights were left out; adds other changes."""
    dropped = drop_weights(cfg.model)
    for _, part in walk_dicts(cfg.model):
        if part.get('type') == 'MMSyncBN':
            # It asks for the process group when it is built.
            part['type'] = 'SyncBN'
    with _empty_is_nan():
        # The hosts' detectors change the dicts of their parts.
        model = MODELS.build(copy.deepcopy(cfg.model))
        dropped += drop_init_weights(model)
        lazy = any(is_lazy(parameter) for parameter in model.parameters())
        # Those without a shape are a finding of the dry run.
        if hasattr(model, 'init_weights') and not lazy:
            try:
                model.init_weights()
            except AttributeError as error:
                # Some can only load weights. Then they stay as constructed.
                if not dropped:
                    raise
                dropped.append(
                    f'init_weights of the model fails without: {error}'
                )
    if dropped and not lazy:
        # What only the weights file would have given a value.
        for parameter in model.parameters():
            unset = parameter.data.isnan()
            parameter.data[unset] = 0.02 * torch.randn(int(unset.sum()))
    count = sum(isinstance(m, nn.SyncBatchNorm) for m in model.modules())
    if count:
        model = revert_sync_batchnorm(model)
        notes.append(f'{count} SyncBN are BN: there is one process')
    return model, dropped


def _scope_of(cfg: Config) -> str:
    """Where the types of a config come from, if it does not say so."""
    if cfg.get('default_scope'):
        return cfg.default_scope
    kind = cfg.model.get('type')
    if not isinstance(kind, str):
        kind = getattr(kind, '__module__', '')
    prefix = cfg.model.get('_scope_') or kind.partition('.')[0]
    return prefix if prefix in (*_HOSTS, 'mmext') else 'mmdet'


def _begin_training(cfg: Config) -> None:
    """Put into the message hub what a runner puts there at its start."""
    loop = cfg.get('train_cfg')
    loop = loop if isinstance(loop, Mapping) else {}
    epochs = loop.get('max_epochs')
    state = {
        'loop_stage': 'train',
        'epoch': 0,
        'iter': 0,
        'max_epochs': epochs,
        # The length of an epoch is known from the data only.
        'max_iters': loop.get('max_iters') or (epochs and 1000 * epochs),
    }
    hub = MessageHub.get_current_instance()
    for key, value in state.items():
        if value is not None and hub.get_info(key) is None:
            hub.update_info(key, value)


def hook_configs(top: Mapping) -> Iterator[tuple[Steps, Any]]:
    """Hooks of a config, each with its path, as far as they have a form."""
    named, listed = top.get('default_hooks'), top.get('custom_hooks')
    for name in named if isinstance(named, Mapping) else ():
        yield ('default_hooks', name), named[name]
    if isinstance(listed, list | tuple):
        for index, hook in enumerate(listed):
            yield ('custom_hooks', index), hook


def _checkpoint(model: nn.Module, cfg: Config) -> list[str]:
    """Checkpoint what a hook of the config will, and say so."""
    ours = HOOKS.get('mmext.ActivationCheckpointHook')
    notes = []
    for path, options in hook_configs(cfg):
        kind = options.get('type') if isinstance(options, Mapping) else None
        if (HOOKS.get(kind) if isinstance(kind, str) else kind) is not ours:
            continue
        try:
            done = HOOKS.build(dict(options)).checkpoint(model)
        except Exception as error:
            raise CannotBuildError(
                f'ActivationCheckpointHook cannot be used: {error}',
                failure=error,
                path=path,
            ) from error
        notes.append(
            f'ActivationCheckpointHook: {len(done.modules)} modules are '
            f'checkpointed, {len(done.replaced)} were reentrant'
        )
    return notes

"""Build a model and its optimizer from a config, on CPU, without downloads."""

import copy
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.logging import MessageHub, MMLogger
from mmengine.model import revert_sync_batchnorm
from mmengine.optim import OptimWrapper, build_optim_wrapper
from mmengine.registry import MODELS, DefaultScope
from torch import nn

from ..engine.activation_checkpoint_hook import ActivationCheckpointHook
from ..ops import active_backend
from ..registry import HOOKS
from ..utils.config_nodes import copy_tree, walk_dicts
from ._offline import no_network
from ._seeded import seeded
from ._weights import drop_init_weights, drop_weights
from .batches.recipe import Recipe, fit_to_pictures, make_recipe
from .cannot_build import CannotBuildError, explain_failure

__all__ = ['Built', 'CannotBuildError', 'build_for_preflight']

_HOSTS = ('mmdet', 'mmseg', 'mmpretrain')
# What a registry, a constructor or an optimizer says of bad options.
_BAD_OPTIONS = (
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
_AMP_ONLY = ('dtype', 'loss_scale', 'use_fsdp')


@dataclass(frozen=True)
class Built:
    """A model and what belongs to it.

    Attributes:
        model: Not wrapped, with random weights.
        cfg: The config it was built of, a copy with the changes of
            :attr:`notes`.
        optim_wrapper: Holds the optimizer; None if there is none, see
            :attr:`optim_error`.
        optim_error: Why there is no optimizer; empty if there is one.
        task: One of :data:`~mmext.preflight.batches.TASKS`.
        recipe: How batches are made up.
        scope: Name of the registry that names without one belong to.
        notes: What was changed to build it, each in words.
    """

    model: nn.Module = field(repr=False)
    cfg: Config = field(repr=False)
    optim_wrapper: OptimWrapper | None = field(repr=False)
    optim_error: str
    task: str
    recipe: Recipe
    scope: str
    notes: tuple[str, ...]


def build_for_preflight(
    cfg: Config | Mapping,
    *,
    device: str = 'cpu',
    size: tuple[int, int] | str | None = None,
    seed: int = 0,
) -> Built:
    """Build the model of a config and its optimizer.

    No weights are loaded, nothing is downloaded and no data are needed:
    weights are random, pictures will be small. What that changes in the
    config is told in the notes. Parts that ask MMEngine's message hub for
    the iteration find that of the start of a training.

    Args:
        cfg: A config of mmdet, mmseg, mmpretrain or mmext. Not edited.
        device: Where the model shall be.
        size: Height and width of made-up pictures in pixels, which the
            model is made for; ``'declared'`` for those of the training.
            These are wanted for real data, and by a model that fails on the
            default, small ones that suit most models.
        seed: Of the weights.

    Returns:
        The model and what belongs to it.

    Raises:
        CannotBuildError: If a part needs the network, a package that is not
            installed or a file that is not there, or does not fit. The
            message names the key where it can be told.
    """
    cfg = Config(copy_tree(_as_dict(cfg)))
    if not cfg.get('model'):
        raise CannotBuildError(
            f'config must have a model, got keys {sorted(cfg)}'
        )
    scope = _scope_of(cfg)
    with (
        DefaultScope.overwrite_default_scope(scope),
        no_network() as asked,
        seeded(seed),
        _quiet(),
    ):
        try:
            model, recipe, notes = _build_model(cfg, size)
        except Exception as error:
            key = _key_of(error, cfg.model)
            raise CannotBuildError(
                explain_failure(key, error, asked)
            ) from error
        model.to(device)
        _begin_training(cfg)
        wrapper, reason, changed = _build_optimizer(model, cfg)
        changed += _checkpoint(model, cfg)
    notes += changed
    if active_backend() == 'mmext':
        notes.append("mmcv's operators are those of mmext.ops")
    return Built(
        model=model,
        cfg=cfg,
        optim_wrapper=wrapper,
        optim_error=reason,
        task=recipe.task,
        recipe=recipe,
        scope=scope,
        notes=tuple(notes),
    )


def _build_model(
    cfg: Config, size: tuple[int, int] | str | None
) -> tuple[nn.Module, Recipe, list[str]]:
    """The model, how its batches are made, and what was changed."""
    if cfg.get('data_preprocessor') is not None:
        # As the runner does.
        cfg.model.setdefault('data_preprocessor', cfg.data_preprocessor)
    notes = drop_weights(cfg.model, config_roots=_config_roots())
    sizes, changed = fit_to_pictures(cfg, size)
    for _, part in walk_dicts(cfg.model):
        if part.get('type') == 'MMSyncBN':
            # It asks for the process group when it is built.
            part['type'] = 'SyncBN'
    model = MODELS.build(cfg.model)
    notes += drop_init_weights(model)
    if hasattr(model, 'init_weights'):
        try:
            model.init_weights()
        except AttributeError as error:
            # Some can only load weights. Then they stay as constructed.
            if not notes:
                raise
            notes.append(f'init_weights of the model fails without: {error}')
    model, reverted = _on_one_process(model)
    recipe = make_recipe(cfg, model, sizes)
    return model, recipe, notes + changed + reverted


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what mmengine says about each weight and frozen layer."""
    logger = MMLogger.get_current_instance()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _as_dict(cfg: Config | Mapping) -> dict:
    return cfg.to_dict() if isinstance(cfg, Config) else dict(cfg)


def _scope_of(cfg: Config) -> str:
    """Where the types of a config come from, if it does not say so."""
    if cfg.get('default_scope'):
        return cfg.default_scope
    kind = cfg.model.get('type')
    if not isinstance(kind, str):
        kind = getattr(kind, '__module__', '')
    prefix = cfg.model.get('_scope_') or kind.partition('.')[0]
    return prefix if prefix in (*_HOSTS, 'mmext') else 'mmdet'


def _config_roots() -> tuple[Path, ...]:
    """Folders of the configs that the hosts ship."""
    roots = []
    for host in _HOSTS:
        spec = find_spec(host)
        if spec is not None and spec.origin:
            roots.append(Path(spec.origin).parent / '.mim' / 'configs')
    return tuple(roots)


def _on_one_process(model: nn.Module) -> tuple[nn.Module, list[str]]:
    """Replace what needs several processes."""
    count = sum(
        isinstance(module, nn.SyncBatchNorm) for module in model.modules()
    )
    if not count:
        return model, []
    model = revert_sync_batchnorm(model)
    return model, [f'{count} SyncBN are BN: there is one process']


def _begin_training(cfg: Config) -> None:
    """Tell what a runner tells all at its start, where none has."""
    loop = cfg.get('train_cfg') or {}
    epochs = loop.get('max_epochs')
    said = {
        'loop_stage': 'train',
        'epoch': 0,
        'iter': 0,
        'max_epochs': epochs,
        # How long an epoch is, only the data would tell.
        'max_iters': loop.get('max_iters') or (epochs and 1000 * epochs),
    }
    hub = MessageHub.get_current_instance()
    for key, value in said.items():
        if value is not None and hub.get_info(key) is None:
            hub.update_info(key, value)


def _checkpoint(model: nn.Module, cfg: Config) -> list[str]:
    """Checkpoint what a hook of the config will, and say so."""
    named = cfg.get('default_hooks') or {}
    hooks = [*named.values(), *(cfg.get('custom_hooks') or ())]
    notes = []
    for options in hooks:
        if not isinstance(options, Mapping):
            continue
        kind = options.get('type')
        if isinstance(kind, str):
            kind = HOOKS.get(kind)
        if kind is not ActivationCheckpointHook:
            continue
        try:
            done = HOOKS.build(dict(options)).checkpoint(model)
        except _BAD_OPTIONS as error:
            raise CannotBuildError(
                f'ActivationCheckpointHook cannot be used: {error}'
            ) from error
        notes.append(
            f'ActivationCheckpointHook: {len(done.modules)} modules are '
            f'checkpointed, {len(done.replaced)} were reentrant'
        )
    return notes


def _build_optimizer(
    model: nn.Module, cfg: Config
) -> tuple[OptimWrapper | None, str, list[str]]:
    """The optimizer, else why there is none, and what was changed."""
    options = cfg.get('optim_wrapper')
    if not options:
        return None, 'the config has no optim_wrapper', []
    options = copy.deepcopy(options)
    notes = []
    kind = options.get('type', 'OptimWrapper')
    name = kind if isinstance(kind, str) else kind.__name__
    if name.rpartition('.')[2] == 'AmpOptimWrapper':
        options['type'] = 'OptimWrapper'
        for key in _AMP_ONLY:
            options.pop(key, None)
        notes.append('AmpOptimWrapper is OptimWrapper: float32 on a CPU')
    try:
        return build_optim_wrapper(model, options), '', notes
    except _BAD_OPTIONS as error:
        optimizer = (options.get('optimizer') or {}).get('type')
        reason = (
            f'cannot build optim_wrapper with optimizer {optimizer!r}: '
            f'{type(error).__name__}: {error}'
        )
        return None, reason, notes


def _key_of(error: Exception, model: Any) -> str:
    """The part of a model that an error is about, by text or by place."""
    key = _key_in(str(error), model, 'model')
    trace = error.__traceback__
    made = []
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code.co_name == '__init__' and 'self' in frame.f_locals:
            made.append(type(frame.f_locals['self']).__name__)
        trace = trace.tb_next
    for name in reversed(made):
        key = key or _key_in(name, model, 'model', whole=True)
    return key or 'model'


def _key_in(text: str, value: Any, place: str, *, whole: bool = False) -> str:
    """Deepest key whose text is part of a message, or all; '' for none."""
    if isinstance(value, Mapping):
        pairs = list(value.items())
    elif isinstance(value, (list, tuple)):
        pairs = list(enumerate(value))
    else:
        pairs = []
    best = ''
    for key, item in pairs:
        inner = f'{place}.{key}'
        if isinstance(item, str):
            named = item.rpartition('.')[2] if key == 'type' else item
            inside = len(named) > 3 and named in text
            found = inner if named == text or (inside and not whole) else ''
        else:
            found = _key_in(text, item, inner, whole=whole)
        if found.count('.') > best.count('.'):
            best = found
    return best

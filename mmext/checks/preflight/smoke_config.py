"""The config that a smoke run gives to the runner.

It writes nothing outside of a folder, needs no GPU, and has none of the parts
that failed before.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from mmengine.config import Config
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook

from ..config import Steps, copy_tree, join_key, walk_dicts
from .build import without_amp
from .loaders import MANY
from .sandbox import plain_name

# Sections of each split.
_OF_SPLIT = ('dataloader', 'cfg', 'evaluator')
# Sections that may be missing.
_OPTIONAL = ('auto_scale_lr', 'custom_hooks', 'default_hooks', 'env_cfg')
_OPTIONAL += ('load_from', 'log_processor', 'param_scheduler', 'randomness')
_OPTIONAL += ('runner_type', 'visualizer')
# MMEngine's backends import these when they are used first, which the runner
# does at once. All but the first talk to a server.
CLIENTS = {
    'TensorboardVisBackend': ('tensorboard',),
    'WandbVisBackend': ('wandb',),
    'MLflowVisBackend': ('mlflow',),
    'ClearMLVisBackend': ('clearml',),
    'NeptuneVisBackend': ('neptune',),
    'DVCLiveVisBackend': ('dvclive', 'pygit2'),
    'AimVisBackend': ('aim',),
}
# Sections that may write elsewhere, and their keys that say where.
_WRITERS = ('default_hooks', 'custom_hooks', 'visualizer')
_WRITERS += ('val_evaluator', 'test_evaluator')
_OUTPUTS = ('out_dir', 'outfile_prefix', 'output_dir', 'out_file_path')
_OUTPUTS += ('save_dir',)


class _NoMetric(BaseMetric):
    """Metric in the place of those that cannot be built here."""

    def process(self, data_batch: Any, data_samples: Sequence[Any]) -> None:
        """Keep something, as MMEngine warns of an empty result."""
        self.results.append(None)

    def compute_metrics(self, results: list[Any]) -> dict[str, float]:
        """Compute nothing."""
        return {}


def smoke_config(
    cfg: Config,
    *,
    left_out: Collection[Steps],
    splits: Collection[str],
    folder: Path,
    scope: str,
) -> Config:
    """A copy of a config for one attempt of a smoke run.

    Args:
        cfg: The config of the training.
        left_out: Sections, and parts of lists, that failed before.
        splits: Names of the splits that have a data loader.
        folder: Where the runner may write.
        scope: Registry scope of names without one.
    """
    # Nobody reads its text, which takes a second to format.
    cfg = Config(copy_tree(cfg.to_dict()), format_python_code=False)
    out = {part[0] for part in left_out if len(part) == 1}
    for split in ('val', 'test'):
        names = [f'{split}_{end}' for end in _OF_SPLIT]
        if split not in splits or f'{split}_cfg' in out:
            for name in names:
                cfg.pop(name, None)
        elif f'{split}_evaluator' in out:
            cfg[f'{split}_evaluator'] = {'type': _NoMetric}
    if 'train_cfg' in out:
        cfg.train_cfg = {'by_epoch': True, 'max_epochs': MANY}
    if 'optim_wrapper' in out:
        cfg.optim_wrapper = {'optimizer': {'type': 'SGD', 'lr': 0.0}}
    for name in out.intersection(_OPTIONAL):
        cfg.pop(name, None)
    for name in ('custom_hooks', 'param_scheduler'):
        if isinstance(cfg.get(name), list):
            cfg[name] = [
                part
                for index, part in enumerate(cfg[name])
                if (name, index) not in left_out
            ]
    for part in left_out:
        if part[0] == 'default_hooks' and len(part) > 1:
            # One that does nothing, also in the place of MMEngine's own.
            cfg.default_hooks[part[1]] = {'type': Hook}
    cfg.work_dir = str(folder / 'work_dir')
    cfg.experiment_name = f'preflight_{uuid4().hex}'
    cfg.launcher, cfg.resume, cfg.compile = 'none', False, False
    cfg.log_level, cfg.default_scope = 'ERROR', scope
    if cfg.get('check_misplaced_keys') is None:
        # KEY003 looks at them, with the text of the config.
        cfg.check_misplaced_keys = False
    if not os.path.isfile(str(cfg.get('load_from'))):
        cfg.load_from = None
    if isinstance(cfg.get('optim_wrapper'), Mapping):
        cfg.optim_wrapper = without_amp(cfg.optim_wrapper)
    for name in _WRITERS:
        _redirect(name, cfg.get(name), folder)
    if isinstance(cfg.get('visualizer'), Mapping):
        # One of this name may be there already.
        cfg.visualizer.name = 'preflight'
        backends = cfg.visualizer.get('vis_backends')
        if isinstance(backends, list):
            cfg.visualizer.vis_backends = [
                part
                for part in backends
                if plain_name(part.get('type')) not in CLIENTS
            ]
    return cfg


def _redirect(name: str, section: Any, folder: Path) -> None:
    """Let the parts of a section write into the folder, and show nothing."""
    for path, part in walk_dicts(section, (name,)):
        for key in _OUTPUTS:
            if isinstance(part.get(key), str):
                part[key] = str(folder / join_key(path) / key)
                part.pop('backend_args', None)
        if part.get('show') is True:
            part['show'] = False

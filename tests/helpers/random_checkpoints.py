"""Checkpoints of small models with random weights, as a training writes."""

from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope

import mmext
from helpers import reduce_config, reduce_semantic_config

CLASSES = tuple(f'class {n}' for n in range(7))
PALETTE = [[30 * n, 255 - 20 * n, 7 * n] for n in range(7)]


def write_pidnet(path: Path) -> Config:
    """Seven classes; returns the config, which is in the checkpoint, too."""
    config = Config.fromfile(
        mmext.config_path('pidnet/pidnet_small_shapes.py')
    )
    model = reduce_semantic_config.reduce_model(config.to_dict()['model'])
    return _write(path, config, model, 7)


def write_co_dino(path: Path) -> Config:
    """Six classes; returns the config, which is in the checkpoint, too."""
    config = Config.fromfile(
        mmext.config_path('co_dino/co_dino_r18_shapes.py')
    )
    model = reduce_config.reduce_model(config.to_dict()['model'])
    return _write(path, config, model, 6)


def _write(path: Path, config: Config, model: dict, number: int) -> Config:
    config.merge_from_dict({'model': {**model, '_delete_': True}})
    with DefaultScope.overwrite_default_scope(config.default_scope):
        weights = MODELS.build(config.model).state_dict()
    items = config.to_dict().items()
    meta = {
        'cfg': '\n'.join(f'{key} = {value!r}' for key, value in items),
        'dataset_meta': {
            'classes': CLASSES[:number],
            'palette': PALETTE[:number],
        },
    }
    torch.save({'meta': meta, 'state_dict': weights}, path)
    return config

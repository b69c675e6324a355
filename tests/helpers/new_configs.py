"""Configs that tools/new_config.py writes, and their data sets."""

from pathlib import Path

from mmengine.config import Config
from mmengine.registry import DATASETS, DefaultScope

from helpers.toy_ranks import load_tool
from mmext.checks.config import check_data_paths, read_config

BASE = 'mmext::co_dino/co_dino_5scale_r50_8xb2_1x_coco.py'


def run(data: Path, out: Path, *more: str, base: str = BASE) -> int:
    argv = [str(data), '--base', base, '--out', str(out), *map(str, more)]
    return load_tool('new_config').main(argv)


def made(data: Path, out: Path, *more: str, base: str = BASE) -> Config:
    """A config, without the checks, which finds its data."""
    assert run(data, out, '--no-check', *more, base=base) == 0
    assert max(map(len, out.read_text().splitlines())) <= 79 or (
        'tmp' in out.read_text()
    )
    cfg = read_config(out, own_imports=False)
    check_data_paths(cfg)
    return cfg


def dataset_of(cfg: Config, split: str, *, steps: bool = False):
    dataset = dict(cfg[f'{split}_dataloader'].dataset)
    if not steps:
        dataset['pipeline'] = []
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        return DATASETS.build(dataset)

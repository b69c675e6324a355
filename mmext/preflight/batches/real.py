"""Batches from the training data of a config."""

from collections.abc import Mapping
from typing import Any

from mmengine.registry import DATASETS, DefaultScope
from torch.utils.data import DataLoader

from .._seeded import seeded
from ..cannot_build import CannotBuildError
from .fake_samples import collate_function

__all__ = ['real_batches']


def real_batches(
    cfg: Mapping, *, steps: int = 2, batch_size: int = 2, seed: int = 0
) -> list[Any]:
    """The first batches of the training data, read in this process.

    Args:
        cfg: The config.
        steps: Number of batches.
        batch_size: Samples of a batch, of each data set that is a part.
        seed: Of the random steps of the pipeline.

    Returns:
        As the data loader gives them, in the order of the data set. Fewer,
        and the last one smaller, if there are not enough data.

    Raises:
        CannotBuildError: If the config has no training data, or they cannot
            be read.
    """
    loader = cfg.get('train_dataloader')
    if not loader:
        raise CannotBuildError(
            'config must have train_dataloader for batches of kind '
            f"'real', got keys {sorted(cfg)}; use made-up ones"
        )
    dataset = loader['dataset']
    scope = cfg.get('default_scope') or 'mmengine'
    try:
        with DefaultScope.overwrite_default_scope(scope), seeded(seed):
            if isinstance(dataset, Mapping):
                dataset = DATASETS.build(dict(dataset))
            if hasattr(dataset, 'full_init'):
                dataset.full_init()
            return list(
                DataLoader(
                    dataset,
                    batch_sampler=_indices(dataset, steps, batch_size),
                    collate_fn=collate_function(loader.get('collate_fn')),
                )
            )
    except Exception as error:
        raise CannotBuildError(
            'train_dataloader.dataset must give samples, got '
            f'{type(error).__name__}: {error}; check its paths, or use '
            'batches that are made up'
        ) from error


def _indices(dataset: Any, steps: int, batch_size: int) -> list[list[int]]:
    """Samples of each batch: the next ones of each part of the data set."""
    ends = list(getattr(dataset, 'cumulative_sizes', [len(dataset)]))
    batches = []
    for step in range(steps):
        batch = []
        for start, end in zip([0, *ends[:-1]], ends):
            first = start + step * batch_size
            batch += range(first, min(first + batch_size, end))
        if batch:
            batches.append(batch)
    return batches

"""Faults of one rank in a toy training, and how long the others live on."""

import os
import signal
import sys
import time
from pathlib import Path

from mmengine.dataset import DefaultSampler
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper
from mmengine.registry import (
    DATA_SAMPLERS,
    DATASETS,
    HOOKS,
    MODELS,
    OPTIM_WRAPPERS,
)
from torch import nn

from helpers.toy_training import ToyDataset, ToyModel


def strike(kind, mark):
    """Do to this process what a fault does; notes when in file ``mark``."""
    Path(mark).write_text(f'{time.time()} {os.getpid()}')
    if kind.startswith('SIG'):
        os.kill(os.getpid(), getattr(signal, kind))
    elif kind == 'exit3':
        os._exit(3)
    elif kind == 'exit0':
        sys.exit(0)
    elif kind == 'raise':
        raise ZeroDivisionError('the planted fault')
    elif kind == 'hang':
        while True:
            time.sleep(0.1)
    else:
        raise ValueError(kind)


def is_rank(rank):
    """Whether this process is the one; None is any."""
    return rank is None or int(os.environ.get('RANK', 0)) == rank


@HOOKS.register_module(force=True)
class FaultHook(Hook):
    """A fault of a rank at the ``at``-th call of a place of the training."""

    priority = 'NORMAL'

    def __init__(self, kind, mark, stage='before_train_iter', at=3, rank=1):
        self.kind, self.mark, self.at, self.rank = kind, mark, at, rank
        self.count = 0
        setattr(self, stage, self._act)

    def _act(self, runner, *args, **kwargs):
        self.count += 1
        if self.count == self.at and is_rank(self.rank):
            strike(self.kind, self.mark)


@MODELS.register_module(force=True)
class FaultyModel(ToyModel):
    """A fault in the ``at``-th forward of a rank."""

    def __init__(self, kind, mark, at=3, rank=1, **kwargs):
        super().__init__(**kwargs)
        self.kind, self.mark, self.at, self.rank = kind, mark, at, rank
        self.count = 0

    def forward(self, inputs, mode='tensor', **more):
        self.count += mode == 'loss'
        if mode == 'loss' and self.count == self.at and is_rank(self.rank):
            strike(self.kind, self.mark)
        return super().forward(inputs, mode, **more)


@MODELS.register_module(force=True)
class UnusedModel(ToyModel):
    """A layer that no step uses."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.spare = nn.Linear(3, 3)


@DATASETS.register_module(force=True)
class BrokenDataset(ToyDataset):
    """Cannot prepare any sample."""

    def prepare_data(self, idx):
        raise KeyError(idx)


@DATA_SAMPLERS.register_module(force=True)
class UnevenSampler(DefaultSampler):
    """Fewer samples on rank 1."""

    def __init__(self, dataset, missing=2, **kwargs):
        super().__init__(dataset, **kwargs)
        self.missing = missing * is_rank(1)

    def __iter__(self):
        indices = list(super().__iter__())
        return iter(indices[: len(indices) - self.missing])

    def __len__(self):
        return super().__len__() - self.missing


@OPTIM_WRAPPERS.register_module(force=True)
class SkippingOptimWrapper(OptimWrapper):
    """Leaves out a step on one rank, as for a loss that is not finite."""

    def __init__(self, *args, mark='', at=3, rank=1, **kwargs):
        super().__init__(*args, **kwargs)
        self.mark, self.at, self.rank, self.count = mark, at, rank, 0

    def update_params(self, loss, *args, **kwargs):
        self.count += 1
        if self.count == self.at and is_rank(self.rank):
            Path(self.mark).write_text(f'{time.time()} {os.getpid()}')
            return
        super().update_params(loss, *args, **kwargs)

"""Categorical features with several targets, generated in memory."""

from collections.abc import Sequence

import numpy as np
import torch
from mmengine.structures import BaseDataElement
from torch.utils.data import Dataset

from ..registry import DATASETS

__all__ = ['GeneratedCategoricalDataset']

_SPLITS = ('train', 'val', 'test')
_DIM = 8  # of the hidden embeddings
_BINARY = ('income', 'married')


@DATASETS.register_module()
class GeneratedCategoricalDataset(Dataset):
    """Random categories whose targets come from hidden embeddings.

    For models with embeddings, such as multi-gate mixtures of experts. Each
    category of each feature has a hidden vector of 8 normal numbers. The
    vectors of a sample are added, and each target is a random function of the
    sum, ``w . tanh(A s)``, scaled to mean 0 and standard deviation 1 over all
    samples that could be drawn, plus normal noise. The targets share a part
    of ``A``, so that learning one helps the others. The names are those of a
    usual benchmark on census data; nothing here is of real people.

    An item is a dict of ``inputs``, ``(F,)`` int64, the category of each
    feature from 0, and ``data_samples``, a ``BaseDataElement`` with

    * ``gt_income``, ``gt_married``: int64 0-d, 0 or 1, about half each;
    * ``gt_hours``: float32 0-d, standardised: its variance is
      ``1 + noise ** 2``.

    Args:
        num_samples: N, at least 1.
        cardinalities: Number of categories of each of the F features, at
            least 2 each.
        split: ``'train'``, ``'val'`` or ``'test'``: samples differ, the
            hidden function is the same.
        noise: Standard deviation of what is added to the targets; those of
            two values are cut at 0 after it. With 0.3, about 9 % of them
            are on the other side than without noise.
        shared: Share in [0, 1] of ``A`` that the targets have in common.
        seed: Of the hidden function and the samples, at least 0.

    Raises:
        ValueError: If an argument is out of its range.

    Examples:
        >>> dataset = GeneratedCategoricalDataset(num_samples=4)
        >>> item = dataset[0]
        >>> item['inputs'].shape, item['data_samples'].gt_hours.dtype
        (torch.Size([6]), torch.float32)
    """

    METAINFO = {'binary_targets': _BINARY, 'value_targets': ('hours',)}

    def __init__(
        self,
        num_samples: int = 4096,
        cardinalities: Sequence[int] = (40, 12, 8, 6, 20, 5),
        split: str = 'train',
        noise: float = 0.3,
        shared: float = 0.5,
        seed: int = 0,
    ):
        if num_samples < 1:
            raise ValueError(
                f'num_samples must be at least 1, got {num_samples}'
            )
        if not cardinalities or min(cardinalities) < 2:
            raise ValueError(
                'cardinalities must be numbers of at least 2, one for each '
                f'feature, got {cardinalities}'
            )
        if split not in _SPLITS:
            raise ValueError(f'split must be one of {_SPLITS}, got {split!r}')
        if noise < 0 or not 0 <= shared <= 1:
            raise ValueError(
                'noise must be at least 0 and shared in [0, 1], got '
                f'{noise} and {shared}'
            )
        self.cardinalities = tuple(cardinalities)
        hidden = np.random.default_rng((seed, len(_SPLITS)))
        tables = [hidden.normal(size=(n, _DIM)) for n in cardinalities]
        common = hidden.normal(size=(_DIM, _DIM))
        functions = {
            name: (
                shared * common
                + (1 - shared) * hidden.normal(size=(_DIM, _DIM)),
                hidden.normal(size=_DIM),
            )
            for name in (*_BINARY, 'hours')
        }
        # The scale is of other samples than those of any split.
        draw = _draw(hidden, self.cardinalities, 8192)
        known = {
            name: (values.mean(), values.std())
            for name, values in _values(draw, tables, functions).items()
        }
        rng = np.random.default_rng((seed, _SPLITS.index(split)))
        features = _draw(rng, self.cardinalities, num_samples)
        self._features = torch.from_numpy(features)
        self._targets: dict[str, torch.Tensor] = {}
        for name, values in _values(features, tables, functions).items():
            mean, std = known[name]
            values = (values - mean) / std
            values = values + rng.normal(0, noise, num_samples)
            self._targets[f'gt_{name}'] = torch.from_numpy(
                (values > 0).astype(np.int64)
                if name in _BINARY
                else values.astype(np.float32)
            )

    @property
    def metainfo(self) -> dict:
        """What the data set is, for metrics: ``METAINFO``."""
        return dict(self.METAINFO)

    def __len__(self) -> int:
        return len(self._features)

    def __getitem__(self, index: int) -> dict:
        sample = BaseDataElement(metainfo={'sample_idx': index})
        for name, values in self._targets.items():
            # A copy: views would each carry the whole set between processes.
            sample.set_data({name: values[index].clone()})
        inputs = self._features[index].clone()
        return {'inputs': inputs, 'data_samples': sample}


def _draw(
    rng: np.random.Generator, cardinalities: Sequence[int], count: int
) -> np.ndarray:
    """Categories, ``(count, F)`` int64."""
    return rng.integers(0, cardinalities, (count, len(cardinalities)))


def _values(
    features: np.ndarray, tables: list[np.ndarray], functions: dict
) -> dict[str, np.ndarray]:
    """Each target before scaling and noise, ``(N,)``."""
    vectors = sum(
        table[column] for table, column in zip(tables, features.T)
    ) / np.sqrt(len(tables))
    return {
        name: np.tanh(vectors @ matrix) @ weights
        for name, (matrix, weights) in functions.items()
    }

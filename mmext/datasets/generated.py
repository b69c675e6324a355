"""Generated samples as data sets: shapes of mmdet and mmseg, categories."""

from collections.abc import Sequence

import numpy as np
import torch
from mmdet.datasets.coco import CocoDataset
from mmengine.structures import BaseDataElement
from mmseg.datasets.basesegdataset import BaseSegDataset
from torch.utils.data import Dataset

from ..registry import DATASETS
from .shapes_generator import SHAPE_CLASSES


@DATASETS.register_module()
class ShapesDataset(CocoDataset):
    """Data set written by ``tools/make_shapes_dataset.py``.

    It is in COCO's format: boxes and RLE masks in ``annotations/``, pictures
    in ``img_dir/``; ``data_prefix=dict(seg='ann_dir/train/')`` adds the class
    per pixel, 0 for the ground and ``label + 1`` for a shape.

    All arguments are those of ``mmdet.CocoDataset``.
    """

    GENERATED_BY = 'make_shapes_dataset.py'
    METAINFO = {
        'classes': SHAPE_CLASSES,
        'palette': [
            (220, 20, 60),
            (30, 144, 255),
            (50, 205, 50),
            (255, 165, 0),
            (186, 85, 211),
            (0, 206, 209),
        ],
    }


@DATASETS.register_module()
class ShapesSegDataset(BaseSegDataset):
    """Semantic masks written by ``tools/make_shapes_dataset.py``.

    Pictures are in ``img_dir/<split>/``, masks in ``ann_dir/<split>/``. There
    are seven classes: 0 is the ground, and a shape has its label in
    :class:`~mmext.datasets.generated.ShapesDataset` plus 1. No pixel is
    ignored.

    All arguments are those of ``mmseg.BaseSegDataset``; ``data_prefix`` gives
    the two folders as ``img_path`` and ``seg_map_path``.
    """

    GENERATED_BY = 'make_shapes_dataset.py'
    METAINFO = {
        'classes': ('ground', *SHAPE_CLASSES),
        'palette': [(0, 0, 0), *ShapesDataset.METAINFO['palette']],
    }


_SPLITS = ('train', 'val', 'test')
_DIM = 8  # of the hidden embeddings
_OTHERS = 8192
_BINARY = ('income', 'married')


@DATASETS.register_module()
class GeneratedCategoricalDataset(Dataset):
    """Random categories whose targets come from hidden embeddings.

    For models with embeddings, such as multi-gate mixtures of experts. Each
    category of each feature has a hidden vector of 8 normal numbers. The
    vectors of a sample are added, and each target is a random function of the
    sum, ``w . tanh(A s)``, scaled to mean 0 and standard deviation 1 (over
    other samples), plus normal noise. A half of ``A`` is the same for all
    targets, so that learning one helps the others. The names are those of a
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
        seed: Of the hidden function and the samples, at least 0.

    Raises:
        ValueError: If an argument is out of its range.

    Examples:
        >>> dataset = GeneratedCategoricalDataset(num_samples=4)
        >>> item = dataset[0]
        >>> item['inputs'].shape, item['data_samples'].gt_hours.dtype
        (torch.Size([6]), torch.float32)
    """

    def __init__(
        self,
        num_samples: int = 4096,
        cardinalities: Sequence[int] = (40, 12, 8, 6, 20, 5),
        split: str = 'train',
        noise: float = 0.3,
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
        if noise < 0:
            raise ValueError(f'noise must be at least 0, got {noise}')
        self.cardinalities = tuple(cardinalities)
        hidden = np.random.default_rng((seed, len(_SPLITS)))
        tables = [hidden.normal(size=(n, _DIM)) for n in cardinalities]
        common = hidden.normal(size=(_DIM, _DIM))
        # Mean and scale are of samples that are in no split.
        others = hidden.integers(0, cardinalities, (_OTHERS, len(tables)))
        rng = np.random.default_rng((seed, _SPLITS.index(split)))
        features = rng.integers(0, cardinalities, (num_samples, len(tables)))
        columns = np.concatenate([others, features]).T
        vectors = sum(table[column] for table, column in zip(tables, columns))
        vectors = vectors / np.sqrt(len(tables))
        self._features = torch.from_numpy(features)
        self._targets: dict[str, torch.Tensor] = {}
        for name in (*_BINARY, 'hours'):
            matrix = (common + hidden.normal(size=(_DIM, _DIM))) / 2
            values = np.tanh(vectors @ matrix) @ hidden.normal(size=_DIM)
            values = (values - values[:_OTHERS].mean()) / values[
                :_OTHERS
            ].std()
            values = values[_OTHERS:] + rng.normal(0, noise, num_samples)
            self._targets[f'gt_{name}'] = torch.from_numpy(
                (values > 0).astype(np.int64)
                if name in _BINARY
                else values.astype(np.float32)
            )

    @property
    def metainfo(self) -> dict:
        """Nothing: metrics of these targets need no names."""
        return {}

    def __len__(self) -> int:
        return len(self._features)

    def __getitem__(self, index: int) -> dict:
        sample = BaseDataElement(metainfo={'sample_idx': index})
        for name, values in self._targets.items():
            # A copy: views would each carry the whole set between processes.
            sample.set_data({name: values[index].clone()})
        inputs = self._features[index].clone()
        return {'inputs': inputs, 'data_samples': sample}

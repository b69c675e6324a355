"""Cut large pictures into tiles that overlap, for a test."""

import copy
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from mmcv.transforms import BaseTransform, Compose

from ...registry import TRANSFORMS


def _starts(length: int, size: int, overlap: float) -> list[int]:
    """Where tiles begin: evenly spread, from one end to the other."""
    if length <= size:
        return [0]
    step = max(size * (1 - overlap), 1.0)
    number = 1 + int(np.ceil((length - size) / step))
    return np.linspace(0, length - size, number).round().astype(int).tolist()


@TRANSFORMS.register_module()
class TileViews(BaseTransform):
    """A picture as several: as a whole, and cut into tiles.

    Like ``mmcv.TestTimeAug`` it gives a list for each key of the results, the
    whole picture first; :class:`mmext.TiledDetector` puts the predictions
    together. A picture that is no larger than a tile is only taken as a
    whole. Tiles overlap, so that each object that is smaller than the overlap
    lies in one of them as a whole.

    Required keys: ``img``. Each view has the key ``tile``, x1 y1 x2 y2 of it
    in pixels of the picture, and its own ``ori_shape``.

    Args:
        size: Sides of a tile in pixels of the picture.
        transforms: What each view goes through then; the last one packs it.
        overlap: Of neighbours, as a share of ``size``, in [0, 1).

    Raises:
        ValueError: If ``size`` is less than 1 or ``overlap`` not in [0, 1).
    """

    def __init__(
        self,
        size: int,
        transforms: Sequence[Mapping | Callable],
        overlap: float = 0.25,
    ):
        if size < 1:
            raise ValueError(f'size must be at least 1 pixel, got {size}')
        if not 0 <= overlap < 1:
            raise ValueError(f'overlap must be in [0, 1), got {overlap}')
        self.size, self.overlap = size, overlap
        self.transforms = Compose(list(transforms))

    def windows(self, height: int, width: int) -> list[tuple[int, ...]]:
        """X1 y1 x2 y2 of each view of a picture, the whole one first."""
        size = self.size
        tiles = [
            (x, y, min(x + size, width), min(y + size, height))
            for y in _starts(height, size, self.overlap)
            for x in _starts(width, size, self.overlap)
        ]
        whole = (0, 0, width, height)
        return [whole] if tiles == [whole] else [whole, *tiles]

    def transform(self, results: dict) -> dict[str, list]:
        """Cut, and put each view through the other transforms."""
        image = results['img']
        views: dict[str, list] = defaultdict(list)
        rest = {key: results[key] for key in results if key != 'img'}
        for x1, y1, x2, y2 in self.windows(*image.shape[:2]):
            view: dict[str, Any] = copy.deepcopy(rest)
            view['img'] = np.ascontiguousarray(image[y1:y2, x1:x2])
            view['img_shape'] = view['ori_shape'] = (y2 - y1, x2 - x1)
            view['tile'] = (x1, y1, x2, y2)
            for key, value in self.transforms(view).items():
                # Test-time augmentation of the view gives several of them.
                views[key] += value if isinstance(value, list) else [value]
        return dict(views)

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}(size={self.size}, '
            f'overlap={self.overlap}, transforms={self.transforms})'
        )

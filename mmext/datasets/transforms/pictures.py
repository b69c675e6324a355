"""Pictures without labels: random crops, packing, and tiles for a test."""

import copy
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mmcv
import numpy as np
import torch
from mmcv.transforms import BaseTransform, Compose
from mmengine.structures import BaseDataElement

from ...registry import TRANSFORMS

_ATTEMPTS = 10


@TRANSFORMS.register_module()
class RandomResizedCrop(BaseTransform):
    """Crop a part of random area and shape, and resize it.

    Ten crops are drawn; if none lies inside of the picture, the largest one
    in its centre that has a permitted shape is taken. Only ``img`` is
    changed: it is for pictures without labels.

    Args:
        scale: Pixels of a side to resize to, or (width, height).
        area: Least and largest share of the picture's pixels, in (0, 1].
        ratio: Least and largest width divided by height, drawn evenly in
            the logarithm.
        interpolation: As of ``mmcv.imresize``.
        backend: ``'pillow'``, which smooths what it shrinks, or ``'cv2'``,
            which does not and is faster.

    Raises:
        ValueError: If an interval is empty or out of range.

    Source:
        Inception, arXiv 1409.4842; the defaults are MAE's, arXiv 2111.06377.
    """

    def __init__(
        self,
        scale: int | Sequence[int],
        area: tuple[float, float] = (0.2, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        interpolation: str = 'bicubic',
        backend: str = 'pillow',
    ) -> None:
        self.scale = (scale, scale) if isinstance(scale, int) else tuple(scale)
        if not 0 < area[0] <= area[1] <= 1:
            raise ValueError(
                f'area must be two rising numbers in (0, 1], got {area}'
            )
        if not 0 < ratio[0] <= ratio[1]:
            raise ValueError(
                f'ratio must be two rising positive numbers, got {ratio}'
            )
        self.area, self.ratio = area, ratio
        self.interpolation, self.backend = interpolation, backend

    def draw(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Left, top, width and height of a crop, in pixels."""
        low, high = (math.log(side) for side in self.ratio)
        for _ in range(_ATTEMPTS):
            size = height * width * np.random.uniform(*self.area)
            ratio = math.exp(np.random.uniform(low, high))
            w = round(math.sqrt(size * ratio))
            h = round(math.sqrt(size / ratio))
            if 0 < w <= width and 0 < h <= height:
                left = np.random.randint(0, width - w + 1)
                top = np.random.randint(0, height - h + 1)
                return left, top, w, h
        w = min(width, max(1, round(height * self.ratio[1])))
        h = min(height, max(1, round(width / self.ratio[0])))
        return (width - w) // 2, (height - h) // 2, w, h

    def transform(self, results: dict) -> dict:
        """Replace ``img``, ``(H, W, C)``, and set ``img_shape``."""
        image = results['img']
        left, top, width, height = self.draw(*image.shape[:2])
        crop = image[top : top + height, left : left + width]
        results['img'] = mmcv.imresize(
            crop,
            self.scale,
            interpolation=self.interpolation,
            backend=self.backend,
        )
        results['img_shape'] = results['img'].shape[:2]
        return results


@TRANSFORMS.register_module()
class PackImages(BaseTransform):
    """Make ``inputs`` and ``data_samples`` of a picture without labels.

    Args:
        meta_keys: What the sample keeps, as far as it is there.

    The result has ``inputs``, a tensor ``(C, H, W)`` of the picture's type,
    and ``data_samples``, an mmengine ``BaseDataElement``.
    """

    def __init__(
        self,
        meta_keys: Sequence[str] = ('img_path', 'ori_shape', 'img_shape'),
    ) -> None:
        self.meta_keys = tuple(meta_keys)

    def transform(self, results: dict) -> dict:
        """See the class."""
        image = results['img']
        if image.ndim == 2:
            image = image[..., None]
        meta = {key: results[key] for key in self.meta_keys if key in results}
        return {
            'inputs': torch.from_numpy(
                np.ascontiguousarray(image.transpose(2, 0, 1))
            ),
            'data_samples': BaseDataElement(metainfo=meta),
        }


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

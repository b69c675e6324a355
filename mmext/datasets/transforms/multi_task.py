"""Transforms of samples with class, depth and normal of each pixel.

Keys of the sample: ``img`` ``(H, W, 3)`` float32 BGR in [0, 255],
``gt_seg_map`` ``(H, W)`` uint8 with 255 for ignored, ``gt_depth`` ``(H, W)``
float32 in metres with 0 for invalid, and ``gt_normal`` ``(H, W, 3)`` float32
with (0, 0, 0) for invalid.
"""

import io
from collections.abc import Sequence

import mmcv
import numpy as np
import torch
from mmcv.transforms import BaseTransform, RandomFlip, Resize
from mmcv.transforms.utils import cache_randomness
from mmengine.fileio import get
from mmengine.structures import BaseDataElement, PixelData

from ...registry import TRANSFORMS

_IGNORED = 255
_MAPS = ('img', 'gt_seg_map', 'gt_depth', 'gt_normal')
_CHECK = 'tools/validate_labels.py finds all such files of a data set'


def _refuse(bad: np.ndarray, what: str, path: str, values: np.ndarray) -> None:
    """Raise for the first pixel of ``bad``, ``(H, W)``."""
    if bad.any():
        y, x = np.unravel_index(bad.argmax(), bad.shape)
        raise ValueError(
            f'{what}, got {values[y, x]} at (y={y}, x={x}) of {path}, and '
            f'{bad.sum()} such pixels; {_CHECK}'
        )


@TRANSFORMS.register_module()
class LoadMultiTaskAnnotations(BaseTransform):
    """Load picture and labels: npy files of NYUv2's layout, or PNG and JPEG.

    Of ``img_path``, ``seg_map_path``, ``depth_path`` and ``normal_path`` it
    loads those that the sample has; see :mod:`mmext.datasets.nyuv2_layout`
    for the npy files. The picture, RGB in [0, 1], becomes BGR in [0, 255]
    (float32, not rounded), so that a data preprocessor takes the same
    ``mean``, ``std`` and ``bgr_to_rgb=True`` as for JPEG files. Class -1
    becomes 255, which losses and metrics ignore. In a picture file of
    classes a pixel is its class; normals are read from npy files only.

    Args:
        backend_args: Of MMEngine's file backend.
        depth_unit: Metres of the value 1 in a picture file of depth, which
            most often has 16 bits: 0.001 for millimetres, 1/5000 for TUM
            RGB-D, 1/256 for KITTI and Cityscapes' depth. The value 0 is
            invalid.

    Raises:
        ValueError: If an array has another form; if a class is no whole
            number in [-1, 255]; if a depth is negative or not finite, or a
            picture or normal not finite; if depth is a picture file and
            ``depth_unit`` is not given. File and first pixel are named.
    """

    def __init__(
        self,
        backend_args: dict | None = None,
        depth_unit: float | None = None,
    ):
        if depth_unit is not None and not 0 < depth_unit < np.inf:
            raise ValueError(
                f'depth_unit must be metres above 0, got {depth_unit}'
            )
        self.backend_args = backend_args
        self.depth_unit = depth_unit

    def transform(self, results: dict) -> dict:
        """Add ``img``, ``gt_seg_map``, ``gt_depth``, ``gt_normal``."""
        if 'img_path' in results:
            img, is_npy = self._load(results['img_path'], 3)
            if is_npy:
                img = np.ascontiguousarray(img[..., ::-1] * np.float32(255))
            results['img'] = img
            results['img_shape'] = results['ori_shape'] = img.shape[:2]
        if 'seg_map_path' in results:
            path = results['seg_map_path']
            label, _ = self._load(path, 1)
            bad = (label != np.rint(label)) | (label < -1) | (label > _IGNORED)
            what = f'classes must be whole numbers in [-1, {_IGNORED}]'
            _refuse(bad, what, path, label)
            label[label == -1] = _IGNORED
            results['gt_seg_map'] = label.astype(np.uint8)
            results.setdefault('seg_fields', []).append('gt_seg_map')
        if 'depth_path' in results:
            path = results['depth_path']
            depth, is_npy = self._load(path, 1)
            if not is_npy:
                if self.depth_unit is None:
                    raise ValueError(
                        'depth_unit must be given (metres of the value 1, '
                        f'such as 0.001) for depth in a picture file: {path}'
                    )
                depth *= np.float32(self.depth_unit)
            _refuse(depth < 0, 'depth must be at least 0', path, depth)
            results['gt_depth'] = depth
        if 'normal_path' in results:
            path = results['normal_path']
            results['gt_normal'], is_npy = self._load(path, 3)
            if not is_npy:
                raise ValueError(f'normals must be in an npy file, got {path}')
        return results

    def _load(self, path: str, channels: int) -> tuple[np.ndarray, bool]:
        """A new float32 array, ``(H, W)`` or ``(H, W, 3)``; if it was npy."""
        content = get(path, backend_args=self.backend_args)
        # PNG and JPEG; whatever else there is, NumPy names what is wrong.
        is_npy = not content.startswith((b'\x89PNG', b'\xff\xd8'))
        try:
            if is_npy:
                array = np.load(io.BytesIO(content), allow_pickle=False)
            elif channels == 3:
                array = mmcv.imfrombytes(content)
            else:
                # Pillow gives the numbers of a palette, and not its colours.
                array = mmcv.imfrombytes(
                    content, 'unchanged', backend='pillow'
                )
        except (ValueError, EOFError, OSError) as error:
            kind = 'an npy file of numbers' if is_npy else 'a whole picture'
            raise ValueError(f'{path} must be {kind}: {error}') from error
        if array is None:
            raise ValueError(f'{path} must be a whole picture')
        if channels == 1 and array.ndim == 3 and array.shape[-1] == 1:
            array = array[..., 0]
        shape = ('H', 'W') if channels == 1 else ('H', 'W', 3)
        if array.ndim != len(shape) or array.shape[2:] not in ((), (3,)):
            raise ValueError(
                f'the array must have the shape ({", ".join(map(str, shape))})'
                f', got {array.shape} in {path}'
            )
        array = array.astype(np.float32)
        bad = ~np.isfinite(array)
        bad = bad.any(-1) if bad.ndim == 3 else bad
        _refuse(bad, 'values must be finite', path, array)
        return array, is_npy

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}(backend_args={self.backend_args}, '
            f'depth_unit={self.depth_unit})'
        )


def _resized_normals(
    normal: np.ndarray, size: tuple[int, int], interpolation: str
) -> np.ndarray:
    """Unit vectors of another size; invalid where the nearest pixel is."""
    valid = (normal != 0).any(-1).astype(np.uint8)
    valid = mmcv.imresize(valid, size, interpolation='nearest') > 0
    # Invalid pixels are zero: they shorten the sum, and do not turn it.
    normal = mmcv.imresize(normal, size, interpolation=interpolation)
    length = np.linalg.norm(normal, axis=-1)
    valid &= length > 1e-3
    normal[valid] /= length[valid][:, None]
    normal[~valid] = 0
    return normal


@TRANSFORMS.register_module()
class MultiTaskResize(Resize):
    """Resize picture, class, depth and normals.

    As ``mmcv.Resize`` of picture and ``gt_seg_map``. Depth is that of the
    nearest pixel, and stays what it is: what is seen is as far away in a
    picture of another size. Normals are interpolated as the picture, made
    unit vectors again, and are invalid where the nearest pixel is.

    All arguments are those of ``mmcv.Resize``.
    """

    def _resize_seg(self, results: dict) -> None:
        super()._resize_seg(results)
        size = results['img'].shape[1::-1]
        if 'gt_depth' in results:
            results['gt_depth'] = mmcv.imresize(
                results['gt_depth'], size, interpolation='nearest'
            )
        if 'gt_normal' in results:
            results['gt_normal'] = _resized_normals(
                results['gt_normal'], size, self.interpolation
            )


@TRANSFORMS.register_module()
class MultiTaskRandomScaleCrop(MultiTaskResize):
    """Enlarge by a random factor, and keep a random part of the same size.

    The augmentation of public NYUv2 trainings: of ``scales`` one, ``s``, is
    drawn; a part of ``H / s`` by ``W / s`` pixels at a random position is
    resized to ``H`` by ``W`` as by :class:`MultiTaskResize`, and depth is
    divided by ``s``, as if the camera had come closer. Normals are kept, as
    in public trainings. (For an unchanged camera this is right for surfaces
    that face it; others would turn to it a little.)

    Args:
        scales: Factors of at least 1, all equally likely.
        **kwargs: ``interpolation`` and ``backend`` of ``mmcv.Resize``.

    Raises:
        ValueError: If there is no factor, or one is below 1.
    """

    def __init__(self, scales: Sequence[float] = (1.0, 1.2, 1.5), **kwargs):
        super().__init__(scale_factor=1.0, **kwargs)
        if not scales or min(scales) < 1:
            raise ValueError(
                f'scales must be numbers of at least 1, got {scales}'
            )
        self.scales = tuple(scales)

    @cache_randomness
    def _draw(self, height: int, width: int) -> tuple[float, slice, slice]:
        scale = float(np.random.choice(self.scales))
        rows, columns = round(height / scale), round(width / scale)
        top = np.random.randint(0, height - rows + 1)
        left = np.random.randint(0, width - columns + 1)
        return scale, slice(top, top + rows), slice(left, left + columns)

    def transform(self, results: dict) -> dict:
        """Change all maps that the sample has; ``scale_factor`` is set."""
        height, width = results['img'].shape[:2]
        scale, rows, columns = self._draw(height, width)
        for key in _MAPS:
            if key in results:
                part = results[key][rows, columns]
                results[key] = np.ascontiguousarray(part)
        if 'gt_depth' in results:
            results['gt_depth'] = results['gt_depth'] / np.float32(scale)
        results['scale'] = width, height
        self._resize_img(results)
        self._resize_seg(results)
        return results

    def __repr__(self) -> str:
        return f'{type(self).__name__}(scales={self.scales})'


@TRANSFORMS.register_module()
class MultiTaskRandomFlip(RandomFlip):
    """Flip picture, class, depth and normals.

    A horizontal flip turns the sign of the normals' x, a vertical one that of
    y, a diagonal one both. All arguments are those of ``mmcv.RandomFlip``.
    """

    def _flip(self, results: dict) -> None:
        super()._flip(results)
        direction = results['flip_direction']
        for key in ('gt_depth', 'gt_normal'):
            if key in results:
                results[key] = mmcv.imflip(results[key], direction)
        if 'gt_normal' in results:
            signs = {
                'horizontal': (-1, 1, 1),
                'vertical': (1, -1, 1),
                'diagonal': (-1, -1, 1),
            }[direction]
            results['gt_normal'] = results['gt_normal'] * np.float32(signs)


@TRANSFORMS.register_module()
class PackMultiTaskInputs(BaseTransform):
    """Pack what a multi-task model takes.

    Gives ``inputs``, the picture as ``(3, H, W)`` of its dtype, and
    ``data_samples``, a ``BaseDataElement`` with ``gt_sem_seg``
    ``(1, H, W)`` int64, ``gt_depth`` ``(1, H, W)`` float32 and ``gt_normal``
    ``(3, H, W)`` float32, each a ``PixelData``, and ``fields`` as tensors
    (int64 or float32), of those that the sample has.

    Args:
        meta_keys: Keys that are kept as meta information; those that the
            sample lacks are left out.
        fields: Keys of what is one number or vector for each sample, such as
            the target of :class:`mmext.ClassificationTaskHead`.
    """

    def __init__(
        self,
        meta_keys: Sequence[str] = (
            'sample_idx',
            'img_path',
            'seg_map_path',
            'ori_shape',
            'img_shape',
            'scale_factor',
            'flip',
            'flip_direction',
        ),
        fields: Sequence[str] = ('gt_label',),
    ):
        self.meta_keys = tuple(meta_keys)
        self.fields = tuple(fields)

    def transform(self, results: dict) -> dict:
        """A new dict of ``inputs`` and ``data_samples``."""
        sample = BaseDataElement(
            metainfo={k: results[k] for k in self.meta_keys if k in results}
        )
        for key, field, dtype in (
            ('gt_seg_map', 'gt_sem_seg', torch.int64),
            ('gt_depth', 'gt_depth', torch.float32),
            ('gt_normal', 'gt_normal', torch.float32),
        ):
            if key in results:
                pixels = _channels_first(results[key]).to(dtype)
                sample.set_data({field: PixelData(data=pixels)})
        for key in self.fields:
            if key in results:
                value = torch.as_tensor(np.asarray(results[key]))
                is_float = value.is_floating_point()
                value = value.to(torch.float32 if is_float else torch.int64)
                sample.set_data({key: value})
        img = _channels_first(results['img'])
        return {'inputs': img, 'data_samples': sample}

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}(meta_keys={self.meta_keys}, '
            f'fields={self.fields})'
        )


def _channels_first(array: np.ndarray) -> torch.Tensor:
    """``(H, W)`` or ``(H, W, C)`` as ``(C, H, W)``."""
    array = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
    return torch.from_numpy(np.ascontiguousarray(array))

"""Errors in npy files of NYUv2's layout."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from helpers.label_plants import Planted, plant
from helpers.label_sets import DataSet

_KINDS = ('nyuv2', 'nyuv2_bare')


def _path(data: DataSet, folder: str) -> Path:
    return data.root / 'train' / folder / '2.npy'


def _change(
    data: DataSet, folder: str, change: Callable[[np.ndarray], object]
) -> Path:
    """Write an array anew that is changed in place, or another one."""
    path = _path(data, folder)
    array = np.load(path)
    other = change(array)
    np.save(path, array if other is None else other)
    return path


@plant('MTL001', *_KINDS)
def no_depth(data: DataSet) -> Planted:
    path = _path(data, 'depth')
    path.unlink()
    return Planted(path)


@plant('MTL001', 'nyuv2')
def no_normals(data: DataSet) -> Planted:
    path = _path(data, 'normal')
    path.unlink()
    return Planted(path)


@plant('MTL001', *_KINDS)
def depth_cut_off(data: DataSet) -> Planted:
    path = _path(data, 'depth')
    path.write_bytes(path.read_bytes()[:-7])
    return Planted(path)


@plant('MTL001', 'nyuv2')
def normals_of_two_channels(data: DataSet) -> Planted:
    return Planted(_change(data, 'normal', lambda array: array[..., :2]))


@plant('MTL001', 'nyuv2')
def pickled_objects(data: DataSet) -> Planted:
    path = _path(data, 'depth')
    np.save(path, np.array([[{}]], object), allow_pickle=True)
    return Planted(path)


@plant('MTL002', *_KINDS)
def smaller_depth(data: DataSet) -> Planted:
    path = _change(data, 'depth', lambda array: array[::2, ::2])
    return Planted(path, value='16 x 12')


def _pixel(value: float) -> Callable[[np.ndarray], None]:
    def change(array: np.ndarray) -> None:
        array[3, 5] = value
        array[4, 1] = value

    return change


@plant('MTL003', *_KINDS)
def bytes_of_a_picture(data: DataSet) -> Planted:
    """All of one picture in [0, 255]."""
    path = _path(data, 'image')
    array = np.load(path)
    array[:] = np.maximum(array, 0.5)
    np.save(path, array * 255)
    count = array.shape[0] * array.shape[1]
    return Planted(path, 'y=0, x=0', 'out of range', count)


@plant('MTL003', 'nyuv2')
def picture_of_nan(data: DataSet) -> Planted:
    path = _change(data, 'image', _pixel(np.nan))
    return Planted(path, 'y=3, x=5', 'not finite', 2)


@plant('MTL004', *_KINDS)
def negative_depth(data: DataSet) -> Planted:
    path = _change(data, 'depth', _pixel(-1))
    return Planted(path, 'y=3, x=5', 'negative', 2)


@plant('MTL004', 'nyuv2')
def infinite_depth(data: DataSet) -> Planted:
    path = _change(data, 'depth', _pixel(np.inf))
    return Planted(path, 'y=3, x=5', 'not finite', 2)


@plant('MTL005', *_KINDS)
def short_normals(data: DataSet) -> Planted:
    path = _change(data, 'normal', _pixel(0.5))
    return Planted(path, 'y=3, x=5', 'not unit', 2)


@plant('MTL005', 'nyuv2')
def normals_of_nan(data: DataSet) -> Planted:
    path = _change(data, 'normal', _pixel(np.nan))
    return Planted(path, 'y=3, x=5', 'not finite', 2)


@plant('SEG001', *_KINDS)
def class_below_minus_one(data: DataSet) -> Planted:
    path = _change(data, 'label', _pixel(-2))
    return Planted(path, 'y=3, x=5', '-2', 2)


@plant('SEG001', 'nyuv2')
def class_beyond_8_bits(data: DataSet) -> Planted:
    path = _change(data, 'label', _pixel(256))
    return Planted(path, 'y=3, x=5', '256', 2)


@plant('SEG015', *_KINDS)
def no_label(data: DataSet) -> Planted:
    path = _path(data, 'label')
    path.unlink()
    return Planted(path)


@plant('SEG018', *_KINDS)
def interpolated_classes(data: DataSet) -> Planted:
    return Planted(_change(data, 'label', _pixel(0.5)))


@plant('IMG001', *_KINDS)
def no_picture(data: DataSet) -> Planted:
    path = _path(data, 'image')
    path.unlink()
    return Planted(path)


@plant('IMG004', 'nyuv2')
def text_for_a_picture(data: DataSet) -> Planted:
    path = _path(data, 'image')
    path.write_text('<html>404</html>')
    return Planted(path)


@plant('PAIR001', 'nyuv2')
def smaller_label(data: DataSet) -> Planted:
    path = _change(data, 'label', lambda array: array[:, 1:])
    return Planted(path, value='31 x 24')

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


@plant('MTL001', 'nyuv2_bare')
def depth_cut_off(data: DataSet) -> Planted:
    path = _path(data, 'depth')
    path.write_bytes(path.read_bytes()[:-7])
    return Planted(path)


@plant('MTL002', 'nyuv2_bare')
def smaller_depth(data: DataSet) -> Planted:
    path = _change(data, 'depth', lambda array: array[::2, ::2])
    return Planted(path, value='16 x 12')


def _pixel(value: float) -> Callable[[np.ndarray], None]:
    def change(array: np.ndarray) -> None:
        array[3, 5] = value
        array[4, 1] = value

    return change


@plant('MTL003', 'nyuv2_bare')
def bytes_of_a_picture(data: DataSet) -> Planted:
    """All of one picture in [0, 255]."""
    path = _path(data, 'image')
    array = np.load(path)
    array[:] = np.maximum(array, 0.5)
    np.save(path, array * 255)
    count = array.shape[0] * array.shape[1]
    return Planted(path, 'y=0, x=0', 'out of range', count)


@plant('MTL004', *_KINDS)
def negative_depth(data: DataSet) -> Planted:
    path = _change(data, 'depth', _pixel(-1))
    return Planted(path, 'y=3, x=5', 'negative', 2)


@plant('MTL005', 'nyuv2_bare')
def short_normals(data: DataSet) -> Planted:
    path = _change(data, 'normal', _pixel(0.5))
    return Planted(path, 'y=3, x=5', 'not unit', 2)


@plant('SEG001', *_KINDS)
def class_below_minus_one(data: DataSet) -> Planted:
    path = _change(data, 'label', _pixel(-2))
    return Planted(path, 'y=3, x=5', '-2', 2)


@plant('SEG001', 'nyuv2_bare')
def class_beyond_8_bits(data: DataSet) -> Planted:
    path = _change(data, 'label', _pixel(256))
    return Planted(path, 'y=3, x=5', '256', 2)


@plant('SEG015', 'nyuv2_bare')
def no_label(data: DataSet) -> Planted:
    path = _path(data, 'label')
    path.unlink()
    return Planted(path)


@plant('SEG018', 'nyuv2_bare')
def interpolated_classes(data: DataSet) -> Planted:
    return Planted(_change(data, 'label', _pixel(0.5)))


@plant('IMG001', *_KINDS)
def no_picture(data: DataSet) -> Planted:
    path = _path(data, 'image')
    path.unlink()
    return Planted(path)


@plant('PAIR001', 'nyuv2_bare')
def smaller_label(data: DataSet) -> Planted:
    path = _change(data, 'label', lambda array: array[:, 1:])
    return Planted(path, value='31 x 24')

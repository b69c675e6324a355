"""Errors of panoptic annotations: segments against their PNG."""

from pathlib import Path

import numpy as np
from PIL import Image

from helpers.label_boxes import edit_json
from helpers.label_plants import Planted, plant
from helpers.label_sets import DataSet

_KINDS = ('panoptic', 'panoptic_bare')
_FIRST = 70_003


def _png(data: DataSet, index: int) -> Path:
    return data.root / 'train' / f'{index}.png'


def _change(data: DataSet, index: int, number: int, **fields) -> Planted:
    """Change fields of a segment."""

    def change(content: dict) -> None:
        note = content['annotations'][index]
        note['segments_info'][number] |= fields

    edit_json(data.annotation(), change)
    return Planted(data.annotation(), position=_location(data, index, number))


def _location(data: DataSet, index: int, number: int) -> str:
    position = f'annotations[{index}].segments_info[{number}]'
    return f'{position} of {_png(data, index)}'


def _paint(data: DataSet, index: int, old: int, new: int) -> int:
    """Give a segment of the PNG another id; its pixels."""
    path = _png(data, index)
    pixels = np.array(Image.open(path))
    where = (pixels == _colour(old)).all(-1)
    pixels[where] = _colour(new)
    Image.fromarray(pixels).save(path)
    return int(where.sum())


def _colour(value: int) -> tuple[int, int, int]:
    return value & 255, value >> 8 & 255, value >> 16


@plant('PAN001', *_KINDS)
def painted_over(data: DataSet) -> Planted:
    _paint(data, 2, 2 * _FIRST, 0)
    position = _location(data, 2, 1)
    return Planted(data.annotation(), position=position, value=str(2 * _FIRST))


@plant('PAN002', 'panoptic')
def segment_taken_out(data: DataSet) -> Planted:
    def change(content: dict) -> None:
        content['annotations'][1]['segments_info'].pop()

    edit_json(data.annotation(), change)
    value = 3 * _FIRST
    count = _paint(data, 1, value, value)
    return Planted(_png(data, 1), value=str(value), count=count)


@plant('PAN003', 'panoptic')
def area_of_the_box(data: DataSet) -> Planted:
    change = _change(data, 4, 2, area=301)
    return Planted(change.file, change.position, value=str(3 * _FIRST))


@plant('PAN004', 'panoptic')
def segment_twice(data: DataSet) -> Planted:
    _paint(data, 3, 2 * _FIRST, _FIRST)
    pixels = np.array(Image.open(_png(data, 3)))
    area = int((pixels == _colour(_FIRST)).all(-1).sum())
    _change(data, 3, 0, area=area)
    change = _change(data, 3, 1, id=_FIRST, area=area)
    return Planted(change.file, change.position, value=str(_FIRST))


@plant('PAN005', 'panoptic')
def grey_ids(data: DataSet) -> Planted:
    path = _png(data, 5)
    Image.open(path).getchannel(0).save(path)
    return Planted(path, value='L')


@plant('PAN006', *_KINDS)
def no_isthing(data: DataSet) -> Planted:
    edit_json(
        data.annotation(),
        lambda content: content['categories'][1].pop('isthing'),
    )
    return Planted(data.annotation(), position='categories[1]', value='car')


@plant('PAN006', 'panoptic')
def stuff_to_the_config(data: DataSet) -> Planted:
    def change(content: dict) -> None:
        content['categories'][2]['isthing'] = 1

    edit_json(data.annotation(), change)
    return Planted(data.annotation(), position='categories[2]', value='sky')

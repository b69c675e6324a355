"""Bars: their widths, and which splits are beside each other."""

import math

import msgspec
import pytest
from label_report import report_of, split_of

from mmext.label_check._class_charts import class_charts
from mmext.label_check.report import ClassCounts, SplitReport


def charts(*splits) -> list[dict]:
    return class_charts(report_of(splits=splits))


def cells(measure: dict, key: str) -> list[list]:
    return [[cell[key] for cell in row['cells']] for row in measure['rows']]


def test_widths_are_of_one_scale():
    train = split_of('train', [750, 240, 10])
    val = split_of('val', [100, 0, 100])
    (chart,) = charts(train, val)
    assert [each['split'] for each in chart['splits']] == ['train', 'val']
    pixels, maps = chart['measures']
    assert cells(pixels, 'count') == [[750, 100], [240, 0], [10, 100]]
    assert cells(pixels, 'share') == [
        ['75.00 %', '50.00 %'],
        ['24.00 %', '0.00 %'],
        ['1.00 %', '50.00 %'],
    ]
    assert pixels['most'] == '75 %'
    assert cells(pixels, 'linear') == [
        ['100.00', '66.67'],
        ['32.00', '0'],
        ['1.33', '66.67'],
    ]
    decades = math.log10(0.75) + 3
    assert pixels['least'] == '0.1 %'
    assert cells(pixels, 'log')[0][0] == '100.00'
    assert cells(pixels, 'log')[1] == [
        f'{100 * (math.log10(0.24) + 3) / decades:.2f}',
        '0',
    ]
    assert float(cells(pixels, 'log')[2][0]) == pytest.approx(
        100 / decades, 1e-3
    )
    assert cells(maps, 'count') == [[10, 10], [10, 0], [10, 10]]
    assert cells(maps, 'share')[0] == ['100.00 %', '100.00 %']


def test_what_is_rare_is_seen():
    (chart,) = charts(split_of('train', [10**9, 1, 0]))
    (first, *_) = chart['measures']
    assert cells(first, 'share') == [['100.00 %'], ['< 0.01 %'], ['0.00 %']]
    assert cells(first, 'linear') == [['100.00'], ['0.40'], ['0']]
    assert (first['least'], first['most']) == ('0.00000001 %', '100 %')


@pytest.mark.parametrize('pixels', [[5], [0, 0], [1, 1]])
def test_plain_splits(pixels):
    split = split_of('train', pixels)
    (chart,) = charts(split)
    for measure in chart['measures']:
        for key in ('linear', 'log'):
            for (width,) in cells(measure, key):
                assert 0 <= float(width) <= 100


def test_objects():
    split = SplitReport(
        split='train',
        task='detection',
        num_samples=4,
        num_images=4,
        num_masks=0,
        num_boxes=10,
        classes=(
            ClassCounts(label=0, name='cat', boxes=8, images=4),
            ClassCounts(label=1, name='dog', boxes=2, images=1),
        ),
    )
    (chart,) = charts(split)
    objects, images = chart['measures']
    assert (objects['name'], images['name']) == ('objects', 'images')
    assert cells(objects, 'share') == [['80.00 %'], ['20.00 %']]
    assert cells(images, 'share') == [['100.00 %'], ['25.00 %']]
    assert chart['splits'][0]['extent'] == '4 images'


def test_splits_of_other_classes_are_apart():
    train, val = split_of('a', [1, 2]), split_of('b', [1, 2, 3])
    empty = msgspec.structs.replace(train, split='c', classes=())
    names = [
        [each['split'] for each in chart['splits']]
        for chart in charts(train, val, empty, split_of('d', [4, 4]))
    ]
    assert names == [['a', 'd'], ['b']]

"""The report as data."""

import json

import msgspec

from mmext.label_check import Expectations, Severity
from mmext.label_check.groups import FindingGroup
from mmext.label_check.report import (
    Report,
    make_split_report,
    report_json,
    report_schema,
)
from mmext.label_check.totals import SplitTotals

EXPECTED = Expectations(num_classes=2, classes=('road', 'car'))


def totals() -> SplitTotals:
    return SplitTotals(
        split='train',
        num_samples=3,
        num_images=3,
        num_masks=2,
        pixels={0: 70, 1: 20, 255: 10},
        masks={0: 2, 1: 1, 255: 1},
        area={0: 100, 1: 50, 255: 50},
        boxes={1: 4},
        box_images={1: 2},
    )


def test_a_row_for_each_class():
    split = make_split_report(totals(), EXPECTED)
    assert (split.num_samples, split.num_masks, split.num_boxes) == (3, 2, 4)
    road, car = split.classes
    assert (road.name, road.pixels, road.masks, road.area) == (
        'road',
        70,
        2,
        100,
    )
    assert (car.boxes, car.images) == (4, 2)


def test_counts_are_those_after_loading():
    reduced = msgspec.structs.replace(EXPECTED, reduce_zero_label=True)
    road, car = make_split_report(totals(), reduced).classes
    assert (road.pixels, car.pixels) == (20, 0)


def test_json_round_trip_and_version():
    group = FindingGroup(
        rule='SEG001',
        severity=Severity.ERROR,
        message='<b>',
        remedy='r',
        value='11',
    )
    report = Report(
        rules=('SEG001',),
        splits=(make_split_report(totals(), EXPECTED),),
        groups=(group,),
    )
    content = report_json(report)
    assert json.loads(content)['schema_version'] == 1
    assert msgspec.json.decode(content, type=Report) == report
    assert content.endswith(b'}\n')


def test_worst():
    assert Report().worst() is None
    groups = tuple(
        FindingGroup(rule='X', severity=each, message='', remedy='')
        for each in (Severity.INFO, Severity.WARNING)
    )
    assert Report(groups=groups).worst() is Severity.WARNING


def test_schema_names_every_field():
    schema = json.loads(report_schema())
    group = FindingGroup(
        rule='SEG001', severity=Severity.ERROR, message='m', remedy='r'
    )
    split = make_split_report(totals(), EXPECTED)
    written = json.loads(report_json(Report(splits=(split,), groups=(group,))))
    parts = {
        'Report': written,
        'SplitReport': written['splits'][0],
        'ClassCounts': written['splits'][0]['classes'][0],
        'FindingGroup': written['groups'][0],
    }
    for name, part in parts.items():
        known = schema['$defs'][name]
        assert set(part) <= set(known['properties'])
        assert set(known['required']) <= set(part)
        assert 'Attributes:' in known['description']

"""Data sets on a disk: check, repair, put the new files in place, check."""

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from helpers import (  # noqa: F401  (they fill PLANTS)
    label_plants_boxes,
    label_plants_masks,
    label_plants_sets,
)
from helpers.label_data import write_pairs
from helpers.label_plants import Plant, all_plants
from helpers.label_sets import CLEAN, DataSet, clean
from PIL import Image

from mmext.checks.findings import Severity
from mmext.checks.labels import Expectations
from mmext.checks.labels.check import check_sources
from mmext.checks.labels.expectations import SplitSource
from mmext.checks.labels.facts import Orphan, Sample
from mmext.checks.labels.fix.fix_labels import FixSummary, fix_labels
from mmext.checks.labels.report import Report
from mmext.checks.labels.run import sources_of
from mmext.checks.labels.sources import split_of_folders
from mmext.checks.labels.store import FactStore

LOGS = {'fixes.json', 'fixes.jsonl'}
# What a repair of the planted error must repair, whatever else it repairs.
REPAIRABLE = {
    'SEG008',
    'SEG010',
    'SEG011',
    'SEG012',
    'COCO002',
    'COCO005',
    'COCO006',
    'COCO008',
    'DET001',
    'DET002',
    'DET004',
    'DET005',
    'DET010',
}


def files_of(folder: Path) -> dict[str, bytes]:
    """Label files of a new tree."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob('*')
        if path.is_file() and path.suffix != '.txt' and path.name not in LOGS
    }


def check_and_fix(
    sources: Sequence[SplitSource], out: Path, **options
) -> tuple[Report, FixSummary]:
    path = out.with_suffix('.sqlite')
    path.parent.mkdir(exist_ok=True)
    with FactStore(path) as store:
        report = check_sources(sources, store)
        return report, fix_labels(sources, store, out, **options)


def sources(data: DataSet) -> list[SplitSource]:
    settings = dict(data.settings)
    if data.config:
        path = data.root / 'config.py'
        lines = (f'{key} = {value!r}\n' for key, value in data.config.items())
        path.write_text(''.join(lines))
        settings['config'] = str(path)
    return sources_of(**settings)


def put_in_place(summary: FixSummary) -> None:
    for location in summary.locations:
        if Path(location.now).is_dir():
            shutil.copytree(location.now, location.was, dirs_exist_ok=True)
        else:
            shutil.copy(location.now, location.was)


def errors_of(report: Report) -> set[str]:
    return {
        group.rule for group in report.groups if group.severity > Severity.INFO
    }


# Neither arrays nor panoptic files are repaired: test_run.py; nor YOLO's:
# test_sources/test_yolo.py.
LEFT = ('nyuv2', 'panoptic', 'yolo')
REPAIRED = [k for k in CLEAN if not k.startswith(LEFT)]


@pytest.mark.parametrize('kind', REPAIRED)
def test_clean_data_are_copied(kind, tmp_path):
    data = clean(kind, tmp_path / 'data')
    out = tmp_path / 'new' / 'out'
    _, summary = check_and_fix(sources(data), out)
    assert summary.num_fixed == 0
    assert (out / 'fixes.jsonl').read_bytes() == b''
    assert summary.not_repaired == ()
    files = files_of(out)
    assert len(files) == summary.num_files > 0
    for location in summary.locations:
        now, was = Path(location.now), Path(location.was)
        old = {'': was.read_bytes()} if was.is_file() else files_of(was)
        new = {'': now.read_bytes()} if now.is_file() else files_of(now)
        assert new == old


@pytest.mark.parametrize(
    'plant',
    [
        change
        for change in all_plants()
        if change.rule in REPAIRABLE
        and 'nearly' not in change.name
        and not change.kind.startswith(LEFT)
    ],
    ids=lambda change: change.name,
)
def test_repaired_data_have_no_finding(plant: Plant, tmp_path):
    data = clean(plant.kind, tmp_path / 'data')
    plant.spoil(data)
    out = tmp_path / 'out'
    report, summary = check_and_fix(sources(data), out)
    assert plant.rule in errors_of(report)
    assert plant.rule in summary.changes
    assert summary.num_fixed == 1 + (plant.rule == 'COCO008')
    log = (out / 'fixes.jsonl').read_text().splitlines()
    changes = [json.loads(line) for line in log]
    assert len(changes) == sum(summary.changes.values())
    for change in changes:
        assert list(change) == list(changes[0])
        assert change['rule'] == plant.rule
        assert Path(change['file']).exists()
        assert (out / change['new_file']).is_file()
    put_in_place(summary)
    again = tmp_path / 'again'
    report, summary = check_and_fix(sources(data), again)
    assert errors_of(report) == set()
    assert (summary.num_fixed, summary.changes) == (0, {})
    assert files_of(again) == files_of(out)


@pytest.mark.parametrize(
    'rule', ['SEG001', 'SEG015', 'SEG018', 'IMG003', 'PAIR001', 'VOC002']
)
def test_the_rest_is_left_and_listed(rule, tmp_path):
    plant = next(item for item in all_plants() if item.rule == rule)
    data = clean(plant.kind, tmp_path / 'data')
    planted = plant.spoil(data)
    out = tmp_path / 'out'
    _, summary = check_and_fix(sources(data), out)
    assert (summary.num_fixed, summary.changes) == (0, {})
    (group,) = summary.not_repaired
    assert (group.rule, group.split) == (rule, 'train')
    assert group.files == (str(planted.file),)
    assert group.reason.startswith('no repair is certain; ')
    said = json.loads((out / 'fixes.json').read_text())
    assert said['not_repaired'][0]['files'] == [str(planted.file)]
    assert said['schema_version'] == 1


def test_two_splits_do_not_collide(tmp_path):
    for split in ('train', 'val'):
        write_pairs(tmp_path / 'data' / split)
        path = tmp_path / 'data' / split / 'masks' / '1.png'
        mask = Image.fromarray(np.array(Image.open(path)))
        mask.putpalette([1, 2, 3] * 256)
        mask.save(path)
    splits = [
        split_of_folders(
            tmp_path / 'data' / split / 'masks',
            None,
            Expectations(split=split, num_classes=3, loader_backend='cv2'),
        )
        for split in ('train', 'val')
    ]
    _, summary = check_and_fix(splits, tmp_path / 'out')
    assert (summary.num_files, summary.num_fixed) == (12, 2)
    text = summary.text()
    assert text.startswith('repaired 2 of 12 label files')
    assert '  SEG011  2 x palette mask' in text
    assert '  train: data_prefix.seg_map_path=' in text
    assert [location.now for location in summary.locations] == [
        str(tmp_path / 'out' / 'train' / 'masks'),
        str(tmp_path / 'out' / 'val' / 'masks'),
    ]
    for split in ('train', 'val'):
        folder = tmp_path / 'out' / split / 'masks'
        assert Image.open(folder / '1.png').mode == 'L'


def both_ways(folder: Path) -> list[SplitSource]:
    """The same masks, of which 255 is ignored by one split alone."""
    masks = write_pairs(folder) / 'masks'
    return [
        split_of_folders(
            masks,
            None,
            Expectations(split=split, num_classes=3, ignore_index=ignore),
        )
        for split, ignore in (('train', 255), ('val', 254))
    ]


def test_file_of_two_splits_is_written_once(tmp_path):
    splits = both_ways(tmp_path / 'data')
    _, summary = check_and_fix(splits, tmp_path / 'out')
    assert (summary.num_files, summary.num_fixed) == (6, 0)
    assert {finding.reason for finding in summary.not_repaired} >= {
        'another split reads the file in another way'
    }


def test_error_leaves_nothing_behind(tmp_path, monkeypatch):
    splits = both_ways(tmp_path / 'data')
    out = tmp_path / 'parent' / 'out'

    def fail(*_):
        raise OSError('the disk is full')

    module = sys.modules[fix_labels.__module__]
    monkeypatch.setattr(module, 'NewLocation', fail)
    with FactStore(tmp_path / 'facts.sqlite') as store:
        check_sources(splits, store)
        with pytest.raises(OSError, match='the disk is full'):
            fix_labels(splits, store, out)
    assert list(out.parent.iterdir()) == []


def test_orphans_are_copied_and_damaged_files_listed(tmp_path):
    folder = write_pairs(tmp_path / 'data')
    (folder / 'masks' / '2.png').write_bytes(b'')
    (folder / 'lonely.png').write_bytes(b'anything')
    expected = Expectations(num_classes=3)
    bare = split_of_folders(folder / 'masks', folder / 'images', expected)
    orphans = [
        Orphan(split='train', path=str(folder / 'lonely.png'), kind='mask'),
        Orphan(split='train', path=str(folder / 'image.png'), kind='image'),
    ]
    source = SplitSource(expected, bare.samples, orphans=lambda: iter(orphans))
    out = tmp_path / 'out'
    _, summary = check_and_fix([source], out)
    assert (summary.num_files, summary.num_fixed) == (7, 0)
    assert [
        (finding.rule, Path(finding.files[0]).name)
        for finding in summary.not_repaired
    ] == [('PAIR009', 'lonely.png'), ('SEG016', '2.png')]
    text = summary.text()
    assert '  SEG016  train, 1 file: no repair is certain; ' in text
    assert (out / 'lonely.png').read_bytes() == b'anything'
    assert (out / 'masks' / '2.png').read_bytes() == b''
    assert not (out / 'image.png').exists()


@pytest.mark.parametrize(('labels', 'repaired'), [((1, 2), 2), ((1, 1), 0)])
def test_void_may_be_a_class_that_no_split_has(labels, repaired, tmp_path):
    splits = []
    for number, label in enumerate(labels):
        folder = write_pairs(tmp_path / f'{number}', number=1) / 'masks'
        mask = np.full((24, 32), label, np.uint8)
        mask[:2] = [[0], [255]]
        expected = Expectations(
            split=f'{number}', num_classes=3, ignore_index=254
        )
        Image.fromarray(mask).save(folder / '0.png')
        splits.append(split_of_folders(folder, None, expected))
    _, summary = check_and_fix(splits, tmp_path / 'out')
    assert summary.num_fixed == repaired


def test_files_that_no_reader_repairs_are_copied(tmp_path):
    path = tmp_path / 'notes' / 'a.json'
    path.parent.mkdir()
    path.write_text('anything')
    sample = Sample(index=0, annotation=str(path))
    for task, number in (('detection', 1), ('semantic', 0)):
        source = SplitSource(Expectations(task=task), lambda: iter([sample]))
        out = tmp_path / task
        _, summary = check_and_fix([source], out)
        assert summary.num_files == number
        assert [
            (location.key, location.was, location.now)
            for location in summary.locations
        ] == [('ann_file', str(path), str(out / 'a.json'))] * number

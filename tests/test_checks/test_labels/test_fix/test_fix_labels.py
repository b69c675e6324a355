"""Data sets on a disk: check and fix, put the new files in place, check."""

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.label_boxes import edit_json, edit_xml
from helpers.label_plants import Plant, all_plants
from helpers.label_sets import CLEAN, DataSet, clean
from PIL import Image

from mmext.checks.findings import Severity
from mmext.checks.labels import Expectations, FactStore, check_sources
from mmext.checks.labels.expectations import SplitSource
from mmext.checks.labels.facts import Orphan, Sample
from mmext.checks.labels.fix.fix_labels import fix_labels
from mmext.checks.labels.report import Report
from mmext.checks.labels.rules import RULES
from mmext.checks.labels.sources import split_of_folders

LOGS = {'fixes.json', 'fixes.jsonl'}
# Neither arrays nor panoptic files are fixed: test_run.py; nor YOLO's:
# test_sources/test_yolo.py.
OTHERS = ('nyuv2', 'panoptic', 'yolo')
KINDS = [kind for kind in CLEAN if not kind.startswith(OTHERS)]
PLANTS = [item for item in all_plants() if not item.kind.startswith(OTHERS)]
FIXED = {
    'byte_order_mark',
    'annotation_id_twice',
    'image_of_no_size',
    'no_iscrowd',
    'no_iscrowd_to_evaluate_on',
    'annotation_id_zero_to_evaluate_on',
    'word_for_an_id_to_evaluate_on',
    'nan_in_json',
    'nan_in_xml',
    'size_of_zero',
    'size_of_zero_that_is_filtered',
    'wide_void',
    'colours',
    'alpha',
    'palette_for_cv2',
    'one_bit_for_cv2',
}


def files_of(folder: Path) -> dict[str, bytes]:
    """Files of a new tree."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob('*')
        if path.is_file() and path.name not in LOGS
    }


def fixed(data: DataSet, out: Path, **more) -> tuple[Report, dict]:
    """The report of a check that fixes, and the summary of the fix."""
    _, report = data.check(fix=out, **more)
    return report, json.loads((out / 'fixes.json').read_bytes())


def assert_copies(out: Path, summary: dict) -> None:
    """All files are what they were."""
    assert (summary['num_fixed'], summary['changes']) == (0, {})
    assert (out / 'fixes.jsonl').read_bytes() == b''
    files = files_of(out)
    assert len(files) == summary['num_files']
    for location in summary['locations']:
        now, was = Path(location['now']), Path(location['was'])
        pairs = [(now, was)] if now.is_file() else []
        pairs += [
            (path, was / path.relative_to(now)) for path in now.rglob('*')
        ]
        for new, old in pairs:
            if new.is_file() and new.name not in LOGS:
                assert new.read_bytes() == old.read_bytes()


def put_in_place(summary: dict) -> None:
    for location in summary['locations']:
        if Path(location['now']).is_dir():
            shutil.copytree(
                location['now'], location['was'], dirs_exist_ok=True
            )
        else:
            shutil.copy(location['now'], location['was'])


def warned(report: Report) -> set[str]:
    return {
        group.rule for group in report.groups if group.severity > Severity.INFO
    }


@pytest.mark.parametrize('kind', KINDS)
def test_clean_data_are_copied(kind, tmp_path):
    data, out = clean(kind, tmp_path / 'data'), tmp_path / 'new' / 'out'
    _, summary = fixed(data, out)
    assert_copies(out, summary)
    assert summary['num_files'] > 0
    assert summary['left'] == {}


@pytest.mark.parametrize(
    'plant',
    [item for item in PLANTS if item.spoil.__name__ in FIXED],
    ids=lambda item: item.name,
)
def test_fixed_data_have_no_finding(plant: Plant, tmp_path):
    data, out = clean(plant.kind, tmp_path / 'data'), tmp_path / 'out'
    plant.spoil(data)
    report, summary = fixed(data, out)
    assert plant.rule in warned(report)
    assert summary['changes'][plant.rule] > 0
    assert plant.rule not in summary['left']
    log = (out / 'fixes.jsonl').read_text().splitlines()
    changes = [json.loads(line) for line in log]
    number = sum(change['count'] for change in changes)
    assert number == sum(summary['changes'].values())
    for change in changes:
        assert list(change) == list(changes[0])
        assert change['rule'] == plant.rule
        assert Path(change['file']).exists()
        assert (out / change['new_file']).is_file()
    put_in_place(summary)
    report, summary = fixed(data, tmp_path / 'again')
    assert warned(report) == set()
    assert_copies(tmp_path / 'again', summary)
    assert files_of(tmp_path / 'again') == files_of(out)


# Of each rule a plant: what may mean something else is left as it is.
LEFT = {
    (item.rule, item.spoil.__name__): item
    for item in PLANTS
    if item.spoil.__name__ not in FIXED
    and RULES[item.rule].severity > Severity.INFO
    and item.rule.startswith(('COCO', 'DET', 'PAIR004', 'SEG', 'VOC'))
}


@pytest.mark.parametrize(
    'plant', LEFT.values(), ids=[' '.join(key) for key in LEFT]
)
def test_the_rest_is_copied_and_counted(plant: Plant, tmp_path):
    data, out = clean(plant.kind, tmp_path / 'data'), tmp_path / 'out'
    plant.spoil(data)
    report, summary = fixed(data, out)
    assert_copies(out, summary)
    assert summary['left'].keys() == warned(report)
    assert summary['left'][plant.rule] > 0


def test_docs_list_each_fix():
    """With the reason why it changes no meaning of a label."""
    path = Path(__file__).parents[4] / 'docs/label_check.md'
    rows = re.findall(
        r'^\| ((?:[A-Z]+\d+(?:, )?)+) \| .+ \| .+ \|$',
        path.read_text(),
        re.MULTILINE,
    )
    listed = {rule for row in rows for rule in row.split(', ')}
    assert listed == {rule.id for rule in RULES.values() if rule.fix}


@pytest.mark.parametrize('kind', ['coco', 'voc'])
def test_boxes_of_no_width_are_removed_and_none_below_zero(kind, tmp_path):
    data, out = clean(kind, tmp_path / 'data'), tmp_path / 'out'
    path = data.annotation(1)

    def in_json(content: dict) -> None:
        notes = content['annotations']
        notes[3]['bbox'][2] = 0
        notes[4]['bbox'][3] = -5

    def in_xml(root) -> None:
        first, second, *_ = root.iter('bndbox')
        first.find('xmax').text = first.find('xmin').text
        second.find('ymax').text = '1'

    change = edit_json if kind == 'coco' else edit_xml
    change(path, in_json if kind == 'coco' else in_xml)
    report, summary = fixed(data, out, select='DET002')
    assert [group.count for group in report.groups] == [2]
    assert summary['changes'] == {'DET002': 1}
    assert summary['left'] == {'DET002': 1}
    put_in_place(summary)
    assert [group.count for group in data.check()[1].groups] == [1]


@pytest.mark.parametrize('kind', ['coco', 'voc'])
@pytest.mark.parametrize('which', ['all', 'all but one', 'with boxes beyond'])
def test_sizes_that_all_images_contradict_alike(kind, which, tmp_path):
    data, out = clean(kind, tmp_path / 'data'), tmp_path / 'out'
    kept = 1 if which == 'all but one' else 0

    def in_json(content: dict) -> None:
        for image in content['images'][kept:]:
            image.update(width=36, height=48)
        if which == 'with boxes beyond':
            content['annotations'][5]['bbox'][2] = 48

    def in_xml(root) -> None:
        root.find('size/width').text = '36'
        root.find('size/height').text = '48'
        if which == 'with boxes beyond':
            root.find('object/bndbox/xmax').text = '60'

    if kind == 'coco':
        edit_json(data.annotation(), in_json)
    else:
        for index in range(kept, 6):
            edit_xml(data.annotation(index), in_xml)
    report, summary = fixed(data, out)
    assert 'PAIR004' in warned(report)
    if which != 'all':
        assert_copies(out, summary)
        return
    assert summary['changes'] == {'PAIR004': 6}
    put_in_place(summary)
    assert data.check()[1].groups == ()


def test_areas_of_boxes_are_written_where_there_is_no_mask(tmp_path):
    data = clean('coco', tmp_path / 'data')

    def change(content: dict) -> None:
        for index in (2, 3, 4):
            del content['annotations'][index]['area']
        del content['annotations'][3]['segmentation']
        content['annotations'][4]['segmentation'] = []

    edit_json(data.annotation(), change)
    _, summary = fixed(data, tmp_path / 'out')
    assert summary['changes'] == {'COCO011': 2}
    assert summary['left'] == {'COCO011': 1}
    content = json.loads((tmp_path / 'out/train.json').read_bytes())
    assert [content['annotations'][i].get('area') for i in (2, 3, 4)] == [
        *(None, 108, 165)
    ]


STYLES = [
    {},
    {'indent': 2},
    {'indent': 0},
    {'indent': '\t'},
    {'ensure_ascii': False},
]


@pytest.mark.parametrize('options', STYLES, ids=str)
@pytest.mark.parametrize('end', ['', '\n'])
def test_the_rest_of_a_file_is_kept(options, end, tmp_path):
    data = clean('coco', tmp_path / 'data')
    path, out = data.annotation(), tmp_path / 'out'
    content = {
        'by "ä\r\n"': ['ü', float('nan'), -float('inf'), -0.0, 1e-7, 2**80],
        'share': 0.1 + 0.2,
        **json.loads(path.read_text()),
    }
    content['annotations'][3]['bbox'] = [1, 2, 0, 4]
    path.write_text(json.dumps(content, **options) + end)
    fixed(data, out)
    del content['annotations'][3]
    text = json.dumps(content, **options) + end
    assert (out / 'train.json').read_text() == text


@pytest.mark.parametrize('text', ['[' * 9999 + ']' * 9999, '9' * 9999])
def test_a_file_that_cannot_be_edited_is_copied(text, tmp_path):
    data, out = clean('coco', tmp_path / 'data'), tmp_path / 'out'
    path = data.annotation()
    edit_json(
        path,
        lambda content: content['annotations'][3].update(
            bbox=[1, 2, 0, 0], segmentation='HERE'
        ),
    )
    path.write_text(path.read_text().replace('"HERE"', text))
    _, summary = fixed(data, out)
    assert_copies(out, summary)
    assert summary['left'].keys() & {'COCO001', 'DET002'}


def test_records_that_cannot_be_read_stay(tmp_path):
    """Their ids may be among those that would be new."""
    data, out = clean('coco', tmp_path / 'data'), tmp_path / 'out'

    def change(content: dict) -> None:
        content['annotations'][3]['bbox'] = 'nothing'
        content['annotations'][4]['bbox'] = [1, 2, 0, 0]
        content['annotations'][6]['id'] = content['annotations'][7]['id']

    edit_json(data.annotation(), change)
    wanted = json.loads(data.annotation().read_bytes())
    _, summary = fixed(data, out)
    assert summary['changes'] == {'DET002': 1}
    del wanted['annotations'][4]
    assert json.loads((out / 'train.json').read_bytes()) == wanted


@pytest.mark.parametrize('encoding', ['utf-8', 'utf-16', 'latin-1'])
def test_an_xml_file_with_a_declaration_is_written_in_utf8(encoding, tmp_path):
    data, out = clean('voc', tmp_path / 'data'), tmp_path / 'out'
    path = data.annotation(2)
    text = path.read_text().replace('<size>', '<by>Ägidius</by>\n  <size>')
    first, rest = text.split('<object>', 1)
    point = re.sub(
        r'<xmax>\d+',
        '<xmax>6',
        '<object>' + rest.split('</object>')[0] + '</object>\n',
    )
    wanted = f'{first}<object>{rest}\n'
    start = f'<?xml version="1.0" encoding="{encoding}"?>\n'
    path.write_text(start + f'{first}\n  {point}<object>{rest}', encoding)
    _, summary = fixed(data, out)
    assert summary['changes'] == {'DET002': 1}
    written = (out / path.name).read_bytes()
    declared = b"<?xml version='1.0' encoding='utf-8'?>\n"
    assert written.startswith(declared)
    assert written.decode().replace(declared.decode(), '').replace(
        '\n', ''
    ) == wanted.replace('\n', '')


def test_two_splits_with_files_of_the_same_names(tmp_path, capsys):
    data, out = clean('semantic', tmp_path / 'data'), tmp_path / 'out'
    for split in ('train', 'val'):
        dataset = data.config[f'{split}_dataloader']['dataset']
        dataset['pipeline'][1]['imdecode_backend'] = 'cv2'
        path = data.mask(1, split)
        mask = Image.open(path)
        mask.putpalette([1, 2, 3] * 256)
        mask.save(path)
    _, summary = fixed(data, out)
    assert (summary['num_files'], summary['num_fixed']) == (10, 2)
    text = capsys.readouterr().out
    assert 'fixed 2 of 10 label files' in text
    assert '  fixed SEG011, 2 masks: palette mask' in text
    assert '  train: data_prefix.seg_map_path=' in text
    for location in summary['locations']:
        split = location['split']
        assert location['now'] == str(out / split)
        assert Image.open(out / split / '1.png').mode == 'L'


def both_ways(root: Path) -> list[SplitSource]:
    """The same masks, which two splits read in another way."""
    data = clean('folders', root)
    return [
        split_of_folders(
            data.root / 'masks/train',
            None,
            Expectations(split=split, num_classes=3, ignore_index=ignore),
        )
        for split, ignore in (('train', 255), ('val', 254))
    ]


def test_a_file_of_two_splits_is_written_once(tmp_path):
    splits, out = both_ways(tmp_path / 'data'), tmp_path / 'out'
    with FactStore(tmp_path / 'facts.sqlite') as store:
        report = check_sources(splits, store)
        summary = fix_labels(splits, store, out, report)
    assert (summary.num_files, summary.num_fixed) == (6, 0)
    assert summary.left.keys() >= {'SEG004'}


def test_an_error_leaves_nothing_behind(tmp_path, monkeypatch):
    splits, out = both_ways(tmp_path / 'data'), tmp_path / 'parent' / 'out'

    def fail(*_):
        raise OSError('the disk is full')

    monkeypatch.setattr(
        sys.modules[fix_labels.__module__], 'NewLocation', fail
    )
    with FactStore(tmp_path / 'facts.sqlite') as store:
        report = check_sources(splits, store)
        with pytest.raises(OSError, match='the disk is full'):
            fix_labels(splits, store, out, report)
    assert list(out.parent.iterdir()) == []


def test_orphans_are_copied_and_images_are_not(tmp_path):
    data, out = clean('folders', tmp_path / 'data'), tmp_path / 'out'
    masks = data.root / 'masks/train'
    (masks / '2.png').write_bytes(b'')
    (masks.parent / 'lonely.png').write_bytes(b'anything')
    expected = Expectations(num_classes=3)
    bare = split_of_folders(masks, data.root / 'images/train', expected)
    orphans = [
        Orphan(split='train', path=str(masks.parent / name), kind=kind)
        for name, kind in (('lonely.png', 'mask'), ('image.png', 'image'))
    ]
    source = SplitSource(expected, bare.samples, orphans=lambda: iter(orphans))
    with FactStore(tmp_path / 'facts.sqlite') as store:
        report = check_sources([source], store)
        summary = fix_labels([source], store, out, report)
    assert (summary.num_files, summary.num_fixed) == (7, 0)
    assert summary.left == {'PAIR009': 1, 'SEG016': 1}
    assert '  left SEG016, 1 mask: mask file is empty' in summary.text()
    assert (out / 'lonely.png').read_bytes() == b'anything'
    assert (out / 'train/2.png').read_bytes() == b''


def test_files_of_other_forms_are_copied(tmp_path):
    path = tmp_path / 'notes' / 'a.json'
    path.parent.mkdir()
    path.write_text('anything')
    sample = Sample(index=0, annotation=str(path))
    # A semantic data set names a list of its samples.
    for task, number in (('detection', 1), ('semantic', 0)):
        source = SplitSource(Expectations(task=task), lambda: iter([sample]))
        out = tmp_path / task
        with FactStore(tmp_path / 'facts.sqlite') as store:
            report = check_sources([source], store)
            summary = fix_labels([source], store, out, report)
        assert summary.num_files == number
        assert [
            (location.key, location.was, location.now)
            for location in summary.locations
        ] == [('ann_file', str(path), str(out / 'a.json'))] * number


def test_the_labels_of_pixels_stay(tmp_path):
    """What the loader makes of each pixel is what it was before."""
    from mmseg.datasets.transforms import LoadAnnotations

    def labels(path: Path) -> np.ndarray:
        results = {'seg_map_path': str(path), 'seg_fields': []}
        results['reduce_zero_label'] = False
        return LoadAnnotations().transform(results)['gt_seg_map']

    data, out = clean('wide', tmp_path / 'data'), tmp_path / 'out'
    path = data.mask(1)
    pixels = np.array(Image.open(path))
    pixels[3, 4] = 65535
    Image.fromarray(pixels).save(path)
    _, summary = fixed(data, out)
    assert summary['changes'] == {'SEG008': 1}
    new = out / path.relative_to(data.root / 'masks')
    assert np.array_equal(labels(path), labels(new))

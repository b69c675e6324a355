"""The tool against one error for each rule, in files on a disk."""

import pytest
from helpers.label_boxes import edit_json
from helpers.label_plants import CONSEQUENCES, Plant, all_plants
from helpers.label_sets import CLEAN, SIZES, clean
from PIL import Image

from mmext.checks.findings import Severity
from mmext.checks.labels.rules import RULES


def test_every_rule_has_a_plant():
    assert {plant.rule for plant in all_plants()} == set(RULES)


@pytest.mark.parametrize('kind', CLEAN)
def test_clean_data_have_no_finding(kind, tmp_path):
    code, report = clean(kind, tmp_path / 'data').check()
    assert report.groups == ()
    assert code == 0
    assert all(split.num_samples for split in report.splits)


def test_label_maps_of_ade20k_that_are_not_reduced(tmp_path):
    """0 is no class there, and the classes are 1 to 150."""
    data = clean('semantic', tmp_path / 'data')
    names = [f'kind {number}' for number in range(150)]
    for split, size in SIZES.items():
        dataset = data.config[f'{split}_dataloader']['dataset']
        dataset['metainfo']['classes'] = names
        for index in range(size):
            pixels = data.pixels(index, split)
            pixels[pixels == 2] = 150
            pixels[pixels == 255] = 77
            Image.fromarray(pixels).save(data.mask(index, split))
    data.config['model']['decode_head']['num_classes'] = 150
    code, report = data.check(select='SEG')
    assert code == 1
    (group,) = report.groups
    assert (group.rule, group.value) == ('SEG001', '150')
    assert 'set reduce_zero_label=True of the data set' in group.remedy
    for split in SIZES:
        dataset = data.config[f'{split}_dataloader']['dataset']
        dataset['reduce_zero_label'] = True
    code, report = data.check(select='SEG')
    assert (code, report.groups) == (0, ())


def test_a_metric_may_ignore_another_value_that_does_not_occur(tmp_path):
    """Two classes and no void, as of many binary tasks."""
    data = clean('binary', tmp_path / 'data')
    del data.config['val_evaluator']['ignore_index']
    code, report = data.check()
    assert (code, report.groups) == (0, ())


def test_a_file_of_the_metric_alone(tmp_path):
    """Not that of the data set: pycocotools takes its id 0 for no match."""
    data = clean('coco', tmp_path / 'data')
    path = data.root / 'evaluated.json'
    path.write_bytes(data.annotation(split='val').read_bytes())
    data.config['val_evaluator'] = {
        'type': 'CocoMetric',
        'ann_file': str(path),
    }
    assert data.check()[1].groups == ()
    edit_json(path, lambda content: content['annotations'][4].update(id=0))
    code, report = data.check()
    (group,) = report.groups
    assert (code, group.rule) == (0, 'COCO015')
    (example,) = group.examples
    assert (example.file, example.key) == (str(path), 'annotations[4]')
    assert 'val_evaluator counts it as missed' in example.message


def errors(groups) -> set[str]:
    """Rules with an error."""
    return {group.rule for group in groups if group.severity == Severity.ERROR}


def assert_found(plant: Plant, planted, report, code: int) -> None:
    """The report has the planted error, and no other."""
    groups = [item for item in report.groups if item.rule == plant.rule]
    assert len(groups) == 1, report.groups
    (group,) = groups
    first = group.examples[0]
    assert first.file == str(planted.file)
    assert (first.position, first.value) == (planted.position, planted.value)
    assert (group.count, group.num_files) == (planted.count, planted.files)
    findings = planted.findings
    if findings is None:
        findings = max(planted.files, 1)
    assert group.num_findings == findings
    also = {other for rule, other in CONSEQUENCES if rule == plant.rule}
    others = errors(report.groups) - {plant.rule}
    assert others <= also, report.groups
    assert code == int(group.severity == Severity.ERROR or bool(others))


@pytest.mark.parametrize('plant', all_plants(), ids=lambda item: item.name)
def test_plant_is_found_and_nothing_else(plant: Plant, tmp_path):
    data = clean(plant.kind, tmp_path / 'data')
    planted = plant.spoil(data)
    code, report = data.check()
    assert_found(plant, planted, report, code)


def test_label_maps_alone_need_no_images(tmp_path):
    data = clean('folders', tmp_path / 'data')
    del data.settings['images']
    code, report = data.check()
    assert (code, report.groups) == (0, ())

from helpers.label_facts import EXPECTED, findings_of, mask_of, sample_of
from msgspec.structs import replace

from mmext.checks.findings import Finding, Location, Severity
from mmext.checks.labels.report import FindingGroup, FindingGroups

VAL = replace(EXPECTED, split='val')


def group_findings(findings, num_examples=5, remedies=None):
    groups = FindingGroups(num_examples)
    for finding in findings:
        groups.add(finding)
    return groups.finish(remedies or {})


def finding(file: str, value: str = '11', **fields) -> Finding:
    fields = {'rule': 'SEG001', 'message': f'label {value}'} | fields
    location = Location(file=file, key=fields.pop('key', ''))
    return Finding(
        severity=Severity.ERROR,
        remedy='r',
        location=location,
        value=value,
        **fields,
    )


def test_one_group_for_many_files():
    samples = [
        sample_of(index, split, mask=mask_of({0: 40, 1: 30, 2: 20, 11: 10}))
        for split in ('train', 'val')
        for index in range(20)
    ]
    (group,) = group_findings(findings_of(samples, EXPECTED, VAL))
    assert isinstance(group, FindingGroup)
    assert (group.num_files, group.count, group.value) == (40, 400, '11')
    assert group.message.startswith('label 11 is out of range; labels must')
    assert group.message.endswith(': 40 masks, 400 pixels')
    assert group.splits == (('train', 20), ('val', 20))
    assert [example.file for example in group.examples][:2] == [
        'train/0.png',
        'train/1.png',
    ]


def test_more_values_than_are_listed():
    findings = [
        finding(f'{index}.png', str(index % 1500), count=index + 1)
        for index in range(3000)
    ]
    groups = group_findings(findings)
    assert len(groups) == 1001
    assert groups[-1].value == 'others'
    assert groups[-1].num_findings == 1000
    assert sum(group.count for group in groups) == 3000 * 3001 // 2


def test_findings_of_a_file_count_it_once():
    findings = [
        finding('a.json', key=f'annotation {index}', rule='DET002')
        for index in range(12)
    ]
    (group,) = group_findings(findings, num_examples=3)
    assert group.message.endswith(': 1 image, 12 boxes')
    places = [example.place for example in group.examples]
    assert places == ['annotation 0', 'annotation 1', 'annotation 2']


def test_worst_first():
    mild = replace(finding('a', rule='CLS004'), severity=Severity.INFO)
    groups = group_findings([mild, finding('b', '9'), finding('b', '10')])
    assert [group.value for group in groups] == ['9', '10', '']

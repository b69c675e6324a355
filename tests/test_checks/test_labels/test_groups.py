"""Findings that are told together."""

from mmext.checks.findings import Finding, Location, Severity
from mmext.checks.labels.report import FindingGroups


def test_more_values_than_are_listed():
    result = FindingGroups(5)
    for index in range(3000):
        finding = Finding(
            rule='SEG001',
            severity=Severity.ERROR,
            message=f'label {index % 1500}',
            remedy='r',
            location=Location(file=f'{index}.png'),
            value=str(index % 1500),
            count=index + 1,
        )
        result.add(finding)
    groups = result.finish({})
    assert len(groups) == 1001
    assert groups[-1].value == 'others'
    assert groups[-1].num_findings == 1000
    assert sum(group.count for group in groups) == 3000 * 3001 // 2

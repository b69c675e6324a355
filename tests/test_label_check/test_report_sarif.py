"""SARIF: what a reader of it relies on."""

import json

import pytest

from mmext.label_check import Finding, Severity
from mmext.label_check.groups import FindingGroup
from mmext.label_check.report import Report
from mmext.label_check.report_sarif import report_sarif
from mmext.label_check.rules import RULES


def group(rule: str, *files: str, **more) -> FindingGroup:
    examples = tuple(
        Finding(
            rule=rule,
            severity=RULES[rule].severity,
            message='label 11 is out of range',
            remedy='r',
            file=file,
            place='y=3, x=5',
        )
        for file in files
    )
    return FindingGroup(
        rule=rule,
        severity=RULES[rule].severity,
        message='label 11 is out of range: 2 masks',
        remedy='set ignore_index=11',
        examples=examples,
        **more,
    )


def sarif(*groups: FindingGroup) -> dict:
    report = Report(rules=tuple(RULES), groups=groups)
    return json.loads(report_sarif(report))


def test_a_result_for_each_file():
    log = sarif(group('SEG001', 'masks/a b.png', 'masks/ü.png'))
    assert log['version'] == '2.1.0'
    (run,) = log['runs']
    rules = run['tool']['driver']['rules']
    assert [each['id'] for each in rules] == list(RULES)
    assert len(run['results']) == 2
    for result, uri in zip(
        run['results'], ('masks/a%20b.png', 'masks/%C3%BC.png')
    ):
        assert result['level'] == 'error'
        assert rules[result['ruleIndex']]['id'] == result['ruleId']
        assert 'y=3, x=5' in result['message']['text']
        assert 'set ignore_index=11' in result['message']['text']
        (place,) = result['locations']
        found = place['physicalLocation']['artifactLocation']['uri']
        assert found == uri


def test_findings_about_no_file():
    (run,) = sarif(group('CFG001'))['runs']
    (result,) = run['results']
    assert 'locations' not in result
    assert '2 masks' in result['message']['text']


@pytest.mark.parametrize(
    ('path', 'uri'),
    [
        ('/x/a.png', 'file:///x/a.png'),
        ('s3://bucket/a.png', 's3://bucket/a.png'),
    ],
)
def test_uris(path, uri):
    (run,) = sarif(group('SEG001', path))['runs']
    location = run['results'][0]['locations'][0]['physicalLocation']
    assert location['artifactLocation']['uri'] == uri


def test_levels():
    levels = {
        rule['id']: rule['defaultConfiguration']['level']
        for rule in sarif()['runs'][0]['tool']['driver']['rules']
    }
    words = {
        Severity.ERROR: 'error',
        Severity.WARNING: 'warning',
        Severity.INFO: 'note',
    }
    assert levels == {each.id: words[each.severity] for each in RULES.values()}

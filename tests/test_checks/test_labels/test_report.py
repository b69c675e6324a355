"""The report: as data, in a terminal and as SARIF."""

import io
import json

import msgspec
import pytest
from rich.console import Console

from mmext.checks.findings import Finding, Location, Severity, sarif_result
from mmext.checks.labels.report import (
    FindingGroup,
    Report,
    print_report,
    report_json,
    report_sarif,
)
from mmext.checks.labels.rules import RULES
from mmext.checks.labels.totals import ClassCounts, SplitReport


def printed(function, *args, width: int = 100, **options) -> str:
    out = io.StringIO()
    function(*args, Console(file=out, width=width), **options)
    return out.getvalue()


def shown_group(severity: Severity, rule: str, **more) -> FindingGroup:
    example = Finding(
        rule=rule,
        severity=severity,
        message='m',
        remedy='r',
        location=Location(file='[red]a[/red].png', pixel=(3, 5)),
        value='11',
    )
    return FindingGroup(
        rule=rule,
        severity=severity,
        message=f'message of {rule}',
        remedy='do [this]',
        num_findings=4,
        examples=(example,),
        **more,
    )


def shown_report(**split) -> Report:
    groups = (
        shown_group(Severity.ERROR, 'SEG001'),
        shown_group(Severity.INFO, 'DUP003'),
    )
    counts = ClassCounts(label=0, name='road', **split)
    return Report(
        rules=('SEG001', 'DUP003'),
        splits=(
            SplitReport(
                split='train',
                task='semantic',
                num_samples=2,
                num_images=2,
                num_masks=2,
                num_boxes=0,
                num_annotated=0,
                classes=(counts,),
            ),
        ),
        groups=groups,
    )


def test_findings_the_worst_last():
    text = printed(print_report, shown_report(pixels=1234, masks=2))
    assert text.index('note DUP003') < text.index('error SEG001')
    assert '    - [red]a[/red].png: y=3, x=5: 11\n' in text
    assert 'and 3 more' in text
    assert 'remedy: do [this]' in text
    assert '1 error, 0 warnings, 1 note; 2 rules applied' in text


@pytest.mark.parametrize(
    ('rules', 'verdict'),
    [
        (
            ['SEG001', 'DET002', 'DUP004'],
            'Do not train with a.py yet: mend 2 errors: label out of range '
            '(SEG001) at [red]a[/red].png and box without area (DET002) at '
            '[red]a[/red].png; --fix DIR writes fixed copies where that is '
            'safe.',
        ),
        (
            ['DUP004'],
            'The labels of a.py can be trained with, but look at 1 warning '
            'first; 2 samples were checked.',
        ),
        (
            ['DUP003'],
            'The labels of a.py can be trained with: nothing is wrong with 2 '
            'samples.',
        ),
    ],
)
def test_the_first_line_says_what_to_do(rules, verdict):
    groups = tuple(
        shown_group(RULES[rule].severity, rule, num_files=1) for rule in rules
    )
    report = msgspec.structs.replace(shown_report(), groups=groups)
    lines = printed(print_report, report, name='a.py', width=500).splitlines()
    assert lines[0] == verdict
    assert lines[1] == '  train: 2 samples, 2 images, 2 label maps, 1 class'


def group(rule: str, *files: str, **more) -> FindingGroup:
    examples = tuple(
        Finding(
            rule=rule,
            severity=RULES[rule].severity,
            message='label 11 is out of range',
            remedy='r',
            location=Location(file=file, pixel=(3, 5)),
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
    return json.loads(report_sarif(report, 'configs/a.py'))


@pytest.mark.parametrize(
    ('path', 'uri', 'base'),
    [
        ('masks/a b.png', 'masks/a%20b.png', '%SRCROOT%'),
        ('./masks/../a.png', 'a.png', '%SRCROOT%'),
        ('here/a.png', 'a.png', '%SRCROOT%'),
        ('/x/a.png', 'x/a.png', 'ROOT'),
        ('../data/a.png', 'data/a.png', 'ROOT'),
        ('s3://bucket/b/a.png', 'b/a.png', 's3://bucket/'),
        ('a\udcff.png', 'a%FF.png', '%SRCROOT%'),
    ],
)
def test_uris_are_relative(path, uri, base, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = path.replace('here', str(tmp_path))
    (run,) = sarif(group('SEG001', path))['runs']
    location = run['results'][0]['locations'][0]['physicalLocation']
    artifact = location['artifactLocation']
    assert artifact['uriBaseId'] == base
    if base == 'ROOT' and path.startswith('..'):
        assert artifact['uri'].endswith(uri)
    else:
        assert artifact['uri'] == uri
    bases = run.get('originalUriBaseIds', {})
    assert set(bases) == {base} - {'%SRCROOT%'}
    if bases:
        wanted = {'ROOT': 'file:///'}.get(base, base)
        assert bases[base] == {'uri': wanted}


def test_what_code_scanning_asks_for():
    """The fields that GitHub's documentation calls required."""
    (run,) = sarif(
        group('SEG001', 'a.png', 'a.png', 'b.png'), group('CFG001')
    )['runs']
    for rule in run['tool']['driver']['rules']:
        for name in ('shortDescription', 'fullDescription', 'help'):
            assert rule[name]['text']
        assert len(rule['fullDescription']['text']) <= 1024
    for result in run['results']:
        assert result['message']['text']
        (location,) = result['locations']
        location = location['physicalLocation']
        assert '://' not in location['artifactLocation']['uri']
        assert not location['artifactLocation']['uri'].startswith(('/', '..'))
        region = location['region']
        assert set(region) == {
            *('startLine', 'startColumn', 'endLine', 'endColumn')
        }
        assert min(region.values()) >= 1
    prints = [
        item['partialFingerprints']['primaryLocationLineHash']
        for item in run['results']
    ]
    assert len(set(prints)) == 4
    assert [item.split(':')[1] for item in prints] == ['1', '2', '1', '1']


def test_fingerprints_do_not_go_by_lines(tmp_path):
    """A finding stays itself where lines above it are added."""

    def printed(text: str, line: int) -> dict:
        (tmp_path / 'a.py').write_text(text)
        location = Location(file=str(tmp_path / 'a.py'), line=line, key='x.y')
        return sarif_result('CFG001', Severity.ERROR, 'm', location)

    one = printed('x = dict(y=1)\n', 1)
    two = printed('# new\n\nx = dict(y=1)\n', 3)
    assert one['partialFingerprints'] == two['partialFingerprints']
    regions = [
        value['locations'][0]['physicalLocation']['region']
        for value in (one, two)
    ]
    assert [value['startLine'] for value in regions] == [1, 3]
    assert {value['endColumn'] for value in regions} == {
        len('x = dict(y=1)') + 1
    }


def test_json_of_an_example():
    """The form of version 1: file and location stand beside the message."""
    report = Report(groups=(group('SEG001', 'a.png'), group('CFG001')))
    (first, second) = json.loads(report_json(report))['groups']
    assert first['examples'] == [
        {
            'rule': 'SEG001',
            'severity': 2,
            'message': 'label 11 is out of range',
            'remedy': 'r',
            'file': 'a.png',
            'position': 'y=3, x=5',
        }
    ]
    assert 'examples' not in second

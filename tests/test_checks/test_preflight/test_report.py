"""The report: as data, in a terminal and as a page."""

import io
import json

import msgspec
import pytest
import torch
from helpers.preflight_reports import sample_report
from rich.console import Console

import mmext
from mmext.checks.findings import Finding, Location, Severity
from mmext.checks.preflight.report import (
    print_report,
    report_html,
    report_json,
    report_sarif,
)


def finding(rule: str, severity: Severity, key: str = '') -> Finding:
    return Finding(
        rule=rule,
        severity=severity,
        message='m',
        remedy='r',
        location=Location(key=key),
    )


def test_json():
    report = sample_report(verdicts=None, world=None)
    written = json.loads(report_json(report))
    assert written['schema_version'] == 1
    assert written['versions'].items() >= {
        ('mmext', mmext.__version__),
        ('torch', torch.__version__),
    }
    first = written['findings'][0]
    assert (first['rule'], first['severity'], first['line']) == (
        'DDP001',
        2,
        12,
    )
    assert (first['key'], first['file']) == ('model.head', 'configs/a.py')
    assert first['options'] == {'find_unused_parameters': True}
    # What is not known takes no room.
    assert list(written['findings'][1]) == [
        'rule',
        'severity',
        'message',
        'remedy',
    ]
    # JSON has no NaN.
    assert written['batches'][0]['losses'] == {
        'loss_cls': 1.5,
        'loss_bbox': None,
    }
    assert report.worst() is Severity.ERROR
    assert sample_report(findings=()).worst() is None


def test_sarif(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (run,) = json.loads(report_sarif(sample_report()))['runs']
    rules = run['tool']['driver']['rules']
    assert [rule['id'] for rule in rules] == ['DDP001', 'KEY001']
    locations = []
    for result in run['results']:
        assert rules[result['ruleIndex']]['id'] == result['ruleId']
        (location,) = result['locations']
        location = location['physicalLocation']
        uri = location['artifactLocation']['uri']
        locations.append(
            (uri, location['region']['startLine'], result['level'])
        )
    # The one that is about no key is located at the config.
    assert locations == [
        ('configs/a.py', 12, 'error'),
        ('configs/a.py', 1, 'note'),
    ]
    prints = {str(item['partialFingerprints']) for item in run['results']}
    assert len(prints) == 2


def text_of(report, width: int = 200, **options) -> str:
    out = io.StringIO()
    print_report(report, Console(file=out, width=width), **options)
    return out.getvalue()


def test_terminal_has_all_parts():
    text = text_of(sample_report(warned=('UserWarning: old',)), verbose=True)
    for part in (
        'model: detection, 1,234 parameter tensors to train (5.6 M values)',
        '  note: weights are random',
        'loss_cls 1.5, loss_bbox nan',
        'IndexError in step 1 (forward): out of range',
        'as configured',
        'recommended',
        'a parameter is unused with empty batches',
        'real processes agree: error in step 2 (predicted: error)',
        'incomplete: labels were not checked: no data',
        'warned meanwhile: UserWarning: old',
        'error DDP001 configs/a.py:12: 8 parameters have no gradient <script>',
        'key: model.head',
        'names: head.0.weight, ',
        'head.6.weight and head.7.weight',
        'with batches: empty',
        'remedy: use them',
        'fix: find_unused_parameters = True (python tools/preflight.py --fix '
        'writes it)',
        'note KEY001: nobody reads [this]',
        '1 error, 0 warnings, 1 note; 1 with a fix, which '
        'python tools/preflight.py --fix writes',
    ):
        assert part in text
    assert 'head.5.weight and 2 more (--verbose names all)' in text_of(
        sample_report()
    )


def test_the_verdict_is_first_and_the_worst_is_last():
    lines = text_of(sample_report()).splitlines()
    assert lines[0] == (
        'Do not train with configs/a.py yet: mend the error: a parameter '
        'never gets a gradient (DDP001) at configs/a.py:12; '
        'python tools/preflight.py configs/a.py --fix can mend 1 of 1.'
    )
    text = '\n'.join(lines)
    assert text.index('KEY001') < text.index('error DDP001')
    assert lines[-1].startswith('1 error')


@pytest.mark.parametrize(
    ('change', 'verdict'),
    [
        (
            {'not_done': ()},
            'configs/a.py can be trained: steps with normal batches went '
            'through, and nothing is wrong in what was checked.',
        ),
        (
            {'findings': (finding('KEY002', Severity.WARNING),)},
            'configs/a.py can be trained, but look at 1 warning first: steps '
            'with normal batches went through; see below what could not be '
            'checked.',
        ),
        (
            {'batches': (), 'not_done': ('no data', 'x')},
            'Not known whether configs/a.py can be trained: no data.',
        ),
    ],
)
def test_verdicts_without_errors(change, verdict):
    report = sample_report(**{'findings': (), **change})
    assert text_of(report).splitlines()[0] == verdict


def test_tables_only_where_they_matter():
    fine = sample_report(findings=(), batches=sample_report().batches[:1])
    text = text_of(fine)
    assert 'loss_cls' not in text
    assert 'as configured' not in text
    text = text_of(fine, verbose=True)
    assert 'loss_cls' in text
    assert 'as configured' in text


def test_both_ways_are_shown():
    first = msgspec.structs.replace(
        sample_report().findings[0], other_way='set the flag; cost: a walk'
    )
    text = text_of(sample_report(findings=(first,)))
    assert '    either: use them\n    or: set the flag; cost: a walk' in text
    assert '    fix: find_unused_parameters = True (' in text


def test_page_has_all_parts():
    page = report_html(sample_report()).decode()
    for part in (
        '<title>Preflight: 1 error, 1 note</title>',
        'configs/a.py:12',
        'head.7.weight',
        'find_unused_parameters = True',
        'loss_cls\xa01.5, loss_bbox\xa0nan',
        'IndexError in step 1 (forward): out of range',
        'recommended',
        'a parameter is unused with empty batches',
        'Real processes agree: error in step 2 (predicted: error)',
        'labels were not checked: no data',
        'weights are random',
    ):
        assert part in page

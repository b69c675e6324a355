"""The report: as data, in a terminal and as a page."""

import io
import json

from helpers.preflight_reports import sample_report
from rich.console import Console

from mmext.ddp import StepUsage, UnusedParameter, UnusedReason
from mmext.ddp.ready_gradients import ReadyGradient
from mmext.findings import Finding, Location, Severity
from mmext.preflight.dry_run.facts import Crash, DryRun, LossTerm, StepRecord
from mmext.preflight.report import (
    make_batch_reports,
    print_report,
    report_html,
    report_json,
    sort_findings,
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


def test_order():
    findings = [
        finding('B001', Severity.INFO),
        finding('B001', Severity.ERROR, 'b'),
        finding('B001', Severity.ERROR, 'a'),
        finding('A001', Severity.WARNING),
    ]
    assert [(f.rule, f.key) for f in sort_findings(findings)] == [
        ('B001', 'a'),
        ('B001', 'b'),
        ('A001', ''),
        ('B001', ''),
    ]


def test_batches():
    use = UnusedParameter(UnusedReason.NEVER_USED)
    usage = StepUsage(
        ('a', 'b'), (ReadyGradient('a', 0),), frozenset('a'), unused={'b': use}
    )
    losses = (
        LossTerm('loss', 2.0, True, True, True),
        LossTerm('acc', 50.0, True, False, False),
    )
    step = StepRecord(kind='normal', step=0, usage=usage, losses=losses)
    crash = Crash('empty', 0, 'forward', 'IndexError', 'out of range')
    proof = DryRun(steps={'normal': (step,), 'empty': ()}, crashes=(crash,))
    normal, empty = make_batch_reports(proof)
    assert (normal.steps, normal.losses, normal.unused) == (1, {'loss': 2}, 1)
    assert (empty.steps, empty.error) == (
        0,
        'IndexError in step 1 (forward): out of range',
    )


def text_of(report) -> str:
    out = io.StringIO()
    print_report(report, Console(file=out, width=200))
    return out.getvalue()


def test_terminal_has_all_parts():
    text = text_of(sample_report())
    for part in (
        'preflight of configs/a.py: detection, 1,234 trainable parameters',
        'weights are random',
        'loss_cls 1.5, loss_bbox nan',
        'IndexError in step 1 (forward): out of range',
        'as configured',
        'recommended',
        'a search over 120 nodes',
        'real processes agree: error in step 2 (predicted: error)',
        'error DDP001 8 parameters have no gradient <script>',
        'model.head (configs/a.py:12)',
        'head.5.weight and 2 more',
        'with batches: empty',
        'remedy: use them',
        'nobody reads [this]',
        'not done labels were not checked: no data',
        '1 error, 0 warnings, 1 note',
    ):
        assert part in text


def test_the_worst_is_last():
    text = text_of(sample_report())
    assert text.index('KEY001') < text.index('DDP001')


def test_without_a_model():
    text = text_of(
        sample_report(batches=(), verdicts=None, world=None, task='')
    )
    assert 'trainable' not in text
    assert 'what the model wrapper would do' not in text


def test_page_has_all_parts():
    page = report_html(sample_report()).decode()
    for part in (
        '<title>Preflight: 1 error, 1 note</title>',
        'configs/a.py:12',
        'head.7.weight',
        'find_unused_parameters = True',
        'loss_cls 1.5, loss_bbox nan',
        'IndexError in step 1 (forward): out of range',
        'recommended',
        'a search over 120 nodes',
        'Real processes agree: error in step 2 (predicted: error)',
        'labels were not checked: no data',
        'weights are random',
    ):
        assert part in page


def test_texts_of_the_page_are_escaped():
    page = report_html(sample_report()).decode()
    assert 'no gradient &lt;script&gt;' in page
    assert page.count('<script>') == 1
    assert "default-src 'none'" in page.replace('&#39;', "'")


def test_page_without_findings():
    page = report_html(
        sample_report(findings=(), verdicts=None, world=None, batches=())
    ).decode()
    assert 'Nothing was found.' in page
    assert 'id="verdicts"' not in page

"""A preflight as data."""

import json

from preflight_reports import sample_report

from mmext.preflight.findings import PreflightFinding, Severity
from mmext.preflight.proof.facts import Crash, LossTerm, Proof, StepProof
from mmext.preflight.report import (
    make_batch_reports,
    report_json,
    sort_findings,
)
from mmext.preflight.step_usage import (
    Firing,
    ParameterUse,
    StepUsage,
    UnusedReason,
)


def finding(rule: str, severity: Severity, key: str = '') -> PreflightFinding:
    return PreflightFinding(
        rule=rule, severity=severity, message='m', remedy='r', key=key
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
    use = ParameterUse(UnusedReason.NEVER_USED)
    usage = StepUsage(
        ('a', 'b'), (Firing('a', 0),), frozenset('a'), unused={'b': use}
    )
    losses = (
        LossTerm('loss', 2.0, True, True, True),
        LossTerm('acc', 50.0, True, False, False),
    )
    step = StepProof(kind='normal', step=0, usage=usage, losses=losses)
    crash = Crash('empty', 0, 'forward', 'IndexError', 'out of range')
    proof = Proof(steps={'normal': (step,), 'empty': ()}, crashes=(crash,))
    normal, empty = make_batch_reports(proof)
    assert (normal.steps, normal.losses, normal.unused) == (1, {'loss': 2}, 1)
    assert (empty.steps, empty.error) == (
        0,
        'IndexError in step 1 (forward): out of range',
    )

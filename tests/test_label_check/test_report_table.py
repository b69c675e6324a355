"""The report in a terminal."""

import io

from rich.console import Console

from mmext.label_check import Finding, Severity
from mmext.label_check.groups import FindingGroup
from mmext.label_check.report import ClassCounts, Report, SplitReport
from mmext.label_check.report_table import print_report, print_rules
from mmext.label_check.rules import RULES, describe_rules


def printed(function, *args) -> str:
    out = io.StringIO()
    function(*args, Console(file=out, width=100))
    return out.getvalue()


def group(severity: Severity, rule: str, **more) -> FindingGroup:
    example = Finding(
        rule=rule,
        severity=severity,
        message='m',
        remedy='r',
        file='[red]a[/red].png',
        place='y=3, x=5',
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


def report(**split) -> Report:
    groups = (group(Severity.ERROR, 'SEG001'), group(Severity.INFO, 'DUP003'))
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
                classes=(counts,),
            ),
        ),
        groups=groups,
    )


def test_findings_the_worst_last():
    text = printed(print_report, report(pixels=1234, masks=2))
    assert text.index('info DUP003') < text.index('error SEG001')
    assert '[red]a[/red].png, y=3, x=5, 11' in text
    assert 'and 3 more' in text
    assert 'remedy: do [this]' in text
    assert '1 error, 0 warnings, 1 note; 2 rules applied' in text


def test_classes_with_pixels_or_objects():
    text = printed(print_report, report(pixels=1234, masks=2))
    assert '1,234' in text
    assert 'pixels' in text
    text = printed(print_report, report(boxes=77, images=2))
    assert '77' in text
    assert 'objects' in text


def test_rules():
    text = printed(print_rules, describe_rules())
    for rule_id in RULES:
        assert rule_id in text

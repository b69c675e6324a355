"""A preflight in the terminal."""

import io

from preflight_reports import sample_report
from rich.console import Console

from mmext.preflight.report_table import print_report


def text_of(report) -> str:
    out = io.StringIO()
    print_report(report, Console(file=out, width=200))
    return out.getvalue()


def test_all_parts():
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

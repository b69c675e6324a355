"""A preflight as a page."""

from preflight_reports import sample_report

from mmext.preflight.report_html import report_html


def test_all_parts():
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


def test_texts_are_escaped():
    page = report_html(sample_report()).decode()
    assert 'no gradient &lt;script&gt;' in page
    assert page.count('<script>') == 1
    assert "default-src 'none'" in page.replace('&#39;', "'")


def test_nothing_found():
    page = report_html(
        sample_report(findings=(), verdicts=None, world=None, batches=())
    ).decode()
    assert 'Nothing was found.' in page
    assert 'id="verdicts"' not in page

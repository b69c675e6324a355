import dataclasses

from mmext.checks.ddp import (
    StepUsage,
    SyncSettings,
    UnusedParameter,
    UnusedReason,
)
from mmext.checks.ddp.ready_gradients import ReadyGradient
from mmext.engine.distributed.report import (
    RankReport,
    format_sync_report,
)

PLAIN = SyncSettings()


def usage(used, unused=(), reason=UnusedReason.NEVER_USED, **kwargs):
    return StepUsage(
        names=(*used, *unused),
        ready=tuple(ReadyGradient(name, 0) for name in used),
        reachable=frozenset(used),
        unused={
            name: UnusedParameter(reason, 'net, a.py:3 in forward', '')
            if reason is not UnusedReason.NEVER_USED
            else UnusedParameter(reason)
            for name in unused
        },
        **kwargs,
    )


def test_reason_and_location_are_reported():
    report = RankReport(0, usage('a', 'b', UnusedReason.NO_GRAD), ('b',))
    text = format_sync_report([report], PLAIN)
    assert 'used under no_grad (net, a.py:3 in forward)\n    b' in text


def test_long_lists_are_cut_and_counted():
    names = [f'layer{i}.weight' for i in range(20)]
    text = format_sync_report(
        [RankReport(0, usage('a', names), tuple(names))], PLAIN
    )
    assert '20 parameters got no gradient' in text
    assert 'layer11.weight' in text
    assert 'layer12.weight' not in text
    assert '... and 8 more' in text


def test_ready_twice_names_the_module():
    step = dataclasses.replace(
        usage('a'),
        names=('a', 'b'),
        ready=(ReadyGradient('a', 0), ReadyGradient('b', 1)),
        reentrant={'b': 'block, net.py:9 in inner'},
    )
    report = RankReport(0, step, error='Expected to mark a variable ready')
    text = format_sync_report([report], SyncSettings(True))
    assert (
        '1 parameter marked ready twice by a reentrant checkpoint: block, '
        'net.py:9 in inner\n    b' in text
    )
    assert '\nfind_unused_parameters = False' in text


def test_the_silent_case_is_called_by_its_name():
    step = StepUsage(
        ('a', 'b'),
        (ReadyGradient('a', 0), ReadyGradient('b', 1), ReadyGradient('b', 2)),
        frozenset('a'),
        reentrant={'b': 'block'},
    )
    text = format_sync_report([RankReport(0, step, twice=('b',))], PLAIN)
    assert 'PyTorch would not have noticed' in text
    loud = dataclasses.replace(step, ready=(*step.ready[1:], step.ready[0]))
    text = format_sync_report([RankReport(0, loud, twice=('b',))], PLAIN)
    assert 'PyTorch would not have noticed' not in text


def test_outside_of_forward():
    step = StepUsage(
        ('a', 'b'),
        (ReadyGradient('b', 0), ReadyGradient('a', 0)),
        frozenset('a'),
    )
    text = format_sync_report([RankReport(0, step)], SyncSettings(True))
    assert 'used outside of forward' in text


def test_static_graph():
    report = RankReport(0, usage('ab'), twice=('b',))
    text = format_sync_report([report], SyncSettings(False, True))
    assert 'used in this step, but not, or less often, in the first' in text


def test_without_a_trace_names_are_there_and_why():
    report = RankReport(
        0, None, ('b',), trace_error='no memory for a second run'
    )
    text = format_sync_report([report], PLAIN)
    assert 'got no gradient: reason not known\n    b' in text
    assert 'no memory for a second run' in text


def test_an_error_without_findings_is_passed_on():
    report = RankReport(0, usage('ab'), error='RuntimeError: odd')
    assert 'PyTorch says: RuntimeError: odd' in format_sync_report(
        [report], PLAIN
    )

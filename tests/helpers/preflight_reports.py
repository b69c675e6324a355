"""Reports of preflights that look like real ones."""

from types import SimpleNamespace

from mmext.checks.findings import Finding, Location, Severity
from mmext.checks.preflight.report import BatchReport, PreflightReport

_ROWS = (
    SimpleNamespace(
        checkpointing='as configured',
        find_unused_parameters=False,
        static_graph=False,
        outcome='error in step 2',
        works=False,
        current=True,
        recommended=False,
    ),
    SimpleNamespace(
        checkpointing='as configured',
        find_unused_parameters=True,
        static_graph=False,
        outcome='ok',
        works=True,
        current=False,
        recommended=True,
    ),
)
_VERDICTS = SimpleNamespace(
    rows=_ROWS,
    reason='a parameter is unused with empty batches',
)
_FINDINGS = (
    Finding(
        rule='DDP001',
        severity=Severity.ERROR,
        message='8 parameters have no gradient <script>',
        remedy='use them',
        location=Location(key='model.head', file='configs/a.py', line=12),
        names=tuple(f'head.{i}.weight' for i in range(8)),
        batches=('empty',),
        options={'find_unused_parameters': True},
    ),
    Finding(
        rule='KEY001',
        severity=Severity.INFO,
        message='nobody reads [this]',
        remedy='remove it',
    ),
)
_BATCHES = (
    BatchReport(
        kind='normal',
        steps=2,
        losses={'loss_cls': 1.5, 'loss_bbox': float('nan')},
        unused=0,
    ),
    BatchReport(
        kind='empty',
        steps=0,
        losses={},
        unused=0,
        error='IndexError in step 1 (forward): out of range',
    ),
)


def sample_report(**more) -> PreflightReport:
    """A report with something in each of its parts."""
    given = {
        'config': 'configs/a.py',
        'task': 'detection',
        'trainable': 1234,
        'values': 5_600_000,
        'batches': _BATCHES,
        'verdicts': _VERDICTS,
        'world': SimpleNamespace(
            agrees=True, observed='error in step 2', predicted='error'
        ),
        'notes': ('weights are random',),
        'not_done': ('labels were not checked: no data',),
        'findings': _FINDINGS,
    }
    return PreflightReport(**{**given, **more})

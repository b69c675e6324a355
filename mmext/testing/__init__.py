"""What tests of other projects can use: a config gated by its preflight."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config

from ..checks.findings import Severity
from ..checks.preflight import PreflightReport, check_config

__all__ = [
    'assert_ddp_clean',
]


def assert_ddp_clean(
    cfg: Config | str | Path, *, allow: Sequence[str] = (), **options: Any
) -> PreflightReport:
    """Assert that a config will train on several GPUs.

    For the tests of projects that inherit configs, or write their own: the
    model is built and trained for some steps on the CPU with made-up
    samples, no weights are loaded, and no process group is needed.

    Args:
        cfg: A config or its file.
        allow: Ids of rules whose errors are accepted.
        **options: Of :func:`~mmext.checks.preflight.check_config`, such as
            ``cfg_options``, ``batch_size`` and ``image_size``; by default
            without labels and without a training in small.

    Returns:
        The report, for more assertions.

    Raises:
        AssertionError: If the preflight finds an error, or cannot run a
            step. It names each finding, its key and remedy.
        FileNotFoundError: If there is no such config.

    Examples:
        >>> import mmext
        >>> path = mmext.config_path('pidnet/pidnet_small_shapes.py')
        >>> assert_ddp_clean(path, batches=['normal']).task
        'semantic'
    """
    report = check_config(
        cfg,
        **{
            'batches': ('normal', 'empty'),
            'miniature': 0.0,
            'labels': False,
            **options,
        },
    )
    wrong = [
        finding
        for finding in report.findings
        if finding.severity >= Severity.ERROR and finding.rule not in allow
    ]
    lines = [
        f'{finding.rule} {finding.message} [{finding.key or "config"}] '
        f'remedy: {finding.remedy}'
        for finding in wrong
    ]
    if not any(batch.steps for batch in report.batches):
        lines += report.not_done or ['no step could be run']
    if lines:
        listed = '\n  '.join(lines)
        raise AssertionError(
            f'{report.config} is not sound for several processes:\n  {listed}'
        )
    return report

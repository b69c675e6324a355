"""Apply the lint rules to a config."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config

from ...utils.config_nodes import place
from ..config_places import KeyPlace, key_place
from ..findings import PreflightFinding
from .labels import config_label_findings
from .registry import LINT_RULES, LintRule, Note
from .subject import Subject

__all__ = ['lint_config']


def lint_config(
    cfg: Config,
    *,
    file: str | Path | None = None,
    model: Any = None,
    dataset_classes: Mapping[str, Sequence[str]] | None = None,
    environ: Mapping[str, str] | None = None,
    world: int | None = None,
) -> list[PreflightFinding]:
    """Find what is wrong in a config, without building anything.

    Args:
        cfg: The config. It is not changed; packages that its components are
            registered in may be imported.
        file: Where the config was read from; by default what it says.
        model: Its model, where one was built: its own numbers of classes
            count then.
        dataset_classes: For ``'train'``, ``'val'`` and ``'test'``, names of
            the classes of the data, where they are known better than from
            the config.
        environ: Environment variables; by default those of this process.
        world: How many processes are going to train, where it is known.

    Returns:
        Findings, the worst first, then by rule and in the config's order.

    Examples:
        >>> cfg = Config({'model': {}, 'trian_cfg': {'max_epochs': 3}})
        >>> [(each.rule, each.names) for each in lint_config(cfg)]
        [('KEY001', ('train_cfg',))]
    """
    subject = Subject(
        cfg,
        file=None if file is None else str(file),
        model=model,
        dataset_classes=dataset_classes,
        environ=environ,
        world=world,
    )
    found = [
        _finding(note, rule, subject)
        for rule in LINT_RULES.values()
        for note in rule.check(subject)
    ]
    found += config_label_findings(subject)
    return sorted(found, key=lambda each: (-each.severity, each.rule))


def _finding(note: Note, rule: LintRule, subject: Subject) -> PreflightFinding:
    key = place(note.path)
    where = key_place(subject.file, key) if key else KeyPlace()
    severity = rule.severity if note.severity is None else note.severity
    return PreflightFinding(
        rule=rule.id,
        severity=severity,
        message=note.message,
        remedy=note.remedy or rule.remedy,
        key=key,
        file=where.file,
        line=where.line,
        names=note.names,
        options=note.options,
    )

"""What the label checker says of a config, and of its labels."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config

from ...config import (
    check_data_paths,
    ignored_value,
    key_location,
    read_heads,
    read_ignore_locations,
)
from ...findings import Finding, Location, Severity
from ...labels import (
    Expectations,
    FactStore,
    FindingGroup,
    check_sources,
)
from ...labels.rules import RULES
from ...labels.sources import compares_reduction, splits_of_config
from .subject import SPLITS, Subject, as_mapping, kind_of

# Rules of the labels -> those of the config that say the same.
_SAME = {
    'CFG003': ('HEAD001', 'HEAD002'),
    'CFG008': ('HEAD003',),
    'CLS005': ('EVAL003',),
}
_MISNAMED = {'HEAD003', 'HEAD005', 'HEAD006'}


def _expectations(subject: Subject) -> Iterator[Expectations]:
    """What each split is read as, without building it."""
    heads = read_heads(subject.top.get('model') or {}, subject.scope)
    semantic = any(
        'loss_decode' in where for head in heads for where, _ in head.losses
    )
    locations = read_ignore_locations(subject.top)
    for split in SPLITS:
        if not as_mapping(subject.top.get(f'{split}_dataloader')):
            continue
        classes = subject.classes(split)
        reduces, own = _reduces(subject, split)
        yield Expectations(
            split=split,
            task='semantic' if semantic else 'detection',
            num_classes=heads[0].num_classes if heads else len(classes),
            classes=classes,
            ignore_index=ignored_value(heads, locations, 255),
            reduce_zero_label=reduces,
            dataset_reduces=own,
            ignore_locations=locations,
            heads=heads,
        )


def _reduces(subject: Subject, split: str) -> tuple[bool, bool | None]:
    """What the first loader does, and its data set, if both are compared."""
    for section in subject.below(f'{split}_dataloader', 'dataset'):
        dataset = section.parent
        if kind_of(section.cfg) != 'LoadAnnotations' or dataset is None:
            continue
        kind = subject.component(dataset)
        own = subject.setting(dataset, 'reduce_zero_label')
        loader = section.cfg.get('reduce_zero_label')
        reduces = bool(own if loader is None else loader)
        return reduces, own if compares_reduction(kind) else None
    return False, None


def config_label_findings(subject: Subject) -> Iterator[Finding]:
    """Findings of the label checker's rules for which a config is enough."""
    expected = list(_expectations(subject))
    for rule in RULES.values() if expected else ():
        for finding in rule.check((), expected) if rule.in_preflight else ():
            severity = finding.severity
            if rule.id == 'CFG007' and subject.scope == 'mmpretrain':
                # Folders and lists number the classes there; ImageNet has a
                # crane that is a bird, and one that is a machine.
                severity = Severity.INFO
            yield rule.finding(
                finding.message,
                severity=severity,
                remedy=finding.remedy,
                key=finding.key,
            )


def label_findings(
    cfg: Config,
    *,
    splits: Sequence[str],
    store: Path,
) -> list[Finding]:
    """Check the labels of a config: one finding for each group, worst first.

    ``names`` are files that show it. Raises FileNotFoundError if data are
    missing, and ValueError if there is none of the splits. What was read of
    the data is kept in ``store`` for the next time.
    """
    present = [
        split for split in splits if as_mapping(cfg.get(f'{split}_dataloader'))
    ]
    check_data_paths(cfg, present)
    sources = splits_of_config(cfg, splits)
    store.parent.mkdir(parents=True, exist_ok=True)
    with FactStore(store) as facts:
        report = check_sources(sources, facts)
    return [_of_group(group, cfg) for group in report.groups]


def without_known(
    findings: Sequence[Finding], known: Sequence[Finding]
) -> list[Finding]:
    """Findings of the labels that those of the config do not say already.

    The label checker looks at the config, too, and classes that are misnamed
    in it are others to all that looks at the data.
    """
    locations = {(finding.rule, finding.key) for finding in known}
    joins = [finding for finding in known if finding.rule == 'DATA009']
    misnamed = _MISNAMED & {finding.rule for finding in known} or any(
        'classes' in join.names for join in joins
    )
    new = []
    for finding in findings:
        same = _SAME.get(finding.rule, ())
        said = {(rule, finding.key) for rule in (finding.rule, *same)}
        refused = finding.rule == 'READ001' and any(
            join.key.startswith(finding.key) for join in joins
        )
        if not (said & locations or (same and misnamed) or refused):
            new.append(finding)
    return new


def _of_group(group: FindingGroup, cfg: Config) -> Finding:
    example: Any = group.examples[0] if group.examples else None
    key = ''
    if example is not None and example.key and not example.file:
        key = example.key
    elif example is not None and example.split:
        key = f'{example.split.partition("[")[0]}_dataloader.dataset'
    where = key_location(cfg, key)
    return Finding(
        rule=group.rule,
        # What a training cannot read, building its data sets shows.
        severity=Severity.WARNING
        if group.rule == 'READ001'
        else group.severity,
        message=group.message,
        remedy=group.remedy,
        location=Location(key=key, file=where.file, line=where.line),
        names=tuple(
            finding.file for finding in group.examples if finding.file
        ),
    )

"""What the label checker says of a config, and of its labels."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from mmengine.config import Config

from ...label_check.check import check_labels
from ...label_check.expectations import Expectations, HeadFacts
from ...label_check.groups import FindingGroup
from ...label_check.rules import RULES
from ...label_check.sources.config_walk import read_heads, read_ignore_places
from ...label_check.store import FactStore
from ...utils.config_nodes import place
from ..config_places import key_place
from ..findings import PreflightFinding, Severity
from .subject import SPLITS, Subject, as_mapping, plain_name

__all__ = ['config_label_findings', 'label_findings']

# Rules for which the config is enough. CFG003 and CFG008 need the data sets
# built; HEAD001 to HEAD003 ask the same of the config.
_OF_CONFIG = ('CFG001', 'CFG002', 'CFG004', 'CFG005', 'CFG007')
_DEFAULT_IGNORE = 255
# Heads that have one weight more, for masks of no class.
_MASK_HEADS = (
    'MaskFormerHead',
    'Mask2FormerHead',
    'SideAdapterCLIPHead',
)
# Only data that are padded have such pixels: this is not known here.
_SEVERITIES = {'CFG004': Severity.WARNING}


def _expectations(subject: Subject) -> list[Expectations]:
    """What each split is read as, without building it."""
    heads = tuple(_heads(subject))
    semantic = any(
        'loss_decode' in where for head in heads for where, _ in head.losses
    )
    model = as_mapping(subject.top.get('model'))
    preprocessor = as_mapping(model.get('data_preprocessor'))
    ignored = [
        each.ignore_index for each in heads if each.ignore_index is not None
    ]
    found = []
    for split in SPLITS:
        if not as_mapping(subject.top.get(f'{split}_dataloader')):
            continue
        classes = subject.classes(split)
        found.append(
            Expectations(
                split=split,
                task='semantic' if semantic else 'detection',
                num_classes=heads[0].num_classes if heads else len(classes),
                classes=classes,
                ignore_index=ignored[0] if ignored else _DEFAULT_IGNORE,
                reduce_zero_label=_reduces(subject, split),
                seg_pad_val=preprocessor.get('seg_pad_val'),
                ignore_places=read_ignore_places(subject.top),
                heads=heads,
            )
        )
    return found


def _heads(subject: Subject) -> Iterator[HeadFacts]:
    kinds = {
        place(section.path): plain_name(section.cfg.get('type'))
        for section in subject.below('model')
    }
    for head in read_heads(subject.top.get('model') or {}):
        weights = head.class_weights
        if kinds.get(head.place) in _MASK_HEADS:
            weights = ()
        yield msgspec.structs.replace(head, class_weights=weights)


def _reduces(subject: Subject, split: str) -> bool:
    for section in subject.below(f'{split}_dataloader', 'dataset'):
        if plain_name(section.cfg.get('type')) == 'LoadAnnotations':
            return bool(section.cfg.get('reduce_zero_label'))
    return False


def config_label_findings(subject: Subject) -> Iterator[PreflightFinding]:
    """Findings of the label checker's rules for configs.

    Args:
        subject: The config.

    Yields:
        Values to ignore that differ, lengths of ``class_weight``, classes
        that are named twice; with the ids of
        :mod:`mmext.label_check.rules.config_lint`.
    """
    expected = _expectations(subject)
    for rule_id in _OF_CONFIG if expected else ():
        for each in RULES[rule_id].check((), expected):
            where = key_place(subject.file, each.place)
            yield PreflightFinding(
                rule=rule_id,
                severity=_severity(rule_id, each.severity, subject.scope),
                message=each.message,
                remedy=each.remedy,
                key=each.place,
                file=where.file,
                line=where.line,
            )


def _severity(rule_id: str, severity: Severity, scope: str) -> Severity:
    """How bad it is where only the config is known."""
    if rule_id == 'CFG007' and scope == 'mmpretrain':
        # Folders and lists number the classes there; ImageNet has a crane
        # that is a bird, and one that is a machine.
        return Severity.INFO
    return _SEVERITIES.get(rule_id, severity)


def label_findings(
    cfg: Config,
    *,
    splits: Sequence[str] = ('train', 'val'),
    store: str | Path | None = None,
) -> list[PreflightFinding]:
    """Check the labels of a config, and give what is wrong as findings.

    Args:
        cfg: The config; its data must be there.
        splits: Those to check.
        store: File that keeps what was read, for the next time; None to
            keep nothing.

    Returns:
        One finding for each group of the label checker's report, the worst
        first; ``names`` are files that show it.

    Raises:
        FileNotFoundError: If data of the config are missing.
        ValueError: If the config has none of the splits.
    """
    # Not at the top: these load the hosts.
    from ...datasets import check_data_paths
    from ...label_check.sources.config_source import splits_of_config

    present = [
        each for each in splits if as_mapping(cfg.get(f'{each}_dataloader'))
    ]
    check_data_paths(cfg, present)
    sources = splits_of_config(cfg, splits)
    with TemporaryDirectory(prefix='mmext_') as folder:
        path = Path(store or f'{folder}/facts.sqlite')
        path.parent.mkdir(parents=True, exist_ok=True)
        with FactStore(path) as facts:
            report = check_labels(sources, facts)
    return [_of_group(group, cfg) for group in report.groups]


def _of_group(group: FindingGroup, cfg: Config) -> PreflightFinding:
    example: Any = group.examples[0] if group.examples else None
    split = example.split.partition('[')[0] if example else ''
    key = f'{split}_dataloader.dataset' if split else ''
    if example is not None and example.place and not example.file:
        key = example.place
    where = key_place(cfg, key)
    return PreflightFinding(
        rule=group.rule,
        severity=Severity(group.severity),
        message=group.message,
        remedy=group.remedy,
        key=key,
        file=where.file,
        line=where.line,
        names=tuple(each.file for each in group.examples if each.file),
    )

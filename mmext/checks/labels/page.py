"""A report as one page for a browser, which needs nothing but itself."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ..findings import Finding, page
from .gallery import Picture
from .report import ClassCounts, FindingGroup, Report, SplitReport, many
from .rules.registry import RULES

# In percent of the width: what is there at all is seen.
_LEAST_WIDTH = 0.4
# With few findings, there is room for all that is known of them.
_OPEN = 8


def report_html(report: Report, pictures: Sequence[Picture] = ()) -> bytes:
    """One page, as UTF-8: findings, classes, pictures, rules.

    It loads nothing, and can be read without JavaScript, which only sorts,
    filters and enlarges.
    """
    of_group: dict[int, list[Picture]] = {}
    for picture in pictures:
        of_group.setdefault(picture.group, []).append(picture)
    names = _class_names(report)
    findings = [
        _finding(group, names, of_group.get(index, ()))
        for index, group in enumerate(report.groups)
    ]
    shown = [_picture(picture) for picture in pictures]
    counts = Counter()
    for group in report.groups:
        counts[group.rule] += group.num_findings
    tiles = page.tiles(
        (group.severity, group.num_findings) for group in report.groups
    )
    samples = sum(split.num_samples for split in report.splits)
    splits = many(len(report.splits), 'split')
    return page.render(
        __package__,
        'report.html.jinja',
        page={
            'verdict': page.summary(tiles),
            'worst': page.severity_word(report.worst()),
            'samples': f'{many(samples, "sample")} of {splits}',
            'tiles': tiles,
            'splits': report.splits,
            'findings': findings,
            'open': len(findings) <= _OPEN,
            'rule_options': _rule_options(findings),
            'split_options': _options(findings, 'split_data'),
            'finding_classes': _options(findings, 'class_data'),
            'charts': class_charts(report),
            'pictures': shown,
            'picture_rules': _rule_options(shown),
            'picture_classes': _options(shown, 'class_data'),
            'rules': [_rule(rule, counts) for rule in report.rules],
            'rules_found': len(counts),
        },
    )


def class_charts(report: Report) -> list[dict[str, Any]]:
    """Bars of each class: a chart for all splits that have the same classes.

    Each has a row for each class and a cell for each split: ``count`` of
    pixels or objects, ``share`` as text, ``files`` that have the class, and
    the ``width`` of the bar in percent, of one scale in all splits.
    """
    charts: dict[tuple, list[SplitReport]] = {}
    for split in report.splits:
        if split.classes:
            semantic = any(row.pixels for row in split.classes)
            names = tuple((row.label, row.name) for row in split.classes)
            charts.setdefault((semantic, names), []).append(split)
    return [_chart(key[0], splits) for key, splits in charts.items()]


def _chart(semantic: bool, splits: Sequence[SplitReport]) -> dict[str, Any]:
    def count(row: ClassCounts) -> int:
        return row.pixels if semantic else row.boxes

    shares = []
    for split in splits:
        total = sum(map(count, split.classes)) or 1
        shares.append([count(row) / total for row in split.classes])
    most = max(map(max, shares)) or 1.0
    rows = []
    for index, first in enumerate(splits[0].classes):
        cells = []
        for split, own in zip(splits, shares):
            row, share = split.classes[index], own[index]
            width = max(100 * share / most, _LEAST_WIDTH) if share else 0
            cells.append(
                {
                    'count': count(row),
                    'share': _percent(share),
                    'files': row.masks if semantic else row.images,
                    'width': f'{width:.2f}',
                }
            )
        rows.append({'label': first.label, 'name': first.name, 'cells': cells})
    return {
        'unit': 'pixels' if semantic else 'objects',
        'files': 'label maps' if semantic else 'images',
        'splits': [
            (split.split, split.num_masks if semantic else split.num_samples)
            for split in splits
        ],
        'rows': rows,
        'most': _percent(most),
    }


def _percent(share: float) -> str:
    return '< 0.01 %' if 0 < share < 0.00005 else f'{100 * share:.2f} %'


def _line(text: str) -> str:
    """On one line, as lists in attributes are divided by newlines."""
    return ' '.join(text.split())


def _lines(texts: Iterable[str]) -> str:
    return '\n'.join(dict.fromkeys(_line(text) for text in texts))


def _class_names(report: Report) -> dict[str, str]:
    """Label, as findings write it, to name."""
    names: dict[str, str] = {}
    for split in report.splits:
        for row in split.classes:
            names.setdefault(str(row.label), row.name or str(row.label))
    return names


def _classes_of(
    group: FindingGroup, names: dict[str, str], pictures: Sequence[Picture]
) -> list[str]:
    """Classes that a finding is about, not all that its pictures have."""
    rule = RULES[group.rule]
    values = [group.value, *(example.value for example in group.examples)]
    if rule.of_class:
        return [names[value] for value in values if value in names]
    if rule.unit not in ('box', 'object'):
        return []
    return [name for picture in pictures for name in picture.classes]


def _example(finding: Finding, group: FindingGroup) -> dict[str, str]:
    """An example, without what its group says already."""
    said = group.message.startswith(finding.message)
    return {
        'split': finding.split,
        'file': finding.file,
        'place': finding.place,
        'value': '' if finding.value == group.value else finding.value,
        'message': '' if said else finding.message,
    }


def _finding(
    group: FindingGroup, names: dict[str, str], pictures: Sequence[Picture]
) -> dict[str, Any]:
    rule = RULES[group.rule]
    splits = [split for split, _ in group.splits if split]
    shown = many(len(group.examples), 'example')
    if group.num_findings > len(group.examples):
        shown += f' of {group.num_findings:,}'
    return {
        'group': group,
        'severity': page.severity_word(group.severity),
        'rank': int(group.severity),
        'rule': group.rule,
        'title': rule.title,
        'splits': ', '.join(splits),
        'split_data': _lines(splits),
        'class_data': _lines(_classes_of(group, names, pictures)),
        'unit': page.plural(group.count, rule.unit) if rule.unit else '',
        'examples': [_example(example, group) for example in group.examples],
        'shown': shown,
        'pictures': len(pictures),
    }


def _picture(picture: Picture) -> dict[str, Any]:
    finding = picture.finding
    return {
        'picture': picture,
        'finding': finding,
        'rule': finding.rule,
        'severity': page.severity_word(finding.severity),
        'split_data': _line(finding.split),
        'class_data': _lines(picture.classes),
    }


def _rule(rule_id: str, counts: Counter) -> dict[str, Any]:
    rule = RULES[rule_id]
    return {
        'id': rule_id,
        'severity': page.severity_word(rule.severity),
        'rank': int(rule.severity),
        'title': rule.title,
        'remedy': rule.remedy,
        'found': counts[rule_id],
    }


def _rank(text: str) -> tuple:
    """Numbers by size, then words."""
    number = int(text) if text.isdecimal() else 0
    return not text.isdecimal(), number, text


def _options(rows: Iterable[dict], key: str) -> list[dict[str, str]]:
    """What a list of choices offers: each value that a row has."""
    values = {value for row in rows for value in row[key].split('\n') if value}
    return [
        {'value': value, 'text': value} for value in sorted(values, key=_rank)
    ]


def _rule_options(rows: Iterable[dict]) -> list[dict[str, str]]:
    return [
        {'value': rule, 'text': f'{rule} {RULES[rule].title}'}
        for rule in sorted({row['rule'] for row in rows})
    ]

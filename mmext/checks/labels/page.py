"""A report as one page for a browser, which needs nothing but itself."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any

from ..findings import Finding, page
from .gallery import Picture
from .groups import FindingGroup
from .report import ClassCounts, Report, SplitReport
from .rules.registry import RULES

# In percent of the width: what is there at all is seen.
_LEAST_WIDTH = 0.4

_Count = Callable[[ClassCounts], int]
_Total = Callable[[SplitReport], int]


def _measures(split: SplitReport) -> list[tuple[str, str, _Count, _Total]]:
    """Name, caption, count of a class, and what that is a share of."""
    if any(row.pixels for row in split.classes):
        return [
            (
                'pixels',
                'Pixels of each class after loading, and their share of the '
                'pixels of all classes.',
                lambda row: row.pixels,
                lambda whole: sum(row.pixels for row in whole.classes),
            ),
            (
                'label maps',
                'Label maps that have the class, and their share.',
                lambda row: row.masks,
                lambda whole: whole.num_masks,
            ),
        ]
    return [
        (
            'objects',
            'Objects of each class, and their share of all.',
            lambda row: row.boxes,
            lambda whole: sum(row.boxes for row in whole.classes),
        ),
        (
            'images',
            'Images that have an object of the class, and their share.',
            lambda row: row.images,
            lambda whole: whole.num_samples,
        ),
    ]


def _percent(share: float) -> str:
    if 0 < share < 0.00005:
        return '< 0.01 %'
    return f'{100 * share:.2f} %'


def _short(share: float) -> str:
    """A share in percent, three figures of it, never as 1e-07."""
    return f'{Decimal(f"{100 * share:.3g}"):f} %'


def _chart(splits: Sequence[SplitReport]) -> dict[str, Any]:
    """One for splits that have the same classes."""
    semantic = any(row.pixels for row in splits[0].classes)
    return {
        'splits': [
            {
                'split': split.split,
                'extent': f'{split.num_masks:,} label maps'
                if semantic
                else f'{split.num_samples:,} images',
            }
            for split in splits
        ],
        'measures': [
            _measure(splits, name, caption, count, total)
            for name, caption, count, total in _measures(splits[0])
        ],
    }


def _measure(
    splits: Sequence[SplitReport],
    name: str,
    caption: str,
    count: _Count,
    total: _Total,
) -> dict[str, Any]:
    rows = []
    for classes in zip(*(split.classes for split in splits)):
        cells = [
            {'count': count(row), 'part': count(row) / (total(split) or 1)}
            for row, split in zip(classes, splits)
        ]
        rows.append(
            {'label': classes[0].label, 'name': classes[0].name}
            | {'cells': cells}
        )
    parts = [cell['part'] for row in rows for cell in row['cells']]
    most = max(parts) or 1.0
    least = math.ceil(math.log10(min(filter(None, parts), default=1.0))) - 1
    decades = math.log10(most) - least
    for cell in (cell for row in rows for cell in row['cells']):
        part = cell.pop('part')
        cell['share'] = _percent(part)
        cell['linear'] = cell['log'] = '0'
        if part:
            log = 100 * (math.log10(part) - least) / decades
            cell['linear'] = _width(100 * part / most)
            cell['log'] = _width(log)
    return {
        'name': name,
        'caption': caption,
        'rows': rows,
        'most': _short(most),
        'least': _short(10.0**least),
        'decade': f'{100 / decades:.0f} %',
    }


def _width(percent: float) -> str:
    return f'{max(percent, _LEAST_WIDTH):.2f}'


def class_charts(report: Report) -> list[dict[str, Any]]:
    """Bars of each class: a chart for all splits that have the same classes.

    Each has ``splits``, and two ``measures``, such as pixels and label maps,
    with a row for each class and a cell for each split: ``count``, ``share``
    as text, and the widths ``linear`` and ``log`` in percent. Widths of a
    measure have the same scale in all splits.
    """
    charts: dict[tuple, list[SplitReport]] = {}
    for split in report.splits:
        if split.classes:
            semantic = any(row.pixels for row in split.classes)
            names = tuple((row.label, row.name) for row in split.classes)
            charts.setdefault((semantic, names), []).append(split)
    return [_chart(splits) for splits in charts.values()]


# With few findings, there is room for all that is known of them.
_OPEN = 8
_COLUMNS = (
    ('Severity', 'text'),
    ('Rule', 'text'),
    ('Finding', 'text'),
    ('Value', 'text'),
    ('Splits', 'text'),
    ('Files', 'number'),
    ('Count', 'number'),
)


def _line(text: str) -> str:
    """On one line, as lists in attributes are divided by newlines."""
    return ' '.join(text.split())


def _lines(texts: Iterable[str]) -> str:
    return '\n'.join(dict.fromkeys(_line(text) for text in texts))


def _many(number: int, noun: str) -> str:
    return f'{number:,} {page.plural(number, noun)}'


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
    rule = RULES.get(group.rule)
    values = [group.value, *(example.value for example in group.examples)]
    if rule is not None and rule.of_class:
        return [names[value] for value in values if value in names]
    if rule is None or rule.unit not in ('box', 'object'):
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


def _shown(group: FindingGroup) -> str:
    more = group.num_findings - len(group.examples)
    words = _many(len(group.examples), 'example')
    return f'{words} of {group.num_findings:,}' if more > 0 else words


def _finding(
    group: FindingGroup, names: dict[str, str], pictures: Sequence[Picture]
) -> dict[str, Any]:
    rule = RULES.get(group.rule)
    splits = [split for split, _ in group.splits if split]
    return {
        'severity': page.severity_word(group.severity),
        'rank': int(group.severity),
        'rule': group.rule,
        'title': rule.title if rule else '',
        'message': group.message,
        'remedy': group.remedy,
        'value': group.value,
        'splits': ', '.join(splits),
        'split_data': _lines(splits),
        'class_data': _lines(_classes_of(group, names, pictures)),
        'files': group.num_files,
        'count': group.count,
        'unit': page.plural(group.count, rule.unit)
        if rule and rule.unit
        else '',
        'examples': [_example(example, group) for example in group.examples],
        'shown': _shown(group),
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


def _rule(rule_id: str, found: Counter) -> dict[str, Any]:
    rule = RULES.get(rule_id)
    return {
        'id': rule_id,
        'severity': page.severity_word(rule.severity) if rule else 'info',
        'rank': int(rule.severity) if rule else 0,
        'title': rule.title if rule else '',
        'remedy': rule.remedy if rule else '',
        'found': found[rule_id],
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
    titles = {
        row['rule']: RULES[row['rule']].title if row['rule'] in RULES else ''
        for row in rows
    }
    return [
        {'value': rule, 'text': f'{rule} {title}'}
        for rule, title in sorted(titles.items())
    ]


def _page(report: Report, pictures: Sequence[Picture]) -> dict[str, Any]:
    """All that the template shows."""
    of_group: dict[int, list[Picture]] = {}
    for picture in pictures:
        of_group.setdefault(picture.group, []).append(picture)
    names = _class_names(report)
    findings = [
        _finding(group, names, of_group.get(index, ()))
        for index, group in enumerate(report.groups)
    ]
    shown = [_picture(picture) for picture in pictures]
    found = Counter()
    for group in report.groups:
        found[group.rule] += group.num_findings
    tiles = page.tiles(
        (group.severity, group.num_findings) for group in report.groups
    )
    samples = sum(split.num_samples for split in report.splits)
    splits = _many(len(report.splits), 'split')
    return {
        'verdict': page.summary(tiles),
        'worst': page.severity_word(report.worst()),
        'samples': f'{_many(samples, "sample")} of {splits}',
        'tiles': tiles,
        'splits': report.splits,
        'columns': [{'name': name, 'kind': kind} for name, kind in _COLUMNS],
        'findings': findings,
        'open': len(findings) <= _OPEN,
        'rule_options': _rule_options(findings),
        'split_options': _options(findings, 'split_data'),
        'finding_classes': _options(findings, 'class_data'),
        'charts': class_charts(report),
        'pictures': shown,
        'picture_rules': _rule_options(shown),
        'picture_classes': _options(shown, 'class_data'),
        'rules': [_rule(rule, found) for rule in report.rules],
        'rules_found': len(found),
    }


def report_html(report: Report, pictures: Sequence[Picture] = ()) -> bytes:
    """One page, as UTF-8: findings, classes, pictures, rules.

    It loads nothing, and can be read without JavaScript, which only sorts,
    filters and enlarges.
    """
    return page.render(
        __package__, 'report.html.jinja', page=_page(report, pictures)
    )

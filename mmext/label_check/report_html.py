"""A report as one page for a browser, which needs nothing but itself."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ..utils.html_page import render_page
from ._class_charts import class_charts
from .findings import Finding, Severity
from .gallery import Picture
from .groups import FindingGroup
from .report import Report
from .rules import RULES

__all__ = ['report_html']

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
_WORDS = {
    Severity.ERROR: ('error', 'error'),
    Severity.WARNING: ('warning', 'warning'),
    Severity.INFO: ('info', 'note'),
}


def _line(text: str) -> str:
    """On one line, as lists in attributes are divided by newlines."""
    return ' '.join(text.split())


def _lines(texts: Iterable[str]) -> str:
    return '\n'.join(dict.fromkeys(_line(text) for text in texts))


def _plural(number: int, noun: str) -> str:
    if number == 1:
        return noun
    return noun + ('es' if noun.endswith(('s', 'x')) else 's')


def _many(number: int, noun: str) -> str:
    return f'{number:,} {_plural(number, noun)}'


def _class_names(report: Report) -> dict[str, str]:
    """Label, as findings write it, to name."""
    names: dict[str, str] = {}
    for split in report.splits:
        for each in split.classes:
            names.setdefault(str(each.label), each.name or str(each.label))
    return names


def _classes_of(
    group: FindingGroup, names: dict[str, str], pictures: Sequence[Picture]
) -> list[str]:
    """Classes that a finding is about, not all that its pictures have."""
    rule = RULES.get(group.rule)
    values = [group.value, *(each.value for each in group.examples)]
    if group.rule.startswith('CLS'):
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
        'severity': _WORDS[group.severity][0],
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
        'unit': _plural(group.count, rule.unit) if rule and rule.unit else '',
        'examples': [_example(each, group) for each in group.examples],
        'shown': _shown(group),
        'pictures': len(pictures),
    }


def _picture(picture: Picture) -> dict[str, Any]:
    fields = {
        name: getattr(picture, name) for name in picture.__struct_fields__
    }
    return fields | {
        'severity': _WORDS[picture.severity][0],
        'split_data': _line(picture.split),
        'class_data': _lines(picture.classes),
    }


def _rule(rule_id: str, found: Counter) -> dict[str, Any]:
    rule = RULES.get(rule_id)
    return {
        'id': rule_id,
        'severity': _WORDS[rule.severity][0] if rule else 'info',
        'rank': int(rule.severity) if rule else 0,
        'title': rule.title if rule else '',
        'remedy': rule.remedy if rule else '',
        'found': found[rule_id],
    }


def _tiles(report: Report) -> list[dict[str, Any]]:
    tiles = []
    for severity in reversed(Severity):
        own = [each for each in report.groups if each.severity == severity]
        word, noun = _WORDS[severity]
        findings = sum(each.num_findings for each in own)
        tiles.append(
            {
                'word': word,
                'kinds': len(own),
                'label': _plural(len(own), noun),
                'findings': f'{findings:,}' if findings > len(own) else '',
            }
        )
    return tiles


def _rank(text: str) -> tuple:
    """Numbers by size, then words."""
    number = int(text) if text.isdecimal() else 0
    return not text.isdecimal(), number, text


def _options(rows: Iterable[dict], key: str) -> list[dict[str, str]]:
    """What a list of choices offers: each value that a row has."""
    values = {value for row in rows for value in row[key].split('\n') if value}
    return [
        {'value': each, 'text': each} for each in sorted(values, key=_rank)
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


def _verdict(tiles: Sequence[dict]) -> str:
    words = [f'{each["kinds"]:,} {each["label"]}' for each in tiles]
    kept = [word for word, each in zip(words, tiles) if each['kinds']]
    return ', '.join(kept) or 'nothing was found'


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
    shown = [_picture(each) for each in pictures]
    found = Counter()
    for group in report.groups:
        found[group.rule] += group.num_findings
    tiles, worst = _tiles(report), report.worst()
    samples = sum(each.num_samples for each in report.splits)
    splits = _many(len(report.splits), 'split')
    return {
        'verdict': _verdict(tiles),
        'worst': _WORDS[worst][0] if worst else 'fine',
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
        'rules': [_rule(each, found) for each in report.rules],
        'rules_found': len(found),
    }


def report_html(report: Report, pictures: Sequence[Picture] = ()) -> bytes:
    r"""One page that holds a report: findings, classes, pictures, rules.

    Args:
        report: Of a check.
        pictures: Of :func:`~mmext.label_check.gallery.make_gallery`, made
            for this report.

    Returns:
        UTF-8, the same for the same report. The page loads nothing; it can
        be read without JavaScript, which only sorts, filters and enlarges.

    Note:
        What is not valid in UTF-8, such as an odd byte of a file name, is
        written as ``\udcff``.
    """
    return render_page(
        __package__, 'report.html.jinja', page=_page(report, pictures)
    )

"""A report in SARIF 2.1.0, for services that show findings beside files."""

from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

import msgspec

from ..version import __version__
from .findings import Finding, Severity
from .groups import FindingGroup
from .report import Report
from .rules import RULES

__all__ = ['report_sarif']

_SCHEMA = 'https://json.schemastore.org/sarif-2.1.0.json'
_LEVELS = {
    Severity.ERROR: 'error',
    Severity.WARNING: 'warning',
    Severity.INFO: 'note',
}


def _rule(rule_id: str) -> dict[str, Any]:
    rule = RULES[rule_id]
    return {
        'id': rule.id,
        'shortDescription': {'text': rule.title},
        'help': {'text': rule.remedy},
        'defaultConfiguration': {'level': _LEVELS[rule.severity]},
    }


def _uri(path: str) -> str:
    """URI of a file as the data set names it; a URL stays what it is."""
    if '://' in path:
        return path
    if path.startswith('/'):
        return PurePosixPath(path).as_uri()
    return quote(path)


def _result(
    group: FindingGroup, index: int, example: Finding | None
) -> dict[str, Any]:
    text = group.message
    result: dict[str, Any] = {
        'ruleId': group.rule,
        'ruleIndex': index,
        'level': _LEVELS[group.severity],
    }
    if example is not None:
        text = '; '.join(
            part
            for part in (example.message, example.place, example.value)
            if part
        )
        if example.file:
            location = {'artifactLocation': {'uri': _uri(example.file)}}
            result['locations'] = [{'physicalLocation': location}]
    result['message'] = {'text': f'{text}. Remedy: {group.remedy}'}
    return result


def report_sarif(report: Report) -> bytes:
    """SARIF of a report: a result for each file that it names.

    Args:
        report: Of a check. A group names as many files as its check was
            told to (``num_examples``); its message gives the extent.

    Returns:
        UTF-8 JSON, with a newline at the end.
    """
    index = {rule_id: row for row, rule_id in enumerate(report.rules)}
    results = [
        _result(group, index[group.rule], example)
        for group in report.groups
        for example in (group.examples or (None,))
    ]
    driver = {
        'name': 'mmext.label_check',
        'version': __version__,
        'rules': [_rule(rule_id) for rule_id in report.rules],
    }
    log = {
        '$schema': _SCHEMA,
        'version': '2.1.0',
        'runs': [{'tool': {'driver': driver}, 'results': results}],
    }
    return msgspec.json.format(msgspec.json.encode(log), indent=2) + b'\n'

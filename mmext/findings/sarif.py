"""SARIF 2.1.0, for services that show findings beside files."""

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from ..version import __version__
from .finding import Location, Severity
from .json import to_json
from .rule import Rule

__all__ = [
    'log',
    'result',
]

_SCHEMA = 'https://json.schemastore.org/sarif-2.1.0.json'
_LEVELS = {
    Severity.ERROR: 'error',
    Severity.WARNING: 'warning',
    Severity.INFO: 'note',
}


def _uri(path: str) -> str:
    """URI of a file as the data set names it; a URL stays what it is."""
    if '://' in path:
        return path
    if path.startswith('/'):
        return PurePosixPath(path).as_uri()
    return quote(path)


def _describe(rule: Rule) -> dict[str, Any]:
    return {
        'id': rule.id,
        'shortDescription': {'text': rule.title},
        'help': {'text': rule.remedy},
        'defaultConfiguration': {'level': _LEVELS[rule.severity]},
    }


def result(
    rule: str, severity: Severity, text: str, location: Location
) -> dict[str, Any]:
    """A result for :func:`log`."""
    form: dict[str, Any] = {
        'ruleId': rule,
        'level': _LEVELS[severity],
        'message': {'text': text},
    }
    if location.file:
        where = {'artifactLocation': {'uri': _uri(location.file)}}
        form['locations'] = [{'physicalLocation': where}]
    return form


def log(
    tool: str, rules: Sequence[Rule], results: Iterable[dict[str, Any]]
) -> bytes:
    """A log of one run, as UTF-8 JSON with a newline at the end."""
    index = {rule.id: row for row, rule in enumerate(rules)}
    driver = {
        'name': f'mmext.{tool}',
        'version': __version__,
        'rules': [_describe(rule) for rule in rules],
    }
    numbered = [
        {**result, 'ruleIndex': index[result['ruleId']]} for result in results
    ]
    form = {
        '$schema': _SCHEMA,
        'version': '2.1.0',
        'runs': [{'tool': {'driver': driver}, 'results': numbered}],
    }
    return to_json(form)

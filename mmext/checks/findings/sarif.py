"""SARIF 2.1.0, for services that show findings beside files.

As GitHub's code scanning asks for it: each result has a location with a
relative URI and a region, and a fingerprint that stays the same when other
lines of the file change. URIs are relative to the working directory, which
should be the root of the repository; what lies elsewhere has a base of its
own (``originalUriBaseIds``).
"""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from ...version import __version__
from .finding import Location, Severity
from .json import to_json
from .rule import Rule

_SCHEMA = 'https://json.schemastore.org/sarif-2.1.0.json'
# The root of the repository, as services know it; and that of the machine.
_HERE, _ROOT = '%SRCROOT%', 'ROOT'
_LEVELS = {
    Severity.ERROR: 'error',
    Severity.WARNING: 'warning',
    Severity.INFO: 'note',
}


def _artifact(path: str) -> dict[str, str]:
    """URI of a file, relative to a base; the bytes of its name are kept."""
    if '://' in path:
        parts = urlsplit(path)
        base = f'{parts.scheme}://{parts.netloc}/'
        name = path[len(base) :]
    else:
        base, root = _HERE, os.getcwd()
        name = os.path.relpath(os.path.abspath(path), root)
        if name.split(os.sep)[0] == os.pardir:
            base = _ROOT
            name = os.path.abspath(path).lstrip(os.sep)
    uri = quote(os.fsencode(name.replace(os.sep, '/')))
    return {'uri': uri, 'uriBaseId': base}


def _region(location: Location) -> dict[str, int]:
    """The line; all of it if the file can be read, and else its start."""
    line = max(location.line, 1)
    width, path = 0, Path(location.file)
    if location.line and path.is_file():
        lines = path.read_text('utf-8', 'replace').splitlines()
        width = len(lines[line - 1]) if line <= len(lines) else 0
    return {
        'startLine': line,
        'startColumn': 1,
        'endLine': line,
        'endColumn': width + 1,
    }


def _describe(rule: Rule) -> dict[str, Any]:
    return {
        'id': rule.id,
        'shortDescription': {'text': rule.title},
        'fullDescription': {'text': f'{rule.family.title}: {rule.title}'},
        'help': {'text': rule.remedy},
        'defaultConfiguration': {'level': _LEVELS[rule.severity]},
    }


def result(
    rule: str, severity: Severity, text: str, location: Location
) -> dict[str, Any]:
    """A result for :func:`log`; its location must name a file."""
    artifact = _artifact(location.file)
    about = (rule, *artifact.values(), location.place)
    return {
        'ruleId': rule,
        'level': _LEVELS[severity],
        'message': {'text': text},
        'locations': [
            {
                'physicalLocation': {
                    'artifactLocation': artifact,
                    'region': _region(location),
                }
            }
        ],
        'partialFingerprints': {
            'primaryLocationLineHash': hashlib.sha256(
                '\n'.join(about).encode('utf-8', 'surrogatepass')
            ).hexdigest()[:16]
        },
    }


def _numbered(results: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """Results whose fingerprints differ: ``hash:1``, ``hash:2``, ..."""
    seen: Counter[str] = Counter()
    for each in results:
        name, fingerprint = next(iter(each['partialFingerprints'].items()))
        seen[fingerprint] += 1
        prints = {name: f'{fingerprint}:{seen[fingerprint]}'}
        yield {**each, 'partialFingerprints': prints}


def _bases(results: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What URIs are relative to, besides the working directory."""
    used = {
        place['physicalLocation']['artifactLocation']['uriBaseId']
        for each in results
        for place in each['locations']
    }
    return {
        base: {'uri': 'file:///' if base == _ROOT else base}
        for base in sorted(used - {_HERE})
    }


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
        {**result, 'ruleIndex': index[result['ruleId']]}
        for result in _numbered(results)
    ]
    run = {'tool': {'driver': driver}, 'results': numbered}
    bases = _bases(numbered)
    if bases:
        run['originalUriBaseIds'] = bases
    form = {'$schema': _SCHEMA, 'version': '2.1.0', 'runs': [run]}
    return to_json(form)

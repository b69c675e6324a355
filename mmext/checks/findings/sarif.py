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
from typing import Any
from urllib.parse import quote, urlsplit

from ...version import __version__
from .finding import Location, Rule, Severity
from .json import to_json

_SCHEMA = 'https://json.schemastore.org/sarif-2.1.0.json'
# The root of the repository, as services know it; and that of the machine.
_HERE, _ROOT = '%SRCROOT%', 'ROOT'


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


def result(
    rule: str, severity: Severity, text: str, location: Location
) -> dict[str, Any]:
    """A result for :func:`log`; its location must name a file."""
    artifact = _artifact(location.file)
    line = max(location.line, 1)
    about = (rule, *artifact.values(), location.position)
    return {
        'ruleId': rule,
        'level': severity.noun,
        'message': {'text': text},
        'locations': [
            {
                'physicalLocation': {
                    'artifactLocation': artifact,
                    # All of the line; its start if it cannot be read.
                    'region': {
                        'startLine': line,
                        'startColumn': 1,
                        'endLine': line,
                        'endColumn': len(location.source) + 1,
                    },
                }
            }
        ],
        'partialFingerprints': {
            'primaryLocationLineHash': hashlib.sha256(
                '\n'.join(about).encode('utf-8', 'surrogatepass')
            ).hexdigest()[:16]
        },
    }


def log(
    tool: str, rules: Sequence[Rule], results: Iterable[dict[str, Any]]
) -> bytes:
    """A log of one run, as UTF-8 JSON with a newline at the end."""
    index = {rule.id: row for row, rule in enumerate(rules)}
    driver = {
        'name': f'mmext.{tool}',
        'version': __version__,
        'rules': [
            {
                'id': rule.id,
                'shortDescription': {'text': rule.title},
                'fullDescription': {
                    'text': f'{rule.family.title}: {rule.title}'
                },
                'help': {'text': rule.remedy},
                'defaultConfiguration': {'level': rule.severity.noun},
            }
            for rule in rules
        ],
    }
    numbered, bases = [], {}
    seen: Counter[str] = Counter()
    for one in results:
        # Of several with the same fingerprint, these are 'hash:1', 'hash:2'.
        ((name, fingerprint),) = one['partialFingerprints'].items()
        seen[fingerprint] += 1
        prints = {name: f'{fingerprint}:{seen[fingerprint]}'}
        row = {'ruleIndex': index[one['ruleId']]}
        numbered.append({**one, 'partialFingerprints': prints, **row})
        (location,) = one['locations']
        base = location['physicalLocation']['artifactLocation']['uriBaseId']
        if base != _HERE:
            bases[base] = {'uri': 'file:///' if base == _ROOT else base}
    run = {'tool': {'driver': driver}, 'results': numbered}
    if bases:
        run['originalUriBaseIds'] = dict(sorted(bases.items()))
    form = {'$schema': _SCHEMA, 'version': '2.1.0', 'runs': [run]}
    return to_json(form)

"""Findings and reports as JSON, JSON Lines, CSV and SARIF 2.1.0.

SARIF is for services that show findings beside files. As GitHub's code
scanning asks for it: each result has a location with a relative URI and a
region, and a fingerprint that stays the same when other lines of the file
change. URIs are relative to the working directory, which should be the root of
the repository; what lies elsewhere has a base of its own
(``originalUriBaseIds``).
"""

import csv
import hashlib
import io
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from ...utils.printing import printable_json, readable
from ...version import __version__
from .finding import Finding, Location, Rule, Severity

_Record = TypeVar('_Record', bound=msgspec.Struct)


def as_record(finding: Finding, record: type[_Record]) -> _Record:
    """A finding as a record of the fields, or properties, of these names."""
    names = record.__struct_fields__
    return record(**{name: getattr(finding, name) for name in names})


def _all_readable(value: Any) -> Any:
    if isinstance(value, str):
        return readable(value)
    if isinstance(value, dict):
        return {
            _all_readable(key): _all_readable(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_all_readable(item) for item in value]
    return value


def to_json_line(value: Any) -> bytes:
    """UTF-8 without a newline.

    Numbers that JSON does not have become null, texts are made
    :func:`readable`, and characters that a terminal obeys are escaped.
    """
    try:
        content = msgspec.json.encode(value)
    except UnicodeEncodeError:
        builtins = msgspec.to_builtins(value, str_keys=True)
        content = msgspec.json.encode(_all_readable(builtins))
    return printable_json(content.decode()).encode()


def to_json(value: Any) -> bytes:
    """As :func:`to_json_line`, with two blanks of indent and a newline."""
    return msgspec.json.format(to_json_line(value), indent=2) + b'\n'


# All locations of all findings, one a line ----------------------------------

_FIELDS = ('rule', 'split', 'file', 'line')
_MORE_FIELDS = ('value', 'count', 'message', 'remedy')
_NAMES = ('severity', *_FIELDS, 'position', *_MORE_FIELDS, 'related')


def _row(finding: Finding) -> dict[str, Any]:
    related = [
        ': '.join(filter(None, (other.file, other.position)))
        for other in finding.related
    ]
    return {
        'severity': finding.severity.noun,
        **{name: getattr(finding, name) for name in _FIELDS},
        'position': finding.location.position,
        **{name: getattr(finding, name) for name in _MORE_FIELDS},
        'related': related,
    }


def location_writer(file: IO[bytes], form: str) -> Callable[[Finding], None]:
    """A function that writes a finding as a line of a file.

    As ``'jsonl'``, a JSON object each; as ``'csv'``, the same with a line of
    names first, ``related`` being divided by newlines. Names of files are made
    :func:`readable`.
    """

    def write_cells(cells: list[str]) -> None:
        text = io.StringIO(newline='')
        csv.writer(text, lineterminator='\n').writerow(cells)
        file.write(readable(text.getvalue()).encode())

    def write_json(finding: Finding) -> None:
        file.write(to_json_line(_row(finding)) + b'\n')

    def write_csv(finding: Finding) -> None:
        *cells, related = _row(finding).values()
        write_cells([*cells, '\n'.join(related)])

    if form == 'jsonl':
        return write_json
    write_cells(list(_NAMES))
    return write_csv


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
    name = name.replace(os.sep, '/')
    try:
        uri = quote(os.fsencode(name))
    except UnicodeEncodeError:
        # An annotation file can name what no file system can.
        uri = quote(readable(name))
    return {'uri': uri, 'uriBaseId': base}


def sarif_result(
    rule: str, severity: Severity, text: str, location: Location
) -> dict[str, Any]:
    """A result for :func:`sarif_log`; its location must name a file."""
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


def sarif_log(
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

"""Parts of a training that its runner could not build."""

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from mmengine.config import Config

from ...config import (
    DELETE,
    SECTIONS,
    find_component,
    join_key,
    takes,
    walk_nodes,
)
from ...findings import Finding, Severity, code_location
from ..blame import (
    UNEXPECTED,
    Blamed,
    Merged,
    error_text,
    find_part,
    merged_keys,
    part_at,
    plain_name,
)
from ..parts import Failure
from .names import INSTALL
from .registry import BUILD
from .subject import arguments_of, change

# Its own code says nothing of why a part cannot be built.
_PREFLIGHT = str(Path(__file__).resolve().parents[1])
_LIKE = 0.7
_MAX_ARGUMENTS = 12
_MISSING = re.compile(r'missing \d+ required [\w-]+ arguments?: (.*)')
_NO_TYPE = 'must contain the key "type"'
_NOT_REGISTERED = re.compile(r'is not in the .*registry')
_NO_PACKAGE = re.compile(r'not installed|pip install|[Pp]lease install')
# Rules that say, without building, that a part cannot be built.
# Their findings are no errors unless building shows that they are.
_MILD = ('SCHED002', 'TYPE002')
_OF_PARTS = (
    *('ARG', 'BUILD', 'CFG', 'DATA', 'HOOK', 'KEY005', 'LOOP', 'PIPE'),
    *('SCHED', 'TYPE'),
)

BUILD001 = BUILD.declare(
    'BUILD001',
    title='a part of the training cannot be built',
    severity=Severity.ERROR,
    remedy='correct what is refused there',
    fix='remove what a base has set for another type',
)


def build_findings(
    failures: Sequence[Failure],
    cfg: Config,
    file: str,
    others: Sequence[Finding],
) -> list[Finding]:
    """Other findings, and those of parts that could not be built.

    What another rule says of the same part is not said twice: of a package
    that is not here it becomes an error. A package that several parts lack
    is one finding.
    """
    top = cfg.to_dict()
    findings = list(others)
    for failure in failures:
        finding = _finding(failure, top, file)
        cause = finding.message.partition(': ')[2]
        same = [
            index
            for index, other in enumerate(findings)
            if _is_same_part(finding, other)
        ]
        again = [
            index
            for index, other in enumerate(findings)
            # What was raised, without the part in which it was.
            if finding.remedy == INSTALL == other.remedy
            and other.message.partition(': ')[2] == cause
        ]
        if not same and again:
            first = findings[again[0]]
            findings[again[0]] = msgspec.structs.replace(
                first, names=(*first.names, *finding.names)
            )
        elif not same:
            findings.append(finding)
        for index in same:
            findings[index] = msgspec.structs.replace(
                findings[index], severity=Severity.ERROR
            )
    return findings


def _is_same_part(finding: Finding, other: Finding) -> bool:
    """Whether another finding says why a part cannot be built."""
    if not other.rule.startswith(_OF_PARTS) or (
        other.severity < Severity.ERROR and other.rule not in _MILD
    ):
        return False
    part, rest = finding.names[0], other.key[len(finding.names[0]) :]
    # A name or an argument that is wrong may be noticed further outside.
    below = r'([.[].*)?' if other.rule[:3] in ('ARG', 'TYP') else r'(\.\w+)?'
    return other.key.startswith(part) and bool(re.fullmatch(below, rest))


def _finding(failure: Failure, top: Mapping, file: str) -> Finding:
    error, methods = failure.error, ['__init__']
    if failure.action != 'be built':
        # Of a sample, whose step is named by another exception.
        error = error.__cause__ or error
        methods += ['__call__', 'transform']
    section = part_at(top, failure.path)
    blamed = find_part(error, section, failure.path, methods)
    part = part_at(top, blamed.path)
    keyword = UNEXPECTED.search(str(error))
    fields: dict[str, Any] = {}
    if keyword is not None and blamed.key:
        fields = _of_keyword(blamed, part, top, file)
    if not fields:
        fields = {'message': error_text(error), 'remedy': _remedy(error)}
        place = code_location(error, skip=_PREFLIGHT)
        if place and keyword is None and not _MISSING.search(str(error)):
            fields['message'] += f' ({place})'
    severity = BUILD001.severity
    if failure.made_up:
        severity = Severity.WARNING
        fields['message'] += (
            '; the data are not here, so that made-up entries may be why'
        )
    if isinstance(error, AssertionError) and 'only available' in str(error):
        severity = Severity.WARNING
        fields['message'] += '; it may be where the training runs'
    subject = join_key(blamed.path)
    message = f'{subject} cannot {failure.action}: {fields.pop("message")}'
    return BUILD001.finding(
        message,
        key=join_key(fields.pop('path', blamed.whole)),
        severity=severity,
        names=(subject,),
        **fields,
    )


def _of_keyword(
    blamed: Blamed, part: Mapping, top: Mapping, file: str
) -> dict[str, Any]:
    """What to say of an argument that a component does not take."""
    path, (keyword, *_) = blamed.path, blamed.key
    kind = blamed.kind
    scope = top.get('default_scope') or 'mmengine'
    for node in walk_nodes(top[path[0]], path[:1], scope):
        if kind is None and node.path == path:
            registries = SECTIONS.get(str(path[0]), ())
            kind = find_component(node.cfg.get('type'), registries, node.scope)
    name = getattr(kind, '__name__', '') or plain_name(part.get('type'))
    merged = merged_keys(file, path, part, keyword) if file else None
    if merged is not None:
        return _of_merge(blamed, part, merged, kind)
    if kind is None:
        return {}
    known = arguments_of(kind)
    near = difflib.get_close_matches(keyword, known, 1, _LIKE)
    listed = ', '.join(known[:_MAX_ARGUMENTS])
    more = ', ...' if len(known) > _MAX_ARGUMENTS else ''
    return {
        'message': f'{name} takes no argument {keyword}',
        'remedy': f'rename it to {near[0]}, or remove it'
        if near
        else f'remove it; {name} takes {listed}{more}',
    }


def _of_merge(
    blamed: Blamed, part: Mapping, merged: Merged, kind: Any
) -> dict[str, Any]:
    """What to say of arguments that a base has set for another type."""
    name = plain_name(part.get('type'))
    wrong = [
        key
        for key in merged.keys
        if key == blamed.key[0] or (kind and takes(kind, key) is False)
    ]
    stay = [f'{key}={part[key]!r}' for key in merged.keys if key not in wrong]
    also = f', and repeat there what is to stay of {", ".join(stay)}'
    options: dict[str, Any] = {}
    # Else whether the rest is to stay is not known.
    for key in () if stay else wrong:
        options |= change((*blamed.path, key), DELETE)
    return {
        'path': blamed.path,
        'message': f'{name} takes no argument {", ".join(wrong)}, which '
        f'a base sets for {merged.kind} ({merged.place}): '
        f'_delete_=True is missing where the type becomes {name}',
        'remedy': f'set _delete_=True in {join_key(blamed.path)}'
        f'{also if stay else ""}',
        'options': options,
    }


def _remedy(error: BaseException) -> str:
    """What is certain to help; else where to look."""
    text = str(error)
    missing = _MISSING.search(text)
    if isinstance(error, TypeError) and missing is not None:
        return f'set {missing[1]}'
    if _NO_TYPE in text:
        return 'give the dict a type'
    if isinstance(error, ImportError) or _NO_PACKAGE.search(text):
        return INSTALL
    if isinstance(error, KeyError) and _NOT_REGISTERED.search(text):
        return (
            'correct the name, or import what registers it by custom_imports'
        )
    return ''

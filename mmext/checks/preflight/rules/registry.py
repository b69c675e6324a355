"""Families of the preflight's rules, and what looks for them in a config.

A lint rule is a generator function in a file of its family, called with a
:class:`~.subject.Subject`::

    @KEY.rule(
        'KEY900',
        title='a key is blue',
        severity=Severity.WARNING,
        remedy='paint it',
    )
    def blue_key(subject):
        for key in subject.top:
            if key == 'blue':
                yield new_finding('blue is blue', path=(key,))

Rules of the other scopes are declared where their findings are made.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config

from ... import findings
from ...config import ConfigNode, join_key, key_location
from ...findings import (
    ErrorCatcher,
    Family,
    Finding,
    Severity,
    code_location,
    frames_of,
    rules_of,
)
from .labels import config_label_findings
from .subject import Subject

RULES = rules_of('preflight')
# Remedy for a package that is not here.
INSTALL = 'install the package that it needs where the training runs'
_MAX_MODULES = 6


def _family(letters: str, title: str, scope: str = 'config') -> Family:
    return Family(letters, 'preflight', title, {'scope': scope})


ARG = _family('ARG', 'Arguments of components')
CKPT = _family('CKPT', 'Weights to load')
DATA = _family('DATA', 'Data loaders')
ENV = _family('ENV', 'The environment of the training')
EVAL = _family('EVAL', 'Evaluators')
HEAD = _family('HEAD', 'Numbers of classes')
HOOK = _family('HOOK', 'Hooks')
IGN = _family('IGN', 'Settings that have no effect')
KEY = _family('KEY', 'Top-level keys')
LOOP = _family('LOOP', 'Loops, validation and checkpoints')
LOSS = _family('LOSS', 'Settings of losses')
PIPE = _family('PIPE', 'Pipelines')
SCHED = _family('SCHED', 'Schedules')
TYPE = _family('TYPE', 'Types of components')

BUILD = _family('BUILD', 'Parts that cannot be built', 'part')
CHECK = _family('CHECK', 'The preflight itself', 'part')
DDP = _family('DDP', 'Averaging of gradients', 'step')
GPU = _family('GPU', 'A step on a GPU, rehearsed', 'step')
NORM = _family('NORM', 'Batch norms', 'step')
OPT = _family('OPT', 'Groups of parameters in the optimizer', 'step')
STEP = _family('STEP', 'Steps, their losses and gradients', 'step')
WORLD = _family('WORLD', 'Several processes', 'ranks')


def new_finding(
    message: str, path: Sequence[str | int] = (), **fields: Any
) -> Finding:
    """A finding about a key; see :func:`mmext.checks.findings.new_finding`.

    ``path`` is empty for the whole config, or for what is outside of it.
    """
    return findings.new_finding(message, key=join_key(path), **fields)


CHECK001 = CHECK.declare(
    'CHECK001',
    title='a part of the preflight ended with an exception',
    severity=Severity.WARNING,
    remedy='what else is reported holds; look at the code that is named, '
    'which the config may not suit, or report it',
)


def catch_errors(
    findings: list[Finding],
    what: str,
    *,
    key: str = '',
    severity: Severity = Severity.WARNING,
) -> ErrorCatcher:
    """A block whose exception becomes a finding, and ends nothing else.

    One that is there already is not repeated. Where the key is not known, it
    is that of the part of the config that the failing code was looking at.
    """

    def take(error: Exception) -> None:
        location = code_location(error)
        # Parts of the config, that of the innermost code first.
        nodes = [
            value
            for frame, _ in reversed(frames_of(error))
            for value in frame.f_locals.values()
            if isinstance(value, ConfigNode)
        ]
        finding = CHECK001.finding(
            f'{what} ended with {type(error).__name__}: '
            f'{" ".join(str(error).split())}{location and f" ({location})"}',
            key=key or (join_key(nodes[0].path) if nodes else ''),
            severity=severity,
        )
        if finding not in findings:
            findings.append(finding)

    return ErrorCatcher(take)


def lint_config(
    cfg: Config,
    *,
    file: str | Path | None = None,
    model: Any = None,
    environ: Mapping[str, str] | None = None,
    world: int | None = None,
) -> list[Finding]:
    """Find what is wrong in a config, without building anything.

    The worst comes first, then by rule and in the config's order. Packages
    that its components are registered in may be imported. Arguments are those
    of :class:`Subject`.

    Examples:
        >>> cfg = Config({'model': {}, 'trian_cfg': {'max_epochs': 3}})
        >>> [(finding.rule, finding.names) for finding in lint_config(cfg)]
        [('KEY001', ('train_cfg',))]
    """
    subject = Subject(
        cfg, file=file, model=model, environ=environ, world=world
    )
    listed: list[Finding] = []
    for rule in list(RULES.values()):
        if rule.scope == 'config':
            with catch_errors(listed, f'rule {rule.id}'):
                listed += rule.check(subject)
    with catch_errors(listed, 'what the config says of labels'):
        listed += config_label_findings(subject)
    listed = with_locations(listed, subject.file)
    return sorted(
        listed, key=lambda finding: (-finding.severity, finding.rule)
    )


def with_locations(findings: Iterable[Finding], file: str) -> list[Finding]:
    """Findings with file and line of their key, where there is a file."""
    return [
        finding.in_file(*key_location(file, finding.key))
        if finding.key and not finding.file
        else finding
        for finding in findings
    ]


def _modules_of(name: str) -> list[str]:
    """The modules around a parameter, the outermost first."""
    parts = name.split('.')
    return ['.'.join(parts[:i]) for i in range(1, len(parts))]


def in_words(names: Collection[str], everything: Iterable[str]) -> str:
    """Parameters by module in words: ``'backbone.head (2), mask_token'``.

    They are grouped by the largest modules that hold no others. ``everything``
    is all that might have been named, such as all trainable parameters of the
    model. A parameter whose module has others, too, is its own group.
    """
    chosen = set(names)
    # Modules in which something else is.
    mixed = {''}
    for name in everything:
        if name not in chosen:
            mixed.update(_modules_of(name))
    groups: dict[str, list[str]] = {}
    for name in names:
        own = next((m for m in _modules_of(name) if m not in mixed), name)
        groups.setdefault(own, []).append(name)
    if len(groups) == 1:
        return next(iter(groups))
    words = [
        f'{module} ({len(held)})' if held != [module] else module
        for module, held in groups.items()
    ]
    more = len(words) - _MAX_MODULES
    if more > 0:
        words[_MAX_MODULES:] = [f'{more} more']
    return ', '.join(words)


def count_of(names: Collection[str], what: str = 'parameter') -> str:
    """``'1 parameter'``, ``'2 parameters'``."""
    return f'{len(names)} {what}' + 's' * (len(names) != 1)

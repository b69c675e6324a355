"""What a check reports, and the registry of the rules that find it.

A rule says what is checked, how bad it is and what to do about it. Rules
belong to families, which say once what their rules have in common. A rule of
one function is a generator that yields what :func:`new_finding` makes::

    SEG = Family('SEG', 'label_check', 'Label maps', {'scope': 'sample'})


    @SEG.rule(
        'SEG900',
        title='mask is blue',
        severity=Severity.WARNING,  # Without it, an error.
        remedy='paint it',
    )
    def blue_mask(facts, expected):
        if is_blue(facts.mask):
            yield new_finding('mask is blue', file=facts.sample.mask)

A rule whose findings are made beside those of others, as all follow from the
same run of a model, is declared, and makes its findings itself::

    DDP900 = DDP.declare('DDP900', title=..., severity=..., remedy=...)

    finding = DDP900.finding('the gradients are blue', names=names)

Either way a finding has severity and remedy of its rule, unless it says
others. Ids are stable: one that is not used any more is not given anew.

An exception of one part ends no other: :class:`ErrorCatcher` hands it over,
for a finding of that part.
"""

import functools
import os
import re
import site
import sysconfig
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from enum import IntEnum
from pathlib import Path
from types import FrameType, MappingProxyType, TracebackType
from typing import Any

import msgspec

from ...utils.broken_libraries import BrokenLibraryError

_STANDARD = sysconfig.get_paths()['stdlib'] + os.sep
_PACKAGES = tuple(
    path + os.sep
    for path in {sysconfig.get_paths()['purelib'], *site.getsitepackages()}
)
# Code that everything goes through, which says nothing of a cause.
_GENERAL = tuple(
    os.path.join(path, name)
    for path in _PACKAGES
    for name in ('torch/', 'mmengine/registry', 'mmengine/config')
)


class Severity(IntEnum):
    """How bad a finding is; a larger number is worse."""

    INFO = 0
    WARNING = 1
    ERROR = 2

    @property
    def noun(self) -> str:
        """``'note'``, ``'warning'`` or ``'error'``."""
        return 'note' if self is Severity.INFO else self.name.lower()


class Location(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where something is wrong.

    Attributes:
        file: Path, as the data set or the config names it; empty for the
            data set or the config as a whole.
        line: Of the file, from 1; 0 if not known.
        key: Path inside of the file or the config, such as
            ``'annotations[4].bbox'`` or ``'model.backbone.with_cp'``; empty
            for all of it.
        pixel: Row and column, ``(y, x)``, from 0.
        image: The image that is concerned, if ``file`` is about several.
    """

    file: str = ''
    line: int = 0
    key: str = ''
    pixel: tuple[int, int] | None = None
    image: str = ''

    @property
    def position(self) -> str:
        """Text for what is inside of the file: key, pixel and image."""
        inside = self.key
        if self.pixel is not None:
            inside = f'y={self.pixel[0]}, x={self.pixel[1]}'
        return ' of '.join(filter(None, (inside, self.image)))

    @property
    def source(self) -> str:
        """The line of the file; empty if it cannot be read."""
        path = Path(self.file or '.')
        if not self.line or not path.is_file():
            return ''
        lines = path.read_text('utf-8', 'backslashreplace').splitlines()
        return lines[self.line - 1] if self.line <= len(lines) else ''


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that a rule has found.

    Attributes:
        rule: Stable id, such as ``'SEG001'``.
        severity: How bad it is; that of the rule, if nothing speaks against.
        message: One sentence with the facts; names the value and what was
            expected.
        remedy: What to do about it.
        split: ``'train'``, ``'val'``, ...; empty for all.
        location: Where it is.
        related: Further locations: other records with the same error in the
            same file, or other files. The first ones, if there are many.
        value: The value that is wrong, as text.
        count: Pixels, boxes, records or files that it is about.
        names: Parameters, modules, labels or files concerned.
        batches: Kinds of batches with which it was seen; empty for all, or
            where no batch matters.
        options: Smallest change of the config that mends it, as dotted keys
            and their new values; empty if it takes more than a config. A key
            whose value is :data:`~mmext.checks.config.DELETE` is to be
            removed.
        other_way: Where there are two ways: the one that ``options`` go,
            with its cost, while ``remedy`` is the other one.
    """

    rule: str
    severity: Severity
    message: str
    remedy: str
    split: str = ''
    location: Location = Location()
    related: tuple[Location, ...] = ()
    value: str = ''
    count: int = 1
    names: tuple[str, ...] = ()
    batches: tuple[str, ...] = ()
    options: dict[str, Any] = {}
    other_way: str = ''

    @property
    def file(self) -> str:
        """File of the location."""
        return self.location.file

    @property
    def line(self) -> int:
        """Line of the location."""
        return self.location.line

    @property
    def key(self) -> str:
        """Key of the location."""
        return self.location.key

    def in_file(self, file: str, line: int) -> 'Finding':
        """The same finding, its key being in that line of a file."""
        location = Location(key=self.key, file=file, line=line)
        return msgspec.structs.replace(self, location=location)

    @property
    def position(self) -> str:
        """Text for the location in the file, related records included."""
        locations = [self.location.position]
        locations += (
            other.position
            for other in self.related
            if other.file == self.file and other.position
        )
        more = self.count - len(locations) if len(locations) > 1 else 0
        return ', '.join(locations) + (f' and {more} more' if more > 0 else '')


# By tool, and then by id.
_rules: defaultdict[str, dict[str, 'Rule']] = defaultdict(dict)


class _Draft(Finding, frozen=True, kw_only=True):
    """A finding that its rule has yet to complete."""

    rule: str = ''
    severity: Severity | None = None
    remedy: str = ''


def new_finding(
    message: str,
    *,
    file: str = '',
    line: int = 0,
    key: str = '',
    pixel: tuple[int, int] | None = None,
    image: str = '',
    **fields: Any,
) -> Finding:
    """What a rule yields: a finding that the rule completes.

    The message is one sentence, the same for each file that has the same
    error, as far as possible: ``value``, ``count`` and the parts of the
    :class:`Location` have arguments of their own. ``severity`` and ``remedy``
    are by default those of the rule.

    Examples:
        >>> new_finding('mask is blue', file='a.png', pixel=(3, 5)).position
        'y=3, x=5'
    """
    location = Location(
        file=file, line=line, key=key, pixel=pixel, image=image
    )
    return _Draft(message=message, location=location, **fields)


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is checked.

    Attributes:
        id: Letters of the family and three digits.
        title: What is wrong, in a few words, without a value.
        severity: Of its findings, if they do not say another.
        remedy: Of findings that have no better one.
        family: Where it belongs.
        scope: What it looks at: ``'sample'``, ``'config'``, ...
        needs: Of the scope ``'sample'``: what a sample must have to be
            looked at, ``'mask'``, ``'image'``, ``'annotation'``,
            ``'yolo'``, ``'depth'``, ``'normal'`` or ``'boxes'``; empty for
            any sample. It saves time, and must not change what the rule
            finds.
        subject: What a finding is about, singular: ``'mask'``, ``'image'``.
        unit: What its count counts, singular: ``'pixel'``, ``'box'``; empty
            if there is nothing to count but subjects.
        per_value: Findings of different values are different errors, and
            are reported apart. For values of which there are few.
        of_records: It looks at the records of an annotation file, not at
            the files of a sample.
        in_preflight: The preflight applies it to the config alone, too.
        picture: How a page shows a finding that is not about a label map:
            the ``'boxes'`` of the image, the ``'image'`` alone, ``'pair'``
            of image and label map, or images that are ``'alike'``.
        explains: Ids of rules that are silent in a split where this rule of
            the scope ``'split'`` has a finding.
        fix: What ``--fix`` does about it; empty if nothing.
        symptoms: What a training prints that has it, as PyTorch and the
            hosts word it, without values.
        check: Called with what the scope gives, yields findings; None if
            the findings are made elsewhere.
    """

    id: str
    title: str
    severity: Severity
    remedy: str
    family: 'Family'
    scope: str
    needs: str = ''
    subject: str = 'file'
    unit: str = ''
    per_value: bool = False
    of_records: bool = False
    in_preflight: bool = False
    picture: str = 'boxes'
    explains: tuple[str, ...] = ()
    fix: str = ''
    symptoms: tuple[str, ...] = ()
    check: Callable[..., Iterator[Finding]] | None = None

    def complete(self, draft: Finding, **fields: Any) -> Finding:
        """Give a draft of :func:`new_finding` the rest, and ``fields``."""
        own = {
            name: getattr(draft, name) for name in Finding.__struct_fields__
        }
        if own['severity'] is None:
            own['severity'] = self.severity
        own['remedy'] = own['remedy'] or self.remedy
        return Finding(**(own | fields | {'rule': self.id}))

    def finding(self, message: str, **fields: Any) -> Finding:
        """A finding of this rule, made by :func:`new_finding`."""
        return self.complete(new_finding(message, **fields))


class Family(msgspec.Struct, frozen=True):
    """Rules that have letters, tool and most other fields in common.

    Attributes:
        letters: Two to six capitals, with which the ids begin.
        tool: Which applies them, ``'label_check'`` or ``'preflight'``.
        title: What it is about, in a few words.
        common: Fields of :class:`Rule` that its rules have, if they do not
            say others.
    """

    letters: str
    tool: str
    title: str
    common: Mapping[str, Any] = {}

    def having(self, **common: Any) -> 'Family':
        """The same family for rules that have other fields in common."""
        return msgspec.structs.replace(self, common={**self.common, **common})

    def declare(
        self,
        rule_id: str,
        *,
        title: str,
        remedy: str,
        severity: Severity = Severity.ERROR,
        **fields: Any,
    ) -> Rule:
        """Add a rule; ``fields`` are those that differ from the family's."""
        rule = Rule(
            id=rule_id,
            title=title,
            severity=severity,
            remedy=remedy,
            family=self,
            **{**self.common, **fields},
        )
        if not re.fullmatch(rf'{self.letters}\d{{3}}', rule_id):
            raise ValueError(
                f'id must be the letters of its family, {self.letters}, and '
                f'3 digits, got {rule_id!r}'
            )
        taken = find_rule(rule_id)
        if taken is not None:
            raise ValueError(
                f'id must be new, got {rule_id!r}, which is {taken.title!r}'
            )
        own = _rules[self.tool]
        ordered = sorted([*own.items(), (rule_id, rule)])
        own.clear()
        own.update(ordered)
        return rule

    def rule(
        self, rule_id: str, **fields: Any
    ) -> Callable[[Callable], Callable]:
        """A decorator that declares a rule, and completes its findings."""

        def decorate(function: Callable) -> Callable:
            @functools.wraps(function)
            def check(facts: Any, *more: Any) -> Iterator[Finding]:
                for draft in function(facts, *more):
                    # The split of what a rule looks at, where it is of one.
                    split = draft.split or getattr(facts, 'split', '')
                    yield rule.complete(draft, split=split)

            rule = self.declare(rule_id, check=check, **fields)
            return check

        return decorate


def find_rule(rule_id: str) -> Rule | None:
    """The rule of an id, of whichever tool; None if there is none."""
    return next(
        (own[rule_id] for own in _rules.values() if rule_id in own), None
    )


def rules_of(tool: str) -> Mapping[str, Rule]:
    """Rules of a tool, by id and in its order; a live view."""
    return MappingProxyType(_rules[tool])


def select_rules(
    rules: Mapping[str, Rule],
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
) -> tuple[Rule, ...]:
    """Choose rules by id, or by the beginning of ids, as ``('SEG', 'PAIR')``.

    All, if nothing is selected; in their order. ValueError if a word is
    neither an id nor the beginning of one.
    """
    chosen = _matching(rules, tuple(select), 'select') or set(rules)
    chosen -= _matching(rules, tuple(ignore), 'ignore')
    return tuple(rule for rule_id, rule in rules.items() if rule_id in chosen)


def _matching(
    rules: Mapping[str, Rule], words: tuple[str, ...], argument: str
) -> set[str]:
    matching: set[str] = set()
    for word in words:
        ids = {
            rule_id for rule_id in rules if word and rule_id.startswith(word)
        }
        if not ids:
            letters = sorted({rule.family.letters for rule in rules.values()})
            raise ValueError(
                f'{argument} must hold ids of rules, such as '
                f"'{next(iter(rules), 'SEG001')}', or beginnings of ids, "
                f'such as {letters}, got {word!r}; --list-rules lists them'
            )
        matching |= ids
    return matching


class ErrorCatcher(AbstractContextManager):
    """Hand the exception of a block over, so that it ends nothing else.

    Whoever takes it must report it. What is not an ``Exception``, such as
    ``KeyboardInterrupt``, is raised, and so is an error of a broken library.

    Args:
        take: Called with the exception.

    Examples:
        >>> caught = []
        >>> with ErrorCatcher(caught.append):
        ...     int('x')
        >>> caught
        [ValueError("invalid literal for int() with base 10: 'x'")]
    """

    def __init__(self, take: Callable[[Exception], Any]) -> None:
        self._take = take

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """Hand an exception over."""
        # A broken library ends a tool, which names it on one line.
        if not isinstance(error, Exception) or isinstance(
            error, BrokenLibraryError
        ):
            return False
        self._take(error)
        return True


def frames_of(error: BaseException) -> list[tuple[FrameType, int]]:
    """Frames and lines that an exception went through, the innermost last."""
    frames = []
    traceback = error.__traceback__
    while traceback is not None:
        frames.append((traceback.tb_frame, traceback.tb_lineno))
        traceback = traceback.tb_next
    return frames


def code_location(error: BaseException, *, skip: str = '') -> str:
    """``file:line in function`` of the innermost code that tells something.

    Code of PyTorch, of the registries, of the standard library and of the
    folder ``skip`` is passed over. Empty where there is no other.
    """
    for frame, line in reversed(frames_of(error)):
        file = frame.f_code.co_filename
        general = file.startswith(_GENERAL) or (
            file.startswith(_STANDARD) and not file.startswith(_PACKAGES)
        )
        skipped = bool(skip) and file.startswith(os.path.join(skip, ''))
        if not general and not skipped and os.path.isabs(file):
            name = os.path.join(*file.split(os.sep)[-3:])
            return f'{name}:{line} in {frame.f_code.co_name}'
    return ''

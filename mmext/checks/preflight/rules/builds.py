"""Parts of a training that its runner could not build, or not run."""

import difflib
import inspect
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from mmengine.config import Config

from ...config import join_key, walk_dicts
from ...findings import (
    Finding,
    Severity,
    code_location,
    find_rule,
    frames_of,
)
from ..causes import settings_in_line
from ..loaders import MADE_UP, Failure
from ..sandbox import UNEXPECTED, Blamed, error_text, find_part, part_at
from .registry import BUILD, INSTALL, RULES
from .subject import arguments_of

# Its own code says nothing of why a part cannot be built.
_PREFLIGHT = str(Path(__file__).resolve().parents[1])
_LIKE = 0.7
_MAX_ARGUMENTS = 12
_MISSING = re.compile(r'missing \d+ required [\w-]+ arguments?: (.*)')
_NO_KEY = re.compile(r"'ConfigDict' object has no attribute '(\w+)'")
_NOT_REGISTERED = re.compile(r'is not in the .*registry')
_NO_PACKAGE = re.compile(r'not installed|pip install|[Pp]lease install')
# What an error of a run says, and what helps.
_CURES = {
    'is not in results': 'take it out of the metric, or use a model that '
    'predicts it',
    'index k out of range': 'take no more than there is: max_per_img of '
    'test_cfg is at most num_queries times num_classes, and num_queries at '
    'most the number of positions of the feature maps',
    'should be the same': 'bring the pictures of a batch to one size by a '
    'step or by data_preprocessor, or set batch_size=1',
    'Package lvis is not installed': "set type='mmext.LVISV1Dataset' of the "
    "data set and type='mmext.LVISMetric' of the evaluator, which work "
    f'without it, or {INSTALL}',
}
# Errors that depend on sizes of images, which may be made up, and remedies.
_OF_IMAGES = {
    'should be divisible by': 'pad the images to multiples of that number: '
    'size_divisor in test_cfg of data_preprocessor (MMSegmentation), '
    'pad_size_divisor of data_preprocessor (MMDetection)',
    'does not match the shape of the indexed tensor': 'load the labels after '
    'the steps that change the size, as a prediction has the size of the '
    'image file: LoadAnnotations after Resize in the pipeline of the data set',
}
# Rules of the labels that say why a batch cannot be made, or be learned.
_OF_DATA = ('CFG003', 'CFG012', 'COCO016', 'PAIR008')
# Errors that do not come of what a batch holds.
_OF_CODE = (AttributeError, ImportError, NotImplementedError, TypeError)
# Errors about a value that the failing line reads.
_OF_VALUES = (AssertionError, KeyError, ValueError)
# What a sample that is made up may lack.
_NO_FIELD = "DataSample' object has no attribute"
_BELOW = r'([.[].*)?'
# Rules that say, without building, that a part cannot be built.
# Their findings are no errors unless building shows that they are.
_MILD = ('SCHED002', 'TYPE002')
_OF_PARTS = (
    *('ARG', 'BUILD', 'CFG', 'CKPT', 'DATA', 'HOOK', 'KEY005', 'LOOP', 'PIPE'),
    *('SCHED', 'TYPE'),
)

BUILD002 = BUILD.declare(
    'BUILD002',
    symptoms=(
        'clip_grad_norm_() got an unexpected keyword argument',
        'is not in results',
        'The image size in a batch should be the same',
        'stack expects each tensor to be equal size',
    ),
    title='a part of the training fails when it runs',
    severity=Severity.ERROR,
    remedy='correct what is refused there',
)
BUILD001 = BUILD.declare(
    'BUILD001',
    symptoms=('missing 1 required positional argument',),
    title='a part of the training cannot be built',
    severity=Severity.ERROR,
    remedy='correct what is refused there',
)


def build_findings(
    failures: Sequence[Failure],
    cfg: Config,
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
        finding = _finding(failure, top)
        cause = finding.message.partition(': ')[2]
        same = [
            index
            for index, other in enumerate(findings)
            if _is_same_part(finding, other, failure)
        ]
        again = [
            index
            for index, other in enumerate(findings)
            # What was raised, without the part in which it was.
            if INSTALL in finding.remedy
            and other.remedy == finding.remedy
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


def _is_same_part(finding: Finding, other: Finding, failure: Failure) -> bool:
    """Whether another finding says why a part cannot be built, or run."""
    part, rest = finding.names[0], other.key[len(finding.names[0]) :]
    if other.rule not in RULES and not find_rule(other.rule).in_preflight:
        # Of the labels, of which one may be wrong and not be the reason.
        split = failure.split or part.partition('_dataloader')[0]
        return (
            other.rule in _OF_DATA
            and other.severity == Severity.ERROR
            and other.split in (split, '')
        )
    if other.rule.startswith('CKPT') and failure.path[:1] != ('load_from',):
        # Nothing is loaded here.
        return False
    if other.severity == Severity.ERROR and other.key:
        # Errors of ours name keys, those of a runner without a section its
        # settings; what runs with a split depends on all that the split has.
        named = '.' in other.key or not failure.path
        if (
            (named and other.key.lower() in finding.message.lower())
            or other.key == finding.key
            or (failure.split and other.key.startswith(f'{failure.split}_'))
        ):
            return True
        if failure.split and failure.path:
            # That section has to be corrected first.
            return re.split(r'[.[]', other.key)[0] == failure.path[0]
    if not other.rule.startswith(_OF_PARTS) or (
        other.severity < Severity.ERROR and other.rule not in _MILD
    ):
        return False
    # A name or an argument that is wrong may be noticed further outside.
    below = _BELOW if other.rule[:3] in ('ARG', 'TYP') else r'(\.\w+)?'
    return other.key.startswith(part) and bool(re.fullmatch(below, rest))


def _finding(failure: Failure, top: Mapping) -> Finding:
    error, methods, rule = failure.error, ['__init__'], BUILD001
    if failure.action != 'be built':
        # Of a sample, whose step is named by another exception.
        error = error.__cause__ or error
        methods += ['__call__', 'transform']
    if failure.split:
        methods, rule = None, BUILD002
    section = part_at(top, failure.path)
    keyword = UNEXPECTED.search(str(error))
    blamed = Blamed(())
    if failure.path or keyword is not None:
        blamed = find_part(error, section, failure.path, methods)
    if isinstance(error, ZeroDivisionError):
        zeros = [
            Blamed(where, (key,))
            for where, part in walk_dicts(section, failure.path)
            for key, value in part.items()
            if value == 0 and not isinstance(value, bool)
        ]
        blamed = zeros[0] if len(zeros) == 1 else blamed
    kind = _refusing(error, blamed.kind)
    if keyword is not None and blamed.key and kind is not None:
        text, remedy = _no_argument(kind, keyword[1])
    else:
        text, remedy = error_text(error), _remedy(error)
        location = code_location(error, skip=_PREFLIGHT)
        if location and keyword is None and not _MISSING.search(str(error)):
            text += f' ({location})'
    if isinstance(error, ZeroDivisionError) and blamed.key:
        remedy = f'set {blamed.key[0]} to 1 or more'
    if failure.trial is not None:
        setting, remedy = failure.trial.setting, failure.trial.remedy
        text += f'; it comes of {setting.in_words()}'
        blamed = Blamed(setting.path[:-1], setting.path[-1:])
    elif failure.path and not blamed.key and isinstance(error, _OF_VALUES):
        named = settings_in_line(error, top, str(failure.path[0]))
        if named:
            words = ', '.join(setting.in_words() for setting in named)
            text += f'; it reads {words}'
            blamed = Blamed(named[0].path[:-1], named[0].path[-1:])
            remedy = remedy or f'correct {join_key(blamed.whole)}'
    severity = rule.severity
    first = str(failure.path[0]) if failure.path else ''
    if failure.pictures:
        text += f', {failure.pictures}'
    # Made-up or few samples cause no error that names a value of the config,
    # or that is one of the code.
    of_code = isinstance(error, _OF_CODE) and not (
        failure.doubt == MADE_UP and _NO_FIELD in str(error)
    )
    certain = failure.split and (blamed.key or remedy or of_code)
    if failure.doubt and (failure.is_shown or not certain):
        severity = Severity.WARNING
        if failure.split and (first == 'model' or failure.doubt == MADE_UP):
            severity = Severity.INFO
        text += f'; {failure.doubt}'
    remedy = remedy or _cure(_OF_IMAGES, error)
    if isinstance(error, AssertionError) and 'only available' in str(error):
        severity = Severity.WARNING
        text += '; it may be where the training runs'
    subject = join_key(blamed.path) or 'the runner'
    return rule.finding(
        f'{subject} cannot {failure.action}: {text}',
        remedy=remedy,
        key=join_key(blamed.whole),
        severity=severity,
        names=(subject,),
    )


def _refusing(error: BaseException, kind: Any) -> Any:
    """Class that does not take an argument: one that was built, or inside."""
    name = str(error).partition('.__init__()')[0]
    for frame, _ in reversed(frames_of(error)):
        inside = {**frame.f_globals, **frame.f_locals}.get(name)
        inside = getattr(inside, 'func', inside)
        if inspect.isclass(inside):
            return inside
    return kind


def _no_argument(kind: Any, keyword: str) -> tuple[str, str]:
    """Message and remedy for an argument that a component does not take."""
    known, name = arguments_of(kind), kind.__name__
    near = difflib.get_close_matches(keyword, known, 1, _LIKE)
    longer = [name for name in known if name.startswith(f'{keyword}_')]
    near = near or longer * (len(longer) == 1)
    remedy = f'remove it; {name} takes {", ".join(known[:_MAX_ARGUMENTS])}'
    if len(known) > _MAX_ARGUMENTS:
        remedy += ', ...'
    if near:
        remedy = f'rename it to {near[0]}, or remove it'
    return f'{name} takes no argument {keyword}', remedy


def _cure(cures: Mapping[str, str], error: BaseException) -> str:
    """The remedy of the first words that an error message has."""
    text = str(error)
    return next((cures[words] for words in cures if words in text), '')


def _remedy(error: BaseException) -> str:
    """What is certain to help; else where to look."""
    text = str(error)
    missing = _MISSING.search(text)
    if isinstance(error, TypeError) and missing is not None:
        return f'set {missing[1]}'
    no_key = _NO_KEY.search(text)
    if no_key is not None:
        return f'set {no_key[1]} there'
    if 'must contain the key "type"' in text:
        return 'give the dict a type'
    cure = _cure(_CURES, error)
    if cure:
        return cure
    if isinstance(error, ImportError) or _NO_PACKAGE.search(text):
        return INSTALL
    if isinstance(error, KeyError) and _NOT_REGISTERED.search(text):
        return (
            'correct the name, or import what registers it by custom_imports'
        )
    return ''

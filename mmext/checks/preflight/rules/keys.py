"""Top-level keys that nobody reads."""

import difflib
import inspect
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from mmengine.runner import FlexibleRunner, Runner

from ....ops import check_ops_backend
from ...config import (
    DELETE,
    OLD_KEYS,
    RIGHT_LOCATIONS,
    SECTIONS,
    find_component,
    split_key,
)
from ...findings import Finding, Severity
from ..dry_run.run import dotted_options
from .registry import KEY, new_finding
from .subject import Subject, as_mapping, sure_name

# Keys that are read from the config itself, beside the arguments of the
# runners.
READ_KEYS = (
    # By MMEngine's runners and its Config.
    *('model_wrapper_cfg', 'find_unused_parameters', 'sync_bn', 'compile'),
    *('activation_checkpointing', 'efficient_conv_bn_eval', 'strategy'),
    *('init_weights_for_test_or_val', 'custom_imports', 'default_scope'),
    # By the hosts' tools, and by MMDetection's configs.
    *('tta_model', 'tta_pipeline', 'opencv_num_threads', 'mp_start_method'),
    *('runner_type', 'dynamic_intervals'),
    # By mmext's runner and tools.
    *('device', 'ops_backend', 'freeze', 'match_classes', 'data_root'),
    *('base_data_root', 'check_misplaced_keys', 'own_keys'),
)
# Sections that are no components -> the keys that are read of them.
_KEYS_OF_SECTIONS = {
    'randomness': ('seed', 'diff_rank_seed', 'deterministic'),
    'env_cfg': ('cudnn_benchmark', 'mp_cfg', 'dist_cfg', 'resource_limit'),
    'auto_scale_lr': ('enable', 'base_batch_size', 'rule'),
}
# Names that configs give to variables, and that are near to such keys.
_VARIABLES = ('test_pipeline', 'train_pipeline', 'val_pipeline')
_LIKE = 0.85
# Short names are near to too many others.
_SHORT = 6


@cache
def _runner_keys() -> tuple[str, ...]:
    """Arguments of the runners that come from the config."""
    names: dict[str, None] = {}
    for runner in (Runner, FlexibleRunner):
        for name in inspect.signature(runner.__init__).parameters:
            if name not in ('self', 'cfg'):
                names[name] = None
    return tuple(names)


def reads_key(name: str) -> bool:
    """Whether MMEngine, the hosts' tools or mmext's read a top-level key."""
    return name in READ_KEYS or name in _runner_keys()


def _unread(subject: Subject) -> Iterator[str]:
    for name in subject.top:
        read = reads_key(name) or subject.is_own((name,))
        if not read and not subject.is_used(name):
            yield name


def _is_typo(subject: Subject, name: str) -> str | None:
    """The key that a name is meant for; None if it is a name of its own."""
    if len(name) < _SHORT or name in _VARIABLES or name[0] == '_':
        return None
    known = [*_runner_keys(), *READ_KEYS]
    near = ''.join(difflib.get_close_matches(name, known, 1, _LIKE))
    if not near or near in RIGHT_LOCATIONS:
        # The latter are of KEY003.
        return None
    # `train_cfg2` or `train_cfg_a` beside `train_cfg` is a variable.
    rest = name.removeprefix(near)
    own = rest.isdigit() or rest.startswith('_')
    return None if own and rest != name and near in subject.top else near


@KEY.rule(
    'KEY001',
    title='a top-level key looks misspelt',
    severity=Severity.WARNING,
    remedy='rename the key, or remove it',
    fix='rename a key that can only be the near one',
)
def misspelt_key(subject: Subject) -> Iterator[Finding]:
    """Names that nobody reads and that are near to one that is read."""
    for name in _unread(subject):
        near = _is_typo(subject, name)
        if near is None or name in OLD_KEYS:
            continue
        options = {}
        # With `_` or a number at its end it is out of use, or another one.
        sure = name[0] != '_' and name[-1].isalpha()
        if sure and sure_name(name, [near]) and _is_like(subject, name, near):
            options = subject.renamed((name,), near)
        yield new_finding(
            f'nothing reads the top-level key {name}; {near} is near',
            path=(name,),
            remedy=f'rename it to {near}, or remove it',
            names=(near,),
            options=options,
        )


def _is_like(subject: Subject, name: str, near: str) -> bool:
    """Whether a value is what is read by a key: a section of its types."""
    value = subject.top[name]
    if near not in SECTIONS:
        return near in ('load_from', 'work_dir') and isinstance(value, str)
    nodes = [value] if isinstance(value, Mapping) else value
    if not isinstance(nodes, list) or not nodes:
        return False
    kinds = [as_mapping(node).get('type') for node in nodes]
    if not any(kinds) and isinstance(value, Mapping):
        # Such as default_hooks; without any type the keys must be known.
        kinds = [as_mapping(node).get('type') for node in value.values()]
        old = as_mapping(subject.top.get(near))
        if not any(kinds):
            return bool(old) and set(value) <= set(old)
    return all(
        find_component(kind, SECTIONS[near], subject.scope) is not None
        for kind in kinds
        if kind is not None
    )


@KEY.rule(
    'KEY002',
    title='a top-level key is one of MMCV 1.x',
    severity=Severity.WARNING,
    remedy='set what is read instead',
)
def old_key(subject: Subject) -> Iterator[Finding]:
    """Sections that MMEngine's predecessor read."""
    for name in _unread(subject):
        value = subject.top[name]
        if name not in OLD_KEYS or value is None:
            continue
        yield new_finding(
            f'nothing reads the top-level key {name} since MMCV 2',
            path=(name,),
            remedy=f'set {OLD_KEYS[name]} instead, and remove {name}',
        )


@KEY.rule(
    'KEY003',
    title='a setting is where nothing reads it',
    severity=Severity.ERROR,
    remedy='set it where it is read',
    fix='move the setting to where it is read',
)
def misplaced_key(subject: Subject) -> Iterator[Finding]:
    """Settings of the model wrapper and of checkpointing."""
    for item in subject.misplaced:
        text, severity = '', Severity.ERROR
        options = {item.location: DELETE, **dotted_options(item.fix)}
        remedy = 'remove it'
        if item.fix:
            remedy += f'; to have it, set: {item.remedy}'
        if item.named_in:
            text = f'; {Path(item.named_in).name} names it and may read it'
            severity, options = Severity.WARNING, {}
            own = f'set own_keys = {[item.location]!r}'
            remedy = f'if it is read, {own}; else {remedy}'
        yield new_finding(
            f'{item.location} = {item.value!r}: {item.reason}; it is read '
            f'{item.read_at}{text}',
            path=split_key(item.location),
            severity=severity,
            remedy=remedy,
            options=options,
        )


@KEY.rule(
    'KEY004',
    title='nobody reads a top-level key',
    severity=Severity.INFO,
    remedy='remove it, if it is not for a program of yours',
)
def unread_key(subject: Subject) -> Iterator[Finding]:
    """Names that are neither read nor used in the config itself."""
    misplaced = {item.location for item in subject.misplaced}
    for name in _unread(subject):
        if (
            name in OLD_KEYS
            or name in misplaced
            or name in RIGHT_LOCATIONS
            or _is_typo(subject, name) is not None
        ):
            continue
        yield new_finding(
            f'nothing reads the top-level key {name}, and no line of the '
            'config uses it',
            path=(name,),
        )


@KEY.rule(
    'KEY005',
    title='a section of the runner has a key that it does not read',
    severity=Severity.WARNING,
    remedy='remove it, or correct its name',
    fix='correct a name that can only be one of the known ones',
)
def unread_in_section(subject: Subject) -> Iterator[Finding]:
    """Keys of ``randomness``, ``env_cfg`` and ``auto_scale_lr``."""
    misplaced = {item.location for item in subject.misplaced}
    for name, known in _KEYS_OF_SECTIONS.items():
        section = as_mapping(subject.top.get(name))
        for key, path, sure in subject.unread(section, (name,), known):
            of_loop007 = sure == 'base_batch_size' and section.get('enable')
            if of_loop007 or f'{name}.{key}' in misplaced:
                continue
            ends = name == 'randomness'
            yield new_finding(
                f'{name} reads {", ".join(known)}, and not {key}'
                + (': the training ends when it starts' if ends else ''),
                path=path,
                severity=Severity.ERROR if ends else Severity.WARNING,
                **subject.renaming(path, sure),
            )


@KEY.rule(
    'KEY006',
    title='ops_backend names no back end of operators',
    severity=Severity.ERROR,
    remedy='correct the name, or remove the key',
)
def unknown_ops_backend(subject: Subject) -> Iterator[Finding]:
    """What mmext's runner refuses when it starts, in its words."""
    try:
        check_ops_backend(subject.top.get('ops_backend') or 'auto')
    except ValueError as error:
        yield new_finding(str(error), path=('ops_backend',))

"""Settings of data sets that their classes do not read."""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from mmengine.dataset import BaseDataset

from ...findings import Finding, Severity
from .registry import DATA, new_finding
from .subject import SPLITS, Subject, change, sure_name

_PREFIX = 'data_prefix'
_FILTER = 'filter_cfg'
# Names of MMCV 1.x.
_OLD = {
    'img_dir': 'img_path',
    'ann_dir': 'seg_map_path',
    'img_prefix': 'img',
    'seg_prefix': 'seg',
}


@cache
def _read_keys(kind: type, name: str) -> dict[str, bool]:
    """Keys of a dict, such as ``data_prefix``, that a class reads.

    True for those that are read without a look whether they are there.
    Empty if they are not known.
    """
    keys: dict[str, bool] = {}
    for base in inspect.getmro(kind):
        if base in inspect.getmro(BaseDataset):
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, SyntaxError, TypeError):
            return {}
        for node in ast.walk(tree):
            read = _keys_at(node, name)
            if read is None:
                return {}
            for key in read:
                must = isinstance(node, ast.Subscript)
                keys[key] = keys.get(key, True) and must
    return keys


def _keys_at(node: ast.AST, name: str) -> set[str] | None:
    """Keys that an expression reads; None if they are computed."""
    if isinstance(node, ast.Subscript) and _is_it(node.value, name):
        return _text(node.slice)
    if isinstance(node, ast.Compare) and _is_it(node.comparators[0], name):
        return _text(node.left)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if not _is_it(node.func.value, name):
            return set()
        if node.func.attr in ('get', 'pop', 'setdefault') and node.args:
            return _text(node.args[0])
        return None
    if isinstance(node, ast.Call | ast.keyword) and any(
        isinstance(value, ast.Attribute) and _is_it(value, name)
        for value in getattr(node, 'args', [getattr(node, 'value', None)])
    ):
        # Handed on as a whole.
        return None
    return set()


def _is_it(node: ast.AST, name: str) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == name) or (
        isinstance(node, ast.Name) and node.id == name
    )


def _text(node: ast.AST) -> set[str] | None:
    value = node.value if isinstance(node, ast.Constant) else None
    return {value} if isinstance(value, str) else None


def _given(
    subject: Subject, key: str
) -> Iterator[tuple[Any, type, tuple[str | int, ...]]]:
    """Values of an argument of data sets, with the class and the place."""
    for split in SPLITS:
        for section in subject.below(f'{split}_dataloader', 'dataset'):
            kind = subject.component(section)
            if key in section.cfg and inspect.isclass(kind):
                yield section.cfg[key], kind, (*section.path, key)


@DATA.rule(
    'DATA007',
    title='a data set does not read a key of data_prefix',
    severity=Severity.ERROR,
    remedy='use the keys that it reads',
    fix='rename a key, where only one can be meant',
)
def unread_prefix(subject: Subject) -> Iterator[Finding]:
    """``img_path`` for ``img``, and the like: nothing is found there."""
    for prefix, kind, path in _given(subject, _PREFIX):
        known = _read_keys(kind, _PREFIX)
        host = kind.__module__.partition('.')[0] in ('mmdet', 'mmseg')
        if isinstance(prefix, str) and host and known:
            must = [key for key in known if known[key]]
            yield new_finding(
                f'data_prefix must be a dict, got {prefix!r}; '
                f'{kind.__name__} reads {", ".join(sorted(known))} of it',
                path=path,
                options=change(path, {must[0]: prefix})
                if len(must) == 1
                else {},
            )
        if not isinstance(prefix, Mapping):
            continue
        unread = [
            key
            for key in prefix
            if key not in known
            and not str(key).startswith('_')
            and not subject.is_own((*path, key))
        ]
        for key in unread if known else ():
            yield _unread(subject, kind, prefix, (*path, key), unread)


def _unread(
    subject: Subject, kind: Any, prefix: Mapping, path: tuple, unread: list
) -> Finding:
    known = _read_keys(kind, _PREFIX)
    hard = [key for key in known if known[key]] or list(known)
    lacking = [key for key in hard if key not in prefix]
    meant = _OLD.get(path[-1])
    if meant not in lacking:
        alone = len(unread) == len(lacking) == 1
        meant = lacking[0] if alone else None
    return new_finding(
        f'{kind.__name__} reads {", ".join(sorted(known))} of data_prefix, '
        f'and not {path[-1]}',
        path=path,
        severity=Severity.ERROR if lacking else Severity.WARNING,
        **subject.renaming(path, meant),
    )


@DATA.rule(
    'DATA008',
    title='a data set does not read a key of filter_cfg',
    severity=Severity.WARNING,
    remedy='use the keys that it reads: nothing is left out for this one',
    fix='correct a name that can only be one of the known ones',
)
def unread_filter(subject: Subject) -> Iterator[Finding]:
    """``filter_empty_gts`` for ``filter_empty_gt``, and the like."""
    for wanted, kind, at in _given(subject, _FILTER):
        if not isinstance(wanted, Mapping):
            continue
        known = _read_keys(kind, _FILTER)
        for key in wanted if known else ():
            path = (*at, key)
            if key in known or key[:1] == '_' or subject.is_own(path):
                continue
            sure = sure_name(key, known)
            yield new_finding(
                f'{kind.__name__} reads {", ".join(sorted(known))} of '
                f'filter_cfg, and not {key}',
                path=path,
                severity=Severity.WARNING if sure else Severity.INFO,
                **subject.renaming(path, sure),
            )

"""Where the data of a config are: the root of all, and what is not there.

MMEngine evaluates a base config before the child that inherits it, so the
child's ``data_root = ...`` comes too late for the data sets and evaluators of
the base. :func:`apply_data_root` puts it there. To say which root that is, a
dataset config names the one it was written with::

    data_root = 'data/coco/'
    base_data_root = data_root
"""

import copy
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.registry import DATASETS
from mmengine.utils import is_abs

from .sections import find_component
from .walk import join_key, walk_dicts

_SPLITS = ('train', 'val', 'test')
# The keys that hold paths, ``data_prefix`` aside, in mmdet and mmseg.
_DATASET_KEYS = ('data_root', 'ann_file', 'proposal_file')
_EVALUATOR_KEYS = ('ann_file', 'seg_prefix')
_MAX_LISTED = 8


class _Entry(NamedTuple):
    """A key that may hold a path.

    ``path`` goes on from the root of the data set where it is ``joined``;
    ``owner`` has the key by its ``name`` and is ``node``, the data set or
    evaluator, or its ``data_prefix``.
    """

    split: str
    key: str
    path: Any
    joined: bool
    owner: dict
    name: str
    node: Mapping


def _entries(cfg: Config, split: str) -> Iterator[list[_Entry]]:
    """Entries of each data set and evaluator of a split, a root first."""
    loader, evaluator = f'{split}_dataloader', f'{split}_evaluator'
    data = cfg.get(loader)
    data = data.get('dataset') if isinstance(data, Mapping) else None
    nodes = [
        *walk_dicts(data, (loader, 'dataset')),
        *walk_dicts(cfg.get(evaluator), (evaluator,)),
    ]
    for steps, node in nodes:
        of_data = steps[0] == loader
        root = node.get('data_root') if of_data else None
        owners = [
            ((*steps, name), node, name)
            for name in (_DATASET_KEYS if of_data else _EVALUATOR_KEYS)
            if name in node
        ]
        prefix = node.get('data_prefix')
        if isinstance(prefix, Mapping):
            steps = (*steps, 'data_prefix')
            owners += [((*steps, name), prefix, name) for name in prefix]
        group = []
        for steps, owner, name in owners:
            path = owner[name]
            joined = (
                bool(root and path and isinstance(path, str))
                and name != 'data_root'
                and not is_abs(path)
            )
            path = posixpath.join(root, path) if joined else path
            key = join_key(steps)
            group.append(_Entry(split, key, path, joined, owner, name, node))
        yield group


def _is_below(path: Any, root: str) -> bool:
    """Whether a path is a folder or something in it, by its text alone."""
    return isinstance(path, str) and (path.rstrip('/') + '/').startswith(
        root.rstrip('/') + '/'
    )


def _moved(path: Any, old: str, new: str) -> Any:
    """A path below ``old``, moved below ``new``; anything else as it is."""
    if not _is_below(path, old):
        return path
    rest = path[len(old.rstrip('/')) :].lstrip('/')
    return posixpath.join(new, rest) if rest else new


def apply_data_root(cfg: Config) -> Config:
    """Make the top-level ``data_root`` the root of all data of a config.

    A data set or evaluator that names ``base_data_root``, or a path below
    it, gets ``data_root`` in its place. Roots that a config has set itself
    stay. A config without ``base_data_root``, such as one of a host, keeps
    its paths, but its present ``data_root`` is noted as the base. A tool
    that merges options therefore calls this before the merge, too, and
    ``--cfg-options data_root=...`` works with any config::

        cfg = apply_data_root(Config.fromfile(path))
        cfg.merge_from_dict(options)
        cfg = apply_data_root(cfg)

    Args:
        cfg: The config. It is not changed.

    Returns:
        A copy with the paths in place. Its ``base_data_root`` is its
        ``data_root``, so a second call changes nothing. Without a top-level
        ``data_root`` it is a plain copy.

    Raises:
        TypeError: If ``data_root`` or ``base_data_root`` is not a string.
        ValueError: If one of them is empty, or if ``data_root`` differs from
            the base and the config has no data set below either.

    Examples:
        >>> cfg = Config(
        ...     dict(
        ...         data_root='/disk/coco',
        ...         base_data_root='data/coco/',
        ...         val_dataloader=dict(dataset=dict(data_root='data/coco/')),
        ...         val_evaluator=dict(ann_file='data/coco/val.json'),
        ...     )
        ... )
        >>> apply_data_root(cfg).val_evaluator.ann_file
        '/disk/coco/val.json'
    """
    cfg = copy.deepcopy(cfg)
    if 'data_root' not in cfg:
        return cfg
    new = cfg.data_root
    old = cfg.get('base_data_root', new)
    for name, value in (('data_root', new), ('base_data_root', old)):
        if not isinstance(value, str):
            raise TypeError(f'{name} must be a string, got {value!r}')
        if not value:
            raise ValueError(
                f"{name} must not be empty, got ''; the current folder is './'"
            )
    cfg.base_data_root = new
    if old == new:
        return cfg
    paths = []
    for entry in chain(
        *(group for split in _SPLITS for group in _entries(cfg, split))
    ):
        path = _moved(entry.owner[entry.name], old, new)
        entry.owner[entry.name] = path
        of_data = entry.key.startswith(f'{entry.split}_dataloader')
        if path and of_data and entry.name in _DATASET_KEYS:
            paths.append(path)
    if paths and not any(_is_below(path, new) for path in paths):
        raise ValueError(
            f'data_root must be the root of a data set, got {new!r}, but '
            f'none is there or at {old!r}: the config has '
            f'{sorted(set(paths))}; set train_dataloader.dataset.data_root '
            'and the like instead'
        )
    return cfg


def _is_missing(entry: _Entry) -> bool:
    backend = (entry.node.get('backend_args') or {}).get('backend', 'local')
    if backend == 'local' and '://' not in entry.path:
        return not Path(entry.path).exists()
    print_log(
        f'{entry.key} is not checked, {entry.path!r} is not on a local disk',
        logger='current',
    )
    return False


def _describe(cfg: Config, missing: Sequence[_Entry]) -> str:
    lines = [
        f'  {entry.split} data: {entry.path!r} ({entry.key})'
        for entry in missing[:_MAX_LISTED]
    ]
    if len(missing) > _MAX_LISTED:
        lines.append(f'  and {len(missing) - _MAX_LISTED} more')
    root = cfg.get('data_root')
    if root and all(_is_below(entry.path, root) for entry in missing):
        lines.append(
            f'Set data_root (now {root!r}) in the config or by '
            '--cfg-options data_root=FOLDER.'
        )
    else:
        lines.append('Set these keys in the config or by --cfg-options.')
    scope = cfg.get('default_scope') or 'mmengine'
    for entry in missing:
        kind = find_component(entry.node.get('type'), (DATASETS,), scope)
        # A tool of this repository writes it.
        if hasattr(kind, 'GENERATED_BY'):
            folder = entry.node.get('data_root') or 'FOLDER'
            lines.append(
                'This set can be generated: python '
                f'tools/{kind.GENERATED_BY} --out {folder}'
            )
            break
    return '\n'.join(['the config names data that does not exist:', *lines])


def check_data_paths(cfg: Config, splits: Sequence[str] = _SPLITS) -> None:
    """Raise if a file or folder that a config reads data from is missing.

    Looks into the data sets of the dataloaders, wrapped ones included, and
    into the evaluators. What is not read from a local disk is not checked,
    and a log line says so.

    Args:
        cfg: The config, after :func:`apply_data_root`.
        splits: Those to check, of ``'train'``, ``'val'`` and ``'test'``. One
            that the config does not have is passed over.

    Raises:
        ValueError: If ``splits`` has another name.
        FileNotFoundError: If something is missing. The message gives split,
            path and config key of each, what to set, and for the generated
            set the command that makes it.

    Examples:
        >>> dataset = dict(data_root='no/such/', ann_file='a.json')
        >>> cfg = Config(dict(val_dataloader=dict(dataset=dataset)))
        >>> check_data_paths(cfg, splits=['val'])
        Traceback (most recent call last):
            ...
        FileNotFoundError: the config names data that does not exist:
          val data: 'no/such/' (val_dataloader.dataset.data_root)
        Set these keys in the config or by --cfg-options.
    """
    missing: dict[str, _Entry] = {}
    for split in splits:
        if split not in _SPLITS:
            raise ValueError(
                f'splits must be some of {_SPLITS}, got {split!r}'
            )
        for group in _entries(cfg, split):
            given = [
                entry
                for entry in group
                if isinstance(entry.path, str) and entry.path
            ]
            root = given[:1] if given and given[0].name == 'data_root' else []
            for entry in given[len(root) :] or root:
                if _is_missing(entry):
                    # With the root missing, what is below it is no news.
                    far = entry.joined and _is_missing(root[0])
                    named = root[0] if far else entry
                    missing[named.key] = named
    if missing:
        raise FileNotFoundError(_describe(cfg, list(missing.values())))

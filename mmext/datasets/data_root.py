"""One ``data_root`` for all data sets and evaluators of a config.

MMEngine evaluates a base config before the child that inherits it, so the
child's ``data_root = ...`` comes too late for the data sets and evaluators of
the base. :func:`apply_data_root` puts it there. To be told which root that
is, a dataset config names the one it was written with::

    data_root = 'data/coco/'
    base_data_root = data_root
"""

import copy
import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

from mmengine.config import Config

__all__ = [
    'DATASET_KEYS',
    'EVALUATOR_KEYS',
    'SPLITS',
    'apply_data_root',
    'is_below',
    'walk_data_sources',
]

SPLITS = ('train', 'val', 'test')
# The keys that hold paths, ``data_prefix`` aside, in mmdet and mmseg.
DATASET_KEYS = ('data_root', 'ann_file', 'proposal_file')
EVALUATOR_KEYS = ('ann_file', 'seg_prefix')


def _walk(node: Any, key: str) -> Iterator[tuple[str, Any]]:
    """All dicts below a node, each with its key."""
    if isinstance(node, Mapping):
        yield key, node
        children = list(node.items())
    elif isinstance(node, (list, tuple)):
        children = list(enumerate(node))
    else:
        return
    for name, child in children:
        yield from _walk(child, f'{key}.{name}')


def walk_data_sources(
    cfg: Config, split: str
) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    """Every dict of a split that may name paths.

    Data sets inside wrappers are reached, and every metric of an evaluator.

    Args:
        cfg: The config.
        split: One of ``SPLITS``. One that ``cfg`` lacks gives nothing.

    Yields:
        The key of the dict, the dict itself, and which of its keys hold
        paths.

    Examples:
        >>> inner = dict(data_root='data/')
        >>> cfg = Config(
        ...     dict(val_dataloader=dict(dataset=dict(dataset=inner)))
        ... )
        >>> [key for key, _, _ in walk_data_sources(cfg, 'val')]
        ['val_dataloader.dataset', 'val_dataloader.dataset.dataset']
    """
    loader = cfg.get(f'{split}_dataloader')
    if isinstance(loader, Mapping):
        start = f'{split}_dataloader.dataset'
        for key, node in _walk(loader.get('dataset'), start):
            yield key, node, DATASET_KEYS
    evaluator = f'{split}_evaluator'
    for key, node in _walk(cfg.get(evaluator), evaluator):
        yield key, node, EVALUATOR_KEYS


def is_below(path: Any, root: str) -> bool:
    """Whether a path is a folder or something in it, by its text alone.

    Examples:
        >>> is_below('data/coco', 'data/coco/'), is_below('data/coco2', 'data')
        (True, True)
        >>> is_below('data/coco2', 'data/coco')
        False
    """
    return isinstance(path, str) and (path.rstrip('/') + '/').startswith(
        root.rstrip('/') + '/'
    )


def _moved(path: Any, old: str, new: str) -> Any:
    """A path below ``old``, moved below ``new``; anything else as it is."""
    if not is_below(path, old):
        return path
    rest = path[len(old.rstrip('/')) :].lstrip('/')
    return posixpath.join(new, rest) if rest else new


def _move_all(cfg: Config, old: str, new: str) -> list[str]:
    """Move the paths of a config in place; returns all those of data sets."""
    found = []
    for split in SPLITS:
        for _, node, names in walk_data_sources(cfg, split):
            groups = [(node, names)]
            if isinstance(node.get('data_prefix'), Mapping):
                groups.append((node['data_prefix'], (*node['data_prefix'],)))
            for owner, keys in groups:
                for key in keys:
                    if key in owner:
                        owner[key] = _moved(owner[key], old, new)
            if names is DATASET_KEYS:
                found += [node[key] for key in names if node.get(key)]
    return found


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
    paths = _move_all(cfg, old, new)
    if paths and not any(is_below(path, new) for path in paths):
        raise ValueError(
            f'data_root must be the root of a data set, got {new!r}, but '
            f'none is there or at {old!r}: the config has '
            f'{sorted(set(paths))}; set train_dataloader.dataset.data_root '
            'and the like instead'
        )
    return cfg

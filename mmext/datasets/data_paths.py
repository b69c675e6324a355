"""Check that the data a config names is there, before anything is built."""

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.utils import is_abs

from .data_root import DATASET_KEYS, SPLITS, is_below, walk_data_sources

__all__ = ['check_data_paths']

_MAX_LISTED = 8
_GENERATED = ('ShapesDataset', 'ShapesSegDataset')


class _Entry(NamedTuple):
    """A path of a config: the key it is at, and the dict it belongs to."""

    split: str
    key: str
    path: str
    owner: Mapping[str, Any]


def _entries(
    cfg: Config, split: str
) -> Iterator[tuple[_Entry, _Entry | None]]:
    """All paths of a split, each with the root it was joined to, if any."""
    for key, node, names in walk_data_sources(cfg, split):
        root = node.get('data_root') if names is DATASET_KEYS else None
        named = {name: node.get(name) for name in names if name != 'data_root'}
        if isinstance(node.get('data_prefix'), Mapping):
            named |= {
                f'data_prefix.{name}': path
                for name, path in node['data_prefix'].items()
            }
        parent = _Entry(split, f'{key}.data_root', root, node)
        for name, path in named.items():
            if not isinstance(path, str) or not path:
                continue
            joined = bool(root) and not is_abs(path)
            path = posixpath.join(root, path) if joined else path
            entry = _Entry(split, f'{key}.{name}', path, node)
            yield entry, parent if joined else None


def _is_missing(entry: _Entry) -> bool:
    backend = (entry.owner.get('backend_args') or {}).get('backend', 'local')
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
    if root and all(is_below(entry.path, root) for entry in missing):
        lines.append(
            f'Set data_root (now {root!r}) in the config or by '
            '--cfg-options data_root=FOLDER.'
        )
    else:
        lines.append('Set these keys in the config or by --cfg-options.')
    for entry in missing:
        if str(entry.owner.get('type')).endswith(_GENERATED):
            folder = entry.owner.get('data_root') or 'FOLDER'
            lines.append(
                'This set can be generated: python '
                f'tools/make_shapes_dataset.py --out {folder}'
            )
            break
    return '\n'.join(['the config names data that does not exist:', *lines])


def check_data_paths(cfg: Config, splits: Sequence[str] = SPLITS) -> None:
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
        if split not in SPLITS:
            raise ValueError(f'splits must be some of {SPLITS}, got {split!r}')
        for entry, root in _entries(cfg, split):
            if _is_missing(entry):
                # With the root missing, what is below it is no news.
                named = root if root and _is_missing(root) else entry
                missing[named.key] = named
    if missing:
        raise FileNotFoundError(_describe(cfg, list(missing.values())))

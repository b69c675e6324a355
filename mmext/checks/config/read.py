"""Read a config, with its data root applied and its data checked.

MMEngine evaluates a base config before the child that inherits it, so the
child's ``data_root = ...`` comes too late for the data sets and evaluators of
the base. :func:`apply_data_root` puts it there. To say which root that is, a
dataset config names the one it was written with::

    data_root = 'data/coco/'
    base_data_root = data_root
"""

import copy
import posixpath
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmengine.config import Config
from mmengine.config.utils import ConfigParsingError
from mmengine.logging import print_log
from mmengine.registry import DATASETS
from mmengine.utils import import_modules_from_strings, is_abs

from ...utils.config_bases import require_regular_bases
from .stored import read_stored_config
from .walk import (
    dataset_configs,
    inner_dataset_configs,
    join_key,
    option_key,
    walk_dicts,
)

_SPLITS = ('train', 'val', 'test')
# The keys that hold paths, ``data_prefix`` aside, in mmdet and mmseg.
_DATASET_KEYS = ('data_root', 'ann_file', 'proposal_file')
_EVALUATOR_KEYS = ('ann_file', 'seg_prefix')
_MAX_LISTED = 8
# What mmext/registry.py has as locations, as far as it loads models.
_REGISTERED = ('mmext.engine', 'mmext.evaluation', 'mmext.models')
# Data sets of mmext and the tools that write them.
_GENERATED = {
    'ShapesDataset': 'make_shapes_dataset.py',
    'ShapesSegDataset': 'make_shapes_dataset.py',
    'ScenesMultiTaskDataset': 'make_scenes_dataset.py',
}


def _load(file: str | Path, own_imports: bool = True) -> Config:
    """Load a config; what goes wrong names it, and the line."""
    try:
        cfg = Config.fromfile(file, import_custom_modules=own_imports)
        if not own_imports:
            _import_others(cfg.get('custom_imports') or {})
        return cfg
    except OSError as error:
        hint = _install_hint(error)
        if not hint:
            raise
        raise FileNotFoundError(
            f'the config {file} cannot be loaded: {error}{hint}'
        ) from error
    except ImportError as error:
        # MMEngine's own text lists sys.path, and not what is missing.
        cause = error
        while cause.__context__ is not None:
            cause = cause.__context__
        raise ImportError(
            f'the config {file} cannot be loaded: {type(cause).__name__}: '
            f'{cause}; modules of custom_imports must be installed, or in a '
            'folder that PYTHONPATH names'
        ) from error
    # A config is a program, and may raise anything.
    except Exception as error:
        text = error.args[0] if isinstance(error, KeyError) else error
        text = ' '.join(str(getattr(error, 'msg', text)).split())
        raise ValueError(
            f'the config {_failed_line(file, error)} cannot be loaded: '
            f'{type(error).__name__}: {text}'
        ) from error


def _install_hint(error: Exception) -> str:
    """What to do where ``mmext::X`` is asked for in a clone; else empty."""
    folder = Path(getattr(error, 'filename', None) or '.').parent
    if folder.name != '.mim' or folder.exists():
        return ''
    return (
        f' {folder.parent.name} is not installed, so its configs are not '
        f'found by name: pip install -e {folder.parents[1]}'
    )


def config_file(name: str) -> str:
    """The file of a config, which may be one that a package ships.

    Args:
        name: A file, or a name such as ``'mmext::pidnet/pidnet_s_camvid.py'``.

    Returns:
        The file; a name without ``::`` and a file that exists as they are.

    Raises:
        FileNotFoundError: If the package, or its config, does not exist.
    """
    if '::' not in name or Path(name).exists():
        return name
    package, path = name.split('::', 1)
    try:
        return Config._get_cfg_path(name, '')[0]
    # A package, its folder of configs, or the file may be missing.
    except (ImportError, OSError, ValueError, ConfigParsingError) as error:
        raise FileNotFoundError(
            f'config must be a file, or one that a package ships, got {name} '
            f'({error}); is {path} in the configs of {package}?'
            + _install_hint(error)
        ) from error


def _import_others(custom: Mapping[str, Any]) -> None:
    """Import what ``custom_imports`` names, but for packages of ours."""
    names = custom.get('imports')
    if isinstance(names, str):
        names = [names]
    if isinstance(names, list):
        custom = {
            **custom,
            'imports': [name for name in names if name not in _REGISTERED],
        }
    if custom:
        import_modules_from_strings(**custom)


def _failed_line(file: str | Path, error: Exception) -> str:
    """File and line of a config at which loading it ended, if it is known."""
    if isinstance(error, SyntaxError):
        named = error.filename or ''
        known = named if Path(named).is_file() else file
        return f'{known}:{error.lineno}'
    lines = [
        f'{frame.filename}:{frame.lineno}'
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.name == '<module>' and Path(frame.filename).is_file()
    ]
    return lines[-1] if lines else str(file)


def read_config(
    config: Config | str | Path | None,
    *,
    meta: Mapping | None = None,
    cfg_options: Mapping | None = None,
    trust_checkpoint: bool = False,
    own_imports: bool = True,
) -> Config:
    """Read a config from a file, or the one a checkpoint was trained with.

    Args:
        config: A config, its file, the name of one that an installed package
            ships, such as ``'mmext::pidnet/pidnet_small_shapes.py'``, or None
            for the one in ``meta``.
        meta: The ``meta`` of a checkpoint; MMEngine stores the config there
            as text under ``cfg``.
        cfg_options: Settings to put over it, by keys such as
            ``model.heads[0].num_classes``.
        trust_checkpoint: Run the config in ``meta`` as Python, whatever it
            does. Without, it must be values only, as MMEngine writes them,
            of components that are registered.
        own_imports: Import all modules that ``custom_imports`` of a file
            names. Without, the packages of mmext that register models and
            what trains them are left to the registries, which import them
            when one of their components is asked for: 4 s less for those
            who need none.

    Returns:
        A config of its own, with ``data_root`` applied (see
        :func:`apply_data_root`); the argument is not changed.

    Raises:
        FileNotFoundError: If the file does not exist.
        OSError: If the file, or a base of it, is a FIFO or a device.
        ValueError: If no config is given and ``meta`` has none, or one that
            would have to be trusted. If the file cannot be loaded: then it
            names the line.
    """
    if isinstance(config, Config):
        result = config
    elif config is not None:
        config = config_file(str(config))
        if not Path(config).is_file():
            raise FileNotFoundError(
                f'config must be an existing file, got {config}'
            )
        require_regular_bases(config)
        result = _load(config, own_imports)
    else:
        stored = (meta or {}).get('cfg')
        if not stored:
            raise ValueError(
                'config must be given, got None and a checkpoint that does '
                'not hold its config; name the config file it was trained '
                'with'
            )
        result = read_stored_config(stored, trust=trust_checkpoint)
    result = apply_data_root(result)
    if cfg_options:
        options = copy.deepcopy(dict(cfg_options))
        result.merge_from_dict(
            {option_key(key): value for key, value in options.items()}
        )
        result = apply_data_root(result)
    return result


def _walk_data_sources(
    cfg: Config, split: str
) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    """Dicts of a split that may name paths: key, dict, its keys of paths."""
    loader = cfg.get(f'{split}_dataloader')
    if isinstance(loader, Mapping):
        start = (f'{split}_dataloader', 'dataset')
        for path, node in walk_dicts(loader.get('dataset'), start):
            yield join_key(path), node, _DATASET_KEYS
    evaluator = f'{split}_evaluator'
    for path, node in walk_dicts(cfg.get(evaluator), (evaluator,)):
        yield join_key(path), node, _EVALUATOR_KEYS


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


def _move_all(cfg: Config, old: str, new: str) -> list[str]:
    """Move the paths of a config in place; returns all those of data sets."""
    paths = []
    for split in _SPLITS:
        for _, node, names in _walk_data_sources(cfg, split):
            groups = [(node, names)]
            if isinstance(node.get('data_prefix'), Mapping):
                groups.append((node['data_prefix'], (*node['data_prefix'],)))
            for owner, keys in groups:
                for key in keys:
                    if key in owner:
                        owner[key] = _moved(owner[key], old, new)
            if names is _DATASET_KEYS:
                paths += [node[key] for key in names if node.get(key)]
    return paths


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
    if paths and not any(_is_below(path, new) for path in paths):
        raise ValueError(
            f'data_root must be the root of a data set, got {new!r}, but '
            f'none is there or at {old!r}: the config has '
            f'{sorted(set(paths))}; set train_dataloader.dataset.data_root '
            'and the like instead'
        )
    return cfg


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
    for key, node, names in _walk_data_sources(cfg, split):
        root = node.get('data_root') if names is _DATASET_KEYS else None
        named = {name: node.get(name) for name in names if name != 'data_root'}
        if isinstance(node.get('data_prefix'), Mapping):
            named |= {
                f'data_prefix.{name}': path
                for name, path in node['data_prefix'].items()
            }
        parent = _Entry(split, f'{key}.data_root', root, node)
        paths = {
            name: path
            for name, path in named.items()
            if isinstance(path, str) and path
        }
        if root and not paths:
            yield parent, None
        for name, path in paths.items():
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
    if root and all(_is_below(entry.path, root) for entry in missing):
        lines.append(
            f'Set data_root (now {root!r}) in the config or by '
            '--cfg-options data_root=FOLDER.'
        )
    else:
        lines.append('Set these keys in the config or by --cfg-options.')
    for entry in missing:
        name = str(entry.owner.get('type')).rpartition('.')[2]
        if name in _GENERATED:
            folder = entry.owner.get('data_root') or 'FOLDER'
            lines.append(
                'This set can be generated: python '
                f'tools/{_GENERATED[name]} --out {folder}'
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
        for entry, root in _entries(cfg, split):
            if _is_missing(entry):
                # With the root missing, what is below it is no news.
                named = root if root and _is_missing(root) else entry
                missing[named.key] = named
    if missing:
        raise FileNotFoundError(_describe(cfg, list(missing.values())))


def _dataset_classes(config: Config, dataset: Mapping, key: str) -> tuple:
    """Class names as the data set's constructor finds them."""
    kind = dataset.get('type')
    if isinstance(kind, str):
        scope = dataset.get('_scope_') or config.get('default_scope', 'mmdet')
        with DATASETS.switch_scope_and_registry(scope) as registry:
            name, kind = kind, registry.get(kind)
        if kind is None:
            raise ValueError(
                f'{key}.type must be a registered data set, got {name!r}; '
                'import what registers it with custom_imports in the config'
            )
    metainfo = dataset.get('metainfo')
    if hasattr(kind, '_load_metainfo'):
        loaded = kind._load_metainfo(metainfo)
    else:
        loaded = {**getattr(kind, 'METAINFO', {}), **(metainfo or {})}
    classes = loaded.get('classes')
    if not classes or isinstance(classes, str):
        raise ValueError(
            f'{key}.metainfo.classes, or METAINFO of the data set, must be '
            f'class names, got {classes!r}; name the classes instead'
        )
    return tuple(classes)


def read_config_classes(config: Config) -> tuple[str, ...]:
    """Class names of the training data, in the order of the labels.

    They are found as the data set itself does when a training builds it:
    ``metainfo`` of the config, which may be the name of a file, over the
    ``METAINFO`` of the registered class. Nothing is read from the data.

    Args:
        config: A config with a ``train_dataloader``; its data set may be
            inside of wrappers.

    Returns:
        K names.

    Raises:
        ValueError: If there is no data set, its type is not registered, it
            names no classes, or the parts of a joined set name different
            ones.
    """
    root = ('train_dataloader', 'dataset')
    dataset = (config.get('train_dataloader') or {}).get('dataset')
    classes: dict[str, tuple] = {}
    for path, part in dataset_configs(dataset, root):
        if not inner_dataset_configs(part):
            key = join_key(path)
            classes[key] = _dataset_classes(config, part, key)
    if not classes:
        raise ValueError(
            f'config must have {join_key(root)} with the settings of a data '
            f'set, got {dataset!r}; name the classes instead'
        )
    first, *others = classes
    for key in others:
        if classes[key] != classes[first]:
            raise ValueError(
                f'the parts of {join_key(root)} must have the same classes, '
                f'got {len(classes[first])} in {first} and '
                f'{len(classes[key])} in {key}, or others, or in another '
                'order; name the classes instead'
            )
    return classes[first]

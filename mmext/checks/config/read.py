"""Read a config, where its data are, and the classes that they have."""

import copy
import difflib
import posixpath
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from mmengine.config import Config
from mmengine.config.utils import ConfigParsingError
from mmengine.logging import print_log
from mmengine.registry import DATASETS, Registry
from mmengine.utils import import_modules_from_strings, is_abs

from ... import registry
from ...utils.broken_libraries import BrokenLibraryError
from ...utils.files import check_yaml_size, open_regular
from .sections import find_component
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
# Likeness of a file name and a wrong one, from 0 to 1.
_LIKE = 0.8
_QUOTED = re.compile(r'"(.+?)"')


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

    The result is a copy; its ``base_data_root`` is its ``data_root``, so a
    second call changes nothing.

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
    and a log line says so; splits that the config lacks are passed over.

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


def _load(file: str | Path, own_imports: bool = True) -> Config:
    """Load a config; what goes wrong names it, and the line."""
    try:
        if Path(file).suffix in ('.yaml', '.yml'):
            with open_regular(file) as content:
                check_yaml_size(content.read())
        cfg = Config.fromfile(file, import_custom_modules=own_imports)
        if not own_imports:
            _import_others(cfg.get('custom_imports') or {})
        return cfg
    except BrokenLibraryError:
        raise
    except OSError as error:
        path = Path(_missing(error))
        if path.exists():
            raise
        raise FileNotFoundError(
            f'the config {_line_of(file, path.name)} cannot be loaded: '
            f'{path.name} does not exist in {path.parent}'
            f'{near_files(path)}{_install_hint(path)}'
        ) from error
    except ImportError as error:
        # MMEngine's own text lists sys.path, and not what is missing.
        cause = error
        while cause.__context__ is not None:
            cause = cause.__context__
            if isinstance(cause, BrokenLibraryError):
                raise cause from error
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


def _missing(error: Exception) -> str:
    """The file that an error names; a folder that exists if it names none."""
    quoted = _QUOTED.search(str(error))
    name = getattr(error, 'filename', None) or (quoted and quoted[1])
    return str(name or '.')


def near_files(path: Path) -> str:
    """Files with a name like that of a missing one, as a question."""
    names = [item.name for item in path.parent.glob(f'*{path.suffix}')]
    near = difflib.get_close_matches(path.name, names, 3, _LIKE)
    return f'; did you mean {" or ".join(near)}?' * bool(near)


def _line_of(file: str | Path, name: str) -> str:
    """A config with its line that names a file, if it is there."""
    with open_regular(file) as content:
        for number, line in enumerate(content, 1):
            if name.encode() in line:
                return f'{file}:{number}'
    return str(file)


def _install_hint(path: Path) -> str:
    """What to do where ``mmext::X`` is asked for in a clone; else empty."""
    folder = path.parent
    if folder.name != '.mim' or folder.exists():
        return ''
    return (
        f' {folder.parent.name} is not installed, so its configs are not '
        f'found by name: pip install -e {folder.parents[1]}'
    )


def config_file(name: str) -> str:
    """The file of a config, also of ``'mmext::pidnet/pidnet_s_camvid.py'``.

    FileNotFoundError if the package, or its config, does not exist.
    """
    if '::' not in name or Path(name).exists():
        return name
    package, path = name.split('::', 1)
    try:
        return Config._get_cfg_path(name, '')[0]
    # A package, its folder of configs, or the file may be missing.
    except (ImportError, OSError, ValueError, ConfigParsingError) as error:
        file = Path(_missing(error))
        near = near_files(file) or f'; is {path} in the configs of {package}?'
        raise FileNotFoundError(
            f'config must be a file, or one that a package ships, got {name} '
            f'({error}){near}{_install_hint(file)}'
        ) from error


def _import_others(custom: Mapping[str, Any]) -> None:
    """Import what ``custom_imports`` names, but for packages of ours."""
    names = custom.get('imports')
    if isinstance(names, str):
        names = [names]
    if isinstance(names, list):
        ours = [
            location
            for own_registry in vars(registry).values()
            if isinstance(own_registry, Registry)
            for location in own_registry._locations
        ]
        names = [
            name
            for name in names
            if not any(f'{item}.'.startswith(f'{name}.') for item in ours)
        ]
        custom = {**custom, 'imports': names}
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
        :func:`apply_data_root`).

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it cannot be loaded: then it names the line; or if
            ``meta`` has no config, or one that would have to be trusted.
    """
    if isinstance(config, Config):
        result = config
    elif config is not None:
        config = config_file(str(config))
        if not Path(config).is_file():
            raise FileNotFoundError(
                f'config must be an existing file, got {config}'
            )
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
    ``METAINFO`` of the registered class. Nothing is read from the data, whose
    set may be inside of wrappers. ValueError if no classes are named, or the
    parts of a joined set name different ones.
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

"""Read a config, from a file or a checkpoint, and the classes of its data."""

import copy
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.config.utils import ConfigParsingError
from mmengine.registry import DATASETS, Registry
from mmengine.utils import import_modules_from_strings

from ... import registry
from .data_paths import apply_data_root
from .stored import read_stored_config
from .walk import (
    dataset_configs,
    inner_dataset_configs,
    join_key,
    option_key,
)


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
        ours = [
            location
            for own_registry in vars(registry).values()
            if isinstance(own_registry, Registry)
            for location in own_registry._locations
        ]
        names = [name for name in names if name not in ours]
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
        :func:`apply_data_root`); the argument is not changed.

    Raises:
        FileNotFoundError: If the file does not exist.
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

"""Keys of a config, and walks over configs, data sets and transforms.

A key is text such as ``model.heads[0].num_classes``, or the steps that it is
made of: ``('model', 'heads', 0, 'num_classes')``.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

Steps = tuple[str | int, ...]


def join_key(steps: Sequence[str | int]) -> str:
    """The text of a key.

    Examples:
        >>> join_key(('model', 'bbox_head', 0, 'with_cp'))
        'model.bbox_head[0].with_cp'
    """
    text = ''
    for step in steps:
        if isinstance(step, int):
            text += f'[{step}]'
        else:
            text += f'.{step}' if text else str(step)
    return text


def option_key(key: str) -> str:
    """The same key as MMEngine's ``merge_from_dict`` wants it.

    Examples:
        >>> option_key('model.heads[0].num_classes')
        'model.heads.0.num_classes'
    """
    return re.sub(r'\[(-?\d+)\]', r'.\1', key)


def split_key(key: str) -> Steps:
    """The steps of a key; ``heads.0`` counts as ``heads[0]``.

    Examples:
        >>> split_key('model.heads[0].num_classes')
        ('model', 'heads', 0, 'num_classes')
    """
    return tuple(
        int(word) if re.fullmatch(r'-?\d+', word) else word
        for word in option_key(key).split('.')
    )


def walk_dicts(
    value: Any, path: Steps = (), skip: Collection[str] = ()
) -> Iterator[tuple[Steps, Mapping]]:
    """All dicts in a value with their keys, the outer ones first.

    A dict may be changed when it is given: what it holds then is walked. The
    values of the keys ``skip`` are not looked into.

    Examples:
        >>> cfg = {'a': [{'b': 1}], 'c': {}}
        >>> [join_key(path) for path, _ in walk_dicts(cfg, ('model',))]
        ['model', 'model.a[0]', 'model.c']
    """
    if isinstance(value, Mapping):
        yield path, value
        for key, item in value.items():
            if key not in skip:
                yield from walk_dicts(item, (*path, key), skip)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from walk_dicts(item, (*path, index), skip)


def custom_imports(cfg: Mapping) -> list[Any]:
    """Modules that ``custom_imports`` of a config names."""
    custom = cfg.get('custom_imports')
    imports = custom.get('imports') if isinstance(custom, Mapping) else None
    return [imports] if isinstance(imports, str) else list(imports or ())


def copy_tree(value: Any) -> Any:
    """A copy of dicts, lists and tuples that shares what they hold.

    Configs may hold classes, functions and modules, some of which cannot be
    copied.
    """
    if isinstance(value, Mapping):
        return {key: copy_tree(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(copy_tree(item) for item in value)
    return value


def inner_dataset_configs(
    dataset: Mapping, path: Steps = ()
) -> list[tuple[Steps, Any]]:
    """What is directly inside the config of a wrapper of data sets."""
    inner: list[tuple[Steps, Any]] = []
    for key in ('dataset', 'datasets'):
        value = dataset.get(key)
        if isinstance(value, list | tuple):
            inner += [((*path, key, i), part) for i, part in enumerate(value)]
        elif value:
            inner.append(((*path, key), value))
    return inner


def dataset_configs(
    dataset: Any, path: Steps = ()
) -> Iterator[tuple[Steps, Mapping]]:
    """Configs of a data set and all that it wraps, the outer ones first."""
    if isinstance(dataset, Mapping):
        yield path, dataset
        for key, inner in inner_dataset_configs(dataset, path):
            yield from dataset_configs(inner, key)
    elif isinstance(dataset, list | tuple):
        for index, part in enumerate(dataset):
            yield from dataset_configs(part, (*path, index))


def inner_datasets(dataset: Any) -> list[Any]:
    """The data sets directly inside a wrapper that was built."""
    children = getattr(dataset, 'datasets', None) or ()
    single = (getattr(dataset, name, None) for name in ('dataset', '_dataset'))
    return [inner for inner in (*children, *single) if inner is not None]


def walk_datasets(dataset: Any) -> Iterator[Any]:
    """A built data set and all that it wraps, the outer ones first."""
    yield dataset
    for inner in inner_datasets(dataset):
        yield from walk_datasets(inner)


def transforms_of(dataset: Any) -> Iterator[tuple[Any, Any]]:
    """All transforms that a data set applies, each after its data set."""
    for inner in walk_datasets(dataset):
        for transform in _nested(getattr(inner, 'pipeline', None)):
            yield inner, transform


def _nested(transform: Any) -> Iterator[Any]:
    """A transform and those inside it, such as of RandomChoice."""
    if isinstance(transform, list | tuple):
        for part in transform:
            yield from _nested(part)
    elif transform is not None:
        yield transform
        yield from _nested(getattr(transform, 'transforms', None))

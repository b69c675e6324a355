"""Class names and templates: where they come from, and how they are worded."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mmengine.config import Config
from mmengine.registry import DATASETS

__all__ = [
    'check_templates',
    'class_phrases',
    'fill_templates',
    'read_config_classes',
    'read_lines',
]


def class_phrases(classes: Sequence[str]) -> tuple[str, ...]:
    """Word class names as text: underscores and runs of blanks to one blank.

    Args:
        classes: K names, as a data set has them.

    Returns:
        K phrases, all different.

    Raises:
        TypeError: If ``classes`` is one string or holds anything else.
        ValueError: If there is no name, a name is empty, or two names have
            the same phrase. The message gives their positions.

    Examples:
        >>> class_phrases(['traffic_light', 'red  blood cell'])
        ('traffic light', 'red blood cell')
    """
    if isinstance(classes, str):
        raise TypeError(
            f'classes must be a sequence of names, got the string '
            f'{classes!r}; for one class write [{classes!r}]'
        )
    if not classes:
        raise ValueError('classes must name at least one class, got none')
    first: dict[str, int] = {}
    for index, name in enumerate(classes):
        if not isinstance(name, str):
            raise TypeError(
                f'classes must be strings, got {name!r} at position {index}'
            )
        phrase = ' '.join(name.replace('_', ' ').split())
        if not phrase:
            raise ValueError(
                f'classes must not be empty, got {name!r} at position {index}'
            )
        if phrase in first:
            other = first[phrase]
            raise ValueError(
                f'classes must be different, got {classes[other]!r} at '
                f'position {other} and {name!r} at position {index}, which '
                f'both read {phrase!r}; rename one, since no classifier can '
                'tell them apart'
            )
        first[phrase] = index
    return tuple(first)


def check_templates(templates: Sequence[str]) -> tuple[str, ...]:
    """Check the texts that class names are put into.

    Args:
        templates: T texts, each with ``{}`` once, where the name goes. Other
            braces stand for themselves.

    Returns:
        The templates.

    Raises:
        TypeError: If ``templates`` is one string.
        ValueError: If there is none, one does not hold ``{}`` exactly once,
            or one is there twice, which would count it twice.

    Examples:
        >>> check_templates(['a photo of a {}.'])
        ('a photo of a {}.',)
    """
    if isinstance(templates, str):
        raise TypeError(
            'templates must be a sequence of texts, got the string '
            f'{templates!r}; for one template write [{templates!r}]'
        )
    if not templates:
        raise ValueError(
            'templates must hold at least one text, got none; use "{}" for '
            'the bare name'
        )
    for index, template in enumerate(templates):
        if template.count('{}') != 1:
            raise ValueError(
                'templates must hold {} exactly once, where the name goes, '
                f'got {template!r} at position {index}'
            )
        if template in templates[:index]:
            raise ValueError(
                f'templates must be different, got {template!r} again at '
                f'position {index}'
            )
    return tuple(templates)


def fill_templates(
    phrases: Sequence[str], templates: Sequence[str]
) -> list[str]:
    """Put each phrase into each template.

    Args:
        phrases: K phrases, see :func:`class_phrases`.
        templates: T templates, see :func:`check_templates`.

    Returns:
        K x T texts; those of one phrase follow each other.

    Examples:
        >>> fill_templates(['cat', 'dog'], ['a {}', 'one {}'])
        ['a cat', 'one cat', 'a dog', 'one dog']
    """
    return [
        template.replace('{}', phrase)
        for phrase in phrases
        for template in templates
    ]


def read_lines(path: str | Path) -> list[str]:
    """Read names or templates from a text file, one a line, in UTF-8.

    Args:
        path: The file. Blanks around a line are left out.

    Returns:
        The lines, at least one.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is empty, not UTF-8, or has an empty line before
            the last one: whether that is a class cannot be known.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f'there must be a text file at {path}')
    try:
        text = path.read_text(encoding='utf-8-sig')
    except UnicodeDecodeError as error:
        raise ValueError(
            f'{path} must be text in UTF-8, got {error}'
        ) from error
    lines = [line.strip() for line in text.rstrip().splitlines()]
    if not lines:
        raise ValueError(f'{path} must hold one text a line, got none')
    if '' in lines:
        raise ValueError(
            f'{path} must have no empty lines, got one at line '
            f'{lines.index("") + 1}; remove it'
        )
    return lines


def _plain_datasets(dataset: object, key: str) -> Iterator[tuple[str, dict]]:
    """Data sets inside of wrappers, each with its config key."""
    if not isinstance(dataset, Mapping):
        raise ValueError(
            f'config must have {key} with the settings of a data set, got '
            f'{dataset!r}; name the classes instead'
        )
    inner = dataset.get('datasets') or dataset.get('dataset')
    if isinstance(inner, Sequence) and not isinstance(inner, str):
        for index, part in enumerate(inner):
            yield from _plain_datasets(part, f'{key}.datasets[{index}]')
    elif inner:
        yield from _plain_datasets(inner, f'{key}.dataset')
    else:
        yield key, dataset


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
        found = kind._load_metainfo(metainfo)
    else:
        found = {**getattr(kind, 'METAINFO', {}), **(metainfo or {})}
    classes = found.get('classes')
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
    root = 'train_dataloader.dataset'
    dataset = (config.get('train_dataloader') or {}).get('dataset')
    found: dict[str, tuple] = {
        key: _dataset_classes(config, part, key)
        for key, part in _plain_datasets(dataset, root)
    }
    keys = list(found)
    for key in keys[1:]:
        if found[key] != found[keys[0]]:
            raise ValueError(
                f'the parts of {root} must have the same classes, got '
                f'{len(found[keys[0]])} in {keys[0]} and {len(found[key])} '
                f'in {key}, or others, or in another order; name the '
                'classes instead'
            )
    return found[keys[0]]

"""Say parameters in few words: by the modules that hold them."""

from collections.abc import Collection, Iterable

# Remedy for a package that is not here.
INSTALL = 'install the package that it needs where the training runs'

_MAX_MODULES = 6


def by_module(
    names: Iterable[str], everything: Iterable[str]
) -> dict[str, list[str]]:
    """Group parameters by the largest modules that hold no others.

    ``everything`` is all that might have been named, such as all trainable
    parameters of the model. A parameter whose module has others, too, is its
    own group.
    """
    names = list(names)
    chosen = set(names)
    # Modules in which something else is.
    mixed = {''}
    for name in everything:
        if name not in chosen:
            mixed.update(_modules_of(name))
    groups: dict[str, list[str]] = {}
    for name in names:
        own = next((m for m in _modules_of(name) if m not in mixed), name)
        groups.setdefault(own, []).append(name)
    return groups


def _modules_of(name: str) -> list[str]:
    """The modules around a parameter, the outermost first."""
    parts = name.split('.')
    return ['.'.join(parts[:i]) for i in range(1, len(parts))]


def in_words(names: Collection[str], everything: Iterable[str]) -> str:
    """The groups in words: ``'backbone.head (2), mask_token'``."""
    groups = by_module(names, everything)
    if len(groups) == 1:
        return next(iter(groups))
    words = [
        f'{module} ({len(held)})' if held != [module] else module
        for module, held in groups.items()
    ]
    more = len(words) - _MAX_MODULES
    if more > 0:
        words[_MAX_MODULES:] = [f'{more} more']
    return ', '.join(words)


def count_of(names: Collection[str], what: str = 'parameter') -> str:
    """``'1 parameter'``, ``'2 parameters'``."""
    return f'{len(names)} {what}' + 's' * (len(names) != 1)

"""Public names of a package that are imported when they are asked for."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package (PEP 562) that loads names late.

    For a package with names that load much, beside others that do not.
    Type checkers are told of them by imports below ``if TYPE_CHECKING``.

    Args:
        package: Its ``__name__``.
        homes: Name -> module that it is from, such as ``'.check'``.

    Raises:
        AttributeError: By what is returned, for another name.

    Examples:
        >>> get = lazy_names('mmext.utils', {'safe': '.archive'})
        >>> get('other')
        Traceback (most recent call last):
            ...
        AttributeError: module 'mmext.utils' has no attribute 'other'
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(
                f'module {package!r} has no attribute {name!r}'
            )
        return getattr(import_module(homes[name], package), name)

    return get

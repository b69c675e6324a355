"""Public names of a package that are imported when they are asked for."""

import ast
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package (PEP 562) that loads names late.

    For a package with names that load much, beside others that do not.
    Type checkers are told of them by imports below ``if TYPE_CHECKING``, see
    :func:`names_for_type_checkers`.

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


def names_for_type_checkers(file: str) -> dict[str, str]:
    """Names that a package imports for type checkers, and their modules.

    So a package with many names lists them once, below ``if TYPE_CHECKING``,
    each imported ``as`` itself: type checkers then know that it is public.

    Args:
        file: The ``__file__`` of the package.

    Returns:
        Name -> module, in the order of names, for :func:`lazy_names`.
    """
    homes = {}
    for block in ast.parse(Path(file).read_bytes()).body:
        if isinstance(block, ast.If):
            for node in ast.walk(block):
                if isinstance(node, ast.ImportFrom):
                    home = f'{"." * node.level}{node.module}'
                    homes |= {alias.name: home for alias in node.names}
    return dict(sorted(homes.items()))

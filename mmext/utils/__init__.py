"""Names of packages that are imported when they are asked for.

mmengine calls :func:`register_all_modules` by this name (``Registry`` with no
locations, ``mmengine.hub``).
"""

import ast
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = [
    'lazy_names',
    'names_for_type_checkers',
    'register_all_modules',
]


def register_all_modules(init_default_scope: bool = True) -> None:
    """Import every mmext package that registers a component.

    Args:
        init_default_scope: Also make ``mmext`` the current default scope.
            MMEngine's own calls pass False.
    """
    from mmengine.registry import Registry
    from mmengine.registry import init_default_scope as set_default_scope

    # By its name: the registries are above this package.
    for node in vars(import_module('mmext.registry')).values():
        if isinstance(node, Registry):
            node.import_from_location()
    if init_default_scope:
        set_default_scope('mmext')


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package (PEP 562) that loads names late.

    For a package with names that load much, beside others that do not.
    Type checkers are told of them by imports below ``if TYPE_CHECKING``.

    Args:
        package: Its ``__name__``.
        homes: Name -> module that it is from, such as ``'.check'``.

    Raises:
        AttributeError: By what is returned, for another name.
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
    each imported ``as`` itself: type checkers then know that it is public. The
    names of ``from .part import *`` are those of its ``__all__``.

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
                    names = [alias.name for alias in node.names]
                    if names == ['*']:
                        part = Path(file).parent / node.module / '__init__.py'
                        names = _listed_names(part)
                    homes |= dict.fromkeys(names, home)
    return dict(sorted(homes.items()))


def _listed_names(package: Path) -> list[str]:
    """Names in ``__all__`` of a package that writes them out."""
    for node in ast.parse(package.read_bytes()).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == '__all__':
            return ast.literal_eval(node.value)
    raise ValueError(f'{package} must have a list __all__')

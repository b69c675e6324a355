"""Import a package that mmext does not require, or say how to get it."""

import importlib
from importlib.util import find_spec
from types import ModuleType

__all__ = ['import_extra']


def import_extra(module: str, extra: str) -> ModuleType:
    """Import a module of an optional package.

    Args:
        module: Name to import, of a top-level package or below it.
        extra: The extra of mmext that brings the package.

    Returns:
        The module.

    Raises:
        ImportError: If the package is not installed, or it is and cannot be
            loaded, as when it was built for another PyTorch. The message
            tells the two apart and names the command to run.

    Examples:
        >>> import_extra('json', 'none').__name__
        'json'
        >>> import_extra('no_such_package', 'name')
        Traceback (most recent call last):
            ...
        ImportError: no_such_package is not installed; run: pip install 'mmext[name]'
    """  # noqa: E501
    package = module.partition('.')[0]
    command = f"pip install 'mmext[{extra}]'"
    if find_spec(package) is None:
        raise ImportError(f'{package} is not installed; run: {command}')
    try:
        return importlib.import_module(module)
    # RuntimeError is what an extension for another PyTorch raises.
    except (ImportError, OSError, RuntimeError) as error:
        raise ImportError(
            f'{package} is installed and cannot be imported, got '
            f'{type(error).__name__}: {error}; bring it and what it needs '
            f'into step with PyTorch: {command}'
        ) from error

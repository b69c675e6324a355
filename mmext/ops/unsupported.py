"""What the backend answers for an operator that it does not have."""

from collections.abc import Callable
from typing import NoReturn

from mmcv.version import __version__ as mmcv_version

__all__ = ['unsupported_op']


def unsupported_op(name: str) -> Callable[..., NoReturn]:
    """Stand-in for an operator that only compiled mmcv has.

    mmcv looks up every operator when it is imported, so the name has to
    exist; the error comes when the operator is called.

    Args:
        name: Name of the operator in ``mmcv._ext``.

    Returns:
        A function of any arguments, which raises.

    Raises:
        RuntimeError: When the returned function is called. The message names
            the operator and says how to install compiled mmcv.

    Examples:
        >>> unsupported_op('knn_forward')()
        Traceback (most recent call last):
            ...
        RuntimeError: mmcv operator 'knn_forward' must be compiled, got ...
    """

    def raise_unsupported(*_args: object, **_kwargs: object) -> NoReturn:
        raise RuntimeError(
            f'mmcv operator {name!r} must be compiled, got the PyTorch '
            'backend of mmext, which has only the operators that detectors '
            'and segmentors commonly run on; build the others with `pip '
            'install --no-build-isolation --no-deps --force-reinstall '
            f'--no-binary onedl-mmcv onedl-mmcv=={mmcv_version}` (needs a '
            'C++ compiler and the packages ninja, wheel and setuptools<82; '
            'for GPUs also the CUDA toolkit that matches torch)'
        )

    raise_unsupported.__name__ = name
    return raise_unsupported

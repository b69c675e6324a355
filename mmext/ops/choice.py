"""Which back end each operator has on a device, and how to choose another.

:data:`ORDER` is the one order, which ``docs/operators.md`` shows as a table.
Nothing here imports torch or mmcv before a function is called.
"""

import logging
import os
import sys
from collections import defaultdict
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# Module of mmcv's compiled operators, and the origin of what stands in for it.
EXT_NAME = 'mmcv._ext'
ORIGIN = 'mmext.ops'
# Environment variable that chooses; it wins over the config.
VARIABLE = 'MMEXT_OPS'

_MMCV = {
    'cpu': ('compiled', 'numba', 'pytorch'),
    'cuda': ('compiled', 'pytorch'),
}
# The kernels of torchvision for CPUs are the slowest, and there to be tested.
_TORCHVISION = {
    'cpu': ('compiled', 'numba', 'pytorch', 'torchvision'),
    'cuda': ('compiled', 'torchvision', 'pytorch'),
}
# Their time is that of matrix products, which are PyTorch's anyway.
_PRODUCTS = dict.fromkeys(('cpu', 'cuda'), ('compiled', 'pytorch'))

# Operator -> kind of device -> back ends, of which the first is taken that is
# there. All others that mmcv has are its compiled ones, or an error.
ORDER: dict[str, dict[str, tuple[str, ...]]] = {
    'ms_deform_attn': {
        'cpu': ('numba', 'pytorch'),
        'cuda': ('deformops', 'compiled', 'pytorch'),
    },
    'nms': _TORCHVISION,
    'roi_align': _TORCHVISION,
    'soft_nms': _MMCV,
    'nms_match': _MMCV,
    'deform_conv': _PRODUCTS,
    # Compiled mmcv has it for GPUs only, and none beside it.
    'focal_loss': {'cpu': ('pytorch',), 'cuda': ('compiled', 'pytorch')},
}
BACKENDS = (
    'auto',
    'numba',
    'deformops',
    'compiled',
    'torchvision',
    'pytorch',
)
_LABELS = {
    'numba': 'numba',
    'deformops': 'deformops',
    'compiled': 'compiled mmcv',
    'torchvision': 'torchvision',
    'pytorch': 'PyTorch',
    'none': 'none (compiled mmcv has it for GPUs only)',
}
_REMEDIES = {
    'numba': 'install it with pip install "mmext[numba]"',
    'deformops': 'install it with pip install "mmext[deformops]"',
    'compiled': 'build mmcv with its operators',
    'torchvision': 'install the torchvision that was built for this torch',
}

_chosen = 'auto'
_logged: set[str] = set()


def active_backend() -> str:
    """Name the implementation that mmcv's operators use in this process.

    Returns:
        ``'mmext'`` for the PyTorch backend of :mod:`mmext.ops`,
        ``'compiled'`` for whatever else is importable as ``mmcv._ext``.

    Raises:
        ModuleNotFoundError: If mmcv is not installed.

    Examples:
        >>> import mmext
        >>> from mmext.ops import active_backend
        >>> active_backend() in ('compiled', 'mmext')
        True
    """
    module = sys.modules.get(EXT_NAME)
    spec = find_spec(EXT_NAME) if module is None else module.__spec__
    return 'mmext' if spec and spec.origin == ORIGIN else 'compiled'


def choose_ops_backend(name: str) -> None:
    """Choose the back end of operators for this process.

    Args:
        name: ``'auto'`` for the order of :data:`ORDER`, or a back end that is
            taken before all others by the operators that have it for a
            device. mmcv's own operators are those of its compiled module
            wherever there is one. The environment variable ``MMEXT_OPS``,
            with the same values, wins over this.

    Raises:
        ValueError: If there is no such back end.
    """
    global _chosen
    _chosen = check_ops_backend(name)


def check_ops_backend(name: Any, source: str = 'ops_backend') -> str:
    """Return a name; ValueError, which names the source, if it is none."""
    if name not in BACKENDS:
        names = ', '.join(map(repr, BACKENDS))
        raise ValueError(f'{source} must be one of {names}, got {name!r}')
    return name


def _asked() -> str:
    name = os.environ.get(VARIABLE)
    return _chosen if name is None else check_ops_backend(name, VARIABLE)


@cache
def _import_error(name: str) -> str | None:
    """Why a package of kernels cannot be used; None if it can."""
    try:
        if name == 'numba':
            from ..utils import jit  # noqa: F401
        elif name == 'torchvision':
            import torchvision  # noqa: F401
        else:
            import deformops.registry  # noqa: F401
            import triton  # noqa: F401
    except (ImportError, RuntimeError) as error:
        # A torchvision that was built for another torch finds no operators.
        return str(error)
    return None


def _missing(name: str, device: str) -> str | None:
    """Why a back end cannot be used in this process; None if it can."""
    if name == 'pytorch':
        return None
    if name == 'compiled':
        compiled = active_backend() == 'compiled'
        return None if compiled else 'this mmcv has no compiled operators'
    error = _import_error(name)
    if error is not None or device == 'cpu':
        return error
    import torch

    if name == 'torchvision' and torch.ops.torchvision._cuda_version() < 0:
        return 'this torchvision was built for CPUs'
    if name == 'deformops':
        if not torch.cuda.is_available():
            return 'its kernels need a GPU'
        if torch.cuda.get_device_capability() < (7, 0):
            return 'its kernels need a GPU of compute capability 7.0'
    return error


def backend_of(operator: str, device: str) -> str:
    """Name the back end that an operator has.

    Args:
        operator: A key of :data:`ORDER`.
        device: Kind of the device, such as ``'cpu'`` or ``'cuda'``.

    Returns:
        One of :data:`BACKENDS` other than ``'auto'``; ``'none'`` for what a
        compiled mmcv has for GPUs only.

    Raises:
        ImportError: If the back end that was chosen is not there.
        ValueError: If ``MMEXT_OPS`` names none.
    """
    asked = _asked()
    order = ORDER[operator].get(device, ('pytorch',))
    if operator != 'ms_deform_attn' and _missing('compiled', device) is None:
        # mmcv calls its own module, and nothing else is asked.
        return 'compiled' if 'compiled' in order else 'none'
    if asked not in order:
        return next(name for name in order if _missing(name, device) is None)
    reason = _missing(asked, device)
    if reason is not None:
        raise ImportError(
            f'{asked} was chosen for {operator} (by {VARIABLE} or ops_backend '
            f'in the config), and cannot be used: {reason}; '
            f"{_REMEDIES[asked]}, or choose 'auto'"
        )
    return asked


def uses_numba(device: 'torch.device') -> bool:
    """Whether the operators of this package run kernels of numba.

    Raises:
        ImportError: If numba was chosen and is not there.
        ValueError: If ``MMEXT_OPS`` names no back end.
    """
    # That of attention does not depend on how mmcv was installed.
    return backend_of('ms_deform_attn', device.type) == 'numba'


def log_backend(
    logger: logging.Logger | str | None = 'current', device: str = 'cpu'
) -> None:
    """Log one line that says which back end each operator has.

    A line is logged once per process, however often this is called.

    Args:
        logger: Where the line goes, as in mmengine's ``print_log``: a logger,
            the name of an mmengine logger, ``'current'`` for the latest one,
            or None to print.
        device: Kind of the device, ``'cpu'`` or ``'cuda'``.

    Raises:
        ImportError: If the back end that was chosen is not there.
        ModuleNotFoundError: If mmcv is not installed.
        ValueError: If ``MMEXT_OPS`` names no back end.
    """
    # Here and not at the top: it loads torch.
    from mmengine.logging import print_log

    groups = defaultdict(list)
    for operator in ORDER:
        groups[backend_of(operator, device)].append(operator)
    parts = [
        f'{", ".join(operators)}: {_LABELS[name]}'
        for name, operators in groups.items()
    ]
    line = f'Operators on {device}: {"; ".join(parts)}'
    if _asked() != 'auto':
        line += f' ({_asked()} was chosen)'
    elif device == 'cpu' and _missing('numba', device) is not None:
        line += '; pip install "mmext[numba]" makes them faster'
    if line not in _logged:
        _logged.add(line)
        print_log(line, logger=logger)

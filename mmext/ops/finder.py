"""Offer the operators of mmext as ``mmcv._ext`` where mmcv has none.

mmcv's operators import the compiled module ``mmcv._ext``; a plain install of
mmcv does not have it, and mmdet then cannot be imported. The finder here is
asked last, so whatever the other finders find wins: a compiled module is
used, and one that is present but broken still raises its own ImportError.

This file is imported by ``import mmext`` and must not import torch or mmcv
before a function is called.
"""

import platform
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

from ..utils.host_packages import installed
from .choice import EXT_NAME, ORIGIN

# Modules of this package, and the operators that they have.
OPS = {
    'deform_conv': (
        'deform_conv_backward_input',
        'deform_conv_backward_parameters',
        'deform_conv_forward',
        'modulated_deform_conv_backward',
        'modulated_deform_conv_forward',
    ),
    'focal_loss': (
        'sigmoid_focal_loss_backward',
        'sigmoid_focal_loss_forward',
    ),
    'ms_deform_attn': ('ms_deform_attn_backward', 'ms_deform_attn_forward'),
    'nms': ('nms', 'nms_match', 'softnms'),
    'roi_align': ('roi_align_backward', 'roi_align_forward'),
}

# Where mmdet crops the masks of objects.
_MASKS = 'mmdet.structures.mask.structures'


class ExtLoader(Loader):
    """Fill a fresh module with the backend's operators."""

    def create_module(self, spec: ModuleSpec) -> None:
        """Let the import system create a plain module."""

    def exec_module(self, module: ModuleType) -> None:
        """Import the operators, and torch with them, and fill ``module``."""
        fill_module(module)


class ExtFinder(MetaPathFinder):
    """Answer for ``mmcv._ext`` and for nothing else."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Spec of the PyTorch backend."""
        if fullname != EXT_NAME:
            return None
        return ModuleSpec(fullname, ExtLoader(), origin=ORIGIN)


def install_ext_finder() -> None:
    """Append the finder to ``sys.meta_path``, once per process.

    mmdet's masks that were imported earlier, and have a ``roi_align`` that
    only raises, get the one that can be imported from now on.

    Examples:
        >>> import sys
        >>> from mmext.ops.finder import ExtFinder, install_ext_finder
        >>> install_ext_finder()
        >>> sum(isinstance(finder, ExtFinder) for finder in sys.meta_path)
        1
    """
    if not any(isinstance(finder, ExtFinder) for finder in sys.meta_path):
        sys.meta_path.append(ExtFinder())
    masks = sys.modules.get(_MASKS)
    align = getattr(masks, 'roi_align', None)
    if getattr(align, '__module__', None) == _MASKS:
        masks.roi_align = _roi_align


def _roi_align(*args: Any, **kwargs: Any) -> Any:
    """mmcv's, loaded when it is called."""
    from mmcv.ops import roi_align

    return roi_align(*args, **kwargs)


def unsupported_op(name: str) -> Callable[..., NoReturn]:
    """Stand-in for an operator that only compiled mmcv has.

    mmcv looks up every operator when it is imported, so the name has to
    exist; the error comes when the operator is called.
    """
    from mmcv.version import __version__ as mmcv_version

    def raise_unsupported(*_args: object, **_kwargs: object) -> NoReturn:
        source = next(iter(installed('mmcv')), 'mmcv').removesuffix('-lite')
        raise RuntimeError(
            f'mmcv operator {name!r} must be compiled, got the PyTorch '
            'backend of mmext, which has only the operators that detectors '
            'and segmentors commonly run on; build the others with `pip '
            'install --no-build-isolation --no-deps --force-reinstall '
            f'--no-binary {source} {source}=={mmcv_version}` (needs a '
            'C++ compiler and the packages ninja, wheel and setuptools<82; '
            'for GPUs also the CUDA toolkit that matches torch)'
        )

    raise_unsupported.__name__ = name
    return raise_unsupported


def get_compiler_version() -> str:
    """Stand in for the compiler that built ``mmcv._ext``: there is none."""
    return f'none (mmext PyTorch backend, Python {platform.python_version()})'


def get_compiling_cuda_version() -> str:
    """CUDA version that PyTorch was built with, or ``'not available'``."""
    import torch

    return torch.version.cuda or 'not available'


def fill_module(module: ModuleType) -> None:
    """Give a module the operators, and load torch for it.

    Every other public name is answered too, with a function that raises when
    it is called: mmcv looks up all of its operators when it is imported, and
    which ones there are depends on its version.
    """
    module.__doc__ = 'Operators of mmext, in the place of compiled ones.'
    for op in (get_compiler_version, get_compiling_cuda_version):
        setattr(module, op.__name__, op)
    for source, names in OPS.items():
        own = import_module(f'.{source}', __package__)
        vars(module).update({name: getattr(own, name) for name in names})

    def unknown(name: str) -> object:
        # Import machinery, inspect and pickle ask for such names and rely on
        # the AttributeError; no operator has one.
        if name.startswith('_'):
            raise AttributeError(
                f'module {module.__name__!r} has no attribute {name!r}'
            )
        return unsupported_op(name)

    module.__getattr__ = unknown

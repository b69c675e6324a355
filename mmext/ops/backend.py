"""The operator table that stands in for the compiled ``mmcv._ext``."""

import platform
from collections.abc import Callable
from types import ModuleType
from typing import NoReturn

import torch
from mmcv.version import __version__ as mmcv_version

from .deform_conv import (
    deform_conv_backward_input,
    deform_conv_backward_parameters,
    deform_conv_forward,
    modulated_deform_conv_backward,
    modulated_deform_conv_forward,
)
from .focal_loss import (
    sigmoid_focal_loss_backward,
    sigmoid_focal_loss_forward,
)
from .ms_deform_attn import ms_deform_attn_backward, ms_deform_attn_forward
from .nms import nms, nms_match, softnms
from .roi_align import roi_align_backward, roi_align_forward


def unsupported_op(name: str) -> Callable[..., NoReturn]:
    """Stand-in for an operator that only compiled mmcv has.

    mmcv looks up every operator when it is imported, so the name has to
    exist; the error comes when the operator is called.
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


def get_compiler_version() -> str:
    """Stand in for the compiler that built ``mmcv._ext``: there is none."""
    return f'none (mmext PyTorch backend, Python {platform.python_version()})'


def get_compiling_cuda_version() -> str:
    """CUDA version that PyTorch was built with, or ``'not available'``."""
    return torch.version.cuda or 'not available'


OPS = {
    op.__name__: op
    for op in (
        deform_conv_backward_input,
        deform_conv_backward_parameters,
        deform_conv_forward,
        get_compiler_version,
        get_compiling_cuda_version,
        modulated_deform_conv_backward,
        modulated_deform_conv_forward,
        ms_deform_attn_backward,
        ms_deform_attn_forward,
        nms,
        nms_match,
        roi_align_backward,
        roi_align_forward,
        sigmoid_focal_loss_backward,
        sigmoid_focal_loss_forward,
        softnms,
    )
}


def fill_module(module: ModuleType) -> None:
    """Give a module the backend's operators.

    Every other public name is answered too, with a function that raises when
    it is called: mmcv looks up all of its operators when it is imported, and
    which ones there are depends on its version.
    """
    module.__doc__ = __doc__
    vars(module).update(OPS)

    def unknown(name: str) -> object:
        # Import machinery, inspect and pickle ask for such names and rely on
        # the AttributeError; no operator has one.
        if name.startswith('_'):
            raise AttributeError(
                f'module {module.__name__!r} has no attribute {name!r}'
            )
        return unsupported_op(name)

    module.__getattr__ = unknown

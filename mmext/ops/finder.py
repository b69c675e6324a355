"""Offer the operators of mmext as ``mmcv._ext`` where mmcv has none.

mmcv's operators import the compiled module ``mmcv._ext``; a plain install of
mmcv does not have it, and mmdet then cannot be imported. The finder here is
asked last, so whatever the other finders find wins: a compiled module is
used, and one that is present but broken still raises its own ImportError.

This file is imported by ``import mmext`` and must not import torch or mmcv
before a function is called.
"""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .choice import EXT_NAME, ORIGIN

# Where mmdet crops the masks of objects.
_MASKS = 'mmdet.structures.mask.structures'


class ExtLoader(Loader):
    """Fill a fresh module with the backend's operators."""

    def create_module(self, spec: ModuleSpec) -> None:
        """Let the import system create a plain module."""

    def exec_module(self, module: ModuleType) -> None:
        """Import the backend, and torch with it, and fill ``module``."""
        # Here and not at the top: `import mmext` stays free of torch.
        from .backend import fill_module

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

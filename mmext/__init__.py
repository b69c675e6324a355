"""mmext: OpenMMLab components that train on one process and on many.

``import mmext`` does five things and stays light (torch is not loaded):

* it makes ``_base_ = 'mmext::...'`` resolvable for mmengine's ``Config``;
* where mmcv has no compiled ``mmcv._ext``, it offers the PyTorch backend of
  :mod:`mmext.ops` under that name, so that mmdet and mmseg can be imported;
* it names a library that is broken and ends an import of mmdet or mmseg;
* it warns of two distributions of a host package in one environment;
* it exposes :func:`config_path`, for tools that cannot import mmext before
  they read a config.

:func:`save_pretrained` and :func:`from_pretrained`, which share models, and
:class:`Predictor` are imported when they are asked for.
"""

import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from .ops import install_ext_finder
from .utils import lazy_names
from .utils.broken_libraries import install_library_finder
from .utils.host_packages import overlaid_hosts
from .version import __version__

if TYPE_CHECKING:
    from .apis import Predictor, from_pretrained, save_pretrained

__all__ = [
    'Predictor',
    '__version__',
    'config_path',
    'from_pretrained',
    'save_pretrained',
]

# The losses, the balancers and explain_step work without MMEngine.
if find_spec('mmengine') is not None:
    from mmengine.config.utils import MODULE2PACKAGE

    # The value is a module, not a distribution: every mmengine then finds the
    # folder by import, which works for wheels and for editable installs alike
    # (mmengine 0.10.7 fails on an editable install with the plain name).
    MODULE2PACKAGE.setdefault('mmext', 'mmext.version')
    # The same for 'mmseg::...', whose distribution has one of two names.
    MODULE2PACKAGE['mmseg'] = 'mmseg'

install_ext_finder()
install_library_finder()

_warning = overlaid_hosts()
if _warning:
    warnings.warn(_warning, RuntimeWarning, stacklevel=2)

__getattr__ = lazy_names(
    __name__,
    {
        'Predictor': '.apis',
        'from_pretrained': '.apis',
        'save_pretrained': '.apis',
    },
)


def config_path(name: str) -> str:
    """Absolute path of a shipped config.

    Works in a wheel, in an editable install and in a source checkout, and
    needs no registration, so it can be used inside ``_base_`` by a config
    that is read before anything imported mmext.

    Args:
        name: Path below ``configs/``, with the ``.py``, such as
            ``'co_dino/co_dino_5scale_r50_8xb2_1x_coco.py'``.

    Returns:
        The absolute path of the file.

    Raises:
        FileNotFoundError: If mmext ships no such config. The message lists
            the configs of the same folder.

    Examples:
        >>> from mmext import config_path
        >>> config_path('_base_/default_runtime.py').endswith('runtime.py')
        True
    """
    here = Path(__file__).resolve().parent
    roots = [
        path.resolve()
        for path in (here / '.mim' / 'configs', here.parent / 'configs')
    ]
    for root in roots:
        path = (root / name).resolve()
        if path.is_file() and path.is_relative_to(root):
            return str(path)
    siblings = {
        path.name
        for root in roots
        for path in (root / name).parent.glob('*.py')
        if path.resolve().is_relative_to(root)
    }
    raise FileNotFoundError(
        f'name must be a config that mmext ships, got {name!r}; that folder '
        f'holds {sorted(siblings) or "nothing"}'
    )

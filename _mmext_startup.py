"""Import ``mmext`` right after ``mmengine``, whichever program imports that.

An installation has a line in ``mmext.pth`` that imports this module whenever
Python starts, so it imports nothing itself and only waits. A program that
never imports mmengine never imports mmext.

Tools of MMDetection and MMSegmentation then know ``mmext::`` in ``_base_``,
and mmcv finds the operators that a plain install of it lacks.
"""

import sys


class _Loader:
    """The loader of mmengine, followed by ``import mmext``."""

    def __init__(self, loader):
        self._loader = loader

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def exec_module(self, module):
        """Run mmengine under its own loader, then import mmext."""
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        try:
            import mmext  # noqa: F401
        except Exception as error:
            import warnings

            # The program may have no use for mmext.
            warnings.warn(
                'mmext is installed and cannot be imported '
                f'({type(error).__name__}: {error}); configs that use it '
                'will fail. See `python -c "import mmext"`; `pip uninstall '
                'mmext` ends this warning',
                RuntimeWarning,
                stacklevel=2,
            )


class _Finder:
    """Finds mmengine as the finders after this one do; nothing else."""

    def find_spec(self, name, path=None, target=None):
        """Spec of mmengine, unless mmext is imported already."""
        if name != 'mmengine' or 'mmext' in sys.modules:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find_spec = getattr(finder, 'find_spec', None)
            spec = find_spec and find_spec(name, path, target)
            if spec:
                if hasattr(spec.loader, 'exec_module'):
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


sys.meta_path.insert(0, _Finder())

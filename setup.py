"""Build hook: what ``mim`` and ``mmext::`` read, and ``mmext.pth``.

All metadata is in setup.cfg; nothing but setuptools is imported here.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
STARTUP = '_mmext_startup'
MIM_ITEMS = ('configs', 'tools', 'model-index.yml')


class BuildPyWithMim(build_py):
    """Fill ``mmext/.mim``: copies in a wheel, links in an editable install.

    ``mmext.pth`` and the module that it imports go next to the package, in
    site-packages, as files of the distribution that pip removes with it.

    The links are relative and live in the source tree, so an edited config is
    the config that is loaded. A wheel starts from an empty build folder, so
    that a module removed from the tree cannot come back from an older build.
    """

    def run(self):
        """Build as usual, then put the items of ``MIM_ITEMS`` in place."""
        base = ROOT
        if not self.editable_mode:
            base = Path(self.build_lib).resolve()
            if (base / 'mmext').exists():
                shutil.rmtree(base / 'mmext')
        super().run()
        # Of an editable install, what the wheel holds that pip unpacks; the
        # module is a copy, so Python starts without errors when the checkout
        # is gone.
        site = base
        if self.editable_mode:
            site = Path(self.get_finalized_command('install').install_purelib)
        shutil.copy(ROOT / f'{STARTUP}.py', site)
        (site / 'mmext.pth').write_text(f'import {STARTUP}\n')
        mim = base / 'mmext' / '.mim'
        if mim.exists():
            shutil.rmtree(mim)
        mim.mkdir(parents=True)
        for name in MIM_ITEMS:
            if self.editable_mode:
                (mim / name).symlink_to(Path('..', '..', name))
            elif (ROOT / name).is_dir():
                shutil.copytree(
                    ROOT / name,
                    mim / name,
                    ignore=shutil.ignore_patterns(
                        '__pycache__', '*.py[cod]', 'benchmarks'
                    ),
                )
            else:
                shutil.copyfile(ROOT / name, mim / name)


setup(cmdclass={'build_py': BuildPyWithMim})

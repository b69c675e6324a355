"""mmext as a user gets it: from a wheel, an sdist and an editable install.

Everything is built from a copy of the checkout and installed into empty
environments that see the heavy dependencies of the running one, so nothing
is downloaded. A sample downstream project is trained from the wheel, outside
the checkout.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow

# The wheel is built from the sdist.
KINDS = ('wheel', 'editable')
CONFIG = 'co_dino/co_dino_r18_shapes.py'
# What the build reads; the rest of a checkout may be large.
SOURCES = (
    'CHANGELOG.md',
    'CITATION.cff',
    'CONTRIBUTING.md',
    'LICENSE',
    'MANIFEST.in',
    'README.md',
    'SECURITY.md',
    '_mmext_startup.py',
    'configs',
    'constraints.txt',
    'docs',
    'mmext',
    'mkdocs.yml',
    'model-index.yml',
    'pyproject.toml',
    'ruff.toml',
    'setup.cfg',
    'setup.py',
    'tests',
    'tools',
    '.ci',
    '.github',
)
BUILD_LEFTOVERS = ('.mim', '*.egg-info', '__pycache__', 'oracles')

PROBE = """
import json, os, sys
from pathlib import Path
import mmengine
mmext = sys.modules['mmext']
from mmengine.config import Config
from mmengine.hub import get_model
from mmengine.registry import MODELS, init_default_scope

Path('child.py').write_text("_base_ = 'mmext::CONFIG'")
Path('escape.py').write_text(
    "_base_ = [__import__('mmext').config_path('CONFIG')]")
package = Path(mmext.__file__).parent
init_default_scope('mmdet')
print(json.dumps(dict(
    package=str(package),
    config_path=mmext.config_path('CONFIG'),
    inherited=Config.fromfile('child.py').model.type,
    escape=Config.fromfile('escape.py').model.type,
    resolved=MODELS.get('mmext.CoDINOHead').__module__,
    model=type(get_model('mmext::CONFIG')).__name__,
    mim=sorted(os.listdir(package / '.mim')),
)))
""".replace('CONFIG', CONFIG)


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    """Run a command outside the checkout; returns what it printed."""
    kept = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**kept, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f'{command}\n{done.stdout}\n{done.stderr}'
    return done.stdout


@pytest.fixture(scope='module')
def source(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Make a copy of what the build reads, without any build's leftovers."""

    def copy(name: str) -> Path:
        target = tmp_path_factory.mktemp(name) / 'mmext-source'
        target.mkdir()
        ignore = shutil.ignore_patterns(*BUILD_LEFTOVERS)
        for item in SOURCES:
            if (checkout / item).is_dir():
                shutil.copytree(checkout / item, target / item, ignore=ignore)
            else:
                shutil.copy(checkout / item, target)
        return target

    return copy


@pytest.fixture(scope='module')
def built(source: Callable[[str], Path]) -> Path:
    """A folder with the sdist, and the wheel that was built from it."""
    folder = source('built')
    run(
        sys.executable,
        *('-m', 'build', '--no-isolation', '--outdir', 'dist', '.'),
        cwd=folder,
    )
    return folder / 'dist'


def pip(environment: Path, *arguments: str | Path, cwd: Path) -> None:
    """Run pip on an environment, without a network."""
    run(
        sys.executable,
        *('-m', 'pip', '--python', environment / 'bin' / 'python'),
        *('install', '--no-deps', '--no-index', '--no-build-isolation'),
        # What the running environment holds must not count as installed.
        '--ignore-installed',
        *arguments,
        cwd=cwd,
    )


@pytest.fixture(scope='module')
def installed(
    built: Path,
    source: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Path]:
    """The environment of a kind of install, made on first use."""
    environments: dict[str, Path] = {}

    def install(kind: str) -> Path:
        if kind in environments:
            return environments[kind]
        root = tmp_path_factory.mktemp(kind) / 'venv'
        run(
            *(sys.executable, '-m', 'venv', '--without-pip', root),
            cwd=root.parent,
        )
        paths = {'base': str(root), 'platbase': str(root)}
        own = Path(sysconfig.get_path('purelib', 'venv', vars=paths))
        heavy = {sysconfig.get_path(key) for key in ('purelib', 'platlib')}
        (own / 'heavy_dependencies.pth').write_text('\n'.join(sorted(heavy)))
        if kind == 'editable':
            pip(root, '-e', source('editable'), cwd=root.parent)
        else:
            pip(root, next(built.glob('*.whl')), cwd=root.parent)
        environments[kind] = root
        return root

    return install


def files_below(folder: Path) -> set[str]:
    """Relative paths of the files of a folder, without byte code."""
    return {
        str(path.relative_to(folder))
        for path in folder.rglob('*')
        if path.is_file() and '__pycache__' not in path.parts
    }


def test_wheel_holds_the_package_and_mim_only(built: Path, checkout: Path):
    with zipfile.ZipFile(next(built.glob('*.whl'))) as archive:
        names = {n for n in archive.namelist() if not n.endswith('/')}
    tops = {name.split('/')[0] for name in names}
    assert sorted(top.split('-')[0] for top in tops) == [
        *('_mmext_startup.py', 'mmext', 'mmext', 'mmext.pth')
    ]
    mim = {n.removeprefix('mmext/.mim/') for n in names if '/.mim/' in n}
    expected = {'model-index.yml'}
    for folder in ('configs', 'tools'):
        expected |= {
            f'{folder}/{name}'
            for name in files_below(checkout / folder)
            if not name.startswith('benchmarks/')
        }
    assert mim == expected
    modules = {n for n in names if n.startswith('mmext/')} - {
        f'mmext/.mim/{name}' for name in mim
    }
    assert modules == {
        f'mmext/{name}'
        for name in files_below(checkout / 'mmext')
        if not name.startswith('.mim')
    }
    # Else type checkers take everything of the package for Any.
    assert 'mmext/py.typed' in modules


def test_sdist_can_be_tested(built: Path):
    with tarfile.open(next(built.glob('*.tar.gz'))) as archive:
        names = {name.partition('/')[2] for name in archive.getnames()}
    made = ('build/', 'dist/', 'mmext/.mim/')
    assert names >= {
        name for name in files_below(built.parent) if not name.startswith(made)
    }
    assert not [name for name in names if name.startswith('mmext/.mim')]


def test_a_second_wheel_holds_nothing_of_the_first(
    source: Callable[[str], Path], tmp_path: Path
):
    folder = source('twice')
    gone = folder / 'mmext' / 'gone.py', folder / 'configs' / 'gone.py'
    before = files_below(folder)
    for path in gone:
        path.write_text('')
    wheel = (
        *(sys.executable, '-m', 'pip', 'wheel', '--no-deps', '--no-index'),
        *('--no-build-isolation', '-w'),
    )
    run(*wheel, tmp_path / 'first', '.', cwd=folder)
    for path in gone:
        path.unlink()
    run(*wheel, tmp_path / 'second', '.', cwd=folder)
    held = []
    for name in ('first', 'second'):
        with zipfile.ZipFile(next((tmp_path / name).iterdir())) as archive:
            held.append(sorted(n for n in archive.namelist() if 'gone' in n))
    assert held == [['mmext/.mim/configs/gone.py', 'mmext/gone.py'], []]
    left = files_below(folder) - before
    assert not [
        name
        for name in left
        if not name.startswith(('build/', 'mmext.egg-info/'))
    ]


@pytest.mark.parametrize('kind', KINDS)
def test_installed_package_works(
    kind: str, installed: Callable[[str], Path], tmp_path: Path
):
    environment = installed(kind)
    printed = run(*(environment / 'bin' / 'python', '-c', PROBE), cwd=tmp_path)
    facts = json.loads(printed.splitlines()[-1])
    package = Path(facts.pop('package'))
    config = Path(facts.pop('config_path'))
    if kind == 'editable':
        assert package.parent.name == 'mmext-source'
        assert config == package.parent / 'configs' / CONFIG
    else:
        assert package.is_relative_to(environment.resolve())
        assert config == package / '.mim' / 'configs' / CONFIG
    assert facts.pop('resolved').startswith('mmext.models.')
    assert facts == {
        'inherited': 'mmext.CoDETR',
        'escape': 'mmext.CoDETR',
        'model': 'CoDETR',
        'mim': ['configs', 'model-index.yml', 'tools'],
    }
    # The command finds its tools.
    printed = run(environment / 'bin/mmext', 'new-config', '-h', cwd=tmp_path)
    assert printed.startswith('usage: mmext new_config ')


def test_an_edited_config_of_an_editable_install_is_the_one_loaded(
    installed: Callable[[str], Path], tmp_path: Path
):
    python = installed('editable') / 'bin' / 'python'
    show = (
        'import mmext; from mmengine.config import Config; '
        'open("c.py", "w").write("_base_ = \'mmext::_base_/edited.py\'"); '
        'print(mmext.__file__, Config.fromfile("c.py").value)'
    )
    where = run(
        python, '-c', 'import mmext; print(mmext.__file__)', cwd=tmp_path
    )
    config = (
        Path(where.strip()).parents[1] / 'configs' / '_base_' / 'edited.py'
    )
    for value in ('first', 'second'):
        config.write_text(f'value = {value!r}\n')
        assert run(python, '-c', show, cwd=tmp_path).split()[-1] == value
    config.unlink()


def test_downstream_project_trains_from_the_wheel(
    installed: Callable[[str], Path], checkout: Path, tmp_path: Path
):
    """Another project's config and head, outside the checkout, one step."""
    python = installed('wheel') / 'bin' / 'python'
    project = tmp_path / 'project'
    shutil.copytree(checkout / 'tests' / 'downstream_project', project)
    where = run(
        python, '-c', 'import mmext; print(mmext.__path__[0])', cwd=tmp_path
    )
    tools = Path(where.strip()) / '.mim' / 'tools'
    assert tools.is_relative_to(installed('wheel').resolve())
    run(
        *(python, tools / 'make_shapes_dataset.py', '--out', 'shapes'),
        *('--num-train', '2', '--num-val', '2', '--image-size', '64'),
        cwd=project,
    )
    run(
        *(python, tools / 'train.py', 'configs/two_shapes.py'),
        *('--work-dir', 'run', '--device', 'cpu'),
        *('--cfg-options', 'data_root=shapes', 'train_cfg.max_epochs=1'),
        cwd=project,
        PYTHONPATH=str(project),
        OMP_NUM_THREADS='1',
    )
    done = torch.load(project / 'run' / 'epoch_1.pth', weights_only=False)
    assert done['meta']['iter'] == 1
    assert done['meta']['dataset_meta']['classes'] == ('circle', 'square')
    weights = done['state_dict']
    assert len(weights['query_head.cls_branches.0.bias']) == 2
    assert len(weights['bbox_head.0.atss_cls.bias']) == 2
    assert len(weights['roi_head.0.bbox_head.fc_cls.bias']) == 3
    # The project's own head began at its prior, log(0.005 / 0.995).
    assert weights['query_head.cls_branches.0.bias'].mean() == pytest.approx(
        -5.293, abs=0.05
    )


@pytest.mark.parametrize('kind', KINDS)
def test_uninstalling_leaves_nothing(
    kind: str, installed: Callable[[str], Path], tmp_path: Path
):
    """The last test of the file, as it takes the environments away."""
    environment = installed(kind)
    python = environment / 'bin' / 'python'
    show = 'import _mmext_startup as m; print(m.__file__)'
    site = Path(run(python, '-c', show, cwd=tmp_path).strip()).parent
    assert (site / 'mmext.pth').read_text() == 'import _mmext_startup\n'
    uninstall = '-m', 'pip', '--python', python, 'uninstall', '-y', 'mmext'
    run(sys.executable, *uninstall, cwd=tmp_path)
    # Caches, such as numba's, are not pip's to remove.
    assert not list(site.glob('*mmext*.p*'))
    assert not list(site.glob('*mmext*/**/*.py'))

"""The rules that hold the tree together, checked on the files themselves.

Layers, sizes, docstrings, ``__all__``, error handling and paths are read from
the source. Components are read from the registries: each has a row in the
table of components, and a config that uses it.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

from mmengine.registry import Registry

from mmext import registry
from mmext.utils import register_all_modules

ROOT = Path(__file__).resolve().parents[1]
MAX_FILE_LINES = 800

# From the top down; docs/ARCHITECTURE.md draws it. A package imports those of
# lower layers only, and those through their public names.
LAYERS = (
    ('apis', 'testing', '__main__'),
    ('checks',),
    ('checks.preflight',),
    ('checks.labels', 'checks.device'),
    ('engine',),
    ('checks.ddp',),
    ('models', 'datasets', 'evaluation'),
    ('checks.config',),
    ('checks.findings',),
    ('ops', 'registry'),
    ('utils',),
    ('version',),
)
# Packages of independent modules, which are imported one by one.
COLLECTIONS = ('utils',)
# Whole files only: a folder of the machine at the start of a path. The
# first slash follows a quote, a blank or a bracket, so URLs are not meant.
ABSOLUTE = re.compile(
    r"""(?<=['"\s(=:`])/(?:home|root|work|tmp|opt|usr|mnt|data|Users|var)/"""
)
SCANNED = ('mmext', 'tools', 'configs', 'tests')
PARTS_OF_AN_ENVIRONMENT = {'.mim', '__pycache__'}


def files(folder: str, pattern: str) -> list[Path]:
    """Files of the checkout below a folder, relative to its root."""
    return sorted(
        path.relative_to(ROOT)
        for path in (ROOT / folder).rglob(pattern)
        if not PARTS_OF_AN_ENVIRONMENT & set(path.relative_to(ROOT).parts)
    )


MODULES = files('mmext', '*.py')
PYTHON = [path for folder in SCANNED for path in files(folder, '*.py')]


@cache
def tree(path: Path) -> ast.Module:
    """Syntax tree of a file of the checkout."""
    return ast.parse((ROOT / path).read_text())


def module_name(path: Path) -> str:
    """Dotted name of a file of the package."""
    parts = path.with_suffix('').parts
    return '.'.join(parts[:-1] if path.name == '__init__.py' else parts)


NAMES = {module_name(path): path for path in MODULES}


def imports_of(path: Path) -> Iterator[tuple[str, str]]:
    """Modules of mmext that a file imports, in functions too.

    Yields:
        The module that the statement names, and the module that the import
        ends in: the first if it takes names of it, else the module below.
    """
    package = module_name(path).split('.')
    if path.name != '__init__.py':
        package = package[:-1]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split('.')[0] == 'mmext':
                    yield alias.name, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module.split('.') if node.module else []
            if node.level:
                base = package[: len(package) - node.level + 1] + base
            if base[:1] != ['mmext']:
                continue
            name = '.'.join(base)
            for alias in node.names:
                below = f'{name}.{alias.name}'
                yield name, below if below in NAMES else name


def package_of(module: str) -> str:
    """Package of a module, of the checks that below them.

    Empty for mmext itself.
    """
    parts = module.split('.')[1:]
    return '.'.join(parts[: 1 + (parts[:1] == ['checks'])])


def package_graph() -> dict[tuple[str, str], set[str]]:
    """Arrows between top-level packages -> the modules that import."""
    arrows = defaultdict(set)
    for name, path in NAMES.items():
        for _, target in imports_of(path):
            pair = package_of(name), package_of(target)
            if pair[0] and pair[1] and pair[0] != pair[1]:
                arrows[pair].add(name)
    return dict(arrows)


def names_of(node: ast.expr) -> list[str]:
    """String constants of a list or tuple display."""
    elements = getattr(node, 'elts', [])
    return [item.value for item in elements if isinstance(item, ast.Constant)]


def exported(module: ast.Module) -> list[str] | None:
    """``__all__`` of a module, None where it has none."""
    for node in module.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and ast.unparse(
            node
        ).startswith('__all__'):
            names = names_of(node.value)
            # A package that computes it lists its names for type checkers.
            blocks = [n for n in module.body if isinstance(n, ast.If)]
            return names or sorted(defined(ast.Module(blocks, [])))
    return None


def defined(module: ast.Module) -> set[str]:
    """Names that the top level of a module binds, or says to checkers."""
    names: set[str] = set()
    blocks = (node.body for node in module.body if isinstance(node, ast.If))
    for node in (*module.body, *chain(*blocks)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {
                (alias.asname or alias.name).split('.')[0]
                for alias in node.names
            }
        elif isinstance(node, ast.Assign):
            names |= {
                name.id
                for target in node.targets
                for name in ast.walk(target)
                if isinstance(name, ast.Name)
            }
        elif isinstance(node, ast.AnnAssign):
            names.add(node.target.id)
    return names


def broad_handlers(module: ast.Module) -> Iterator[ast.ExceptHandler]:
    """Handlers of anything that do not raise what they caught again."""
    for node in ast.walk(module):
        if not isinstance(node, ast.ExceptHandler):
            continue
        kinds = (
            {'BaseException'}
            if node.type is None
            else {
                name.id
                for name in ast.walk(node.type)
                if isinstance(name, ast.Name)
            }
        )
        raises = isinstance(node.body[-1], ast.Raise)
        if kinds & {'Exception', 'BaseException'} and not raises:
            yield node


def test_every_package_has_a_layer():
    packages = {package_of(name) for name in NAMES} - {''}
    assert packages == {name for layer in LAYERS for name in layer}


def test_packages_import_downwards_only():
    depth = {name: n for n, layer in enumerate(LAYERS) for name in layer}
    upward = {
        f'{start} -> {end}: {sorted(modules)}'
        for (start, end), modules in package_graph().items()
        if depth[end] <= depth[start]
    }
    assert not upward, '\n'.join(sorted(upward))


def test_checks_know_nothing_of_what_trains():
    """They get it from the registries; the other way is allowed."""
    assert not [
        f'{start} -> {end}: {sorted(modules)}'
        for (start, end), modules in package_graph().items()
        if start.startswith('checks') and end in ('engine', 'apis', 'models')
    ]


def test_packages_are_imported_through_their_public_names():
    bad = [
        f'{name} imports {target}'
        for name, path in NAMES.items()
        for _, target in imports_of(path)
        if package_of(name) != package_of(target)
        and package_of(target) not in ('', *COLLECTIONS)
        and target != f'mmext.{package_of(target)}'
        and NAMES[target].name != '__init__.py'
        and target.split('.')[-1] not in exported_by(target)
    ]
    assert not bad, '\n'.join(bad)


def exported_by(module: str) -> list[str]:
    """``__all__`` of the package that a module is in."""
    return exported(tree(NAMES[module.rpartition('.')[0]])) or []


def test_private_modules_stay_in_their_folder():
    bad = [
        f'{name} imports {target}'
        for name, path in NAMES.items()
        for _, target in imports_of(path)
        if target.split('.')[-1].startswith('_')
        and NAMES[target].parent != path.parent
    ]
    assert not bad, '\n'.join(bad)


def test_every_package_has_its_tests():
    tested = {
        '/'.join(path.parts[1 : 2 + (path.parts[1] == 'test_checks')])
        for path in files('tests', 'test_*.py')
    }
    assert {
        f'test_{package_of(name).replace(".", "/test_")}'
        for name, path in NAMES.items()
        if path.name == '__init__.py'
        and package_of(name) not in ('', 'checks')
    } <= tested


def test_every_module_says_what_it_is():
    silent = [
        str(path) for path in MODULES if not ast.get_docstring(tree(path))
    ]
    assert not silent


def test_packages_export_names_that_they_have():
    """``__all__`` is in each ``__init__`` and nowhere else."""
    bad = []
    for path in MODULES:
        names = exported(tree(path))
        if path.name != '__init__.py':
            bad += [f'{path} has __all__'] if names is not None else []
        elif names is None or len(names) != len(set(names)):
            bad.append(f'{path} has no __all__, or a name twice')
        else:
            missing = set(names) - defined(tree(path))
            bad += [f'{path} exports {name}' for name in sorted(missing)]
    assert not bad, '\n'.join(bad)


def test_packages_are_packages():
    """A folder of modules without an ``__init__`` is missing in a wheel."""
    folders = {path.parent for path in MODULES}
    bare = [str(f) for f in folders if f / '__init__.py' not in MODULES]
    assert not bare


def test_file_lengths():
    long = {
        str(path): length
        for path in PYTHON
        if (length := (ROOT / path).read_text().count('\n')) > MAX_FILE_LINES
    }
    assert not long, f'over {MAX_FILE_LINES} lines: {long}'


def test_no_star_imports_and_no_swallowed_errors():
    bad = []
    for path in [*MODULES, *files('tools', '*.py')]:
        for node in ast.walk(tree(path)):
            # A package may pass on what those inside it export.
            if (
                isinstance(node, ast.ImportFrom)
                and path.name != '__init__.py'
                and any(alias.name == '*' for alias in node.names)
            ):
                bad.append(f'{path}:{node.lineno} star import')
        bad += [
            f'{path}:{handler.lineno} catches everything and goes on'
            for handler in broad_handlers(tree(path))
        ]
    assert not bad, '\n'.join(bad)


# Files whose prints hold no text of data.
PRINTING = {
    *('mmext/__main__.py', 'mmext/checks/preflight/run.py'),
    *('mmext/evaluation/box_metrics.py', 'mmext/utils/printing.py'),
    'tools/_torchrun.py',
}


def test_texts_of_data_are_printed_by_say():
    """A terminal obeys what a class name may hold."""
    bad = [
        f'{path}:{node.lineno}'
        for path in [*MODULES, *files('tools', '*.py')]
        if 'benchmarks' not in path.parts
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == 'print'
        and str(path) not in PRINTING
    ]
    assert not bad, f'use say of mmext.utils.printing: {bad}'


def test_no_path_of_one_machine():
    texts = [
        path
        for folder in (*SCANNED, '.ci')
        for pattern in ('*.py', '*.sh', '*.yml', '*.md', '*.json', 'run')
        for path in files(folder, pattern)
    ] + [Path(p) for p in ('README.md', 'setup.cfg', 'constraints.txt')]
    bad = [
        f'{path}:{number} {line.strip()}'
        for path in texts
        for number, line in enumerate(
            (ROOT / path).read_text().splitlines(), 1
        )
        if ABSOLUTE.search(line) and not line.startswith('#!')
    ]
    assert not bad, '\n'.join(bad)


def test_constraints_are_exact_and_name_no_place():
    lines = (ROOT / 'constraints.txt').read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith('#')]
    exact = re.compile(r'[\w.-]+==[\w.]+(; python_version (<|>=) "3\.\d+")?')
    assert [pin for pin in pins if not exact.fullmatch(pin)] == []
    assert 'torch==2.13.0' in pins


# The table of components.
COMPONENTS = ROOT / 'docs' / 'components.md'


def components() -> dict[str, type]:
    """Registered name with its scope -> class, for everything of mmext."""
    register_all_modules(False)
    return {
        f'mmext.{name}': kind
        for node in vars(registry).values()
        if isinstance(node, Registry)
        for name, kind in node.module_dict.items()
        if kind.__module__.startswith('mmext.')
    }


def readme_rows() -> dict[str, list[str]]:
    """The table of components: registered name -> its other cells."""
    rows = {}
    for line in COMPONENTS.read_text().splitlines():
        cells = [cell.strip().strip('`') for cell in line.split('|')[1:-1]]
        if len(cells) == 5 and cells[1].startswith('mmext.'):
            assert cells[1] not in rows, f'two rows for {cells[1]}'
            rows[cells[1]] = cells
    return rows


def test_the_table_has_one_row_for_each_component():
    rows, kinds = readme_rows(), components()
    assert sorted(rows) == sorted(kinds)
    for name, (_, _, file, config, test) in rows.items():
        module = Path(*kinds[name].__module__.split('.')).with_suffix('.py')
        assert Path(file) == module, name
        assert name.split('.')[-1] in (ROOT / test).read_text(), test
        assert (ROOT / test).is_file(), test
        if config.startswith('- ('):  # in no config, for the reason given
            continue
        assert f"'{name}'" in (ROOT / 'configs' / config).read_text(), (
            f'{config} does not use {name}'
        )

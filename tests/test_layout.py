"""The rules that hold the tree together, checked on the files themselves.

Sizes, mirror tests, docstrings, ``__all__``, error handling and paths are read
from the source. Components are read from the registries: each has a row in
the README's table, and a config that uses it.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from mmext import registry
from mmext.utils import register_all_modules

ROOT = Path(__file__).resolve().parents[1]
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50

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


def mirror(module: Path) -> Path:
    """Test file that a module must have, from its path."""
    parts = ['tests', *(f'test_{part}' for part in module.parts[1:-1])]
    return Path(*parts, f'test_{module.stem.lstrip("_")}.py')


def names_of(node: ast.expr) -> list[str]:
    """String constants of a list or tuple display."""
    return [item.value for item in getattr(node, 'elts', [])]


def exported(module: ast.Module) -> list[str] | None:
    """``__all__`` of a module, None where it has none."""
    for node in module.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == '__all__'
            for target in node.targets
        ):
            return names_of(node.value)
    return None


def defined(module: ast.Module) -> set[str]:
    """Names that the top level of a module binds."""
    names: set[str] = set()
    for node in module.body:
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


def is_only_a_front(module: ast.Module) -> bool:
    """Whether a module does nothing but import and export names."""
    return all(
        isinstance(node, ast.Import | ast.ImportFrom | ast.Expr)
        or ast.unparse(node).startswith('__all__ = ')
        for node in module.body
    )


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


def test_every_module_has_its_mirror_test():
    missing = []
    for module in MODULES:
        if module.name == '__init__.py':
            if is_only_a_front(tree(module)):
                continue
            module = module.parent.with_suffix('.py')
        test = (
            mirror(module)
            if len(module.parts) > 1
            else Path('tests/test_mmext.py')
        )
        if not (ROOT / test).is_file():
            missing.append(f'{module} needs {test}')
    assert not missing, '\n'.join(missing)


@pytest.mark.parametrize('module', MODULES, ids=str)
def test_module_says_what_it_is_and_exports(module: Path):
    assert ast.get_docstring(tree(module)), 'no module docstring'
    names = exported(tree(module))
    assert names is not None, 'no __all__'
    assert set(names) <= defined(tree(module)), 'exports what it lacks'
    assert len(names) == len(set(names)), 'exports a name twice'


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


def test_function_lengths():
    long = [
        f'{path}:{node.lineno} {node.name} has {length} lines'
        for path in PYTHON
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef)
        and (length := body_lines(node)) > MAX_FUNCTION_LINES
    ]
    assert not long, '\n'.join(long)


def body_lines(function: ast.FunctionDef) -> int:
    """Lines of the body; signature and docstring grow with the arguments."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return function.end_lineno - body[0].lineno + 1 if body else 0


def test_no_star_imports_and_no_swallowed_errors():
    bad = []
    for path in [*MODULES, *files('tools', '*.py')]:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ImportFrom) and any(
                alias.name == '*' for alias in node.names
            ):
                bad.append(f'{path}:{node.lineno} star import')
        bad += [
            f'{path}:{handler.lineno} catches everything and goes on'
            for handler in broad_handlers(tree(path))
        ]
    assert not bad, '\n'.join(bad)


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


# Registered, and in no config for a reason that the README's table gives.
NOT_IN_CONFIGS = {
    # A check for debugging, put into custom_hooks by whoever needs it.
    'mmext.ReplicaCheckHook',
    # PortableRunner puts them in the place of mmengine's loops, so that the
    # configs of a host resume exactly, too.
    'mmext.ResumableEpochBasedTrainLoop',
    'mmext.ResumableIterBasedTrainLoop',
}


def components() -> dict[str, type]:
    """Registered name with its scope -> class, for everything of mmext."""
    register_all_modules(False)
    return {
        f'mmext.{name}': kind
        for node in registry.__all__
        for name, kind in getattr(registry, node).module_dict.items()
        if kind.__module__.startswith('mmext.')
    }


def readme_rows() -> dict[str, list[str]]:
    """The README's component table: registered name -> its other cells."""
    rows = {}
    for line in (ROOT / 'README.md').read_text().splitlines():
        cells = [cell.strip().strip('`') for cell in line.split('|')[1:-1]]
        if len(cells) == 5 and cells[1].startswith('mmext.'):
            assert cells[1] not in rows, f'two rows for {cells[1]}'
            rows[cells[1]] = cells
    return rows


def test_readme_has_one_row_for_each_component():
    rows, kinds = readme_rows(), components()
    assert sorted(rows) == sorted(kinds)
    for name, (_, _, file, config, test) in rows.items():
        module = Path(*kinds[name].__module__.split('.')).with_suffix('.py')
        assert Path(file) == module, name
        assert Path(test) == mirror(module), name
        assert (ROOT / test).is_file(), test
        if name in NOT_IN_CONFIGS:
            assert config.startswith('- ('), name
            continue
        assert f"'{name}'" in (ROOT / 'configs' / config).read_text(), (
            f'{config} does not use {name}'
        )

"""Small faults in the package, and which tests notice them.

A mutant is one change of one expression: another comparison, a shifted
boundary, another constant, a call that is not made, or swapped branches. They
are chosen by a seed, and found again by the text around them, so that the
same mutants can be tried after functions have moved to other modules::

    PYTHONPATH=.:tests python -m helpers.mutants choose mutants.jsonl
    PYTHONPATH=.:tests python -m helpers.mutants run mutants.jsonl before.jsonl
    PYTHONPATH=.:tests python -m helpers.mutants run before.jsonl after.jsonl

``run`` works on a copy of the tree. A mutant is first tried with the test
that noticed it before, then with the tests of its module.
"""

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Architecture that goes, and code that needs a GPU or a compiler.
LEFT_OUT = (
    'checks/labels/fix/',
    'checks/config/misplaced_keys',
    'checks/config/right_places',
    'checks/config/sections',
    'checks/config/source',
    'checks/preflight/ranks',
    'checks/ddp/advice',
    'engine/resume_',
    'engine/config_changes',
    'ops/',
    'models/losses/triton',
    'testing/',
    'version',
)
A_MODULE = 4
SECONDS = 90
COMPARISONS = {
    ast.Lt: '<=', ast.LtE: '<', ast.Gt: '>=', ast.GtE: '>', ast.Eq: '!=',
    ast.NotEq: '==', ast.In: 'not in', ast.NotIn: 'in', ast.Is: 'is not',
    ast.IsNot: 'is',
}  # fmt: skip
BOUNDARIES = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def mutations(node: ast.AST) -> Iterator[tuple[str, ast.AST, str]]:
    """Kind, the node that is replaced, and the new text."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        (op,) = node.ops
        kind = 'boundary' if isinstance(op, BOUNDARIES) else 'comparison'
        left, right = map(ast.unparse, (node.left, node.comparators[0]))
        yield kind, node, f'({left} {COMPARISONS[type(op)]} {right})'
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield 'constant', node, str(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield 'constant', node, str(node.value + 1)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield 'dropped call', node, '...'
    elif isinstance(node, ast.If):
        yield 'swapped branch', node.test, f'(not ({ast.unparse(node.test)}))'


def functions(
    tree: ast.AST, prefix: str = ''
) -> Iterator[tuple[str, ast.AST]]:
    """Qualified names and definitions, outer ones only."""
    for node in getattr(tree, 'body', []):
        if isinstance(node, ast.ClassDef):
            yield from functions(node, f'{prefix}{node.name}.')
        elif isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node


def sites(text: str) -> Iterator[dict]:
    """All mutants of a module."""
    lines = text.encode().splitlines(keepends=True)
    for name, function in functions(ast.parse(text)):
        seen = Counter()
        for statement in function.body[bool(ast.get_docstring(function)) :]:
            for node in ast.walk(statement):
                for kind, old, new in mutations(node):
                    if old.lineno != old.end_lineno:
                        continue
                    line = lines[old.lineno - 1]
                    old_text = line[old.col_offset : old.end_col_offset]
                    key = (kind, line.strip(), old_text)
                    seen[key] += 1
                    yield {
                        'function': name,
                        'kind': kind,
                        'line': line.strip().decode(),
                        'old': old_text.decode(),
                        'new': new,
                        'number': seen[key],
                        'at': (old.lineno, old.col_offset),
                    }


def modules(root: Path) -> list[str]:
    return sorted(
        path.relative_to(root).as_posix()
        for path in (root / 'mmext').rglob('*.py')
        if '.mim' not in path.parts and path.name != '__init__.py'
    )


def choose(count: int, seed: int) -> list[dict]:
    """Mutants of the modules that stay, at most four of each."""
    chance = random.Random(seed)
    pool = []
    for name in modules(ROOT):
        inner = name.removeprefix('mmext/')
        if not inner.startswith(LEFT_OUT):
            results = list(sites((ROOT / name).read_text()))
            chance.shuffle(results)
            pool += [{'module': name, **site} for site in results[:A_MODULE]]
    chosen = chance.sample(pool, count)
    return sorted(chosen, key=lambda mutant: (mutant['module'], mutant['at']))


def find(mutant: dict, root: Path) -> tuple[str, str] | None:
    """The module that has the place of a mutant now, and its new text."""
    names = modules(root)
    same = [name for name in names if name == mutant['module']]
    keys = ('kind', 'line', 'old', 'number')
    for is_strict in (True, False):
        for name in same + [name for name in names if name not in same]:
            text = (root / name).read_text()
            if mutant['old'] not in text or mutant['line'] not in text:
                continue
            for site in sites(text):
                if any(site[key] != mutant[key] for key in keys):
                    continue
                own = site['function'].split('.')[-1]
                if is_strict and own != mutant['function'].split('.')[-1]:
                    continue
                lines = text.encode().splitlines(keepends=True)
                number, column = site['at']
                line = lines[number - 1]
                end = column + len(mutant['old'].encode())
                lines[number - 1] = (
                    line[:column] + mutant['new'].encode() + line[end:]
                )
                return name, b''.join(lines).decode()
    return None


@cache
def _texts(root: Path) -> dict[str, str]:
    return {
        path.relative_to(root).as_posix(): path.read_text()
        for path in sorted((root / 'tests').rglob('test_*.py'))
    }


def tests_of(module: str, root: Path) -> list[str]:
    """Test files of a module, those that are most likely its own first."""
    parts = Path(module).with_suffix('').parts[1:]
    own = Path('tests', *(f'test_{part}' for part in parts)).with_suffix('.py')
    text = (root / module).read_text()
    names = [name.split('.')[0] for name, _ in functions(ast.parse(text))]
    names += re.findall(r'^class (\w+)', text, re.M)
    words = {name for name in names if not name.startswith('_')}
    stem = parts[-1].split('_')
    scores = {}
    for name, content in _texts(root).items():
        is_near = own.parent.as_posix() in name
        uses = sum(bool(re.search(rf'\b{word}\b', content)) for word in words)
        alike = sum(word in Path(name).stem.split('_') for word in stem)
        scores[name] = (
            20 * (name == own.as_posix()) + 3 * is_near + 2 * alike + uses
        )
    best = sorted(scores, key=scores.get, reverse=True)[:4]
    if parts[:2] == ('checks', 'labels'):
        best.append('tests/test_checks/test_labels/test_corruption.py')
    if parts[:3] == ('checks', 'preflight', 'rules'):
        plants = 'tests/test_checks/test_preflight/test_rules/test_plants.py'
        best.insert(1, plants)
    return list(dict.fromkeys(best))


class _FirstFailure:
    """Writes the test that fails first."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def pytest_runtest_logreport(self, report: object) -> None:
        if report.failed and not self.file.exists():
            self.file.write_text(report.nodeid)

    def pytest_collectreport(self, report: object) -> None:
        if report.failed and not self.file.exists():
            self.file.write_text(report.nodeid)


def _pytest(root: Path, tests: list[str], file: Path) -> int:
    """Exit code of pytest in a forked process; -1 if it takes too long."""
    pid = os.fork()
    if not pid:
        os.setsid()
        os.chdir(root)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        sys.path[:0] = [str(root), str(root / 'tests')]
        os.environ['PYTHONPATH'] = f'{root}:{root / "tests"}'
        os.environ['PYTHONDONTWRITEBYTECODE'] = '1'
        import pytest

        options = ['-x', '-q', '-n', '0', '-p', 'no:cacheprovider']
        code = pytest.main([*options, *tests], plugins=[_FirstFailure(file)])
        os._exit(int(code))
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(pid, signal.SIGKILL))
    signal.alarm(SECONDS)
    _, status = os.waitpid(pid, 0)
    signal.alarm(0)
    return os.waitstatus_to_exitcode(status)


def run_one(mutant: dict, root: Path) -> dict:
    """Try a mutant in a copy of the tree."""
    location = find(mutant, root)
    if location is None:
        return {**mutant, 'result': 'gone'}
    name, text = location
    good = (root / name).read_text()
    before = mutant.get('killed_by', '')
    file = root / 'killed_by.txt'
    known = before.split('::')[0] if before else ''
    tries = [[before]] if known and (root / known).exists() else []
    tries.append(tests_of(name, root))
    (root / name).write_text(text)
    result, killer = 'survived', ''
    try:
        for tests in tries:
            code = _pytest(root, tests, file)
            if code == 1 or (code == 2 and file.exists()):
                result = 'killed'
                killer = file.read_text() if file.exists() else ''
            elif code < 0:
                result, killer = 'killed', f'time limit: {tests[0]}'
            file.unlink(missing_ok=True)
            if result == 'killed':
                break
    finally:
        (root / name).write_text(good)
    return {**mutant, 'now': name, 'result': result, 'killed_by': killer}


def run(source: Path, target: Path, part: int, parts: int) -> None:
    """Try the mutants of a file; those that the target has are done."""
    for package in ('torch', 'mmengine', 'cv2', 'scipy.ndimage', 'pytest'):
        __import__(package)
    chosen = [json.loads(line) for line in source.read_text().splitlines()]
    done = target.read_text().count('\n') if target.exists() else 0
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, 'tree')
        shutil.copytree(
            ROOT,
            root,
            symlinks=True,
            ignore=shutil.ignore_patterns('.git', '.venv', 'work_dirs'),
        )
        for mutant in chosen[part::parts][done:]:
            with target.open('a') as file:
                file.write(json.dumps(run_one(mutant, root)) + '\n')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('action', choices=('choose', 'run'))
    parser.add_argument('files', type=Path, nargs='+')
    parser.add_argument('--part', type=int, nargs=2, default=(0, 1))
    args = parser.parse_args()
    if args.action == 'choose':
        lines = map(json.dumps, choose(300, seed=33))
        args.files[0].write_text('\n'.join(lines) + '\n')
    else:
        run(*args.files, *args.part)


if __name__ == '__main__':
    main()

"""What both checkers say of all that they are tested with, a line a finding.

Kept while their code is rebuilt: what is written before and after a change
must be the same. It takes half an hour of a processor. ::

    PYTHONPATH=.:tests python -m helpers.evidence OUT.jsonl [PATTERN ...]
"""

import fnmatch
import importlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import mmext  # noqa: F401  (makes mmdet importable without compiled ops)
from helpers.corpus_bases import write_base, write_data
from helpers.corpus_right import RIGHT as RIGHT_CONFIGS
from helpers.corpus_right import write_right
from helpers.corpus_run import CASES
from helpers.label_plants import all_plants
from helpers.label_sets import CLEAN, DataSet, clean
from helpers.preflight_plants import PLANTS, write_plant
from helpers.right_sets import RIGHT, check
from helpers.toy_ranks import load_tool

SHARED = Path(__file__).resolve().parents[3] / 'shared' / 'data'
SMALL = ('--batches', 'normal', '--image-size', '64', '64', '--no-labels')
SECONDS = 300
# Real data: a folder, its base, and what new_config needs besides.
REAL = {
    'bccd': ('co_dino/co_dino_r18_shapes.py',),
    'camvid': ('pidnet/pidnet_s_camvid.py', '--ignore-index', '11'),
}
# A case writes its files into a folder; its exit code and its report.
Case = Callable[[Path], tuple[int, dict]]


def _preflight(config: Path, *more: str) -> tuple[int, dict]:
    out = config.with_name('report.json')
    code = load_tool('preflight').main(
        [str(config), '--json', str(out), *more]
    )
    return code, json.loads(out.read_bytes()) if out.exists() else {}


def _label_plant(plant, folder: Path) -> tuple[int, dict]:
    data = clean(plant.kind, folder / 'data')
    plant.spoil(data)
    return _check(data, **plant.settings)


def _clean(kind: str, folder: Path) -> tuple[int, dict]:
    return _check(clean(kind, folder / 'data'))


def _check(data: DataSet, **settings) -> tuple[int, dict]:
    code = load_tool('validate_labels').main(data.argv(**settings))
    return code, json.loads((data.root / 'report.json').read_bytes())


def _right_set(name: str, way: int, folder: Path) -> tuple[int, dict]:
    right = RIGHT[name](folder)
    options = {'data_root': f'{folder}/', **right.options}
    if way < len(right.configs):
        config = right.configs[way]
        return check(folder, config, options, **right.settings)
    return check(folder, **right.bare[way - len(right.configs)])


def _plant(plant, folder: Path) -> tuple[int, dict]:
    more = (plant.argv,) if plant.argv else ()
    return _preflight(write_plant(plant, folder), *SMALL, *more)


def _wrong_config(case, folder: Path) -> tuple[int, dict]:
    data = write_data(folder / 'data')
    write_base(case.base, data, folder)
    config = folder / 'wrong.py'
    text = case.wrong.replace('DATA', str(data))
    config.write_text(f"_base_ = 'small.py'\n{text}\n")
    return _preflight(config, '--store', str(folder / 'facts.db'))


def _right_config(name: str, folder: Path) -> tuple[int, dict]:
    config = write_right(name, write_data(folder / 'data'), folder)
    return _preflight(config, '--store', str(folder / 'facts.db'))


def _real(name: str, tool: str, folder: Path) -> tuple[int, dict]:
    base, *more = REAL[name]
    config = folder / 'mine.py'
    argv = [str(SHARED / name), '--out', str(config), '--no-check']
    load_tool('new_config').main([*argv, '--base', f'mmext::{base}', *more])
    if tool == 'preflight':
        return _preflight(config, '--no-labels')
    return check(folder, config)


def cases() -> Iterator[tuple[str, Case]]:
    """All cases, by name."""
    for kind in CLEAN:
        yield f'clean/{kind}', partial(_clean, kind)
    for plant in all_plants():
        yield f'label_plant/{plant.name}', partial(_label_plant, plant)
    for family in ('boxes', 'maps', 'voc'):
        importlib.import_module(f'helpers.right_{family}')
    with tempfile.TemporaryDirectory() as folder:
        for name, make in RIGHT.items():
            root = Path(folder) / name
            root.mkdir()
            right = make(root)
            for way in range(len(right.configs) + len(right.bare)):
                yield f'right_set/{name}/{way}', partial(_right_set, name, way)
    for plant in PLANTS:
        yield f'preflight_plant/{plant.rule}', partial(_plant, plant)
    for name, case in CASES.items():
        yield f'wrong_config/{name}', partial(_wrong_config, case)
    for name in RIGHT_CONFIGS:
        yield f'right_config/{name}', partial(_right_config, name)
    for name in REAL if SHARED.is_dir() else ():
        for tool in ('validate_labels', 'preflight'):
            yield f'real/{name}/{tool}', partial(_real, name, tool)


def _relative(path: str, folder: Path) -> str:
    """Paths in a text, as they are on every machine."""
    path = path.replace(str(folder), '.')
    return re.sub(r'/\S*/(?=([^/\s]+/){2}[^/\s]+)', '', path)


def lines_of(name: str, code: int, report: dict, folder: Path) -> list[str]:
    """A line of JSON for each finding, at least one, sorted."""
    results = []
    for group in report.get('groups', ()):
        example = (group.get('examples') or [{}])[0]
        position = example.get('position', '')
        where = example.get('file', ''), position, group['count']
        results.append((group['rule'], group['severity'], *where))
    for finding in report.get('findings', ()):
        position = finding.get('key') or finding.get('line', '')
        where = finding.get('file', ''), position, 1
        results.append((finding['rule'], finding['severity'], *where))
    keys = ('rule', 'severity', 'file', 'position', 'count')
    rows = [dict(zip(keys, result)) for result in results] or [{}]
    for row in rows:
        for key in {'file', 'position'} & row.keys():
            row[key] = _relative(str(row[key]), folder)
    return sorted(
        json.dumps({'case': name, 'exit': code, **row}) for row in rows
    )


def _run(name: str, case: Case, out: str, printed: str) -> None:
    """What the process of a case does; after an error there are no lines."""
    file = os.open(printed, os.O_WRONLY | os.O_CREAT)
    for number in (1, 2):
        os.dup2(file, number)
    sys.stdout = sys.stderr = os.fdopen(file, 'w')
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        (root / 'case').mkdir()
        os.chdir(root)
        try:
            code, report = case(root / 'case')
        except SystemExit as error:
            code, report = error.code, {}
        lines = lines_of(name, code, report, root / 'case')
    Path(out).write_text('\n'.join(lines))


def main(out: str, *patterns: str) -> int:
    """Run all cases, or those whose names match; write their lines."""
    lines: list[str] = []
    # Once, for all processes to come.
    for host in ('mmdet', 'mmseg'):
        importlib.import_module(f'{host}.models')
        importlib.import_module(f'{host}.datasets')
    context = get_context('fork')
    environ = {'CUDA_VISIBLE_DEVICES': '', 'OMP_NUM_THREADS': '1'}
    os.environ.update(environ)
    # Whether weights of torchvision can be loaded must not depend on it.
    sys.modules['torchvision'] = None
    for name, case in cases():
        if patterns and not any(fnmatch.fnmatch(name, p) for p in patterns):
            continue
        with tempfile.TemporaryDirectory() as folder:
            own = os.path.join(folder, 'lines')
            printed = os.path.join(folder, 'printed')
            child = context.Process(
                target=_run, args=(name, case, own, printed)
            )
            child.start()
            child.join(SECONDS)
            if child.is_alive():
                child.kill()
                child.join()
            if not os.path.exists(own):
                raise RuntimeError(
                    f'{name}: no answer; {Path(printed).read_text()[-2000:]}'
                )
            lines += Path(own).read_text().splitlines()
    Path(out).write_text('\n'.join(sorted(lines)) + '\n')
    return 0


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))

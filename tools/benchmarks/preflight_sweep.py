"""Run the preflight of many configs, on a CPU.

Every config is looked at in a process of its own (a fork, so not on Windows),
with a limit of time and of memory; nothing is downloaded. The table has a
row for each: its task, the number of trainable parameters and of those
without a gradient by kind of batch, the setting that is recommended, the
rules that found something (! error, ? warning, else a note) with the number
of their findings, the seconds of a processor, and the reason if no step could
be run.
"""

import argparse
import json
import os
import re
import resource
import signal
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO, Any

import mmext.utils.quiet_hosts  # noqa: F401  (first: it is quiet then)
from mmext.utils.cli import report_errors, run_tool
from mmext.utils.files import atomic_path, check_outputs, prepare_outputs

MARK = 'preflight-sweep: '
# A process waits for its turn on a machine that others use.
WAIT = 5
ERROR = re.compile(r'[\w.]+(Error|Exception|Interrupt|Warning)\b')
HEADER = (
    '| config | task | parameters | unused by kind | recommended | found '
    '| s | result |\n|---|---|---|---|---|---|---|---|\n'
)
# By name of a severity.
_MARKS = {'ERROR': '!', 'WARNING': '?', 'INFO': ''}
# Words of a name and how large they tell a model to be; 50 if none does.
_SIZES = {
    'nano': 1, 'tiny': 5, 'mini': 5, 'b0': 6, 't': 20, 's': 22, 'small': 22,
    'm': 60, 'b': 70, 'base': 70, 'l': 90,
    'large': 90, 'x': 95, 'xlarge': 95, 'huge': 99, 'h': 99,
}  # fmt: skip
_WITH_DEPTH = {'r', 'x', 's', 'resnet', 'resnext', 'resnest', 'vgg', 'dla'}


def model_size(path: Path) -> int:
    """About how large a model is, by the name of its config."""
    sizes = []
    for word in re.split(r'[-_.]', path.stem):
        # A depth, or a letter for a size and the side of a patch.
        match = re.fullmatch(r'([a-z]+)(\d{2,3})[bcds]?', word)
        if match and match[1] in _WITH_DEPTH:
            sizes.append(int(match[2]))
        name = match[1] if match else word
        if name in _SIZES and not (match and match[1] in _WITH_DEPTH):
            sizes.append(_SIZES[name])
    return max(sizes, default=50)


def smallest_configs(root: Path, by_head: bool = False) -> list[Path]:
    """The config of the smallest model in each folder.

    Args:
        root: Folder of the folders.
        by_head: One for each data set and set of heads in a folder, and not
            only one for each folder.
    """
    chosen = []
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        if folder.name.startswith('_'):
            continue
        groups = defaultdict(list)
        for file in list(folder.glob('*.py')) or list(folder.rglob('*.py')):
            groups[_kind_of(file) if by_head else ()].append(file)
        chosen += [
            min(files, key=lambda f: (model_size(f), len(f.name), f.name))
            for files in groups.values()
        ]
    return chosen


def _kind_of(file: Path) -> tuple:
    """Model, data sets and heads of a config, by name."""
    from mmengine.config import Config

    from mmext.checks.config import walk_dicts

    try:
        config = Config.fromfile(str(file))
    except (ImportError, OSError) as error:
        # A package or a base is missing: the row of one config says so.
        return (type(error).__name__,)
    model = config.get('model', {})
    heads = {
        str(node.get('type'))
        for path, node in walk_dicts(model)
        if 'head' in next((k for k in path[::-1] if isinstance(k, str)), '')
    }
    data = {
        str(node.get('type'))
        for _, node in walk_dicts(config.get('train_dataloader', {}))
        if not {'ann_file', 'data_root', 'data_prefix'}.isdisjoint(node)
    }
    return str(model.get('type')), *sorted(heads | data)


def config_folder(host: str) -> Path:
    """Where a host keeps the configs that it ships."""
    spec = find_spec(host)
    if spec is None or spec.origin is None:
        raise ValueError(f'host must be an installed package, got {host!r}')
    return Path(spec.origin).parent / '.mim' / 'configs'


def try_config(path: Path, kinds: Sequence[str], batch_size: int) -> None:
    """Run the preflight of a config, and print a row of what it found."""
    import torch

    from mmext.checks.preflight import check_config

    stage = ''

    def tell(text: str) -> None:
        nonlocal stage
        stage = text
        row = {'unused': {}, 'result': f'while {stage}'}
        print(f'\n{MARK}{json.dumps(row)}', flush=True)

    torch.set_num_threads(1)
    report = check_config(
        path,
        batches=tuple(kinds),
        batch_size=batch_size,
        labels=False,
        progress=tell,
    )
    print(f'\n{MARK}{json.dumps(row_of(report))}')


def row_of(report: Any) -> dict:
    """A row of the table, of a preflight."""
    counts = Counter(
        f'{row.rule}{_MARKS[row.severity.name]}' for row in report.findings
    )
    setting = ''
    for row in report.verdicts.rows if report.verdicts else ():
        if row.recommended:
            flags = [
                name
                for name in ('find_unused_parameters', 'static_graph')
                if getattr(row, name)
            ]
            setting = ' '.join(flags) or 'plain'
    wrong = [row.error for row in report.batches if row.error]
    if not any(row.steps for row in report.batches):
        wrong += report.not_done
    return {
        'task': report.task,
        'parameters': report.trainable,
        'unused': {row.kind: row.unused for row in report.batches},
        'setting': setting,
        'findings': ', '.join(
            rule if number == 1 else f'{rule} x{number}'
            for rule, number in sorted(counts.items())
        ),
        'result': '; '.join(wrong) or 'ok',
    }


def try_in_child(
    path: Path,
    kinds: Sequence[str],
    batch_size: int,
    limits: tuple[int, int],
) -> dict:
    """Try a config in a process of its own."""
    seconds = limits[0]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        child = get_context('fork').Process(
            target=_run_child,
            args=((out.fileno(), errors.fileno()), limits),
            kwargs={
                'path': path,
                'kinds': kinds,
                'batch_size': batch_size,
            },
        )
        child.start()
        child.join(WAIT * seconds)
        if child.is_alive():
            child.kill()
            child.join()
        row = _last_row(_text_of(out))
        if child.exitcode in (-signal.SIGXCPU, -signal.SIGKILL):
            row['result'] += f': took more than {seconds} s of a processor'
        elif child.exitcode:
            row['result'] += f': {_last_error(_text_of(errors), child)}'
    return row


def _run_child(
    files: tuple[int, int], limits: tuple[int, int], **options
) -> None:
    """What the process of a config does: write to files, within limits."""
    for target, file in zip((1, 2), files):
        os.dup2(file, target)
    sys.stdout, sys.stderr = os.fdopen(1, 'w'), os.fdopen(2, 'w')
    seconds, gib = limits
    for kind, limit in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, gib << 30),
    ):
        resource.setrlimit(kind, (limit, limit))
    try_config(**options)


def _text_of(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors='replace')


def _last_row(text: str) -> dict:
    lines = [line for line in text.splitlines() if line.startswith(MARK)]
    if not lines:
        return {'result': 'start'}
    return json.loads(lines[-1].removeprefix(MARK))


def _last_error(text: str, child: BaseProcess) -> str:
    """Last message of a process, with the place that raised it."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return f'exit status {child.exitcode}'
    locations = [line for line in lines if line.startswith('  File ')]
    match = (
        re.search(r'([^/"]+)", line (\d+)', locations[-1])
        if locations
        else None
    )
    location = f' ({match[1]}:{match[2]})' if match else ''
    start = max(
        (
            i
            for i, line in enumerate(lines)
            if re.match(r'[\w.]+(Error|:)', line)
        ),
        default=len(lines) - 1,
    )
    return ' '.join(lines[start:]) + location


def table_row(name: str, row: dict, seconds: float) -> str:
    """A line of the table."""
    unused = ', '.join(f'{k} {n}' for k, n in row.get('unused', {}).items())
    result = ' '.join(row['result'].split()).replace('|', '/')[:300]
    cells = [name, row.get('task', ''), row.get('parameters', ''), unused]
    cells += [row.get('setting', ''), row.get('findings', '')]
    cells += [f'{seconds:.0f}', result]
    return '| ' + ' | '.join(str(cell) for cell in cells) + ' |'


def _seconds_of_children() -> float:
    """Time that ended processes have had a processor for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def sweep(paths: Iterable[Path], options: argparse.Namespace) -> list[dict]:
    """Try configs one after the other, and print a line for each."""
    for host in ('mmdet', 'mmseg', 'mmpretrain'):
        # Once, for all processes to come.
        if find_spec(host) is not None:
            import_module(f'{host}.models')
            import_module(f'{host}.datasets')
    rows = []
    lines = [HEADER.rstrip('\n')]
    print(lines[0], flush=True)
    for path in paths:
        start = _seconds_of_children()
        limits = options.seconds, options.gib
        job = path, options.kinds, options.batch_size, limits
        row = try_in_child(*job)
        name = f'{path.parent.name}/{path.stem}'
        lines.append(table_row(name, row, _seconds_of_children() - start))
        print(lines[-1], flush=True)
        rows.append({'config': str(path), **row})
        if options.table:
            with atomic_path(options.table) as temporary:
                Path(temporary).write_text('\n'.join(lines) + '\n')
    return rows


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        '--hosts',
        nargs='*',
        default=[],
        help='packages of whose folders the smallest config each is tried',
    )
    parser.add_argument(
        '--by-head',
        action='store_true',
        help='of --hosts, the smallest config of each family, data set and '
        'set of heads',
    )
    parser.add_argument('--configs', nargs='*', type=Path, default=[])
    parser.add_argument('--kinds', nargs='+', default=['normal', 'empty'])
    parser.add_argument('--batch-size', type=int, default=0)
    parser.add_argument(
        '--seconds', type=int, default=90, help='of a processor, for each'
    )
    parser.add_argument('--gib', type=int, default=12, help='for each')
    parser.add_argument('--table', type=Path, help='write the table here')
    parser.add_argument('--json', type=Path, help='write all rows here')
    return parser


def main(args: Sequence[str] | None = None) -> int:
    """Run the sweep from a command line.

    Args:
        args: Without the name of the program; by default the process's.

    Returns:
        0 if every config could be tried to the end, else 1.
    """
    parser = _parser()
    options = parser.parse_args(args)
    paths = list(options.configs)
    for host in options.hosts:
        paths += smallest_configs(config_folder(host), options.by_head)
    if not paths:
        parser.error('give --hosts or --configs, so that there is a config')
    files = {'--json': options.json, '--table': options.table}
    report_errors(parser, check_outputs, files)
    with prepare_outputs(files):
        return _run(paths, options)


def _run(paths: Sequence[Path], options: argparse.Namespace) -> int:
    rows = sweep(paths, options)
    if options.json:
        with atomic_path(options.json) as temporary:
            Path(temporary).write_text(json.dumps(rows, indent=1))
    done = sum(row['result'] == 'ok' for row in rows)
    print(f'{done} of {len(rows)} configs: steps of all kinds were run')
    return 0 if done == len(rows) else 1


if __name__ == '__main__':
    run_tool(main)

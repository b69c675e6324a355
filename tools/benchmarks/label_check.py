"""Time and memory of the label check, beside programs that do less.

- maps: check_sources with all rules on label maps, against Pillow with
  numpy.bincount, and OpenCV with numpy.unique, which count values and
  nothing else; one process, one thread each.
- coco: reading and checking an annotation file with polygons, against
  loading it by pycocotools; the largest resident memory of a process that
  checks it, and what that had before.
- workers: the same label maps in one process and in two; the two are
  started anew for "with start", and are there already for "running".
- warm: a second check of many small label maps and images, from the listing
  of the folders to the report, in a process of its own.
- memory: largest resident memory of a whole check of a tenth of these files,
  and of all of them, each in a process of its own.

Programs that are compared run in turns on the same files; times are medians
of seconds, ratios are of medians. Files are generated in a temporary folder.
On a busy machine --clock cpu tells more: seconds of the CPU, for all but the
workers.
"""

import argparse
import contextlib
import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import cv2
import numpy as np
from joblib.externals.loky import get_reusable_executor
from label_check_data import (
    KINDS,
    NUM_CLASSES,
    write_coco,
    write_maps,
    write_pairs,
)
from PIL import Image

import mmext.utils.quiet_hosts  # noqa: F401  (first: it is quiet then)
from mmext.checks.findings import Severity
from mmext.checks.labels import Expectations
from mmext.checks.labels.check import check_sources, scan
from mmext.checks.labels.report import Report
from mmext.checks.labels.sources import split_of_folders
from mmext.checks.labels.sources.coco import split_of_coco
from mmext.checks.labels.store import FactStore, WorkItem, run_joblib
from mmext.utils.cli import report_errors, run_tool
from mmext.utils.files import atomic_path, check_outputs, prepare_outputs

PARTS = ('maps', 'coco', 'workers', 'warm', 'memory')
CLOCKS = {'wall': time.perf_counter, 'cpu': time.process_time}
CLASSES = tuple(f'class {number}' for number in range(NUM_CLASSES))
EXPECTED = Expectations(num_classes=NUM_CLASSES, classes=CLASSES)
STORE = 'facts.sqlite'
KIB = 1024
Times = dict[str, list[float]]


def check(masks: str, images: str | None, store: Path) -> Report:
    """Check folders, with all rules.

    Raises:
        ValueError: If an error is found, as the files are in order.
    """
    source = split_of_folders(masks, images, EXPECTED)
    with FactStore(store) as opened:
        return _in_order(check_sources([source], opened))


def check_file(path: Path, store: Path) -> Report:
    """Check an annotation file; raises ValueError if there are errors."""
    source = split_of_coco(str(path), '', Expectations(task='instance'))
    with FactStore(store) as opened:
        return _in_order(check_sources([source], opened))


def _in_order(report: Report) -> Report:
    """Label maps have no images here, which is warned of."""
    worst = report.worst()
    if worst is not None and worst >= Severity.ERROR:
        groups = [group.message for group in report.groups]
        raise ValueError(f'generated files must be in order, got {groups}')
    return report


def count_by_pillow(paths: Sequence[str]) -> None:
    """Count the values of label maps, the plain way."""
    for path in paths:
        with Image.open(path) as image:
            np.bincount(np.asarray(image).ravel())


def count_by_opencv(paths: Sequence[str]) -> None:
    """The same as many scripts do it."""
    for path in paths:
        label_map = cv2.imread(path, cv2.IMREAD_UNCHANGED)
        np.unique(label_map, return_counts=True)


def in_turns(
    programs: dict[str, Callable[[], object]], rounds: int, clock: str
) -> Times:
    """Seconds of each program in each round, after one that is not timed."""
    times: Times = {name: [] for name in programs}
    for number in range(rounds + 1):
        for name, program in programs.items():
            start = CLOCKS[clock]()
            program()
            if number:
                times[name].append(CLOCKS[clock]() - start)
    return times


def _ratios(times: Times, ours: str) -> dict[str, float]:
    """Medians, and those of the others divided by ours."""
    results = {name: median(item) for name, item in times.items()}
    return results | {
        f'{name} / {ours}': results[name] / results[ours]
        for name in times
        if name != ours
    }


def measure_maps(folder: Path, options: argparse.Namespace) -> dict:
    """Counting label maps of each kind, per file."""
    rng = np.random.default_rng(options.seed)
    results = {}
    for kind in options.kinds:
        # Noise takes 25 times the space, and is like itself everywhere.
        count = options.files if kind != 'noise' else -(-options.files // 10)
        size = options.height, options.width
        paths = write_maps(folder / kind, kind, count, size, rng)
        stores = iter(range(1000))

        def ours(kind: str = kind, stores=stores) -> None:
            name = f'{kind}-{next(stores)}.sqlite'
            check(str(folder / kind), None, folder / name)

        times = in_turns(
            {
                'ours': ours,
                'pillow': partial(count_by_pillow, paths),
                'opencv': partial(count_by_opencv, paths),
            },
            options.rounds,
            options.clock,
        )
        results[kind] = _ratios(
            {n: [t / count for t in item] for n, item in times.items()}, 'ours'
        )
    return results


def measure_coco(folder: Path, options: argparse.Namespace) -> dict:
    """Reading and checking an annotation file, against loading it."""
    from pycocotools.coco import COCO

    path = folder / 'annotations.json'
    write_coco(path, options.annotations, np.random.default_rng(options.seed))
    stores = iter(range(1000))

    def ours() -> None:
        check_file(path, folder / f'coco-{next(stores)}.sqlite')

    def theirs() -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            COCO(str(path))

    times = in_turns(
        {'ours': ours, 'pycocotools': theirs}, options.rounds, options.clock
    )
    memory = in_process(path, options.clock)
    return {
        'MB': path.stat().st_size / 1e6,
        **_ratios(times, 'ours'),
        'MiB': memory['MiB'],
        'MiB before': memory['MiB before'],
    }


def measure_workers(folder: Path, options: argparse.Namespace) -> dict:
    """Scanning label maps with one and two processes."""
    rng = np.random.default_rng(options.seed)
    size = options.height, options.width
    paths = write_maps(folder / 'maps', 'grey', options.files, size, rng)
    # As often as it takes for a process to have something to do.
    items = [
        WorkItem(
            path=f'{folder}/{"./" * turn}maps/{Path(path).name}', kind='mask'
        )
        for turn in range(options.repeats)
        for path in paths
    ]
    stores = iter(range(1000))

    def run(workers: int, anew: bool = False) -> None:
        if anew:
            get_reusable_executor().shutdown(wait=True)
        backend = partial(run_joblib, workers=workers)
        with FactStore(folder / f'{next(stores)}.sqlite') as store:
            read = scan(items, store, run=backend)
        if read != len(items):
            raise ValueError(f'{len(items)} files must be read, got {read}')

    times: Times = {}
    for workers in (1, 2):
        programs = {
            f'{workers} with start': partial(run, workers, anew=True),
            f'{workers} running': partial(run, workers),
        }
        times |= in_turns(programs, options.rounds, 'wall')
    get_reusable_executor().shutdown(wait=True)
    results = {name: median(item) for name, item in times.items()}
    for how in ('with start', 'running'):
        results[f'1 / 2 {how}'] = results[f'1 {how}'] / results[f'2 {how}']
    return {'files': len(items)} | results


def check_once(path: Path, clock: str) -> dict[str, float]:
    """Time of a check, and the largest memory of this process.

    ``path``: A folder of small pairs, or an annotation file.
    """
    before, start = largest_mib(), CLOCKS[clock]()
    if path.is_file():
        check_file(path, path.with_suffix('.sqlite'))
    else:
        check(str(path / 'masks'), str(path / 'images'), path / STORE)
    seconds = CLOCKS[clock]() - start
    return {'seconds': seconds, 'MiB': largest_mib(), 'MiB before': before}


def largest_mib() -> float:
    """The largest memory of this process up to now.

    Not from getrusage, which begins with that of the parent.
    """
    status = Path('/proc/self/status').read_text()
    return int(status.partition('VmHWM:')[2].split()[0]) / KIB


def in_process(path: Path, clock: str) -> dict[str, float]:
    """The same in a new process.

    Raises:
        subprocess.CalledProcessError: If it failed; it has said why.
    """
    command = [sys.executable, __file__, '--clock', clock]
    done = subprocess.run(
        [*command, '--once', str(path)],
        check=True,
        stdout=subprocess.PIPE,
    )
    return json.loads(done.stdout)


def measure_pairs(folder: Path, options: argparse.Namespace) -> dict:
    """A second check of many files, and memory of the first."""
    rng = np.random.default_rng(options.seed)
    results = {'warm': {}, 'memory': {}}
    for count in (-(-options.entries // 10), options.entries):
        own = folder / str(count)
        own.mkdir()
        write_pairs(own, count, rng)
        first = in_process(own, options.clock)
        results['memory'][f'{count:,} pairs, MiB'] = first['MiB']
        if 'warm' in options.only and count == options.entries:
            times = [
                in_process(own, options.clock)['seconds']
                for _ in range(options.rounds)
            ]
            results['warm'] = {
                'first': first['seconds'],
                'again': median(times),
            }
    few, many = results['memory'].values()
    results['memory']['ratio'] = many / few
    return {
        part: results[part] for part in ('warm', 'memory') if results[part]
    }


def make_parser() -> argparse.ArgumentParser:
    """The command line of this tool."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add('--only', nargs='+', choices=PARTS, default=PARTS, metavar='PART')
    add('--kinds', nargs='+', choices=KINDS, default=KINDS, metavar='KIND')
    add('--files', type=positive, default=100, help='label maps of a kind')
    add('--height', type=positive, default=1024, help='of label maps')
    add('--width', type=positive, default=2048, help='of label maps')
    add('--repeats', type=positive, default=10, help='workers: of each file')
    add('--annotations', type=positive, default=150_000)
    add('--entries', type=positive, default=100_000, help='small pairs')
    add('--rounds', type=positive, default=5, help='times of each program')
    add('--clock', choices=CLOCKS, default='wall')
    add('--seed', type=int, default=0)
    add('--json', type=Path, help='write the results here')
    add(
        '--once',
        type=Path,
        metavar='PATH',
        help='check the small pairs in a folder, or an annotation file, once, '
        'and print time and memory of this process',
    )
    return parser


def positive(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f'must be at least 1, got {text}')
    return number


def show(results: dict, indent: str = '') -> None:
    """Print names and numbers, one to a line."""
    for name, value in results.items():
        if isinstance(value, dict):
            print(f'{indent}{name}')
            show(value, indent + '  ')
        else:
            print(f'{indent}{name:24} {value:12,.4f}')
    sys.stdout.flush()


def main(args: Sequence[str] | None = None) -> int:
    """Run the benchmark from a command line."""
    parser = make_parser()
    options = parser.parse_args(args)
    cv2.setNumThreads(1)
    if options.once is not None:
        print(json.dumps(check_once(options.once, options.clock)))
        return 0
    files = {'--json': options.json}
    report_errors(parser, check_outputs, files)
    with prepare_outputs(files):
        run(options)
    return 0


def run(options: argparse.Namespace) -> None:
    """Measure what is asked for, print it and write it."""
    measures = {
        'maps': measure_maps,
        'coco': measure_coco,
        'workers': measure_workers,
    }
    results: dict[str, dict] = {}
    for part, measure in measures.items():
        if part in options.only:
            with tempfile.TemporaryDirectory() as folder:
                results[part] = measure(Path(folder), options)
            show({part: results[part]})
    if {'warm', 'memory'} & set(options.only):
        with tempfile.TemporaryDirectory() as folder:
            pairs = measure_pairs(Path(folder), options)
        results |= pairs
        show(pairs)
    if options.json:
        with atomic_path(options.json) as temporary:
            Path(temporary).write_text(json.dumps(results))


if __name__ == '__main__':
    run_tool(main)

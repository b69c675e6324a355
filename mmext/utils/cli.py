"""Arguments that several tools share. Loads no torch."""

import argparse
import io
import os
import signal
import sqlite3
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any, NoReturn

from mmengine.config import Config, DictAction

from .broken_libraries import BrokenLibraryError
from .files import check_outputs, prepare_outputs
from .launcher_env import LAUNCHERS, let_rank_0_print
from .printing import printable, say

_INPUT_ERRORS = (
    ImportError,
    KeyError,
    OSError,
    TypeError,
    ValueError,
    sqlite3.OperationalError,
)


class ConfigOptions(DictAction):
    """``--cfg-options``, which may be given more than once.

    Later values are put over earlier ones; MMEngine's action forgets all
    earlier ones.
    """

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Add settings to those that are there."""
        before = getattr(namespace, self.dest, None) or {}
        super().__call__(parser, namespace, values, option_string)
        after = getattr(namespace, self.dest)
        setattr(namespace, self.dest, {**before, **after})


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what a training and a test have in common."""
    add = parser.add_argument
    add('config', help='config file')
    add(
        '--work-dir',
        metavar='DIR',
        help='folder for checkpoints and logs (default: work_dir of the '
        'config, else work_dirs/NAME_OF_THE_CONFIG)',
    )
    add(
        '--cfg-options',
        nargs='+',
        action=ConfigOptions,
        metavar='KEY=VALUE',
        help='settings to put over the config, such as data_root=FOLDER or '
        'train_dataloader.batch_size=4; quote lists: key="[1,2]"',
    )
    add(
        '--launcher',
        choices=LAUNCHERS,
        default='none',
        help='what starts the processes of a run with several of them '
        '(default: %(default)s)',
    )
    add(
        '--nproc',
        type=int,
        default=1,
        metavar='N',
        help='start N processes on this machine, one per GPU or, without '
        'any, on the CPU (default: %(default)s)',
    )
    add(
        '--device',
        metavar='DEVICE',
        help='auto (GPU where there is one, else CPU), cpu, cuda or cuda:N '
        '(default: device of the config, else auto)',
    )
    add_trust_argument(parser)
    # Older launchers pass it; the environment says the same.
    add(
        '--local_rank',
        '--local-rank',
        type=int,
        default=0,
        help=argparse.SUPPRESS,
    )


def add_view_arguments(parser: argparse.ArgumentParser) -> None:
    """``--tta`` and ``--tile``."""
    parser.add_argument(
        '--tta',
        action='store_true',
        help='predict flipped and scaled views of each picture, too, and put '
        'them together',
    )
    parser.add_argument(
        '--tile',
        type=int,
        metavar='SIZE',
        help='predict tiles of that many pixels, too: for small objects in '
        'large pictures',
    )


def add_trust_argument(parser: argparse.ArgumentParser) -> None:
    """Add the switch for files that may run code when they are read."""
    parser.add_argument(
        '--trust-checkpoint',
        action='store_true',
        help='let checkpoints that are named run code when they are read; '
        'only for files from people you trust',
    )


def find_device(args: argparse.Namespace) -> str | None:
    """The device that a run is going to ask for, as far as it is known."""
    device = args.device or (args.cfg_options or {}).get('device')
    if device is None and Path(args.config).is_file():
        # A config may raise anything; reading it for the run says it better.
        with suppress(Exception):
            cfg = Config.fromfile(args.config, import_custom_modules=False)
            device = cfg.get('device')
    return device


def start_processes(
    parser: argparse.ArgumentParser,
    args: argparse.Namespace,
    argv: Sequence[str] | None,
) -> None:
    """Start what ``--nproc`` asks for; they take the place of this process."""
    if args.nproc < 1:
        parser.error(f'--nproc must be at least 1, got {args.nproc}')
    if args.nproc == 1 or args.launcher != 'none':
        return
    # For torchrun's parser, which sees all, it is short for one of its own.
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    own.add_argument('--nproc')
    own.add_argument('--launcher')
    argv = own.parse_known_args(argv)[1]
    tool = Path(sys.argv[0]).resolve()
    os.environ['PYTHON'] = sys.executable
    os.execvp(
        'bash',
        [
            *('bash', '-c', '. "$0"; launch "$@"'),
            *(str(tool.parent / '_dist.sh'), tool.name),
            *('1', str(args.nproc), *argv),
        ],
    )


def hide_gpus(device: str | None) -> None:
    """Make sure that a run on the CPU leaves the GPUs of the machine alone.

    MMEngine asks for a GPU's memory and its name wherever there is one. To be
    called before torch is loaded.
    """
    if device == 'cpu':
        os.environ['CUDA_VISIBLE_DEVICES'] = '-1'


def report_errors(
    parser: argparse.ArgumentParser,
    function: Callable[..., Any],
    *args: Any,
    errors: tuple[type[Exception], ...] = _INPUT_ERRORS,
) -> Any:
    """Call a function; what is wrong with its input ends the tool.

    For the part of a tool that reads and checks what the user gave, where
    the message says it all and a traceback would bury it. ``errors`` are those
    that do so where other ones are no fault of the input. Of several
    processes with the same error, all but one have a line in its ``brief``.
    """
    try:
        return function(*args)
    except errors as error:
        lone = isinstance(error, KeyError) and len(error.args) == 1
        text = f'{parser.prog}: error: {error.args[0] if lone else error}'
        if hasattr(error, 'brief'):
            text = error.brief or text
        else:
            let_rank_0_print()
        parser.exit(2, f'{text}\n')


def tool_command(name: str) -> str:
    """How a tool is called, in the way in which this one was.

    ``'mmext train'``, ``'python -m mmext train'`` or
    ``'python tools/train.py'``.
    """
    program = os.environ.get('MMEXT_COMMAND')
    if program:
        return f'{program} {name}'
    folder = Path(sys.argv[0]).parent
    if not (folder / f'{name}.py').is_file():
        folder = Path('tools')
    return f'python {quote(str(folder / name))}.py'


class ToolParser(argparse.ArgumentParser):
    """A parser that says what is wrong on one line, without the usage."""

    def __init__(self, **options: Any):
        if 'MMEXT_COMMAND' in os.environ:
            options.setdefault('prog', tool_command(Path(sys.argv[0]).stem))
        super().__init__(**options)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """End the tool."""
        super().exit(status, printable(message or ''))

    def error(self, message: str) -> NoReturn:
        """End the tool with exit code 2."""
        text = ' '.join(message.split())
        self.exit(2, f'{self.prog}: error: {text}; --help lists all options\n')


class _LenientOutput(io.FileIO):
    """Standard output or error.

    What is written once its reader has gone, as for ``| head``, is dropped.
    """

    def write(self, data: Any) -> int | None:
        try:
            return super().write(data)
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return super().write(data)


def progress_bar() -> Any:
    """A bar of rich on standard error: how many are done, and time left."""
    # Not at the top: most tools do without.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn('{task.description}'),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn('left'),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )


def generate_dataset(
    parser: argparse.ArgumentParser,
    args: argparse.Namespace,
    write: Callable[[Callable[[], None]], Mapping[str, Any]],
    describe: Callable[[Any], str],
) -> int:
    """Write a generated data set below a progress bar; the exit code.

    ``write`` calls its argument after each picture, and returns what is in
    each split.
    """
    # An exception, so that the unfinished set is removed.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    outputs = partial(check_outputs, {}, new_folders={'--out': args.out})
    report_errors(parser, outputs)
    bar = progress_bar()
    try:
        with bar:
            total = max(args.num_train + args.num_val, 1)
            task = bar.add_task('Drawing pictures', total=total)
            report = write(lambda: bar.advance(task))
    except (ValueError, OSError) as error:
        say(f'{parser.prog}: error: {error}', error=True)
        return 1
    except KeyboardInterrupt:
        say(f'Stopped; {args.out} is as it was.', error=True)
        return 130
    for split, content in report.items():
        say(f'{split}: {describe(content)}')
    return 0


def convert_file(
    parser: argparse.ArgumentParser,
    args: argparse.Namespace,
    convert: Callable[[argparse.Namespace], None],
) -> int:
    """Run a conversion of ``args.source`` to ``args.target``.

    Returns the exit code; exits with 2 if the target cannot be written.
    """
    files = {'target': args.target}
    outputs = partial(check_outputs, files, inputs={'source': args.source})
    report_errors(parser, outputs)
    with prepare_outputs(files):
        try:
            convert(args)
        except (OSError, TypeError, ValueError) as error:
            say(f'{parser.prog}: error: {error}', error=True)
            return 1
    return 0


def _print_traceback(*error: Any) -> None:
    """Print a traceback, whose message may hold names of data."""
    say(''.join(traceback.format_exception(*error)).rstrip(), error=True)


def run_tool(main: Callable[[], int]) -> NoReturn:
    """Run the function of a tool as a script, and exit with its code.

    Where the reader of what is printed has gone, as in ``| head``, the tool
    goes on in silence: it writes its files, and its exit code is the usual.
    """
    for name in ('stdout', 'stderr'):
        stream = getattr(sys, name)
        # None if the descriptor was closed.
        if stream is not None:
            raw = _LenientOutput(stream.fileno(), 'wb', closefd=False)
            lenient = io.TextIOWrapper(
                io.BufferedWriter(raw),
                encoding=stream.encoding,
                errors='backslashreplace',
                line_buffering=stream.line_buffering,
            )
            setattr(sys, name, lenient)
    sys.excepthook = _print_traceback
    try:
        code = main()
    except BrokenLibraryError as error:
        ToolParser().exit(2, f'{ToolParser().prog}: error: {error}\n')
    sys.exit(code)

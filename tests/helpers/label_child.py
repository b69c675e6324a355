"""The tool in processes of its own, whose reads are slow and are logged."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

# Python runs this as each process starts, those of a pool, too.
_CUSTOMIZE = """
import os, sys, time
FOLDER, LOG = os.environ['SLOW_FOLDER'], os.environ['SLOW_LOG']
def hook(event, args):
    # Without a mode it is os.open, below an open that has one.
    if event == 'open' and args[1] and str(args[0]).startswith(FOLDER):
        log = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(log, str(args[0]).encode() + b'\\n')
        os.close(log)
        time.sleep(float(os.environ['SLOW_SECONDS']))
        if str(args[0]) == os.environ.get('SLOW_DEADLY'):
            os.kill(os.getpid(), 9)
sys.addaudithook(hook)
"""


def stored_paths(store: Path) -> set[str]:
    """Files whose facts are in a store; none if there is no store yet."""
    try:
        db = sqlite3.connect(f'{store.absolute().as_uri()}?mode=ro', uri=True)
        with closing(db):
            rows = db.execute('SELECT path FROM facts').fetchall()
    except sqlite3.OperationalError:
        return set()
    return {path.decode('utf-8', 'surrogatepass') for (path,) in rows}


class SlowTool:
    """``tools/validate_labels.py`` on a folder, some milliseconds a file.

    Args:
        folder: For what the processes need.
        data: Files below it are read slowly, and logged.
        checkout: Root of the sources.
        seconds: For each file, while the tool is to be killed.
    """

    def __init__(
        self, folder: Path, data: Path, checkout: Path, seconds: float = 0.02
    ):
        folder.mkdir()
        (folder / 'sitecustomize.py').write_text(_CUSTOMIZE)
        self.checkout, self.log = checkout, folder / 'log'
        self.seconds = seconds
        paths = [str(folder), str(checkout), os.environ.get('PYTHONPATH', '')]
        self.env = {
            **os.environ,
            'PYTHONPATH': os.pathsep.join(filter(None, paths)),
            'SLOW_FOLDER': str(data),
            'SLOW_LOG': str(self.log),
        }

    def start(
        self, *arguments: object, seconds: float = 0, deadly: str = ''
    ) -> subprocess.Popen:
        """Start the tool as the leader of a group of processes.

        A process that reads the file ``deadly`` is killed.
        """
        return subprocess.Popen(
            [
                sys.executable,
                str(self.checkout / 'tools' / 'validate_labels.py'),
                *map(str, arguments),
            ],
            cwd=self.checkout,
            env=self.env
            | {'SLOW_SECONDS': str(seconds), 'SLOW_DEADLY': deadly},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def run(self, *arguments: object) -> int:
        """Run the tool to its end; exit code."""
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=240)
        assert process.returncode in (0, 1), output.decode()
        return process.returncode

    def run_and_kill(self, store: Path, number: int, *arguments) -> set[str]:
        """Run the tool until a store has facts of some files, and kill it.

        Args:
            store: That the arguments name.
            number: Of files.
            arguments: Of the tool.

        Returns:
            Files whose facts were stored.
        """
        process = self.start(*arguments, seconds=self.seconds)
        try:
            until = time.monotonic() + 240
            while len(stored_paths(store)) < number:
                assert process.poll() is None, process.stdout.read().decode()
                assert time.monotonic() < until, 'nothing is stored'
                time.sleep(0.005)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        return stored_paths(store)

    def reads(self) -> list[str]:
        """Files that were read since the last call, in that order."""
        if not self.log.is_file():
            return []
        lines = self.log.read_text().splitlines()
        self.log.unlink()
        return lines

"""Watch the processes of a run: which is missing, and where it was last.

Every process of a run keeps a record of where it is: phase, iteration and
epoch. It writes the record into the store of the process group whenever the
phase changes, and twice a second; a thread reads those of the others. When a
wait fails, the error says from them which rank did not come, and where that
one was seen last. A second thread ends a process that cannot end by itself:
one that is blocked while another rank has failed or is gone, or while the
store does not answer, or whose launcher was killed.

Durations are measured by the clock of the process that reports them, and
ages by the clock of the reader, so the clocks of hosts need not agree.
"""

import itertools
import json
import multiprocessing
import os
import re
import socket
import sys
import threading
import time
import traceback
import uuid
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from torch import distributed as dist

from ...utils.printing import say

_BEAT_S = 0.5
_TICK_S = 0.25
# In which the store answers, or is taken to be silent.
_ANSWER_S = 2.0
_CLOSING_S = 0.5
# A rank whose record is older than this, by its count, shows no sign of life.
_SILENT_S = 4.0
# From the loss of a rank until this process is ended, if it does not end by
# an error of its own; and the same while it writes a checkpoint.
_GRACE_S = 3.0
_CHECKPOINT_GRACE_S = 30.0
# Seconds that a failed rank waits for lower ranks to fail in the same way. In
# a run, ranks keep step, and others may be blocked until this one has ended.
_SAME_IN_RUN_S, _SAME_BEFORE_S = 0.5, 5.0
# Seconds that it waits for a rank that prints the error to end.
_PRINT_S = 5.0
_MAX_RANKS = 6
_MAX_TEXT = 1000
# States of ranks that are not coming back. One that gave up waited for others.
_LOST = ('failed', 'gave up', 'ended')
CHECKPOINT = 'saving a checkpoint'
_STARTED = itertools.count()


class GroupError(RuntimeError):
    """An error between processes: its text says all, without a traceback."""


class PeerError(GroupError):
    """Another process has failed, is gone, does not answer, or is elsewhere.

    The text names the rank, its host and process, and where it was last seen.
    """

    # What the preflight with several processes calls it.
    rank_outcome = 'lost'


@dataclass
class _Record:
    """What a process says about itself."""

    host: str
    pid: int
    machine: str
    # Whether it serves the store, which ends with it.
    serves: bool = False
    count: int = 0
    phase: str = 'the start of the run'
    iteration: int = 0
    epoch: int = 0
    phase_s: float = 0.0
    finished: bool = False
    error: str = ''
    # Checksum of the lines of code that the traceback goes through.
    stack: int = 0
    gave_up: bool = False

    def name(self) -> str:
        return f'{self.host}, pid {self.pid}'

    def location(self) -> str:
        text = self.phase
        if self.iteration:
            text += f' of iteration {self.iteration}'
        if self.epoch:
            text += f' (epoch {self.epoch})'
        return text


def _process_state(pid: int) -> str:
    """State of a process as Linux calls it; '' if there is none."""
    try:
        text = Path(f'/proc/{pid}/stat').read_text()
    except OSError:
        return ''
    return text.rpartition(')')[2].split()[0]


def _machine() -> str:
    """What processes share that see each other's numbers; '' if unknown."""
    try:
        boot = Path('/proc/sys/kernel/random/boot_id').read_text().strip()
        return f'{boot} {os.readlink("/proc/self/ns/pid")}'
    except OSError:
        return ''


def first_line(error: BaseException) -> str:
    """Type and message of an error, without further lines and traceback."""
    lines = str(error).strip().splitlines() or ['']
    # The error of a process that loads data holds a traceback.
    line = lines[-1 if 'Traceback' in str(error) else 0]
    return f'{type(error).__name__}: {line}'


def _stack_sum(error: BaseException) -> int:
    """Checksum of the type and the lines of code of an error."""
    text = ''.join(traceback.format_exception(error))
    lines = re.findall(r'File "(.+)", line (\d+)', text)
    return zlib.crc32(repr([type(error).__name__, lines]).encode())


def _print_error(
    inner: Any, kind: type, error: BaseException, trace: Any
) -> None:
    """In place of :data:`sys.excepthook`: what `RankWatch.stop` decided."""
    brief = getattr(error, 'brief', '')
    if brief:
        say(brief, error=True)
    else:
        inner(kind, error, trace)


def group_timeout_s(process_group: dist.ProcessGroup) -> float:
    """The timeout of a process group's collectives, in seconds."""
    for device in process_group._device_types:
        backend = process_group._get_backend(device)
        options = getattr(backend, 'options', None)
        if options is not None:
            return options._timeout.total_seconds()
    return _watch.timeout_s


def _own_connection(store: dist.Store, timeout_s: float) -> dist.Store | None:
    """A second connection to a store; None if it is not on the network.

    A connection serves one thread at a time, and a wait blocks it.
    """
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    if not isinstance(store, dist.TCPStore):
        return None
    return dist.TCPStore(
        store.host,
        store.port,
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=timeout_s),
    )


class RankWatch:
    """The watch of one process over itself and the others.

    Args:
        rank: Of this process.
        size: Number of processes.
        timeout_s: Limit of all waits, in seconds.
        parent: Process id of the launcher, whose death ends this process;
            None if there is none.
        serves: Whether this process serves the store of the run.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        timeout_s: float,
        parent: int | None = None,
        serves: bool = False,
    ) -> None:
        self.rank, self.size, self.timeout_s = rank, size, timeout_s
        self.parent = parent
        self.in_run = False
        host = socket.gethostname()
        self.own = _Record(host, os.getpid(), _machine(), serves)
        self._since = time.monotonic()
        # A wait blocks a connection: one to write, and one to read.
        self._writer: dist.Store | None = None
        self._store: dist.Store | None = None
        self._write_lock = threading.Lock()
        self._written = 0.0
        # Without a new record for so long, a rank shows no sign of life.
        self._silent_s = _SILENT_S + size / 16
        self._keys = [str(index) for index in range(size)]
        # Rank -> last record, and when it was first read with that count.
        self._seen: dict[int, tuple[_Record, float]] = {}
        self._answered = time.monotonic()
        self._changed = threading.Condition()
        self._begun = self._done = 0
        self._failure: BaseException | None = None
        self._failed_in_run = False
        self._server_gone = False
        self._wake = threading.Event()
        self._stopped = threading.Event()

    # Life ------------------------------------------------------------------

    def start(self, store: dist.Store | None) -> None:
        """Exchange first records through the group's store, begin to watch.

        Raises:
            RuntimeError: If the store does not answer.
        """
        if self.size > 1 and store is not None:
            key = f'mmext/watch/{next(_STARTED)}'
            if self.rank == 0:
                store.set(key, uuid.uuid4().hex)
            prefix = store.get(key).decode()
            own = _own_connection(store, self.timeout_s)
            if own is not None:
                self._store = dist.PrefixStore(prefix, own)
                self._writer = dist.PrefixStore(
                    prefix, _own_connection(store, self.timeout_s)
                )
                self._write()
                # All records: a rank may go before the first beat.
                limit = timedelta(seconds=self.timeout_s)
                self._store.wait(self._keys, limit)
                self._read(self._store.multi_get(self._keys))
                threading.Thread(
                    target=self._beat, name='mmext beat', daemon=True
                ).start()
        threading.Thread(
            target=self._guard, name='mmext guard', daemon=True
        ).start()

    def stop(self, *, failed: bool) -> None:
        """End the watch; the others learn how this process has ended.

        Decides which rank prints an error that several have: its ``brief``
        replaces the traceback on the others, see :meth:`_brief`.
        """
        self.own.finished = not failed
        self.refresh(_ANSWER_S)
        error, first = self._failure if failed else None, None
        if error is not None and not self.own.gave_up:
            first = self._first_like_this()
        # Before rank 0 ends, which may serve the store.
        self._stopped.set()
        self._wake.set()
        if error is not None:
            error.brief = self._brief(error, first)

    def note(self, phase: str, iteration: int = -1, epoch: int = -1) -> str:
        """Note where this process is; returns the phase before.

        ``iteration`` and ``epoch`` count from 1; those left out stay.
        """
        before = self.own.phase
        self.own.phase = phase
        if iteration >= 0:
            self.own.iteration = iteration
        if epoch >= 0:
            self.own.epoch = epoch
        self._since = time.monotonic()
        # At once, as a process may stop without notice. Many ranks write less
        # often, to spare the server.
        if self._since - self._written >= max(0, self.size - 16) / 2000:
            self._write()
        return before

    def finish(self) -> None:
        """Let the others know that this process may leave."""
        self.in_run, self.own.finished = False, True
        self.note('the end')
        self.refresh(_ANSWER_S)

    def note_failure(self, error: BaseException) -> None:
        """Let the other ranks know that this one fails.

        A ``SystemExit`` with a code over 128, which stands for a signal, is
        no failure.
        """
        self._failed_in_run |= self.in_run
        self.in_run = False
        code = error.code if isinstance(error, SystemExit) else None
        if isinstance(code, int) and code > 128:
            self.finish()
        else:
            self._failure = error
            if not self.own.error:
                self.own.stack = _stack_sum(error)
            gave_up = isinstance(error, PeerError)
            self._fail(first_line(error), gave_up=gave_up)

    def _fail(self, text: str, *, gave_up: bool) -> None:
        """Let the others know that this process fails, or gave up on them."""
        if self.size > 1 and not self.own.error:
            self.own.gave_up = gave_up
            self.own.error = text[:_MAX_TEXT]
            if self.refresh(_ANSWER_S) and self.own.serves:
                # The others have to read it before the store ends.
                time.sleep(2.2 * _BEAT_S)
            elif gave_up:
                # The others have to see, too, who is missing.
                time.sleep(2 * _CLOSING_S)

    def _brief(self, error: BaseException, first: int | None) -> str:
        """Text in place of the traceback of an error; '' to print that.

        A rank that stops because of another one has a line. So has one that
        fails as a lower rank, ``first``, does: that one prints the error.
        """
        own = f'rank {self.rank}'
        if self.own.gave_up:
            self._outlast(
                [rank for rank in self._seen if self._is_failed(rank)]
            )
            return f'{own}: {" ".join(str(error).split())}'
        if first is not None:
            self._outlast([first])
            if self._seen[first][0].error == self.own.error:
                return f'{own} has the same error as rank {first}'
            return f'{own}: {self.own.error} (as rank {first}, same code)'
        if isinstance(error, GroupError):
            return f'{type(error).__name__}: {error}'
        return ''

    def _is_failed(self, rank: int) -> bool:
        return self._state(rank, self._seen[rank][0]) == 'failed'

    def _first_like_this(self) -> int | None:
        """Lowest other rank below this one that fails at the same code."""
        wait_s = _SAME_IN_RUN_S if self._failed_in_run else _SAME_BEFORE_S
        end = time.monotonic() + wait_s
        while True:
            answered = self.refresh(_ANSWER_S)
            below = {
                rank: self._seen[rank][0]
                for rank in range(self.rank)
                if rank in self._seen
            }
            for rank, record in below.items():
                if record.stack == self.own.stack and self._is_failed(rank):
                    return rank
            over = all(self._state(*item) for item in below.items())
            if over or not answered or time.monotonic() > end:
                return None
            time.sleep(_TICK_S)

    def _outlast(self, ranks: Sequence[int]) -> None:
        """Wait until ranks that have errors to print have ended.

        The launcher ends them when another process has ended.
        """
        end = time.monotonic() + _PRINT_S
        for rank in ranks:
            record = self._seen[rank][0]
            while time.monotonic() < end and (
                record.machine != self.own.machine
                or _process_state(record.pid) not in ('', 'Z', 'X')
            ):
                time.sleep(_TICK_S)

    # Records ---------------------------------------------------------------

    def _write(self) -> None:
        """Write the record, in some microseconds: nothing is waited for."""
        with self._write_lock:
            if self._writer is None:
                return
            self._written = time.monotonic()
            self.own.count += 1
            self.own.phase_s = round(self._written - self._since, 1)
            try:
                self._writer.set(str(self.rank), json.dumps(vars(self.own)))
            except RuntimeError:
                self._writer = None  # the server is gone, as `_beat` notes

    def _beat(self) -> None:
        # Many ranks read less often, to spare the server.
        every, due = max(_BEAT_S, self.size / 16), 0.0
        while not self._stopped.is_set():
            with self._changed:
                self._begun += 1
                begun, asked = self._begun, self._wake.is_set()
                self._wake.clear()
            self._write()
            try:
                if asked or time.monotonic() >= due:
                    due = time.monotonic() + every
                    self._read(self._store.multi_get(self._keys))
            except RuntimeError:
                # The server is gone; `_answered` shows since when.
                self._server_gone = True
                with self._changed:
                    self._changed.notify_all()
                return
            self._answered = time.monotonic()
            with self._changed:
                self._done = begun
                self._server_gone = self._is_server_ending()
                self._changed.notify_all()
            if self._server_gone:
                return
            self._wake.wait(_BEAT_S)

    def _is_server_ending(self) -> bool:
        """Whether a read may fail, of which PyTorch prints the stack."""
        server = self._seen[0][0]
        return self.rank != 0 and server.serves and bool(server.error)

    def _read(self, texts: Sequence[bytes]) -> None:
        now = time.monotonic()
        for rank, text in enumerate(texts):
            record = _Record(**json.loads(text))
            old = self._seen.get(rank)
            if old is None or old[0].count != record.count:
                self._seen[rank] = (record, now)

    def refresh(self, timeout_s: float) -> bool:
        """Write and read all records now; False if the store is silent."""
        if self._store is None or self._stopped.is_set():
            return False
        if time.monotonic() - self._answered > _SILENT_S:
            timeout_s = _TICK_S  # it was waited for already
        with self._changed:
            wanted = self._begun + 1
            self._wake.set()
            self._changed.wait_for(
                lambda: self._done >= wanted or self._server_gone, timeout_s
            )
            return self._done >= wanted

    # Who is missing --------------------------------------------------------

    def _state(self, rank: int, record: _Record) -> str:
        """One of ``_LOST``, ``'finished'``, ``'stopped'`` or ''."""
        if record.finished:
            return 'finished'
        if record.error:
            return 'gave up' if record.gave_up else 'failed'
        if self.own.machine and record.machine == self.own.machine:
            state = _process_state(record.pid)
            if state in ('', 'Z', 'X'):
                return 'ended'
            if state == 'T':
                return 'stopped'
        return ''

    def lost_ranks(self) -> list[int]:
        """Those that have failed or ended before the run was over.

        One on another machine that says nothing for longer than all waits may
        last is lost, too, unless it is the store that is silent.
        """
        now = time.monotonic()
        lost = []
        for rank, (record, since) in sorted(self._seen.items()):
            if rank == self.rank:
                continue
            silent = (
                now - since > self.timeout_s + self._silent_s
                and now - self._answered < _SILENT_S
            )
            state = self._state(rank, record)
            if state in _LOST or (silent and state == ''):
                lost.append(rank)
        return lost

    def describe(self, rank: int) -> str:
        """What is known of a rank, in a sentence."""
        if rank not in self._seen:
            return f'rank {rank} was never heard of'
        record, since = self._seen[rank]
        age = time.monotonic() - since
        name, location = f'rank {rank} ({record.name()})', record.location()
        state = self._state(rank, record)
        if state == 'finished':
            return f'{name} has finished'
        if state == 'failed':
            return f'{name} failed in {location}: {record.error}'
        if state == 'gave up':
            return f'{name} has given up waiting for others, in {location}'
        seen = f'it was last seen {age:.0f} s ago, in {location}'
        if state == 'ended':
            return f'{name} has ended without a word, as if killed; {seen}'
        if state == 'stopped':
            return f'{name} is stopped (SIGSTOP); {seen}'
        if age > self._silent_s:
            return f'{name} shows no sign of life; {seen}'
        return (
            f'{name} is alive, and has been in {location} for '
            f'{record.phase_s + age:.0f} s'
        )

    def missing(self) -> list[int]:
        """Ranks that others wait for, the most likely ones only."""
        self.refresh(_ANSWER_S)
        # The connections of a process close before it is seen to end.
        end = time.monotonic() + _CLOSING_S
        while not self.lost_ranks() and time.monotonic() < end:
            time.sleep(_CLOSING_S / 10)
        others = [rank for rank in self._seen if rank != self.rank]
        states = {
            rank: self._state(rank, self._seen[rank][0]) for rank in others
        }
        # Those that are where this one is wait, too.
        where = {
            rank: (record.iteration, record.phase)
            for rank, (record, _) in self._seen.items()
        } | {self.rank: (self.own.iteration, self.own.phase)}
        going_on = [rank for rank in others if states[rank] == '']
        now, limit = time.monotonic(), self._silent_s
        for wrong in (
            [rank for rank in others if states[rank] == 'failed'],
            [rank for rank in others if states[rank] in ('ended', 'stopped')],
            [rank for rank in going_on if now - self._seen[rank][1] > limit],
            [rank for rank in others if states[rank] == 'finished'],
            [rank for rank in going_on if where[rank] != where[self.rank]],
        ):
            if wrong:
                return sorted(wrong)
        return sorted(others)

    def report(self) -> str:
        """The missing ranks in a text, and where this one is; '' if alone."""
        if self.size == 1:
            return ''
        missing = self.missing()
        texts = [self.describe(rank) for rank in missing[:_MAX_RANKS]]
        if len(missing) > _MAX_RANKS:
            texts.append(f'and {len(missing) - _MAX_RANKS} more ranks')
        silent = time.monotonic() - self._answered
        if self._store is None:
            texts.append('the ranks cannot be told apart without a TCP store')
        elif not self._is_server_ending() and (
            silent > _SILENT_S or self._server_gone
        ):
            texts.append(
                'the store of the run, which torchrun or rank 0 serves, last '
                f'answered {silent:.0f} s ago'
            )
        own = f'this is rank {self.rank} ({self.own.name()})'
        return f'{"; ".join(texts)}; {own}, in {self.own.location()}'

    # The end ---------------------------------------------------------------

    def _guard(self) -> None:
        since = None
        while not self._stopped.wait(_TICK_S):
            reason = self._reason_to_end()
            if reason is None:
                since = None
                continue
            now = time.monotonic()
            since = now if since is None else since
            saving = self.own.phase == CHECKPOINT
            if now - since > (_CHECKPOINT_GRACE_S if saving else _GRACE_S):
                self._end(f'{reason}{self.report()}'.removesuffix(': '))

    def _reason_to_end(self) -> str | None:
        """Why this process cannot go on; '' where other ranks are lost."""
        if self.parent is not None and os.getppid() != self.parent:
            return f'the launcher (pid {self.parent}) is gone: '
        if not self.in_run:
            return None
        if self.lost_ranks():
            return ''
        if self._store is None or self._seen[0][0].finished:
            return None
        silent = time.monotonic() - self._answered
        if silent > self.timeout_s:
            return f'the store has not answered for {silent:.0f} s: '
        return None

    def _end(self, text: str) -> None:
        """End this process now, from a thread, whatever it is doing."""
        message = f'\nERROR: rank {self.rank} is ended: {text}\n'
        main = sys._current_frames().get(threading.main_thread().ident)
        # Where a rank has failed, the cause is known.
        if main and not any(map(self._is_failed, self._seen)):
            stack = traceback.format_stack(main)[-3:]
            message += f'It was here:\n{"".join(stack)}'
        os.write(2, message.encode())
        self._fail(text, gave_up=True)
        for process in multiprocessing.active_children():
            process.kill()
        os._exit(1)


# That of a process which runs alone; nothing is written or read.
_ALONE = RankWatch(
    0, 1, dist.distributed_c10d.default_pg_timeout.total_seconds()
)
_watch = _ALONE


def current_watch() -> RankWatch:
    """The watch of this process."""
    return _watch


def start_watch(watch: RankWatch, store: dist.Store | None) -> None:
    """Make a watch that of this process. To be called by all ranks.

    The first one stays until :func:`stop_watch`.
    """
    global _watch
    if _watch is _ALONE:
        watch.start(store)
        _watch = watch
        sys.excepthook = partial(_print_error, sys.excepthook)


def stop_watch(*, failed: bool = False) -> None:
    """End the watch of this process, if there is one."""
    global _watch
    watch, _watch = _watch, _ALONE
    if watch is not _ALONE:
        watch.stop(failed=failed)

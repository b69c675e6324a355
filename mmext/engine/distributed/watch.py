"""Watch the processes of a run: which is missing, and where it was last.

Every process of a run keeps a record of where it is: phase, iteration and
epoch. A thread writes it twice a second into the store of the process group,
over a connection of its own, and reads those of the others. When a wait fails,
the error says from them which rank did not come, and where that one was seen
last. A second thread ends a process that cannot end by itself: one that is
blocked while another rank has failed or is gone, whose wait has outlasted its
limit, or whose launcher was killed.

Durations are measured by the clock of the process that reports them, and
ages by the clock of the reader, so the clocks of hosts need not agree.
"""

import ctypes
import itertools
import json
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

from torch import distributed as dist

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
# What a wait may take beyond its limit, before the process is ended.
_MARGIN_S = 2.0
_MAX_RANKS = 6
_MAX_TEXT = 1000
# States of ranks that are not coming back. One that gave up waited for others.
_LOST = ('failed', 'gave up', 'ended')
CHECKPOINT = 'saving a checkpoint'
_PR_SET_PDEATHSIG = 1
_STARTED = itertools.count()


@dataclass
class _Record:
    """What a process says about itself."""

    host: str
    pid: int
    machine: str
    born: str
    count: int = 0
    phase: str = 'the start of the run'
    iteration: int = 0
    epoch: int = 0
    phase_s: float = 0.0
    waiting: bool = False
    finished: bool = False
    error: str = ''
    gave_up: bool = False

    def move(self, place: str) -> None:
        """Take a place that may be newer than that of the record."""
        iteration, epoch, phase = place.split(' ', 2)
        new = (int(iteration), int(epoch), phase)
        if new != (self.iteration, self.epoch, self.phase):
            self.iteration, self.epoch, self.phase = new
            self.phase_s = 0.0

    def name(self) -> str:
        return f'{self.host}, pid {self.pid}'

    def place(self) -> str:
        text = self.phase
        if self.iteration:
            text += f' of iteration {self.iteration}'
        if self.epoch:
            text += f' (epoch {self.epoch})'
        return text


def _process_state(pid: int) -> tuple[str, str]:
    """State and time of birth of a process on Linux; '' if there is none."""
    try:
        text = Path(f'/proc/{pid}/stat').read_text()
    except OSError:
        return '', ''
    fields = text.rpartition(')')[2].split()
    return fields[0], fields[19]


def _machine() -> str:
    """What processes share that see each other's numbers; '' if unknown."""
    try:
        boot = Path('/proc/sys/kernel/random/boot_id').read_text().strip()
        return f'{boot} {os.readlink("/proc/self/ns/pid")}'
    except OSError:
        return ''


def group_timeout_s(process_group: dist.ProcessGroup) -> float:
    """The timeout of a process group's collectives, in seconds."""
    for device in process_group._device_types:
        backend = process_group._get_backend(device)
        options = getattr(backend, 'options', None)
        if options is not None:
            return options._timeout.total_seconds()
    if _watch is not None:
        return _watch.timeout_s
    return dist.distributed_c10d.default_pg_timeout.total_seconds()


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
        self.serves = serves
        self.rank, self.size, self.timeout_s = rank, size, timeout_s
        self.parent = parent
        self.in_run = False
        pid = os.getpid()
        self.own = _Record(
            socket.gethostname(), pid, _machine(), _process_state(pid)[1]
        )
        self._since = time.monotonic()
        self._store: dist.Store | None = None
        self._place_store: dist.Store | None = None
        self._placed = 0.0
        # Without a new record for so long, a rank shows no sign of life.
        self._silent_s = _SILENT_S + size / 16
        self._keys = [str(index) for index in range(size)]
        self._keys += [f'{index} place' for index in range(size)]
        # Rank -> last record, and when it was first read with that count.
        self._seen: dict[int, tuple[_Record, float]] = {}
        self._answered = time.monotonic()
        self._changed = threading.Condition()
        self._begun = self._done = 0
        self._server_gone = False
        self._wake = threading.Event()
        self._stopped = threading.Event()
        # Start, latest end and name of the waits in progress.
        self.waits: list[tuple[float, float, str]] = []
        self._lost_since: float | None = None

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
                self._store.set(str(self.rank), self._text())
                self._place_store = dist.PrefixStore(
                    prefix, _own_connection(store, self.timeout_s)
                )
                self._write_place()
                # All records: a rank may go before the first beat.
                limit = timedelta(seconds=self.timeout_s)
                self._store.wait(self._keys, limit)
                self._read(self._store.multi_get(self._keys))
                threading.Thread(
                    target=self._beat, name='mmext beat', daemon=True
                ).start()
        if self.parent is not None:
            _wake_if_parent_dies()
        threading.Thread(
            target=self._guard, name='mmext guard', daemon=True
        ).start()

    def stop(self, *, failed: bool) -> None:
        """End the watch; the others learn how this process has ended."""
        self.own.finished = not failed
        self.refresh(_ANSWER_S)
        self._stopped.set()
        self._wake.set()

    def note(self, phase: str, iteration: int = -1, epoch: int = -1) -> str:
        """Note where this process is; returns the phase before."""
        before = self.own.phase
        self.own.phase = phase
        if iteration >= 0:
            self.own.iteration = iteration
        if epoch >= 0:
            self.own.epoch = epoch
        self._since = time.monotonic()
        # Many ranks write less often, to spare the server.
        if self._since - self._placed >= max(0, self.size - 16) / 2000:
            self._write_place()
        return before

    def _write_place(self) -> None:
        """Write the place at once: a process may stop without notice.

        It takes a few microseconds, as nothing is waited for.
        """
        if self._place_store is None:
            return
        self._placed = self._since
        own = self.own
        text = f'{own.iteration} {own.epoch} {own.phase}'
        try:
            self._place_store.set(f'{self.rank} place', text)
        except RuntimeError:
            self._place_store = None  # the server is gone, as `_beat` notes

    def finish(self) -> None:
        """Let the others know that this process may leave."""
        self.in_run, self.own.finished = False, True
        self.note('the end')
        self.refresh(_ANSWER_S)

    def fail(self, text: str, *, gave_up: bool = False) -> None:
        """Let the others know that this process fails, or gave up on them."""
        if not self.own.error:
            self.own.gave_up = gave_up
            self.own.error = text[:_MAX_TEXT]
            if self.refresh(_ANSWER_S) and self.serves:
                # The others have to read it before the store ends.
                time.sleep(2.2 * _BEAT_S)
            elif gave_up:
                # The others have to see, too, who is stopped.
                time.sleep(2 * _CLOSING_S)
            self.wake_stopped()

    # Records ---------------------------------------------------------------

    def _text(self) -> str:
        self.own.count += 1
        self.own.phase_s = round(time.monotonic() - self._since, 1)
        self.own.waiting = bool(self.waits)
        return json.dumps(asdict(self.own))

    def _beat(self) -> None:
        # Many ranks read less often, to spare the server.
        every, due = max(_BEAT_S, self.size / 16), 0.0
        while not self._stopped.is_set():
            with self._changed:
                self._begun += 1
                begun, asked = self._begun, self._wake.is_set()
                self._wake.clear()
            try:
                self._store.set(str(self.rank), self._text())
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
                self._changed.notify_all()
            self._wake.wait(_BEAT_S)

    def _read(self, texts: Sequence[bytes]) -> None:
        now = time.monotonic()
        places = texts[self.size :]
        for rank, text in enumerate(texts[: self.size]):
            record = _Record(**json.loads(text))
            record.move(places[rank].decode())
            old = self._seen.get(rank)
            if old is None or (old[0].count, old[0].place()) != (
                record.count,
                record.place(),
            ):
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
            state, born = _process_state(record.pid)
            if state in ('', 'Z', 'X') or born != record.born:
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
        name, place = f'rank {rank} ({record.name()})', record.place()
        state = self._state(rank, record)
        if state == 'finished':
            return f'{name} has finished'
        if state == 'failed':
            return f'{name} failed in {place}: {record.error}'
        if state == 'gave up':
            return f'{name} has given up waiting for others, in {place}'
        seen = f'it was last seen {age:.0f} s ago, in {place}'
        if state == 'ended':
            return f'{name} has ended without a word, as if killed; {seen}'
        if state == 'stopped':
            return f'{name} is stopped (SIGSTOP); {seen}'
        if age > self._silent_s:
            return f'{name} shows no sign of life; {seen}'
        return (
            f'{name} is alive, and has been in {place} for '
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
        going_on = [rank for rank in others if states[rank] == '']
        now, limit = time.monotonic(), self._silent_s
        for wrong in (
            [rank for rank in others if states[rank] == 'failed'],
            [rank for rank in others if states[rank] in ('ended', 'stopped')],
            [rank for rank in going_on if now - self._seen[rank][1] > limit],
            [rank for rank in others if states[rank] == 'finished'],
            [rank for rank in going_on if not self._is_with(rank)],
        ):
            if wrong:
                return sorted(wrong)
        return sorted(others)

    def _is_with(self, rank: int) -> bool:
        """Whether a rank is where this one is, or waits as well."""
        record = self._seen[rank][0]
        return record.waiting or (
            (record.iteration, record.phase)
            == (self.own.iteration, self.own.phase)
        )

    def report(self) -> str:
        """The missing ranks in a text, and where this one is."""
        missing = self.missing()
        texts = [self.describe(rank) for rank in missing[:_MAX_RANKS]]
        if len(missing) > _MAX_RANKS:
            texts.append(f'and {len(missing) - _MAX_RANKS} more ranks')
        silent = time.monotonic() - self._answered
        if self._store is None:
            texts.append('the ranks cannot be told apart without a TCP store')
        elif silent > _SILENT_S or self._server_gone:
            texts.append(
                'the store of the run, which torchrun or rank 0 serves, last '
                f'answered {silent:.0f} s ago'
            )
        own = f'this is rank {self.rank} ({self.own.name()})'
        return f'{"; ".join(texts)}; {own}, in {self.own.place()}'

    def wake_stopped(self) -> None:
        """Let stopped processes of this machine run, so that they can end."""
        for rank, (record, _) in self._seen.items():
            if rank != self.rank and self._state(rank, record) == 'stopped':
                os.kill(record.pid, signal.SIGCONT)

    # The end ---------------------------------------------------------------

    def _guard(self) -> None:
        while not self._stopped.wait(_TICK_S):
            now = time.monotonic()
            if self.parent is not None and os.getppid() != self.parent:
                self._end_soon(f'the launcher (pid {self.parent}) is gone')
            for start, end, what in tuple(self.waits):
                if now > end:
                    self._end(
                        f'{what} has taken {now - start:.0f} s: '
                        f'{self.report()}'
                    )
            if self.in_run:
                self._end_without_others(now)

    def _end_without_others(self, now: float) -> None:
        lost = self.lost_ranks()
        if not lost:
            self._lost_since = None
            return
        if self._lost_since is None:
            self._lost_since = now
        saving = self.own.phase == CHECKPOINT
        grace = _CHECKPOINT_GRACE_S if saving else _GRACE_S
        if now - self._lost_since > grace:
            self._end(self.report())

    def _end_soon(self, text: str) -> None:
        """End, but let a checkpoint be finished first."""
        end = time.monotonic() + _CHECKPOINT_GRACE_S
        while self.own.phase == CHECKPOINT and time.monotonic() < end:
            time.sleep(_TICK_S)
        self._end(text)

    def _end(self, text: str) -> None:
        """End this process now, from a thread, whatever it is doing."""
        main = sys._current_frames().get(threading.main_thread().ident)
        stack = traceback.format_stack(main)[-3:] if main else []
        message = (
            f'\nERROR: rank {self.rank} is ended: {text}\nIt was here:\n'
            + ''.join(stack)
        )
        os.write(2, message.encode())
        self.fail(text, gave_up=True)
        for process in multiprocessing.active_children():
            process.kill()
        os._exit(1)


def _wake_if_parent_dies() -> None:
    """On Linux, let a stopped process run on when its parent is gone.

    Not a signal that ends it: it would come at the end of the thread that
    started this process, too.
    """
    try:
        prctl = ctypes.CDLL(None).prctl
    except (AttributeError, OSError, TypeError):
        return  # not Linux
    prctl(_PR_SET_PDEATHSIG, int(signal.SIGCONT), 0, 0, 0)


def watch_parent() -> None:
    """End this process, one that loads data, when its parent is gone."""
    parent = os.getppid()

    def run() -> None:
        while os.getppid() == parent:
            time.sleep(_BEAT_S)
        os._exit(1)

    threading.Thread(target=run, name='mmext parent', daemon=True).start()


_watch: RankWatch | None = None


def current_watch() -> RankWatch | None:
    """The watch of this process; None if it runs alone."""
    return _watch


def start_watch(watch: RankWatch, store: dist.Store | None) -> None:
    """Make a watch that of this process. To be called by all ranks.

    The first one stays until :func:`stop_watch`.
    """
    global _watch
    if _watch is None:
        watch.start(store)
        _watch = watch


def stop_watch(*, failed: bool = False) -> None:
    """End the watch of this process, if there is one."""
    global _watch
    if _watch is not None:
        _watch.stop(failed=failed)
        _watch = None


def note_failure(error: BaseException, *, gave_up: bool = False) -> None:
    """Let the other ranks know that this one fails.

    ``gave_up`` is for errors that are due to another rank. A ``SystemExit``
    with a code over 128, which stands for a signal, is no failure.
    """
    if _watch is None:
        return
    _watch.in_run = False
    code = error.code if isinstance(error, SystemExit) else None
    if isinstance(code, int) and code > 128:
        _watch.finish()
    else:
        lines = str(error).strip().splitlines() or ['']
        # The error of a process that loads data holds a traceback.
        line = lines[-1 if 'Traceback' in str(error) else 0]
        _watch.fail(f'{type(error).__name__}: {line}', gave_up=gave_up)


def note_phase(phase: str, iteration: int = -1, epoch: int = -1) -> str:
    """Note where this process is; returns the phase before.

    ``iteration`` and ``epoch`` count from 1; those left out stay.
    """
    if _watch is None:
        return ''
    return _watch.note(phase, iteration, epoch)


def missing_ranks() -> str:
    """Which ranks are missing, as a text; '' without a watch."""
    if _watch is None or _watch.size == 1:
        return ''
    return _watch.report()


def lost_ranks() -> list[int]:
    """Ranks that have failed or ended before the run was over."""
    return [] if _watch is None else _watch.lost_ranks()


class waiting_for_ranks:
    """A wait for other ranks, by default as long as all waits may take.

    Used in a ``with`` statement. If the wait does not end, by an error of its
    own, shortly after its time, the process is ended by the watch.

    Args:
        what: What is waited for, for the message.
        timeout_s: Its time in seconds; 0 for that of the watch.
    """

    # No generator: every step has such a wait.
    def __init__(self, what: str, timeout_s: float = 0) -> None:
        self._wait = (what, timeout_s)
        self._waits: list | None = None

    def __enter__(self) -> None:
        if _watch is not None:
            self._waits = _watch.waits
            what, timeout_s = self._wait
            now = time.monotonic()
            limit = timeout_s or _watch.timeout_s
            self._waits.append((now, now + limit + _MARGIN_S, what))

    def __exit__(self, *error: object) -> None:
        if self._waits is not None:
            self._waits.pop()


@contextmanager
def watched_run(
    peer_errors: tuple[type[BaseException], ...] = (),
) -> Iterator[None]:
    """What all ranks do together: none may leave before it is over.

    ``peer_errors`` are those of a rank that gave up on another one.
    """
    watch = _watch
    if watch is None:
        yield
        return
    watch.in_run, watch.own.finished = True, False
    try:
        yield
    except BaseException as error:
        note_failure(error, gave_up=isinstance(error, peer_errors))
        raise
    watch.finish()

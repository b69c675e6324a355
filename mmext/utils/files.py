"""Outputs: tried before the work begins, then written whole or not at all.

Regular files appear by a rename (:func:`atomic_path`). Standard output
(``-``), open descriptors (``/dev/stdout``, ``/dev/fd/3``), FIFOs and
character devices are written to as such and never replaced.
:func:`prepare_outputs` is for tools: it tries every output first.
"""

import contextlib
import errno
import fcntl
import os
import re
import select
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_STDOUT = '-'
# Where the descriptors of a process are; only those of this one are ours.
_DESCRIPTORS = re.compile(r'/proc/(\d+)(?:/task/\d+)?/fd|/dev/fd')
_MAX_LINKS = 40
# Seconds that a FIFO may be without a reader.
_READER_WAIT = 20
# Bytes of a file name that are left for the temporary one.
_STEM_BYTES = 200
_KINDS = {
    stat.S_IFBLK: 'a block device',
    stat.S_IFCHR: 'a character device',
    stat.S_IFDIR: 'a folder',
    stat.S_IFIFO: 'a FIFO',
    stat.S_IFSOCK: 'a socket',
}


@dataclass(frozen=True)
class _Target:
    """What an output path leads to, symbolic links followed.

    ``descriptor`` is the number of an open descriptor of this process; a
    ``stream`` is written to, all else is a regular file or not there.
    """

    path: Path
    descriptor: int | None = None
    stream: bool = False


def _find_target(path: str | Path) -> _Target:
    """Follow links; OSError for what no output can be written to."""
    if str(path) == _STDOUT:
        return _Target(Path(_STDOUT), descriptor=1, stream=True)
    current = os.path.abspath(path)
    for _ in range(_MAX_LINKS):
        folder, name = os.path.split(current)
        folder = os.path.realpath(folder)
        current = os.path.join(folder, name)
        process = _DESCRIPTORS.fullmatch(folder)
        if process and name.isdecimal():
            if process[1] in (None, str(os.getpid())):
                return _Target(Path(current), int(name), stream=True)
            return _Target(Path(current), stream=True)
        if not os.path.islink(current):
            return _Target(Path(current), stream=_is_special(current))
        current = os.path.join(folder, os.readlink(current))
    raise OSError(f'{path} is a symbolic link that leads to itself')


def _is_special(path: str) -> bool:
    """Whether there is a FIFO or a character device."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(f'path must be a file, got directory {path}')
    if stat.S_ISBLK(mode) or stat.S_ISSOCK(mode):
        raise OSError(
            f'path must be a file, a pipe or a character device, got {path}, '
            f'which is {_KINDS[stat.S_IFMT(mode)]}'
        )
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def is_stream(path: str | Path) -> bool:
    """Whether an output is written to as such, and not as a regular file.

    True for ``-``, FIFOs, character devices and open descriptors, such as
    ``/dev/stdout``, also where a symbolic link leads to one.
    """
    return _find_target(path).stream


class IrregularFileError(OSError):
    """A path that is neither file nor folder.

    Attributes:
        path: The path.
    """

    def __init__(self, path: str | Path, kind: str) -> None:
        super().__init__(
            f'{path} is {kind}, not a regular file, and is not read'
        )
        self.path = str(path)


def require_regular_file(path: str | Path) -> None:
    """Raise IrregularFileError if a path is neither file nor folder.

    To be called before a file of a data set is opened: to open a FIFO waits
    for a writer, and to read a device such as ``/dev/zero`` never ends.
    Nothing is raised where there is no file.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        kind = _KINDS.get(stat.S_IFMT(mode), 'of an unknown kind')
        raise IrregularFileError(path, kind)


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Give a temporary path that becomes ``path`` when the block succeeds.

    The temporary file lies in the same folder and keeps the suffix, so that
    writers that go by the suffix work. It is flushed to the disk before it
    takes the place of ``path``; when the block raises, it is removed and
    ``path`` is what it was. Missing folders are made. A symbolic link stays,
    and the file that it leads to is replaced; a file keeps its permissions,
    and a new one gets those that the umask leaves, whatever the writer set.
    Other hard links of a replaced file keep the old content.

    If ``path`` is a stream (see :func:`is_stream`), the temporary file lies
    in the folder for such files, and its content is written to the stream
    when the block succeeds. It is no error if the reader has gone by then.

    Raises:
        IsADirectoryError: If ``path`` is a directory.
        OSError: If it is a block device or a socket, if nobody opens a FIFO
            for reading within 20 seconds, or if writing fails.
    """
    target = _find_target(path)
    if target.stream:
        with tempfile.TemporaryDirectory(prefix='mmext.') as folder:
            temporary = Path(folder, f'output{Path(path).suffix}')
            yield temporary
            _send(temporary, target)
        return
    path = target.path
    path.parent.mkdir(parents=True, exist_ok=True)
    stem = os.fsdecode(os.fsencode(path.stem)[:_STEM_BYTES])
    temporary = path.with_name(f'.{stem}.{os.getpid()}.tmp{path.suffix}')
    try:
        # What a file gets here; some writers let nobody else read theirs.
        temporary.touch()
        mode = stat.S_IMODE(temporary.stat().st_mode)
        temporary.unlink()
        yield temporary
        with open(temporary, 'rb') as file:
            os.fsync(file.fileno())
        _replace(temporary, path, mode)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def new_tree(out: Path) -> Iterator[Path]:
    """Give a temporary folder that becomes ``out`` when the block succeeds.

    It lies beside ``out``. When the block raises, it is removed.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    holder = tempfile.mkdtemp(prefix=f'.{out.name}.', dir=out.parent)
    try:
        # mkdtemp lets nobody else in.
        tree = Path(holder, 'tree')
        tree.mkdir()
        yield tree
        os.replace(tree, out)
    finally:
        shutil.rmtree(holder)


def _replace(temporary: Path, path: Path, mode: int) -> None:
    """Rename, with the owner and the permissions of what was there."""
    # Some file systems keep neither, which is no reason to lose the content.
    with contextlib.suppress(FileNotFoundError, PermissionError):
        os.chmod(temporary, mode)
        old = os.stat(path)
        new = os.stat(temporary)
        os.chmod(temporary, stat.S_IMODE(old.st_mode))
        owners = (old.st_uid, old.st_gid)
        if os.geteuid() == 0 and owners != (new.st_uid, new.st_gid):
            os.chown(temporary, *owners)
            # Changing the owner may take special bits away.
            os.chmod(temporary, stat.S_IMODE(old.st_mode))
    try:
        os.replace(temporary, path)
    except OSError as error:
        # A file that is mounted, as containers do, cannot be renamed over.
        if error.errno not in (errno.EBUSY, errno.EXDEV):
            raise
        shutil.copyfile(temporary, path)


def _send(source: Path, target: _Target) -> None:
    """Copy a file into a stream; a reader that has gone is no error."""
    with (
        open(source, 'rb') as file,
        contextlib.suppress(BrokenPipeError),
        _writer(target) as write,
    ):
        while data := file.read(1 << 16):
            write(data)


@contextmanager
def _writer(target: _Target) -> Iterator[Callable[[bytes], None]]:
    if target.descriptor == 1:
        yield _standard_output()
    elif target.descriptor is not None:
        yield lambda data: _write_all(target.descriptor, data)
    else:
        descriptor = _open_stream(target.path)
        try:
            yield lambda data: _write_all(descriptor, data)
        finally:
            os.close(descriptor)


def _open_stream(path: Path) -> int:
    """Open a FIFO or device; wait some seconds for who reads a FIFO."""
    end = time.monotonic() + _READER_WAIT
    told = False
    while True:
        try:
            # Not to replace what a regular file of another process holds.
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_APPEND
            return os.open(path, flags)
        except OSError as error:
            if error.errno != errno.ENXIO or not path.is_fifo():
                raise
        if time.monotonic() > end:
            raise OSError(
                f'{path} is a FIFO that no process has opened for reading '
                f'within {_READER_WAIT} seconds; start the reader first'
            )
        if not told:
            print(f'waiting for a reader of the FIFO {path}', file=sys.stderr)
            told = True
        time.sleep(0.05)


def _write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes, also where the descriptor does not block."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll()


# What writes to standard output while prints go to standard error.
_claimed: Callable[[bytes], None] | None = None


def _standard_output() -> Callable[[bytes], None]:
    if _claimed is not None:
        return _claimed
    sys.stdout.flush()
    return _writer_of(sys.stdout)


def _is_descriptor_one(stream: object) -> bool:
    try:
        return stream.fileno() == 1
    except (AttributeError, OSError, ValueError):
        # Such as io.StringIO, or what a test framework puts there.
        return False


def _writer_of(stream: object) -> Callable[[bytes], None]:
    """Bytes into a text stream, whatever lies below it."""
    if _is_descriptor_one(stream):
        return lambda data: _write_all(1, data)
    buffer = getattr(stream, 'buffer', None)
    if buffer is not None:
        return lambda data: (buffer.write(data), buffer.flush())
    return lambda data: stream.write(data.decode())


@contextmanager
def _claim_standard_output() -> Iterator[None]:
    """Inside, only :func:`atomic_path` writes there; prints go to stderr.

    The descriptor is changed, too, for child processes and libraries.
    """
    global _claimed
    stdout = sys.stdout
    stdout.flush()
    real = _is_descriptor_one(stdout)
    saved = os.dup(1)
    _claimed = (
        (lambda data: _write_all(saved, data)) if real else _writer_of(stdout)
    )
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)
        _claimed = None


def _nearest_folder(path: Path) -> Path:
    """The folder of a path, or the first above it that is there."""
    return next(folder for folder in path.parents if os.path.lexists(folder))


def _try_folder(path: Path) -> None:
    """Raise OSError unless files can be made in a folder, or below it."""
    folder = path if os.path.lexists(path) else _nearest_folder(path)
    if not folder.is_dir():
        raise NotADirectoryError(f'{folder} is not a folder')
    for part in path.parts:
        if len(os.fsencode(part)) > 255:
            raise OSError(f'{part[:40]}... is too long for a name')
    try:
        # Without a name where the file system can, so nothing is left.
        with tempfile.TemporaryFile(dir=folder):
            return
    except OSError as error:
        raise OSError(
            f'no file can be made in {folder} ({error.strerror})'
        ) from error


def _try_file(path: str | Path, regular: bool) -> None:
    """Raise OSError unless an output can be written."""
    target = _find_target(path)
    if target.stream and regular:
        raise OSError('it is not a regular file, and has to be one')
    if target.descriptor is not None:
        _try_descriptor(target.descriptor)
    elif os.path.lexists(target.path) and not os.access(target.path, os.W_OK):
        raise PermissionError('there is no permission to write it')
    elif target.stream and not target.path.is_fifo():
        # A FIFO is opened once: its reader would take closing for the end.
        os.close(_open_stream(target.path))
    elif not target.stream:
        _try_folder(target.path.parent)


def _try_descriptor(number: int) -> None:
    if number == 1 and (
        _claimed is not None or not _is_descriptor_one(sys.stdout)
    ):
        return
    try:
        flags = fcntl.fcntl(number, fcntl.F_GETFL)
    except (OSError, OverflowError) as error:
        raise OSError(f'descriptor {number} is not open') from error
    if flags & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(f'descriptor {number} is open for reading only')


def _identity(path: str | Path) -> str | None:
    """The same for paths to one output; None for a sink such as /dev/null."""
    try:
        target = _find_target(path)
    except OSError:
        return None
    if target.descriptor is not None:
        return f'descriptor {target.descriptor}'
    if target.stream and not target.path.is_fifo():
        return None
    return str(target.path)


Paths = Mapping[str, 'str | Path | None']


def check_outputs(
    files: Paths,
    *,
    regular: Paths | None = None,
    folders: Paths | None = None,
    new_folders: Paths | None = None,
    inputs: Paths | None = None,
) -> None:
    """Try outputs before the work begins; one error names all that fail.

    Nothing is written, and no folder is made. All arguments map what the
    user knows a path by, such as ``'--json'``, to the path, or to None if
    none was given.

    Args:
        files: Files or streams that are going to be written.
        regular: Files that must be regular ones, such as a database.
        folders: Folders that files are going to be put into.
        new_folders: Folders that are going to be made as a whole.
        inputs: Files that are read, which must not be written over.

    Raises:
        OSError: If an output cannot be written, is named twice, lies in one
            of ``new_folders`` or is one of ``inputs``.
    """
    problems = []
    known: dict[str, str] = {}
    made = _given(new_folders)
    for name, path in _given(inputs).items():
        if os.path.isfile(path):
            known.setdefault(os.path.realpath(path), f'the input {name}')
    outputs = {**_given(files), **_given(regular)}
    for name, path in outputs.items():
        try:
            _try_file(path, regular=name in _given(regular))
        except OSError as error:
            problems.append(f'{name} {path}: {error.strerror or error}')
            continue
        identity = _identity(path)
        if identity is None:
            continue
        if identity in known:
            problems.append(f'{name} {path}: this is {known[identity]}, too')
        known[identity] = name
        for folder, place in made.items():
            if Path(os.path.realpath(place)) in Path(identity).parents:
                problems.append(
                    f'{name} {path}: it lies in the folder of {folder}, '
                    'which must be new'
                )
    for name, path in {**_given(folders), **made}.items():
        try:
            # A new folder is made beside its place, and renamed.
            place = Path(os.path.abspath(path))
            _try_folder(place.parent if name in made else place)
        except OSError as error:
            problems.append(f'{name} {path}: {error.strerror or error}')
    if problems:
        raise OSError(f'outputs cannot be written: {"; ".join(problems)}')


def _given(paths: Paths | None) -> dict[str, str | Path]:
    return {
        name: path for name, path in (paths or {}).items() if path is not None
    }


@contextmanager
def prepare_outputs(
    files: Paths,
    *,
    regular: Paths | None = None,
    folders: Paths | None = None,
    new_folders: Paths | None = None,
    inputs: Paths | None = None,
) -> Iterator[None]:
    """Try outputs as :func:`check_outputs` does, then run the block.

    If one of ``files`` is standard output, nothing else gets there: what is
    printed inside, also by child processes, goes to standard error.
    """
    check_outputs(
        files,
        regular=regular,
        folders=folders,
        new_folders=new_folders,
        inputs=inputs,
    )
    identities = map(_identity, _given(files).values())
    if 'descriptor 1' not in identities:
        yield
        return
    with _claim_standard_output():
        yield

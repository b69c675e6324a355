"""Input files that can be read to an end, and outputs written whole.

:func:`open_regular` opens inputs: no named pipe, socket or device, which may
block or never end, and MMEngine's file backend for local files does the same
once this module is imported. :func:`load_yaml` reads YAML within limits.

Outputs are tried before the work begins, then written whole or not at all.
Regular files appear by a rename (:func:`atomic_path`). Standard output (``-``)
and what is no regular file, such as ``/dev/null`` or a pipe, are written to as
such and never replaced. :func:`prepare_outputs` is for tools: it tries every
output first.
"""

import contextlib
import errno
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import yaml
from mmengine.fileio import LocalBackend, register_backend

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

# Each kind of file that is not regular: its test, and its name in messages.
_KINDS = (
    (stat.S_ISDIR, 'a folder'),
    (stat.S_ISFIFO, 'a named pipe (FIFO)'),
    (stat.S_ISSOCK, 'a socket'),
    (stat.S_ISCHR, 'a character device'),
    (stat.S_ISBLK, 'a block device'),
)
# Limits of a YAML text: levels of nesting, values that its aliases expand to.
_YAML_LEVELS = 100
_YAML_ALIASED = 100_000
# The parser of libyaml, ten times as fast, if PyYAML was built with it.
_SafeLoader = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)
_STDOUT = '-'
# Bytes of a file name that are left for the temporary one.
_STEM_BYTES = 200
# Its descriptor, which is another one while prints go to standard error.
_stdout = 1
# Errors of network file systems that can be gone at the next call.
_TRANSIENT_ERRORS = (
    errno.EAGAIN,
    errno.EBUSY,
    errno.EINTR,
    errno.EIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
)
# Seconds before each further call.
_RETRY_DELAYS_S = 0.1, 0.2, 0.4, 0.8, 1.6


def retry_transient(
    function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Call a function again while the file system has a transient error.

    Such errors (``ESTALE``, ``EBUSY``, ``EINTR``, ``EIO``, ...) are common
    under load on network file systems. The last error is raised after 3
    seconds. Only for calls that may be repeated: after an error of ``fsync``,
    a further call succeeds although data are lost.
    """
    for delay in _RETRY_DELAYS_S:
        try:
            return function(*args, **kwargs)
        except OSError as error:
            if error.errno not in _TRANSIENT_ERRORS:
                raise
        time.sleep(delay)
    return function(*args, **kwargs)


def _rename(source: Path, target: Path) -> None:
    """Rename a file or folder, despite transient errors."""
    before = retry_transient(os.stat, source)
    try:
        retry_transient(os.replace, source, target)
    except FileNotFoundError:
        # The server may have renamed it although the call failed.
        if not (
            os.path.exists(target)
            and os.path.samestat(before, os.stat(target))
        ):
            raise


def lock_file(file: IO, *, wait: bool = False) -> str:
    """Lock a file that is open for writing, until it is closed.

    The lock belongs to the process (``fcntl.lockf``): it ends with the
    process, however that ends, and holds between machines on network file
    systems that support it.

    Args:
        file: Open file.
        wait: Wait while another process holds the lock.

    Returns:
        Empty if the file is locked. Else why it cannot be locked, such as
        ``'ENOLCK: No locks available'`` on a file system without locks.

    Raises:
        BlockingIOError: If another process holds the lock, without ``wait``.
    """
    if fcntl is None:
        return 'this system has no fcntl'
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        # POSIX allows either where another process holds the lock.
        if not wait and error.errno in (errno.EACCES, errno.EAGAIN):
            raise BlockingIOError(error.errno, error.strerror) from error
        name = errno.errorcode.get(error.errno, error.errno)
        return f'{name}: {error.strerror}'
    return ''


def open_regular(path: str | Path, encoding: str | None = None) -> IO:
    """Open a file for reading if it is a regular file.

    A symbolic link is followed. The call never blocks: opening a named pipe
    would wait for a writer, and ``/dev/zero`` has no end. The kind of the
    file is checked before it is opened, as opening alone may act on a device,
    and again on the open file, which may be another one by then.

    Args:
        path: Path of the file.
        encoding: Encoding of a text file; None opens it in binary mode.

    Raises:
        FileNotFoundError: If there is no such file.
        IsADirectoryError: If it is a folder.
        OSError: If it is another kind of file, or cannot be opened.
    """
    mode = 'rb' if encoding is None else 'r'
    return open(path, mode, encoding=encoding, opener=_regular_descriptor)


def _regular_descriptor(path: str, flags: int) -> int:
    _require_regular(path, os.stat(path))
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    try:
        _require_regular(path, os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _require_regular(path: str, state: os.stat_result) -> None:
    if stat.S_ISREG(state.st_mode):
        return
    names = (name for is_kind, name in _KINDS if is_kind(state.st_mode))
    kind = next(names, 'a special file')
    error = IsADirectoryError if stat.S_ISDIR(state.st_mode) else OSError
    raise error(
        f'{str(path)!r} must be a regular file, got {kind}; replace it with '
        'the file itself, or remove it'
    )


@register_backend('local', force=True, prefixes='')
class RegularFileBackend(LocalBackend):
    """MMEngine's backend for local files, which opens regular files only.

    Datasets and transforms of MMDetection and MMSegmentation read images,
    label maps and annotations through it, in data-loader workers too.
    """

    def get(self, filepath: str | Path) -> bytes:
        """Read a binary file."""
        with open_regular(filepath) as file:
            return file.read()

    def get_text(self, filepath: str | Path, encoding: str = 'utf-8') -> str:
        """Read a text file."""
        with open_regular(filepath, encoding) as file:
            return file.read()

    @contextmanager
    def get_local_path(self, filepath: str | Path) -> Iterator[str | Path]:
        """Yield the path itself, for readers that open files by name."""
        open_regular(filepath).close()
        yield filepath

    def list_dir_or_file(
        self,
        dir_path: str | Path,
        list_dir: bool = True,
        list_file: bool = True,
        suffix: str | tuple[str, ...] | None = None,
        recursive: bool = False,
    ) -> Iterator[str]:
        """Yield names below a folder; OSError for a pipe, socket or device.

        MMEngine leaves such files out of its lists without a message.
        """
        folders = [dir_path] if list_file else []
        for folder in folders:
            with os.scandir(folder) as entries:
                others = [entry for entry in entries if not entry.is_file()]
            for entry in others:
                wanted = entry.name.endswith(suffix or '')
                if entry.is_dir():
                    folders += [entry.path] if recursive else []
                elif wanted and not entry.name.startswith('.'):
                    # A link to nothing is left out.
                    with contextlib.suppress(FileNotFoundError):
                        _require_regular(entry.path, entry.stat())
        yield from super().list_dir_or_file(
            dir_path, list_dir, list_file, suffix, recursive
        )


def load_yaml(text: str | bytes, loader: Any = _SafeLoader) -> Any:
    """Read a YAML text, if its size is about the size of its values.

    Time and memory are bounded by the length of the text: deep nesting takes
    quadratic time, and ten lines of aliases can expand to 1,000,000,000
    values. Both are checked before any value is built.

    Args:
        text: One YAML document; bytes in UTF-8 or UTF-16.
        loader: Class of PyYAML that builds the values.

    Raises:
        yaml.YAMLError: If the text is not YAML, or has a tag that ``loader``
            does not know.
        ValueError: If it is nested too deep, if its aliases expand to too
            many values, or if a value does not fit its tag. The message does
            not name a file.
    """
    check_yaml_size(text, loader)
    try:
        return yaml.load(text, Loader=loader)
    except (AttributeError, KeyError, OverflowError) as error:
        # PyYAML raises these for values such as `!!bool x`.
        raise ValueError(f'a value does not fit its tag ({error})') from error


def check_yaml_size(text: str | bytes, loader: Any = _SafeLoader) -> None:
    """Raise ValueError for deep nesting, and for aliases of many values.

    For YAML that another reader loads; :func:`load_yaml` does the same first.
    The parser yields events while it reads, so that such a text is not read
    to its end.
    """
    # Number of values, and of levels, of each anchor.
    sizes: dict[str | None, tuple[int, int]] = {}
    # Anchor, values and levels of each open collection, innermost last.
    open_: list[tuple[str | None, int, int]] = [(None, 0, 0)]
    aliased = 0
    for event in yaml.parse(text, Loader=loader):
        values, levels = 1, 0
        if isinstance(event, yaml.CollectionStartEvent):
            open_.append((event.anchor, 1, 1))
            values = 0
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, values, levels = open_.pop()
            sizes[anchor] = values, levels
        elif isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, *_ in open_):
                raise ValueError(
                    f'*{event.anchor} {_line(event)} contains itself'
                )
            # PyYAML reports an anchor that is not defined.
            values, levels = sizes.get(event.anchor, (1, 0))
            aliased += values
        elif isinstance(event, yaml.ScalarEvent):
            sizes[event.anchor] = values, levels
        anchor, own, below = open_[-1]
        open_[-1] = anchor, own + values, max(below, levels + 1)
        if len(open_) - 1 + levels > _YAML_LEVELS:
            raise ValueError(
                f'it is nested more than {_YAML_LEVELS} levels deep '
                f'{_line(event)}'
            )
        if aliased > _YAML_ALIASED:
            raise ValueError(
                f'its aliases expand to more than {_YAML_ALIASED:,} values '
                f'{_line(event)}; write the values without aliases'
            )


def _line(event: yaml.Event) -> str:
    return f'in line {event.start_mark.line + 1}'


def is_stream(path: str | Path) -> bool:
    """Whether an output is written to as such, and not as a regular file.

    True for standard output (``-``), and for pipes and devices.
    """
    if str(path) == _STDOUT:
        return True
    is_regular = os.path.isfile(path) or os.path.isdir(path)
    return os.path.exists(path) and not is_regular


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Give a temporary path that becomes ``path`` when the block succeeds.

    The temporary file lies in the same folder and has the suffix of ``path``,
    so that writers that go by the suffix work. It is flushed to the disk
    before it takes the place of ``path``; when the block raises, it is removed
    and ``path`` is what it was. Missing folders are made. A symbolic link
    stays, and the file that it leads to is replaced; a file keeps its
    permissions, and a new one gets those that the umask leaves, whatever the
    writer set. Other hard links of a replaced file keep the old content.
    Transient errors are retried, see :func:`retry_transient`.

    If ``path`` is a stream (see :func:`is_stream`), the temporary file lies
    in the folder for such files, and its content is written to the stream
    when the block succeeds. It is no error if the reader has gone by then.

    Raises:
        IsADirectoryError: If ``path`` is a directory.
        OSError: If writing fails.
    """
    if is_stream(path):
        with tempfile.TemporaryDirectory(prefix='mmext.') as folder:
            temporary = Path(folder, f'output{Path(path).suffix}')
            yield temporary
            _send(temporary, path)
        return
    if os.path.isdir(path):
        raise IsADirectoryError(f'path must be a file, got directory {path}')
    suffix, path = Path(path).suffix, Path(os.path.realpath(path))
    retry_transient(path.parent.mkdir, parents=True, exist_ok=True)
    stem = os.fsdecode(os.fsencode(path.stem)[:_STEM_BYTES])
    temporary = path.with_name(f'.{stem}.{os.getpid()}.tmp{suffix}')
    try:
        mode = retry_transient(_default_mode, temporary)
        yield temporary
        with retry_transient(open, temporary, 'rb') as file:
            os.fsync(file.fileno())
        # Some file systems keep none, which is no reason to lose the content.
        with contextlib.suppress(FileNotFoundError, PermissionError):
            retry_transient(os.chmod, temporary, mode)
            if os.path.exists(path):
                retry_transient(shutil.copymode, path, temporary)
        _rename(temporary, path)
    finally:
        retry_transient(temporary.unlink, missing_ok=True)


def _default_mode(path: Path) -> int:
    """Permissions of a new file; some writers let nobody else read theirs."""
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    path.unlink()
    return mode


@contextmanager
def new_tree(out: Path, *, replace: bool = False) -> Iterator[Path]:
    """Give a temporary folder that becomes ``out`` when the block succeeds.

    It lies beside ``out``. When the block raises, it is removed, and ``out``
    is what it was. With ``replace``, ``out`` may be a folder that holds
    files; two renames replace it, and only between these it is missing.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    holder = tempfile.mkdtemp(prefix=f'.{out.name}.', dir=out.parent)
    try:
        # mkdtemp lets nobody else in.
        tree, old = Path(holder, 'tree'), Path(holder, 'old')
        tree.mkdir()
        yield tree
        try:
            if replace and out.exists():
                _rename(out, old)
            _rename(tree, out)
        except BaseException:
            if old.exists() and not out.exists():
                _rename(old, out)
            raise
    finally:
        shutil.rmtree(holder)


def _send(source: Path, path: str | Path) -> None:
    """Copy a file into a stream; a reader that has gone is no error."""
    target: str | Path | int = path
    if str(path) == _STDOUT:
        sys.stdout.flush()
        target = os.dup(_stdout)
    with (
        contextlib.suppress(BrokenPipeError),
        open(source, 'rb') as file,
        open(target, 'wb') as stream,
    ):
        shutil.copyfileobj(file, stream)


@contextmanager
def _claim_standard_output() -> Iterator[None]:
    """Inside, only :func:`atomic_path` writes there; prints go to stderr.

    The descriptor is changed, too, for child processes and libraries.
    """
    global _stdout
    stdout = sys.stdout
    stdout.flush()
    _stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        stdout.flush()
        os.dup2(_stdout, 1)
        os.close(_stdout)
        _stdout = 1


def _try_folder(path: Path) -> None:
    """Raise OSError unless files can be made in a folder, or below it."""
    folder = next(p for p in (path, *path.parents) if os.path.lexists(p))
    if not folder.is_dir():
        raise NotADirectoryError(f'{folder} is not a folder')
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
    # A file that it is redirected to would be replaced.
    if str(path) != _STDOUT and os.path.realpath(path) != os.devnull:
        missing = FileNotFoundError, NotADirectoryError, PermissionError
        with contextlib.suppress(*missing):
            if os.path.samestat(os.stat(path), os.fstat(1)):
                raise OSError('this is standard output, which is -')
    if is_stream(path):
        if regular:
            raise OSError('it is not a regular file, and has to be one')
    elif os.path.isdir(path):
        raise IsADirectoryError('path must be a file, got a directory')
    elif os.path.exists(path) and not os.access(path, os.W_OK):
        raise PermissionError('there is no permission to write it')
    else:
        _try_folder(Path(os.path.realpath(path)).parent)


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
        # The same for paths to one output; any number goes to /dev/null.
        identity = _STDOUT
        if str(path) != _STDOUT:
            if is_stream(path):
                continue
            identity = os.path.realpath(path)
        if identity in known:
            problems.append(f'{name} {path}: this is {known[identity]}, too')
        known[identity] = name
        for folder, new in made.items():
            if Path(os.path.realpath(new)) in Path(identity).parents:
                problems.append(
                    f'{name} {path}: it lies in the folder of {folder}, '
                    'which must be new'
                )
    for name, path in {**_given(folders), **made}.items():
        try:
            # A new folder is made beside its place, and renamed.
            whole = Path(os.path.abspath(path))
            _try_folder(whole.parent if name in made else whole)
        except OSError as error:
            problems.append(f'{name} {path}: {error.strerror or error}')
    if problems:
        raise OSError(f'outputs cannot be written: {"; ".join(problems)}')


def _given(paths: Paths | None) -> dict[str, str | Path]:
    return {
        name: path for name, path in (paths or {}).items() if path is not None
    }


@contextmanager
def prepare_outputs(files: Paths, **others: Paths | None) -> Iterator[None]:
    """Try outputs as :func:`check_outputs` does, then run the block.

    If one of ``files`` is standard output, nothing else gets there: what is
    printed inside, also by child processes, goes to standard error.
    """
    check_outputs(files, **others)
    claimed = contextlib.nullcontext()
    if _STDOUT in map(str, _given(files).values()):
        claimed = _claim_standard_output()
    with claimed:
        yield

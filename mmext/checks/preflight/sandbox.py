"""Build things apart, and find the part of a config that an error is about.

There is no network, random numbers are put back, and the log is quiet.
"""

import gc
import linecache
import logging
import multiprocessing as mp
import os
import random
import re
import socket
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
from mmengine.logging import MMLogger
from mmengine.utils import ManagerMixin

from ...utils.training import get_rng_state, set_rng_state
from ..config import Steps, walk_dicts
from ..findings import frames_of

# Settings of cuDNN that a config has.
_CUDNN = ('benchmark', 'deterministic')


class CannotBuildError(RuntimeError):
    """No model, or no batches, can be made of a config here.

    Attributes:
        failure: What the config's code raised; None if it is not to blame,
            as where something would have to be downloaded.
        path: Keys that lead to the section that was being built.
    """

    def __init__(
        self,
        message: str,
        *,
        failure: Exception | None = None,
        path: tuple[str | int, ...] = ('model',),
    ) -> None:
        super().__init__(message)
        self.failure = failure
        self.path = path


def explain_failure(what: str, error: Exception, asked: list[str]) -> str:
    """Why something was not built, and what helps, in one sentence."""
    text = ' '.join(str(error).split())
    message = f'cannot build {what}: {type(error).__name__}: {text}'
    if asked:
        hosts = ', '.join(sorted(set(asked)))
        return (
            f'{message}; it needs files of {hosts} and a preflight downloads '
            'nothing: fetch them first, so that they are found locally'
        )
    if isinstance(error, ImportError) or 'not installed' in text:
        return f'{message}; install the package that it needs'
    return message


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed all sources of random numbers; put them back afterwards."""
    state = get_rng_state()
    try:
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        yield
    finally:
        set_rng_state(state)


@contextmanager
def no_network() -> Iterator[list[str]]:
    """Refuse connections to other machines; yields the hosts asked for.

    This holds for the whole process. Sockets of the machine itself are left
    alone, but a proxy there is not asked.
    """
    asked: list[str] = []
    connect, look_up = socket.socket.connect, socket.getaddrinfo
    local = {'localhost', '127.0.0.1', '::1', '', None}

    def refuse(host: object) -> None:
        asked.append(str(host))
        raise OSError(f'a preflight downloads nothing: {host}')

    def checked_connect(self: socket.socket, address):
        if isinstance(address, tuple) and address[0] not in local:
            refuse(address[0])
        return connect(self, address)

    def checked_look_up(host, *args, **kwargs):
        if host not in local:
            refuse(host)
        return look_up(host, *args, **kwargs)

    proxies = {name: os.environ.get(name) for name in ('no_proxy', 'NO_PROXY')}
    os.environ.update(dict.fromkeys(proxies, '*'))
    socket.socket.connect = checked_connect
    socket.getaddrinfo = checked_look_up
    try:
        yield asked
    finally:
        socket.socket.connect = connect
        socket.getaddrinfo = look_up
        for name, value in proxies.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


@contextmanager
def brief_collections() -> Iterator[None]:
    """Spare what exists by now from collections of garbage.

    MMEngine does one for each data set that it reads, which takes half a
    second where PyTorch and the hosts have been imported.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def no_traces() -> Iterator[None]:
    """Remove the folders that parts make, and forget what they share.

    Some parts make the folder of their output when they are built; it is
    removed again if nothing is in it. What is built by name, such as a
    visualizer, is found by all that comes later: these are put back.
    """
    made: list[str] = []
    make = os.mkdir

    def noted(path, *args, **kwargs):
        make(path, *args, **kwargs)
        made.append(os.path.abspath(os.fspath(path)))

    shared = [(kind, dict(kind._instance_dict)) for kind in _managed()]
    os.mkdir = noted
    try:
        yield
    finally:
        os.mkdir = make
        for path in reversed(made):
            if os.path.isdir(path) and not os.listdir(path):
                os.rmdir(path)
        before = dict(shared)
        for kind in _managed():
            kind._instance_dict.clear()
            kind._instance_dict.update(before.get(kind, {}))


@contextmanager
def process_settings() -> Iterator[None]:
    """Put back what a runner sets for the whole process."""
    variables, method = dict(os.environ), mp.get_start_method(allow_none=True)
    threads, flags = cv2.getNumThreads(), torch.backends.cudnn
    cudnn = {name: getattr(flags, name) for name in _CUDNN}
    deterministic = torch.get_deterministic_debug_mode()
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(variables)
        mp.set_start_method(method, force=True)
        # One thread stops the others, which waits forever in a process that
        # was forked; OpenCV says 1 for 0 as well, which a runner sets.
        if cv2.getNumThreads() != threads:
            cv2.setNumThreads(threads)
        for name, value in cudnn.items():
            setattr(flags, name, value)
        torch.set_deterministic_debug_mode(deterministic)


def _managed(kind: type = ManagerMixin) -> list[type]:
    """Classes whose instances are found by name."""
    kinds = [kind]
    for inner in kind.__subclasses__():
        kinds += _managed(inner)
    return kinds


@contextmanager
def quiet() -> Iterator[None]:
    """Leave out what mmengine logs about each weight, but not its errors."""
    logger = MMLogger.get_current_instance()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


# Functions of MMEngine that build what a dict says, their argument ``cfg``.
_BUILDERS = ('build_from_cfg', 'build_scheduler_from_cfg')
UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")


def error_text(error: BaseException) -> str:
    """What an exception says, in one line.

    Of a bare ``assert``, and of a value that is None, also the code.
    """
    text = str(error)
    if isinstance(error, KeyError) and error.args:
        text = str(error.args[0])
    # What registries of MMEngine add is advice for all cases.
    text = ' '.join(text.split()).partition('. Please check whether')[0]
    frames = frames_of(error)
    if frames and (not text or "'NoneType'" in text):
        frame, line = frames[-1]
        code = linecache.getline(frame.f_code.co_filename, line).strip()
        text = f'{text}: {code}' if text else code
    return f'{type(error).__name__}: {text}'


class Blamed(NamedTuple):
    """What could not be built."""

    # Keys that lead to the innermost dict whose component was being built.
    path: Steps
    # In that dict, which the exception names by itself or by its value, with
    # the keys below it; empty if it names none.
    key: Steps = ()
    # What the component was to be made of; None if not known.
    kind: Any = None

    @property
    def whole(self) -> Steps:
        """All keys."""
        return (*self.path, *self.key)


def find_part(
    error: BaseException,
    section: Any,
    path: Steps,
    methods: Collection[str] | None = ('__init__',),
) -> Blamed:
    """The part of a section at ``path`` that an exception is about.

    It was raised while the section was built, or ran, in one of these methods
    of a component; None for any.
    """
    here, kind = path, None
    for frame in builder_frames(error):
        kind = frame.f_locals.get('obj_cls')
        here = _best_match(frame.f_locals['cfg'], section, path, here) or here
    inner = part_at(section, here[len(path) :])
    named: dict[str, Steps] = {}
    for where, part in walk_dicts(inner, here):
        named.setdefault(plain_name(part.get('type')), where)
    # Of methods that were running, the innermost first.
    classes = (
        type(frame.f_locals['self']).__name__
        for frame, _ in frames_of(error)[::-1]
        if 'self' in frame.f_locals
        and (methods is None or frame.f_code.co_name in methods)
    )
    here = next((named[name] for name in classes if name in named), here)
    inner = part_at(section, here[len(path) :])
    keyword = UNEXPECTED.search(str(error))
    if keyword is not None:
        dicts = (
            where for where, p in walk_dicts(inner, here) if keyword[1] in p
        )
        at = (*next(dicts, ()), keyword[1])
        return Blamed(here, at[len(here) :], kind)
    value = _named_value(str(error), inner, here) or here
    return Blamed(here, value[len(here) :], kind)


def plain_name(kind: Any) -> str:
    """A ``type`` without its scope; empty for no name."""
    if isinstance(kind, str):
        return kind.rpartition('.')[2]
    return getattr(kind, '__name__', '')


def frames_to_cause(error: BaseException) -> list[tuple[FrameType, int]]:
    """Frames and lines of an error, the outermost first.

    Where a builder has raised anew what a class raised, with those of that.
    """
    frames = frames_of(error)
    inner = error.__cause__ or error.__context__
    if inner and frames and _is_builder(frames[-1][0]):
        frames += frames_to_cause(inner)
    return frames


def builder_frames(error: BaseException) -> list[FrameType]:
    """Frames of MMEngine that were building a dict, the outermost first."""
    return [f for f, _ in frames_to_cause(error) if _is_builder(f)]


def _is_builder(frame: FrameType) -> bool:
    return frame.f_code.co_name in _BUILDERS and isinstance(
        frame.f_locals.get('cfg'), Mapping
    )


def _best_match(
    cfg: Mapping, section: Any, path: Steps, here: Steps
) -> Steps | None:
    """The dict at or below ``here`` that has most in common with one."""
    kind = plain_name(cfg.get('type'))
    inner = part_at(section, here[len(path) :])
    same = {
        where: sum(
            # Texts, as values may be of any kind.
            key in cfg and str(cfg[key]) == str(value)
            for key, value in part.items()
            if key != 'type'
        )
        for where, part in walk_dicts(inner, here)
        if plain_name(part.get('type')) == kind
    }
    return max(same, key=same.get, default=None)


def _named_value(text: str, inner: Any, here: Steps) -> Steps | None:
    """The deepest key whose value a message names."""
    best: Steps | None = None
    for where, part in walk_dicts(inner, here):
        for key, value in part.items():
            items = value if isinstance(value, list | tuple) else [value]
            words = [item for item in items if isinstance(item, str)]
            if key == 'type':
                words = list(map(plain_name, words))
            named = key != '_scope_' and any(
                len(word) > 3
                and re.search(rf'(?<!\w){re.escape(word)}(?!\w)', text)
                for word in words
            )
            if named and (best is None or len(where) + 1 >= len(best)):
                best = (*where, key)
    return best


def part_at(cfg: Mapping, path: Steps) -> Any:
    """The value at a path of a config; None if there is none."""
    value: Any = cfg
    for step in path:
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif isinstance(value, list | tuple) and isinstance(step, int):
            value = value[step] if step < len(value) else None
        else:
            return None
    return value

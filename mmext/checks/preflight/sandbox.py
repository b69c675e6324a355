"""Build things apart: no network, own random numbers, a quiet log."""

import logging
import os
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from mmengine.logging import MMLogger
from mmengine.utils import ManagerMixin

from ...utils.training import get_rng_state, set_rng_state


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

"""Keep a piece of code from reaching the network."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ['NetworkRefusedError', 'no_network']


class NetworkRefusedError(OSError):
    """A connection was tried where none is allowed."""


@contextmanager
def no_network() -> Iterator[list[str]]:
    """Refuse connections to other machines.

    This holds for the whole process, as long as it lasts. Sockets of the
    machine itself are left alone, but a proxy there is not asked.

    Yields:
        Hosts that were asked for, in the order of asking.
    """
    asked: list[str] = []
    connect, look_up = socket.socket.connect, socket.getaddrinfo
    local = {'localhost', '127.0.0.1', '::1', '', None}

    def refuse(host: object) -> None:
        asked.append(str(host))
        raise NetworkRefusedError(f'a preflight downloads nothing: {host}')

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

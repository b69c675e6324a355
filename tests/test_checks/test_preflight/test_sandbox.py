"""Building without network, with own random numbers."""

import os
import random
import socket
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
import torch

from mmext.checks.preflight.sandbox import (
    explain_failure,
    no_network,
    seeded,
)


@pytest.mark.parametrize(
    ('error', 'asked', 'end'),
    [
        (KeyError('a'), [], "cannot build model.neck: KeyError: 'a'"),
        (OSError('x'), ['b.org', 'a.org', 'b.org'], 'are found locally'),
        (
            ImportError('no mmpretrain'),
            [],
            'install the package that it needs',
        ),
        (RuntimeError('x is not installed'), [], 'the package that it needs'),
    ],
)
def test_says_what_helps(error, asked, end):
    text = explain_failure('model.neck', error, asked)
    assert text.startswith('cannot build model.neck: ')
    assert text.endswith(end)


def draw():
    return random.random(), np.random.rand(), float(torch.rand(()))


def test_same_numbers_for_a_seed_and_others_for_another():
    with seeded(1):
        first = draw()
    with seeded(1):
        assert draw() == first
    with seeded(2):
        assert not set(draw()) & set(first)


def test_puts_all_sources_back_even_after_an_error():
    def around(body):
        random.seed(5)
        np.random.seed(5)
        torch.manual_seed(5)
        body()
        return draw()

    def fail():
        with pytest.raises(ValueError, match='inside'), seeded(1):
            raise ValueError(f'inside, after {draw()}')

    assert around(fail) == around(lambda: None)


def test_refuses_other_machines_and_remembers_them():
    with no_network() as asked:
        with pytest.raises(OSError, match=r'weights\.invalid'):
            socket.create_connection(('weights.invalid', 80))
        with pytest.raises(OSError, match=r'192\.0\.2\.1'):
            socket.socket().connect(('192.0.2.1', 80))
        with pytest.raises(OSError, match='downloads nothing'):
            urllib.request.urlopen('http://more.invalid/a')
    assert asked == ['weights.invalid', '192.0.2.1', 'more.invalid']


def test_asks_no_proxy(monkeypatch):
    monkeypatch.setenv('http_proxy', 'http://127.0.0.1:9')
    monkeypatch.delenv('no_proxy', raising=False)
    with no_network() as asked, pytest.raises(OSError, match='downloads'):
        urllib.request.urlopen('http://weights.invalid/a')
    assert asked == ['weights.invalid']


def test_is_over_afterwards(monkeypatch):
    monkeypatch.setenv('no_proxy', 'a.invalid')
    monkeypatch.delenv('NO_PROXY', raising=False)
    before = socket.socket.connect, socket.getaddrinfo, dict(os.environ)
    with pytest.raises(ValueError, match='inside'), no_network():
        raise ValueError('inside')
    after = socket.socket.connect, socket.getaddrinfo, dict(os.environ)
    assert after == before


def test_leaves_this_machine_alone():
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'yes')

        def log_message(self, *args):
            assert args

    server = HTTPServer(('127.0.0.1', 0), Answer)
    thread = threading.Thread(target=server.handle_request)
    thread.start()
    with no_network() as asked:
        url = f'http://127.0.0.1:{server.server_port}/'
        assert urllib.request.urlopen(url).read() == b'yes'
    thread.join()
    server.server_close()
    assert asked == []

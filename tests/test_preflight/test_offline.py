import os
import socket
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from mmext.preflight._offline import NetworkRefusedError, no_network


def test_refuses_other_machines_and_remembers_them():
    with no_network() as asked:
        with pytest.raises(NetworkRefusedError, match=r'weights\.invalid'):
            socket.create_connection(('weights.invalid', 80))
        with pytest.raises(NetworkRefusedError, match=r'192\.0\.2\.1'):
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

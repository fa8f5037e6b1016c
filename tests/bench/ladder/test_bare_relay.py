"""The relay that looks at nothing passes every byte, in both directions, and ends both sides."""

import socket
import threading
import time
from contextlib import ExitStack

from bench.ladder.bare_relay import start_bare_relay
from tests.kit.broker.ports import lease_port

SENT = bytes(range(256)) * 40_000
"""More than the kernel takes at once."""


def answer_backwards(listening):
    """Each connection gets what it sent, reversed, once all of it has come."""
    connection, _ = listening.accept()
    with connection:
        got = bytearray()
        while len(got) < len(SENT):
            got += connection.recv(1 << 20)
        connection.sendall(bytes(reversed(got)))
        assert connection.recv(1) == b"", "the client has closed"


def connect(port):
    deadline = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 20)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_what_is_sent_arrives_and_what_is_answered_comes_back():
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        lease = stack.enter_context(lease_port())
        broker = threading.Thread(target=answer_backwards, args=(listening,), daemon=True)
        broker.start()
        child = start_bare_relay(lease.port, f"127.0.0.1:{listening.getsockname()[1]}")
        stack.callback(child.wait, 10)
        stack.callback(child.kill)
        with connect(lease.port) as client:
            client.sendall(SENT)
            got = bytearray()
            while len(got) < len(SENT):
                got += client.recv(1 << 20)
            assert got == SENT[::-1]
        broker.join(20)
        assert not broker.is_alive(), "the other side was closed, too"

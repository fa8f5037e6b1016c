"""PROXY protocol v2: headers as the specification writes them, and all that is none."""

import asyncio
import socket
import struct
from random import Random

import pytest

from proxy.net.proxy_protocol import (
    MOST_BYTES,
    SIGNATURE,
    BadProxyHeader,
    read_header,
)

V4 = (
    socket.inet_aton("192.0.2.7")
    + socket.inet_aton("198.51.100.1")
    + struct.pack(">HH", 4711, 9092)
)
V6 = (
    socket.inet_pton(socket.AF_INET6, "2001:db8::7")
    + socket.inet_pton(socket.AF_INET6, "2001:db8::1")
    + struct.pack(">HH", 4711, 9092)
)
MAPPED = socket.inet_pton(socket.AF_INET6, "::ffff:192.0.2.7") * 2 + struct.pack(">HH", 4711, 9092)


def build(command=0x21, transport=0x11, rest=V4, size_bytes=None):
    size_bytes = len(rest) if size_bytes is None else size_bytes
    return SIGNATURE + struct.pack(">BBH", command, transport, size_bytes) + rest


class Stream:
    """Bytes that come in parts of at most `most`."""

    def __init__(self, data, most=1 << 20):
        self.data, self.most = data, most

    async def receive(self, size_bytes):
        part = self.data[: min(size_bytes, self.most)]
        self.data = self.data[len(part) :]
        return part


def read(data, most=1 << 20):
    stream = Stream(data, most)
    return asyncio.run(read_header(stream.receive)), stream.data


@pytest.mark.parametrize("most", [1, 5, 1 << 20])
@pytest.mark.parametrize(
    ("header", "text"),
    [
        (build(), "192.0.2.7:4711"),
        (build(rest=V4 + b"\x03\0\x04" + bytes(4)), "192.0.2.7:4711"),
        (build(transport=0x21, rest=V6), "2001:db8::7:4711"),
        (build(transport=0x21, rest=MAPPED), "192.0.2.7:4711"),
        (build(rest=V4.ljust(MOST_BYTES - 16, b"\0")), "192.0.2.7:4711"),
    ],
)
def test_client_is_the_source_and_nothing_behind_is_read(header, text, most):
    peer, left = read(header + b"\0\0\0\x0aframe", most)
    assert str(peer) == text and not peer.is_local
    assert left == b"\0\0\0\x0aframe"


@pytest.mark.parametrize(
    "header",
    [
        build(command=0x20, transport=0, rest=b""),
        build(command=0x20),
        build(transport=0, rest=b""),
        build(transport=0, rest=b"12345"),
    ],
)
def test_proxy_may_speak_for_itself(header):
    peer, left = read(header + b"next")
    assert peer.is_local and peer.address is None and left == b"next"


@pytest.mark.parametrize(
    "header",
    [
        b"",
        SIGNATURE,
        build()[:-1],
        b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 9092\r\n",
        b"\0\0\0\x0a" + bytes(40),
        build(command=0x11),
        build(command=0x22),
        build(transport=0x12),
        build(transport=0x31, rest=bytes(216)),
        build(transport=0x21),
        build(rest=V4[:-1]),
        build(rest=b"", size_bytes=MOST_BYTES - 15),
        build(rest=b"", size_bytes=0xFFFF),
    ],
)
def test_what_is_no_header_is_refused(header):
    with pytest.raises(BadProxyHeader):
        read(header)


@pytest.mark.parametrize("seed", range(5))
def test_changed_headers_end_in_an_answer(seed):
    """Any change of a few bytes: an answer or a refusal, and never more than the longest header is read."""
    rng = Random(seed)
    for _ in range(400):
        data = bytearray(
            rng.choice([build(), build(transport=0x21, rest=V6)]) + bytes(2 * MOST_BYTES)
        )
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(60)] = rng.randrange(256)
        stream = Stream(bytes(data), rng.choice([1, 7, 1 << 20]))
        try:
            peer = asyncio.run(read_header(stream.receive))
        except BadProxyHeader:
            peer = None
        assert peer is None or peer.is_local or peer.address is not None
        assert len(data) - len(stream.data) <= MOST_BYTES

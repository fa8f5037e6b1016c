"""PROXY protocol, version 2: the header by which a load balancer names the client of a connection.

Owns the reading of the header from a socket, before anything else is read of it. Must not know which proxies are
trusted, nor what follows. Invariants:
* no byte behind the header is read.
* a header of more than MOST_BYTES, of another version, or of a transport that is not TCP is refused.

Specification: The PROXY protocol, versions 1 and 2 (haproxy, doc/proxy-protocol.txt), section 2.2.
"""

from __future__ import annotations

import ipaddress
import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from proxy.config.networks import IpAddress

    Receive = Callable[[int], Awaitable[bytes]]

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
FIXED_BYTES = 16
MOST_BYTES = 4096
"""Largest header, its extensions (TLVs) included: those with certificates' names have some hundred bytes."""
_VERSION, _LOCAL, _PROXY = 0x20, 0, 1
_UNSPECIFIED, _TCP4, _TCP6 = 0x00, 0x11, 0x21
_ADDRESS_BYTES = {_TCP4: 4, _TCP6: 16}


class BadProxyHeader(ValueError):
    """What a connection begins with is no header, or one that is not accepted."""


class ProxiedPeer(NamedTuple):
    """The client that a proxy names. `is_local`: the proxy speaks for itself, as in a check of health."""

    address: IpAddress | None
    port: int
    is_local: bool

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"


ITSELF = ProxiedPeer(None, 0, True)
"""The proxy's own connection, or one of which it does not know the client."""


async def read_header(receive: Receive) -> ProxiedPeer:
    """Read one header. `receive(n)` returns 1 to n bytes, none at the end of the stream. Raises BadProxyHeader,
    also at an end within the header.
    """
    fixed = await _read_exactly(receive, FIXED_BYTES)
    if not fixed.startswith(SIGNATURE):
        raise BadProxyHeader("the connection does not begin with a header of version 2")
    command, transport, size_bytes = struct.unpack_from(">BBH", fixed, len(SIGNATURE))
    if command & 0xF0 != _VERSION or command & 0x0F not in (_LOCAL, _PROXY):
        raise BadProxyHeader(f"version and command are {command:#04x}")
    if FIXED_BYTES + size_bytes > MOST_BYTES:
        raise BadProxyHeader(f"the header has {FIXED_BYTES + size_bytes} bytes, over {MOST_BYTES}")
    rest = await _read_exactly(receive, size_bytes)
    if command & 0x0F == _LOCAL or transport == _UNSPECIFIED:
        return ITSELF
    return _find_peer(transport, rest)


def _find_peer(transport: int, rest: bytes) -> ProxiedPeer:
    width = _ADDRESS_BYTES.get(transport)
    if width is None:
        raise BadProxyHeader(f"the transport is {transport:#04x}, not TCP")
    if len(rest) < 2 * width + 4:
        raise BadProxyHeader(f"{len(rest)} bytes are too few for two addresses")
    address = ipaddress.ip_address(rest[:width])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    (port,) = struct.unpack_from(">H", rest, 2 * width)
    return ProxiedPeer(address, port, False)


async def _read_exactly(receive: Receive, size_bytes: int) -> bytes:
    read = bytearray()
    while len(read) < size_bytes:
        part = await receive(size_bytes - len(read))
        if not part:
            raise BadProxyHeader(f"the connection ends after {len(read)} bytes of the header")
        read += part
    return bytes(read)

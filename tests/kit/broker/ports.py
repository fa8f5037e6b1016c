"""Free TCP ports of the loopback, each promised to one holder on this machine.

Owns the promise: a port is leased by an abstract unix socket of its name, which the kernel frees with its
holder, so that runs side by side never choose the same. Ports lie below the ephemeral range, where no
outgoing connection lands; a foreign server may still take one before it is used: whoever binds must be ready
to take another.
"""

import random
import socket
from pathlib import Path
from typing import Self

LOWEST = 10_000
ATTEMPTS = 500
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def ephemeral_start() -> int:
    """The first port that the kernel gives to outgoing connections."""
    return int(EPHEMERAL.read_text().split()[0]) if EPHEMERAL.exists() else 32_768


class PortLease:
    """A port of 127.0.0.1 where nobody listened when it was leased; ends by `release` or with the process."""

    __slots__ = ("_promise", "port")

    def __init__(self, port: int) -> None:
        """Raises OSError where the port is leased or in use."""
        self.port = port
        self._promise = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._promise.bind(f"\0forebay-port-{port}")
            with socket.socket() as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(("127.0.0.1", port))
        except OSError:
            self._promise.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        self._promise.close()


def lease_port() -> PortLease:
    """A free port; raises OSError where none is found."""
    end = max(ephemeral_start(), LOWEST + 1_000)
    for _ in range(ATTEMPTS):
        try:
            return PortLease(random.randrange(LOWEST, end))
        except OSError:
            continue
    raise OSError(f"no free port between {LOWEST} and {end}")

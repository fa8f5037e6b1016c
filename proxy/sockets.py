"""Listening sockets: bound once, and handed from process to process.

Owns binding, the options that accepted connections inherit, and accepting. Must not know what becomes
of a client. A listener without a host, or with a host name, may have several sockets. Invariants: all sockets of a
configuration are bound, or none stays open; a child process inherits those of its handover.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import select
import socket
import struct
from typing import TYPE_CHECKING, NamedTuple, Protocol

from proxy.config.units import Address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from proxy.config.model import Config

log = logging.getLogger("forebay.listener")

BACKLOG = 1024
KEEPER_BACKLOG = 64
"""Workers that wait for the keeper to accept; twice as many as there can be, since some may have given up."""
PAUSE_S = 1.0
"""Pause after accepting has failed (no descriptors left), as in asyncio's own servers."""
LOOK_S = 0.001
"""How often a process that lets others accept looks whether they have."""
PROBES = 10
"""Number of keepalive probes within `limits.idleTimeout`."""
_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid
_NO_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


class Sockets(NamedTuple):
    """The sockets of a configuration: those of each listener, in its order, and of the admin port."""

    listeners: tuple[tuple[socket.socket, ...], ...]
    admin: tuple[socket.socket, ...]

    def close(self) -> None:
        """Close this process's descriptors. Other processes that hold the sockets go on."""
        for one in (*(one for each in self.listeners for one in each), *self.admin):
            one.close()


def bind_all(config: Config) -> Sockets:
    """Listen at all addresses of a configuration. Raises OSError, which names the key, if one
    cannot be bound.
    """
    with contextlib.ExitStack() as stack:
        listeners = []
        for index, entry in enumerate(config.listeners):
            with naming(f"listener {entry.name}", entry.listen, f"listeners[{index}].listen"):
                found = bind(entry.listen)
            for one in found:
                stack.enter_context(one)
                end_vanished(one, config.limits.idle_timeout_s)
            listeners.append(found)
        with naming("the admin server", config.admin.listen, "admin.listen"):
            admin = bind(config.admin.listen)
        stack.pop_all()
    return Sockets(tuple(listeners), admin)


def bind(address: Address) -> tuple[socket.socket, ...]:
    """Listen at all addresses that `address` stands for, without blocking. Raises OSError if one
    cannot be bound. A host's second address family may be missing on this machine.
    """
    found = socket.getaddrinfo(
        address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    bound: list[socket.socket] = []
    missing: OSError | None = None
    with contextlib.ExitStack() as stack:
        for family, _, _, _, place in dict.fromkeys(found):
            try:
                one = socket.create_server(place[:2], family=family, backlog=BACKLOG)
            except OSError as error:
                plain = OSError(error.errno, os.strerror(error.errno or 0))  # without the address
                if error.errno not in _NO_FAMILY:
                    raise plain from None
                missing = plain
                continue
            bound.append(stack.enter_context(one))
            one.setblocking(False)
        if missing is not None and not bound:
            raise missing
        stack.pop_all()
    return tuple(bound)


def listen_for_workers() -> socket.socket:
    """A listening socket of the keeper, at an abstract address of this network namespace that the kernel chooses
    (unix(7), autobind); `getsockname()` has its bytes. Whoever shares the namespace can connect: see
    `is_of_this_user`. Raises OSError.
    """
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        one.bind(b"")
        one.listen(KEEPER_BACKLOG)
        one.setblocking(False)
    except OSError:
        one.close()
        raise
    return one


def is_of_this_user(worker: socket.socket) -> bool:
    """Whether the process that has connected to the keeper runs as this process's user, as the kernel noted when it
    connected (SO_PEERCRED): no other may have the arena.
    """
    found = worker.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(found)
    return bool(uid == os.geteuid())


def find_address(sockets: Sequence[socket.socket]) -> Address:
    """The address of the first of a listener's sockets: with its real port where 0 was asked for."""
    return Address(*sockets[0].getsockname()[:2])


@contextlib.contextmanager
def naming(who: str, address: Address, key: str) -> Iterator[None]:
    """Context that replaces an OSError by one which says that `who` cannot listen at `address`, and
    names the configuration key.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(error.errno, f"{who} cannot listen at {address} ({key}): {reason}") from error


def end_vanished(one: socket.socket, timeout_s: float) -> None:
    """Have the kernel end a connection, or those accepted from a listening socket, if the peer has
    not answered for `timeout_s` seconds. Keepalive probes cover idle connections, TCP_USER_TIMEOUT
    those with unacknowledged data. Linux copies both settings to accepted sockets. The time also
    ends a live peer that does not read (tcp_probe_timer), so it must not be short.
    """
    one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    probe_s = max(1, round(timeout_s / PROBES))
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, probe_s)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, probe_s)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(timeout_s * 1000))


@contextlib.contextmanager
def handing_over(one: socket.socket) -> Iterator[None]:
    """Context in which a connection is created of `one`, whose descriptor is the transport's from then on, however
    that ends. uvloop leaves it to `one` too where the transport has closed before its `create_connection` returns
    (loop.pyx, `_attach_fileobj`): to be closed once more, when the number is another connection's.
    """
    try:
        yield
    finally:
        if not isinstance(asyncio.get_running_loop(), asyncio.SelectorEventLoop):
            one.detach()


class Turns(Protocol):
    """Which of several processes takes the next client (`proxy.accept_turns`)."""

    @property
    def most_s(self) -> float:
        """How long clients wait for others, in seconds."""

    def gives_way(self) -> bool:
        """Whether a client that waits is another process's."""

    def note_in_vain(self) -> None:
        """Clients have waited for others for `most_s`."""


async def accept_clients(
    listening: socket.socket, take: Callable[[socket.socket], None], turns: Turns | None = None
) -> None:
    """Call `take` with each client of a listening socket that does not block, until cancelled. A failed
    accept is logged, and followed by a pause of PAUSE_S. `turns` None: no other process accepts.
    """
    loop = asyncio.get_running_loop()
    while True:
        try:
            if turns is not None:
                await until_readable(listening)
                await _let_others_accept(listening, turns)
                client, _ = listening.accept()
                client.setblocking(False)
            else:
                client, _ = await loop.sock_accept(listening)
        except BlockingIOError:
            continue  # another process has it
        except OSError as error:
            log.error("cannot accept a client: %s", error)
            await asyncio.sleep(PAUSE_S)
            continue
        take(client)


async def _let_others_accept(listening: socket.socket, turns: Turns) -> None:
    """Return once the client that waits is this process's, or others have taken all that waited."""
    loop, waiting = asyncio.get_running_loop(), select.poll()
    waiting.register(listening, select.POLLIN)
    ends = loop.time() + turns.most_s
    while turns.gives_way() and waiting.poll(0):
        if loop.time() >= ends:
            turns.note_in_vain()
            return
        await asyncio.sleep(LOOK_S)


async def until_readable(one: socket.socket) -> None:
    """Return once there is something to read, or to accept."""
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(one, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(one)

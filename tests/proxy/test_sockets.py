"""Listening sockets: all or none, for one who inherits them."""

import asyncio
import contextlib
import os
import socket

import pytest

from proxy import sockets
from proxy.config.units import Address
from proxy.sockets import accept_clients, bind, bind_all, find_address, listen_for_workers
from tests.kit.broker.settings import HOST
from tests.proxy.supervisor.configured import build_config, count_descriptors


@pytest.mark.parametrize(
    ("place", "says", "key"),
    [
        (("listeners", 0, "listen"), "listener clients cannot listen", "listeners[0].listen"),
        (("admin", "listen"), "the admin server cannot listen", "admin.listen"),
    ],
)
def test_address_in_use_names_listener_and_key_and_leaves_nothing_open(place, says, key) -> None:
    with socket.create_server((HOST, 0)) as other:
        address = "{}:{}".format(*other.getsockname())
        open_before = count_descriptors()
        with pytest.raises(OSError, match="in use") as refused:
            bind_all(build_config({place: address}))
        assert count_descriptors() == open_before
    assert str(refused.value).endswith(f"{says} at {address} ({key}): Address already in use")


def test_sockets_do_not_block_and_go_to_nobody_by_themselves() -> None:
    bound = bind_all(build_config())
    try:
        for one in (bound.listeners[0][0], bound.admin[0]):
            assert not one.get_inheritable()
            assert not one.getblocking()
            assert find_address([one]).port > 0
    finally:
        bound.close()
    assert bound.admin[0].fileno() == -1


def test_the_keeper_is_at_an_address_that_is_no_file_and_its_backlog_is_bounded() -> None:
    keeper = listen_for_workers()
    address = keeper.getsockname()
    assert address[:1] == b"\0" and len(address) > 1 and not keeper.getblocking()
    with contextlib.ExitStack() as stack:
        stack.enter_context(keeper)
        waiting = 0
        for _ in range(2 * sockets.KEEPER_BACKLOG):
            worker = stack.enter_context(socket.socket(socket.AF_UNIX))
            worker.setblocking(False)
            try:
                worker.connect(address)
            except BlockingIOError:
                break
            waiting += 1
        assert waiting == sockets.KEEPER_BACKLOG + 1, "as unix(7) counts: one more than the backlog"
        keeper.accept()[0].close()
        worker.connect(address)


def test_a_process_of_another_user_is_told_from_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    with listen_for_workers() as keeper, socket.socket(socket.AF_UNIX) as worker:
        worker.connect(keeper.getsockname())
        accepted, _ = keeper.accept()
        with accepted:
            assert sockets.is_of_this_user(accepted)
            monkeypatch.setattr(os, "geteuid", lambda: 4711)
            assert not sockets.is_of_this_user(accepted)


def test_a_name_has_a_socket_for_each_of_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (HOST, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.2", 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    bound = bind(Address("localhost", 0))
    assert [one.getsockname()[0] for one in bound] == [HOST, "127.0.0.2"]
    for one in bound:
        one.close()


def test_a_missing_address_family_is_no_failure_unless_it_is_the_only_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """::dead is no address of this machine, as :: is none where IPv6 is switched off."""
    missing = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 0))
    present = (socket.AF_INET, socket.SOCK_STREAM, 6, "", (HOST, 0))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [missing, present])
    (one,) = bind(Address("", 0))
    assert one.getsockname()[0] == HOST
    one.close()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [missing])
    with pytest.raises(OSError, match="Cannot assign requested address"):
        bind(Address("", 0))


def test_vanished_clients_end(monkeypatch: pytest.MonkeyPatch) -> None:
    config = build_config({("limits", "idleTimeout"): "100s"})
    bound = bind_all(config)
    (one,) = bound.listeners[0]
    assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 100 / sockets.PROBES
    assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 100_000
    bound.close()


async def test_accepting_goes_on_after_a_failure(monkeypatch, caplog) -> None:
    """As when no descriptor is left."""
    loop = asyncio.get_running_loop()
    accept, fail = loop.sock_accept, [OSError("no descriptor is left")]

    async def fail_once(listening: socket.socket) -> object:
        if fail:
            raise fail.pop()
        return await accept(listening)

    monkeypatch.setattr(loop, "sock_accept", fail_once)
    monkeypatch.setattr(sockets, "PAUSE_S", 0.0)
    taken: asyncio.Queue[socket.socket] = asyncio.Queue()
    with socket.create_server((HOST, 0)) as listening:
        listening.setblocking(False)
        accepting = asyncio.create_task(accept_clients(listening, taken.put_nowait))
        for _ in range(2):
            with (
                socket.create_connection(listening.getsockname()) as client,
                await asyncio.wait_for(taken.get(), 60) as accepted,
            ):
                assert accepted.getpeername() == client.getsockname()
        accepting.cancel()
        await asyncio.gather(accepting, return_exceptions=True)
    assert caplog.messages == ["cannot accept a client: no descriptor is left"]

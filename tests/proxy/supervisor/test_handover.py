"""What the supervisor writes is what the worker reads."""

import os

import pytest

from proxy.sockets import bind_all, find_address
from proxy.supervisor.handover import Handover, NoHandover, read_handover, write_handover
from tests.proxy.supervisor.configured import build_config


def test_a_worker_reads_what_was_written() -> None:
    config = build_config(
        {
            ("cache", "holeWait"): "1234us",
            ("throttle", "disks", 0, "device"): "sdx",
            ("listeners", 0, "upstreamTls", "enabled"): "true",
            ("limits", "idleTimeout"): "1h30m",
        }
    )
    sockets = bind_all(config)
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    written = Handover(config, sockets, writer, 4711, {"exit": 1, "hung": 2})
    fd = write_handover(written)
    assert os.get_inheritable(fd)
    read = read_handover(fd)
    assert read.config == config
    assert (read.heartbeat, read.owner, read.restarts) == (writer, 4711, {"exit": 1, "hung": 2})
    assert find_address(read.sockets.admin) == find_address(sockets.admin)
    assert read.sockets.listeners[0][0].fileno() == sockets.listeners[0][0].fileno()
    assert not os.get_inheritable(writer)
    assert not read.sockets.admin[0].get_inheritable()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    for one in (*read.sockets.listeners[0], *read.sockets.admin):
        one.detach()
    sockets.close()
    os.close(reader)
    os.close(writer)


def test_a_descriptor_without_a_handover_is_refused() -> None:
    with pytest.raises(NoHandover, match="descriptor 99999 holds no configuration"):
        read_handover(99_999)
    fd = os.memfd_create("empty")
    with pytest.raises(NoHandover, match="holds no configuration"):
        read_handover(fd)

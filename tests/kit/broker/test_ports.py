"""A leased port is nobody else's until it is released."""

import socket
import subprocess
import sys

import pytest

from tests.kit.broker.ports import LOWEST, PortLease, ephemeral_start, lease_port


def test_lease_is_exclusive_until_released() -> None:
    lease = lease_port()
    assert LOWEST <= lease.port < ephemeral_start()
    with pytest.raises(OSError, match="in use"):
        PortLease(lease.port)
    lease.release()
    PortLease(lease.port).release()


def test_port_in_use_is_not_leased() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        with pytest.raises(OSError, match="in use"):
            PortLease(server.getsockname()[1])


def test_lease_binds_other_processes_and_ends_with_the_holder() -> None:
    script = "from tests.kit.broker.ports import lease_port as new; it = new(); print(it.port, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": "."},
    ) as holder:
        assert holder.stdout is not None
        port = int(holder.stdout.readline())
        with pytest.raises(OSError, match="in use"):
            PortLease(port)
        holder.kill()
    PortLease(port).release()

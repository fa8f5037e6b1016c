"""What the supervisor writes is what the worker reads."""

import os
import pickle
import socket
from pathlib import Path

import pytest

from blockcache.arena_file import open_file
from proxy.config.model import Config
from proxy.config.yaml_file import ConfigError
from proxy.sockets import Sockets, bind_all, find_address, listen_for_workers
from proxy.supervisor import handover
from proxy.supervisor.figures import UPGRADES, Figures
from proxy.supervisor.handover import (
    ConfigInForce,
    Handover,
    NoHandover,
    find_build,
    read_handover,
    write_handover,
)
from proxy.supervisor.role import Role
from proxy.supervisor.spawner import share_sockets
from proxy.switches.store import SwitchStore
from tests.proxy.supervisor.configured import build_config


def test_a_worker_reads_what_was_written(tmp_path: Path) -> None:
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
    in_force, arguments = ConfigInForce(), ["serve", "--config", "forebay.yaml"]
    os.set_inheritable(in_force.fd, True)
    arena, figures = open_file(tmp_path / "arena"), Figures()
    os.set_inheritable(arena.fd, True)
    switches = SwitchStore(is_shared=True)
    switches.change(lambda state: state.drop("orders"))
    written = Handover(
        config,
        in_force,
        arguments,
        sockets,
        writer,
        arena,
        figures,
        is_successor=True,
        switches=switches,
    )
    fd = write_handover(written)
    assert os.get_inheritable(fd)
    read = read_handover(fd)
    assert read.config == config
    assert (read.heartbeat, read.is_successor) == (writer, True)
    assert read.switches is not None and read.switches.is_shared
    assert read.switches.read() == switches.read()
    assert not os.get_inheritable(read.switches.fd)
    figures[UPGRADES, "done"] = 3
    assert dict(read.figures.read())[UPGRADES, "done"] == 3
    assert read.arena is not None and (read.arena.fd, read.arena.path) == (arena.fd, arena.path)
    assert not os.get_inheritable(arena.fd)
    assert (read.in_force.fd, read.arguments) == (in_force.fd, arguments)
    assert not os.get_inheritable(in_force.fd)
    assert find_address(read.sockets.admin) == find_address(sockets.admin)
    assert read.sockets.listeners[0][0].fileno() == sockets.listeners[0][0].fileno()
    assert not os.get_inheritable(writer)
    assert not read.sockets.admin[0].get_inheritable()
    names = [path.readlink().name for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    assert not [name for name in names if "forebay-handover" in name]
    for one in (*read.sockets.listeners[0], *read.sockets.admin):
        one.detach()
    sockets.close()
    for fd in (reader, writer, in_force.fd, arena.fd, figures.fd):
        os.close(fd)


@pytest.mark.parametrize(("role", "number"), [(Role.KEEPER, 0), (Role.WORKER, 3)])
def test_a_process_of_several_is_told_its_role(role: Role, number: int) -> None:
    """The keeper alone may write what is in force after a reload, and listens for workers."""
    config = build_config({("workers",): "3"})
    sockets, in_force, figures = bind_all(config), ConfigInForce(), Figures()
    keeper = listen_for_workers()
    reader, writer = os.pipe()
    shared = keeper if role is Role.KEEPER else keeper.getsockname()
    given = share_sockets(sockets, role)
    handover = Handover(
        config, in_force, (), given, writer, None, figures, False, role, number, shared
    )
    listed = set(handover.list_descriptors())
    assert (keeper.fileno() in listed) is (role is Role.KEEPER)
    assert (sockets.admin[0].fileno() in listed) is (role is Role.KEEPER)
    assert (sockets.listeners[0][0].fileno() in listed) is (role is Role.WORKER)
    read = read_handover(write_handover(handover))
    assert (read.role, read.number, read.config.workers) == (role, number, 3)
    if isinstance(read.keeper, socket.socket):
        assert read.keeper.getsockname() == keeper.getsockname()
        read.keeper.detach()
    else:
        with socket.socket(socket.AF_UNIX) as worker:
            worker.connect(read.keeper or b"")
    read.in_force.write(config)
    assert (in_force.read() == config) is (role is Role.KEEPER)
    for one in (*(one for each in read.sockets.listeners for one in each), *read.sockets.admin):
        one.detach()
    sockets.close()
    keeper.close()
    for fd in (reader, writer, in_force.fd, figures.fd):
        os.close(fd)


def test_a_worker_reloads_what_is_in_force_or_nothing() -> None:
    start, later = (build_config({("limits", "idleTimeout"): idle}) for idle in ("1h", "2h"))
    in_force, figures = ConfigInForce(), Figures()
    reader, writer = os.pipe()
    given = Handover(start, in_force, (), Sockets(((),), ()), writer, None, figures)
    with pytest.raises(ConfigError, match="another configuration"):
        given.read_in_force()
    in_force.write(later)
    assert given.read_in_force().config == later
    for fd in (reader, writer, in_force.fd, figures.fd):
        os.close(fd)


def test_without_a_role_it_is_alone() -> None:
    """As a supervisor of an earlier build hands over."""
    config = build_config()
    sockets, in_force, figures = bind_all(config), ConfigInForce(), Figures()
    reader, writer = os.pipe()
    fd = write_handover(Handover(config, in_force, (), sockets, writer, None, figures))
    content = pickle.loads(os.pread(fd, 1 << 20, 0))
    for key in ("role", "number", "keeper"):
        del content[key]
    os.ftruncate(fd, 0)
    os.pwrite(fd, pickle.dumps(content), 0)
    read = read_handover(fd)
    assert (read.role, read.number, read.keeper) == (Role.ALONE, 0, None)
    for one in (*read.sockets.listeners[0], *read.sockets.admin):
        one.detach()
    sockets.close()
    for descriptor in (reader, writer, in_force.fd, figures.fd):
        os.close(descriptor)


def test_a_worker_of_another_build_validates_the_configuration(monkeypatch) -> None:
    """An upgrade on disk: a class pickled by the old build may lack the new one's keys."""
    config = build_config({("limits", "idleTimeout"): "1h30m"})
    sockets, in_force, figures = bind_all(config), ConfigInForce(), Figures()
    reader, writer = os.pipe()
    fd = write_handover(Handover(config, in_force, ["serve"], sockets, writer, None, figures))
    monkeypatch.setattr(handover, "BUILD", [("model.py", 1, 2)])
    monkeypatch.setattr(Config, "__setstate__", None)
    read = read_handover(fd)
    assert read.config == config
    for one in (*read.sockets.listeners[0], *read.sockets.admin):
        one.detach()
    sockets.close()
    for descriptor in (reader, writer, in_force.fd, figures.fd):
        os.close(descriptor)


def test_a_build_is_known_by_its_sources(tmp_path) -> None:
    (tmp_path / "model.py").write_text("KEY = 1")
    build = find_build(tmp_path)
    assert find_build(tmp_path) == build
    (tmp_path / "model.py").write_text("KEY = 10")
    assert find_build(tmp_path) != build


def test_what_a_reload_has_put_in_force_outlives_its_worker() -> None:
    in_force = ConfigInForce()
    assert in_force.read() is None, "no reload yet"
    first, second = (build_config({("limits", "idleTimeout"): idle}) for idle in ("1h30m12s", "2h"))
    in_force.write(first)
    assert in_force.read() == first
    in_force.write(second)
    assert in_force.read() == second
    os.ftruncate(in_force.fd, 100)
    assert in_force.read() is None, "its writer was killed in the middle"
    os.close(in_force.fd)


def test_a_descriptor_without_a_handover_is_refused() -> None:
    with pytest.raises(NoHandover, match="descriptor 99999 holds no configuration"):
        read_handover(99_999)
    fd = os.memfd_create("empty")
    with pytest.raises(NoHandover, match="holds no configuration"):
        read_handover(fd)

"""Processes, played below a root of their own and real, and clocks of every state."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from proxy.config.check import count_open_files
from proxy.config.model import Config
from proxy.doctor.processes import (
    BROKER_FILES,
    NO_SUCH_CALL,
    TIME_ERROR,
    ask_clock,
    check_open_files,
    check_own_clock,
    find_listening,
    read_file_limit,
)

OUR_PORT, BROKER_PORT = 0x2384, 0x4A94


def build_config(**keys: Any) -> Config:
    plain = {"listen": f":{OUR_PORT}", "upstream": f"127.0.0.1:{BROKER_PORT}"}
    return Config.model_validate({"listeners": [plain | keys]}, by_alias=True, by_name=False)


def play(root: Path, port: int, pid: int, limit: str, name: str = "tcp") -> None:
    """A process that listens at a port."""
    (root / "proc/net").mkdir(parents=True, exist_ok=True)
    table = root / "proc/net" / name
    text = table.read_text() if table.exists() else "  sl  local_address rem_address st\n"
    inode = 1000 + pid
    table.write_text(
        f"{text}   0: 0100007F:{port:04X} 00000000:0000 0A 00000000:00000000 00:0 00 0 0 {inode} 1\n"
        f"   1: 0100007F:{port:04X} 0100007F:9999 01 00000000:00000000 00:0 00 0 0 7 1\n"
    )
    (root / f"proc/{pid}/fd").mkdir(parents=True)
    (root / f"proc/{pid}/fd/3").symlink_to(f"socket:[{inode}]")
    (root / f"proc/{pid}/limits").write_text(f"Max open files   {limit}   1048576   files\n")


def judge(root: Path, **keys: Any) -> list[str]:
    return [line.status for line in check_open_files(build_config(**keys), root)]


def test_limits_of_both_processes(tmp_path: Path) -> None:
    needed = count_open_files(build_config())
    assert judge(tmp_path) == ["skip", "skip"]
    play(tmp_path, BROKER_PORT, 11, str(BROKER_FILES))
    play(tmp_path, OUR_PORT, 12, str(needed), "tcp6")
    assert judge(tmp_path) == ["ok", "ok"]
    assert judge(tmp_path, upstream=f"10.0.0.1:{BROKER_PORT}") == ["skip", "ok"]
    (tmp_path / "proc/11/limits").write_text(f"Max open files   {BROKER_FILES - 1}  9  files\n")
    (tmp_path / "proc/12/limits").write_text(f"Max open files   {needed - 1}  9  files\n")
    lines = list(check_open_files(build_config(), tmp_path))
    assert [line.status for line in lines] == ["warn", "warn"]
    assert all("LimitNOFILE" in line.remedy for line in lines)
    (tmp_path / "proc/11/fd/3").unlink()
    assert judge(tmp_path)[0] == "skip", "it is not ours to see"


def test_this_process_is_found_by_its_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = find_listening(Path("/"), port)
    assert found == os.getpid()
    assert read_file_limit(Path("/"), found)
    assert find_listening(Path("/"), port) is None


@pytest.mark.parametrize(
    ("answer", "status"),
    [((0, 1500), "ok"), ((TIME_ERROR, 16_000_000), "warn"), ((NO_SUCH_CALL, 0), "skip")],
)
def test_a_clock_of_each_state(answer: tuple[int, int], status: str) -> None:
    line = check_own_clock(lambda: answer)
    assert line.status == status and bool(line.remedy) == (status == "warn")
    if status == "ok":
        assert "at most 1.5 ms off" in line.text


def test_the_kernel_is_asked() -> None:
    """Of a machine's clock any state may be true; the error is that of a clock."""
    state, error_us = ask_clock()
    assert state in range(NO_SUCH_CALL, TIME_ERROR + 1) and 0 <= error_us <= 16_000_000

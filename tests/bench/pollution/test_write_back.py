"""Write-back is as it was after a run, also after one that was killed."""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.pollution.host import PREFIX, sweep_up
from bench.pollution.write_back import SETTINGS, SUFFIX, even_out

NOBODY = 1 << 30  # no process has this number (PID_MAX_LIMIT is 2^22)
BEFORE = {"dirty_expire_centisecs": "3000\n", "dirty_writeback_centisecs": "500\n"}


@pytest.fixture
def sysctl(tmp_path: Path) -> Path:
    directory = tmp_path / "vm"
    directory.mkdir()
    for name, value in BEFORE.items():
        (directory / name).write_text(value)
    return directory


def read_all(sysctl: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sysctl.iterdir()}


def test_settings_are_put_back(sysctl: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with ExitStack() as stack:
        even_out(stack, kept, sysctl)
        assert {name: int(value) for name, value in read_all(sysctl).items()} == SETTINGS
        assert kept.exists()
    assert read_all(sysctl) == BEFORE
    assert not kept.exists()


def test_what_a_killed_run_changed_is_put_back_by_the_next(sysctl: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        even_out(stack, tmp_path / f"{PREFIX}{NOBODY}{SUFFIX}", sysctl)
        even_out(stack, tmp_path / f"{PREFIX}{os.getpid()}{SUFFIX}", sysctl)
        stack.pop_all()  # neither comes to its end
    assert sweep_up(tmp_path, sysctl) == [f"{PREFIX}{NOBODY}{SUFFIX}"]
    assert read_all(sysctl) == BEFORE
    assert [path.name for path in tmp_path.glob(f"*{SUFFIX}")] == [f"{PREFIX}{os.getpid()}{SUFFIX}"]

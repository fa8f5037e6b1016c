"""Upgrade in place to a build that differs: another version, another layout of the arena, and one that does not work.

Owns a copy of the product, which a test changes while Forebay runs from it, as an installer does: each file is written
anew and renamed. The broker is shared.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import proxy
from tests.e2e.test_supervisor import LASTING, VERIFIED, at_work, mismatches
from tests.e2e.test_upgrade import TAKEOVERS, wait_for_upgrade
from tests.e2e.test_warm_restart import DROPPED, check_verified, count, wait_until
from tests.kit.sidecar import PATIENT_SUPERVISOR, Pair, ProxiedBroker, find_worker

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

SOURCES = Path(proxy.__file__).parents[1]
PACKAGES = ("blockcache", "isolation", "metrics", "protocol", "proxy", "throttle")
NEWER = "9.9.9"
CUT_BYTES = 1000
"""Of a file whose installation was interrupted."""


class Build:
    """The product's packages, in a directory from which a Forebay runs."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        for name in PACKAGES:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(SOURCES / name, directory / name, ignore=ignored)

    def replace(self, path: str, content: bytes) -> None:
        """Write a file anew: who runs keeps the former one."""
        file = self._directory / path
        file.parent.mkdir(exist_ok=True)
        new = file.with_name(f"{file.name}.new")
        new.write_bytes(content)
        new.rename(file)

    def edit(self, path: str, before: str, after: str) -> None:
        """Replace a text in a file, which has it once."""
        text = (self._directory / path).read_text()
        assert text.count(before) == 1
        self.replace(path, text.replace(before, after).encode())

    def name_version(self, version: str) -> None:
        """Have it say that it is this version, and change a source of the configuration."""
        facts = f"Metadata-Version: 2.4\nName: forebay\nVersion: {version}\n"
        self.replace(f"forebay-{version}.dist-info/METADATA", facts.encode())
        model = (self._directory / "proxy/config/model.py").read_bytes()
        self.replace("proxy/config/model.py", model + b"\n# of another build\n")

    def find_extension(self, path: str) -> str:
        (found,) = self._directory.glob(f"{path}.*.so")
        return str(found.relative_to(self._directory))

    def compile(self) -> None:
        """Compile what was changed."""
        compiled = subprocess.run(
            [sys.executable, "-m", "blockcache._build"],
            cwd=self._directory,
            capture_output=True,
            text=True,
            check=False,
        )
        assert compiled.returncode == 0, compiled.stderr


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    """Forebays of the test run from it, not from the work tree."""
    directory = tmp_path / "build"
    monkeypatch.setenv("PYTHONPATH", str(directory))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    return Build(directory)


@pytest.fixture
def pair(build: Build, proxied: ProxiedBroker) -> Iterator[Pair]:
    assert build
    settings = {**VERIFIED, "supervisor": PATIENT_SUPERVISOR | LASTING}
    with Pair(shared=proxied, settings=settings) as running:
        yield running


def read_version(pair: Pair) -> str:
    (version,) = (key[2] for key in pair.sidecar.metrics() if key[0] == "forebay_build_info")
    return version


def upgrade(pair: Pair, outcome: str = "done") -> None:
    """SIGUSR2, until one worker is left: the other one, unless the upgrade is to fail."""
    former = pair.sidecar.worker_pid
    os.kill(pair.sidecar.pid, signal.SIGUSR2)
    wait_for_upgrade(pair.sidecar, former, outcome)
    assert (find_worker(pair.sidecar.pid) == former) == (outcome == "failed")


def test_a_newer_version_serves_what_the_former_one_held(build: Build, pair: Pair) -> None:
    former = read_version(pair)
    with at_work(pair) as (writer, reader):
        build.name_version(NEWER)
        assert read_version(pair) == former != NEWER
        upgrade(pair)
        assert read_version(pair) == NEWER
        wait_until("it is taken over", lambda: count(pair, TAKEOVERS, "taken-over") == 1)
        writer.wait_for_more()
        reader.wait_for_more()
    check_verified(pair)


def test_another_layout_of_the_arena_begins_cold(build: Build, pair: Pair) -> None:
    with at_work(pair) as (writer, reader):
        build.edit("blockcache/native/pyfastcache.h", "#define FC_LAYOUT 6", "#define FC_LAYOUT 7")
        build.compile()
        upgrade(pair)
        wait_until("it is dropped", lambda: count(pair, TAKEOVERS, "layout") == 1)
        pair.sidecar.wait_for_log(DROPPED.decode())
        writer.wait_for_more()
        reader.wait_for_more()
        assert not count(pair, "forebay_cache_taken_over_partitions_total")
    check_verified(pair)


@pytest.mark.parametrize(
    "path", ["proxy/app.py", "blockcache/_pyfastcache"], ids=["source", "library"]
)
def test_a_build_that_does_not_work_changes_nothing(build: Build, pair: Pair, path: str) -> None:
    """Then a working one is installed, and takes its place."""
    with at_work(pair) as (writer, reader):
        file = path if path.endswith(".py") else build.find_extension(path)
        former = (SOURCES / file).read_bytes()
        build.replace(file, former[:CUT_BYTES])
        upgrade(pair, "failed")
        pair.sidecar.wait_for_log("the upgrade failed, the former worker goes on")
        writer.wait_for_more()
        reader.wait_for_more()
        assert pair.sidecar.is_ready()
        build.replace(file, former)
        upgrade(pair)
        wait_until("it is taken over", lambda: count(pair, TAKEOVERS, "taken-over") == 1)
        writer.wait_for_more()
        reader.wait_for_more()
    assert mismatches(pair.sidecar) == 0

"""A systemd of its own, as process 1 of namespaces, with the project's unit.

Owns namespaces, mounts, cgroup and the process. Must not know what is tested. Invariants: mounts are private to the
namespace; systemd sees a cgroup below its own, and units of one directory alone; the network is the machine's, so that
ports are leased. Where any of it is not allowed, `find_obstacle` says what.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

REPOSITORY = Path(__file__).parents[2]
UNIT = REPOSITORY / "deploy" / "systemd" / "forebay.service"
MANAGER = Path("/lib/systemd/systemd")
NAMED_CGROUP = Path("/sys/fs/cgroup/systemd")
PATIENCE_S = 120.0
_WRAPPER = """#!/bin/sh
LD_LIBRARY_PATH=/opt/forebay/python/lib \\
PYTHONPATH=/opt/forebay/source:/opt/forebay/site:$PYTHONPATH exec /opt/forebay/python/bin/python3 -m proxy "$@"
"""
_ENTER = """
set -e
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mkdir -p /run/lock /run/systemd
mount -t tmpfs cgroup /sys/fs/cgroup
if [ "$VERSION" = 1 ]; then
    mkdir /sys/fs/cgroup/systemd
    mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
else
    mount -t cgroup2 cgroup /sys/fs/cgroup
fi
mount --bind "$ROOT/log" /var/log
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$ROOT/upper,workdir=$ROOT/work" /etc
mount -t tmpfs opt /opt
mkdir -p /opt/forebay/bin /opt/forebay/python /opt/forebay/source /opt/forebay/site
mount --bind "$PYTHON" /opt/forebay/python
mount --bind "$SOURCE" /opt/forebay/source
mount --bind "$SITE" /opt/forebay/site
cp "$ROOT/wrapper" /opt/forebay/bin/forebay
chmod 755 /opt/forebay/bin/forebay
exec "$MANAGER" --system --unit=test.target --log-target=console --log-level=info
"""


def remove_cgroup(cgroup: Path) -> bool:
    """Remove a control group and those below it. Return False while a process of theirs is left."""
    try:
        for path in sorted(cgroup.rglob("*"), reverse=True):
            if path.is_dir():
                path.rmdir()
        cgroup.rmdir()
    except OSError:
        return False
    return True


def find_obstacle() -> str:
    """Why no systemd can run here; "" if one can."""
    if os.geteuid() != 0:
        return "needs root"
    if not MANAGER.exists() or shutil.which("unshare") is None:
        return "systemd or unshare is not installed"
    probe = ["unshare", "--mount", "--pid", "--fork", "--cgroup", "true"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        return "namespaces are not allowed"
    return "" if NAMED_CGROUP.is_dir() or _is_v2() else "no cgroup of systemd's kind"


def _is_v2() -> bool:
    return Path("/sys/fs/cgroup/cgroup.controllers").exists()


class Systemd:
    """A running systemd with `forebay.service`, not started. `etc`: files over those of /etc."""

    def __init__(self, root: Path, dropin: str) -> None:
        """`dropin`: a drop-in of the unit, for times that a test cannot wait for."""
        self._root = root
        self.etc = root / "upper"
        self._lay_out(dropin)
        hierarchy = NAMED_CGROUP if NAMED_CGROUP.is_dir() else Path("/sys/fs/cgroup")
        self._cgroup = hierarchy / f"forebay-test-{os.getpid()}"
        self._cgroup.mkdir()
        self._log = (root / "systemd.log").open("wb")
        environment = {
            "PATH": os.environ["PATH"],
            "container": "lxc",
            "SYSTEMD_UNIT_PATH": str(root / "units"),
            "VERSION": "1" if NAMED_CGROUP.is_dir() else "2",
            "ROOT": str(root),
            "PYTHON": sys.base_prefix,
            "SOURCE": str(REPOSITORY),
            "SITE": sysconfig.get_path("purelib"),
            "MANAGER": str(MANAGER),
        }
        join = f"echo $$ > {self._cgroup}/cgroup.procs && exec unshare --mount --pid --fork"
        command = f"{join} --kill-child --cgroup --uts --ipc sh -c '{_ENTER}'"
        self._process = subprocess.Popen(
            ["sh", "-c", command], env=environment, stdout=self._log, stderr=self._log
        )

    def _lay_out(self, dropin: str) -> None:
        root = self._root
        self.etc.mkdir()
        (self.etc / "forebay").mkdir()
        root.chmod(0o755)
        for parent in root.parents[:2]:
            parent.chmod(parent.stat().st_mode | 0o055)
        units = root / "units"
        (units / "forebay.service.d").mkdir(parents=True)
        shutil.copy(UNIT, units)
        (units / "forebay.service.d" / "test.conf").write_text(dropin)
        (units / "test.target").write_text("[Unit]\nDescription=tests\n")
        for name in ("sysinit", "basic", "shutdown", "network-online", "multi-user"):
            (units / f"{name}.target").write_text("[Unit]\nDefaultDependencies=no\n")
        for name in ("passwd", "group"):
            line = "forebay:x:10001:10001::/:/bin/false" if name == "passwd" else "forebay:x:10001:"
            (self.etc / name).write_text(Path(f"/etc/{name}").read_text() + line + "\n")
        for name in ("log", "work"):
            (root / name).mkdir()
        (root / "wrapper").write_text(_WRAPPER)

    @property
    def pid(self) -> int:
        """Of systemd. LookupError before it runs."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        found = children.read_text().split()
        if not found:
            raise LookupError("systemd does not run yet")
        return int(found[0])

    def control(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`systemctl` in the namespaces."""
        command = ["nsenter", "--target", str(self.pid), "--mount", "--pid", "--cgroup"]
        return subprocess.run(
            [*command, "systemctl", *arguments],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def show(self, name: str) -> str:
        """A property of the unit."""
        return self.control("show", "forebay", "--property", name, "--value").stdout.strip()

    def wait_for(self, name: str, value: str) -> None:
        """Until the unit's property has a value. AssertionError with systemd's log if it never has."""
        deadline = time.monotonic() + PATIENCE_S
        while (found := self.show(name)) != value:
            assert time.monotonic() < deadline, (
                f"{name} is {found}, not {value}:\n{self.log_tail()}"
            )
            time.sleep(0.2)

    def log_tail(self) -> str:
        """The end of what systemd and its units have said."""
        unit = self._root / "log" / "unit.log"
        said = unit.read_text(errors="replace")[-3000:] if unit.exists() else ""
        status = self.control("status", "forebay", "--no-pager").stdout
        return f"{status}\n{said}"

    def find_main(self) -> int:
        """The unit's main process, by its number outside of the namespace. LookupError."""
        wanted = self.show("MainPID")
        for path in Path("/proc").glob("[0-9]*"):
            try:
                status = (path / "status").read_text()
            except OSError:
                continue
            numbers = status.partition("NSpid:")[2].partition("\n")[0].split()
            if len(numbers) > 1 and numbers[-1] == wanted and self._is_ours(path):
                return int(path.name)
        raise LookupError("no main process")

    def _is_ours(self, path: Path) -> bool:
        try:
            return (path / "ns" / "pid").readlink() == Path(f"/proc/{self.pid}/ns/pid").readlink()
        except OSError:
            return False

    def __enter__(self) -> Self:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                if self.control("is-system-running").stdout.strip() in ("running", "degraded"):
                    return self
            except LookupError:
                pass
            if time.monotonic() > deadline or self._process.poll() is not None:
                self.__exit__(None, None, None)
                raise AssertionError(f"systemd does not start:\n{self.log_tail()}")
            time.sleep(0.2)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            os.kill(self.pid, signal.SIGKILL)  # process 1 takes all of its namespace with it
        except (LookupError, OSError):
            self._process.kill()
        self._process.wait()
        self._log.close()
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if remove_cgroup(self._cgroup):
                return
            time.sleep(0.1)

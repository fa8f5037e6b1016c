"""A clean Debian with a broker under systemd, as somebody has it who begins to read docs/install-machine.md.

Owns the machine's file system, which lies in the cache and ends with it, its namespaces and its process 1. Must not
know the page. Invariants: it has a user `admin` who may use sudo, and a clone's source at its public address; its
network is a loopback of its own, but for commands that fetch something.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.build import filling_cache, unpack_packages
from tests.cluster.cluster import find_obstacle as find_obstacle_of_node
from tests.cluster.images import MACHINE_FILES, building
from tests.cluster.layout import HERE as CLUSTER
from tests.cluster.layout import find_cache
from tests.cluster.programs import run, wait_until
from tests.deploy.systemd import NAMED_CGROUP, remove_cgroup
from tests.deploy.systemd import find_obstacle as find_obstacle_of_systemd
from tests.kit.broker.jars import KAFKA_4, kafka_jars

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).parents[2]
ADDRESS = "https://github.com/forebay/forebay"
NAME = "broker-1.example"
PATIENCE_S = 900.0
BEFORE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.voters": "1@127.0.0.1:9093",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "CLIENT",
    "listeners": "CLIENT://:9092,CONTROLLER://:9093",
    "advertised.listeners": f"CLIENT://{NAME}:9092",
    "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "log.dirs": "/var/lib/kafka",
    "offsets.topic.replication.factor": "1",
}
"""server.properties of the broker as it is before Forebay comes."""
FORMAT = "/opt/kafka/bin/kafka-storage.sh format -t Rm9yZWJheU1hY2hpbmUhIQ -c /etc/kafka/server.properties"
KAFKA_UNIT = """[Service]
User=kafka
ExecStart=/opt/kafka/bin/kafka-server-start.sh /etc/kafka/server.properties
SuccessExitStatus=143
[Install]
WantedBy=multi-user.target
"""
ENTER = """
set -e
mount --make-rprivate /
mount --bind "$ROOT" "$ROOT"
cd "$ROOT"
ip link set lo up
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs tmpfs dev/shm
mount -t tmpfs tmpfs run
mkdir -p run/lock run/systemd
mount -t tmpfs cgroup sys/fs/cgroup
if [ "$VERSION" = 1 ]; then
    mkdir sys/fs/cgroup/systemd
    mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
else
    mount -t cgroup2 cgroup sys/fs/cgroup
fi
pivot_root . mnt
umount -l /mnt
exec /lib/systemd/systemd --system --unit=multi-user.target --log-target=console
"""


def find_obstacle() -> str:
    """Why no such machine can run here; "" if one can."""
    return find_obstacle_of_systemd() or find_obstacle_of_node()


@contextmanager
def running_machine() -> Iterator[Machine]:
    """A machine whose broker runs. It ends with the block."""
    with filling_cache():
        unpack_packages()
        with building() as builder:
            base = builder.make_base("machine")
    with tempfile.TemporaryDirectory(dir=find_cache(), ignore_cleanup_errors=True) as directory:
        root = Path(directory) / "root"
        root.mkdir()
        run(["tar", "--extract", "--numeric-owner", "--file", base, "--directory", root])
        _furnish(root)
        machine = Machine(root)
        try:
            machine.wait_for_systemd()
            machine.sudo(f"su kafka -s /bin/sh -c '{FORMAT}' && systemctl enable --now kafka")
            yield machine
        finally:
            machine.end()


def _furnish(root: Path) -> None:
    """What the owner has done before: a name, an administrator, a broker; and this machine's way to packages."""
    for name in (*MACHINE_FILES, "/etc/resolv.conf"):
        if Path(name).exists():
            (root / name[1:]).unlink(missing_ok=True)
            shutil.copy(name, root / name[1:])
    shutil.rmtree(root / "etc/apt")
    shutil.copytree("/etc/apt", root / "etc/apt")
    (root / "etc/hosts").write_text(f"127.0.0.1 localhost {NAME}\n")
    (root / "etc/hostname").write_text(f"{NAME}\n")
    (root / "etc/sudoers.d/admin").write_text("admin ALL=(ALL) NOPASSWD: ALL\n")
    run(["chroot", root, "useradd", "--create-home", "--shell", "/bin/bash", "admin"])
    run(["chroot", root, "useradd", "--system", "--shell", "/usr/sbin/nologin", "kafka"])
    bundle = root / "srv/forebay.bundle"
    run(["git", "-C", REPOSITORY, "bundle", "create", "--quiet", bundle, "HEAD"])
    instead = f'[url "/srv/forebay.bundle"]\n\tinsteadOf = {ADDRESS}\n'
    (root / "etc/gitconfig").write_text(instead)
    _install_kafka(root)


def _install_kafka(root: Path) -> None:
    shutil.copytree(kafka_jars(KAFKA_4), root / "opt/kafka/libs")
    (root / "opt/kafka/bin").mkdir()
    for name in ("kafka-server-start.sh", "kafka-storage.sh", "kafka-topics.sh"):
        shutil.copy(CLUSTER / "images/kafka/kafka.sh", root / "opt/kafka/bin" / name)
        (root / "opt/kafka/bin" / name).chmod(0o755)
    (root / "etc/kafka").mkdir()
    write_properties(root, BEFORE)
    (root / "etc/systemd/system/kafka.service").write_text(KAFKA_UNIT)
    (root / "var/lib/kafka").mkdir()
    run(["chroot", root, "chown", "kafka", "/var/lib/kafka"])


def write_properties(root: Path, properties: dict[str, str]) -> None:
    """The broker's server.properties."""
    lines = "".join(f"{key}={value}\n" for key, value in properties.items())
    (root / "etc/kafka/server.properties").write_text(lines)


class Machine:
    """A running machine. `root`: its file system."""

    def __init__(self, root: Path) -> None:
        self.root = root
        hierarchy = NAMED_CGROUP if NAMED_CGROUP.is_dir() else Path("/sys/fs/cgroup")
        self._cgroup = hierarchy / f"forebay-machine-{os.getpid()}"
        self._cgroup.mkdir()
        version = "1" if NAMED_CGROUP.is_dir() else "2"
        environment = {"PATH": os.environ["PATH"], "container": "lxc", "ROOT": str(root)}
        self._log = (root.parent / "systemd.log").open("wb")
        flags = "--mount --pid --fork --kill-child --cgroup --uts --ipc --net"
        self._process = subprocess.Popen(
            [
                "sh",
                "-c",
                f"echo $$ > {self._cgroup}/cgroup.procs && exec unshare {flags} sh -c '{ENTER}'",
            ],
            env={**environment, "VERSION": version},
            stdout=self._log,
            stderr=self._log,
        )

    @property
    def _pid(self) -> int:
        path = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        return int(path.read_text().split()[0])

    def wait_for_systemd(self) -> None:
        """Until its services have started."""
        log = self.root.parent / "systemd.log"
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                if self.sudo("systemctl is-system-running || true").strip() in (
                    "running",
                    "degraded",
                ):
                    return
            except (AssertionError, OSError, IndexError):
                pass
            assert self._process.poll() is None and time.monotonic() < end, log.read_text()[-3000:]
            time.sleep(0.2)

    def admin(self, script: str, *, fetches: bool = False, fails: bool = False) -> str:
        """Run a script as the administrator, in the clone once there is one; what it printed. AssertionError if it ends
        otherwise than told. `fetches`: with this machine's network.
        """
        directory = "forebay" if (self.root / "home/admin/forebay").exists() else "."
        return self._run(
            ["su", "-", "admin", "-c", f"set -e; cd {directory}; {script}"], fetches, fails
        )

    def sudo(self, script: str) -> str:
        """Run a script as root."""
        return self._run(["sh", "-c", script], False, False)

    def _run(self, words: list[str], fetches: bool, fails: bool) -> str:
        within = ["--mount", "--pid", "--uts", "--ipc", "--cgroup", *([] if fetches else ["--net"])]
        path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        enter = ["nsenter", f"--target={self._pid}", *within, "--", "env", "-i", path]
        done = subprocess.run(
            [*enter, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert bool(done.returncode) == fails, f"{words[-1]}\n{done.stdout[-4000:]}"
        return done.stdout

    def wait_for_port(self, port: int) -> None:
        """Until somebody accepts connections there."""
        probe = f"exec 3<>/dev/tcp/127.0.0.1/{port}"
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._run(["bash", "-c", probe], False, False)
            except AssertionError:
                assert time.monotonic() < end, f"nobody listens at {port}"
                time.sleep(0.2)
            else:
                return

    def end(self) -> None:
        """Kill all of it."""
        try:
            os.kill(self._pid, signal.SIGKILL)
        except (IndexError, OSError):
            self._process.kill()
        self._process.wait()
        self._log.close()
        wait_until("the control group's end", lambda: remove_cgroup(self._cgroup), 60)

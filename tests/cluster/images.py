"""Builds the images with buildah: pause, the broker's, Forebay's by its own Containerfile. [process, network]

Owns the names of images and how they are built. Must not know the chart. Invariants:
* buildah and mmdebstrap run in a mount namespace that ends with the command; nothing of them is installed.
* an image's archive is named by what it was built from, where that is the repository's; the others are built once.
"""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.cluster.layout import HERE, ROOT, ClusterError, find_cache, find_image, find_packages
from tests.cluster.programs import run
from tests.kit.broker.jars import KAFKA_4, kafka_jars

REGISTRY = "images.invalid"
"""Where the images seem to come from. A name without a registry would be a public one to the node."""
FOREBAY = f"{REGISTRY}/forebay"
KAFKA = f"{REGISTRY}/apache/kafka:{KAFKA_4}"
KAFKA_ARCHIVE = f"kafka-{KAFKA_4}"
PRODUCT = ("proxy", "protocol", "blockcache", "throttle", "isolation", "metrics", "spark_audit")
BUILD_S = 1800.0
BASES = {
    "python": "ca-certificates,python3-venv,python3-dev,python-is-python3",
    "java": "openjdk-17-jre-headless",
    "machine": "ca-certificates,curl,git,openjdk-17-jre-headless,sudo,systemd",
}
"""Debian packages of each base, beside Debian's essential ones. `machine`: what an owner of a broker has."""
MACHINE_FILES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf")
"""How this machine reaches the package index, if its way is not the usual one."""


class Builder:
    """buildah with a store of its own."""

    def __init__(self, work: Path) -> None:
        self._work = work
        (work / "policy.json").write_text(
            json.dumps({"default": [{"type": "insecureAcceptAnything"}]})
        )
        (work / "registries.conf").write_text("")
        store = f'driver = "overlay"\ngraphroot = "{work}/store"\nrunroot = "{work}/run"\n'
        (work / "storage.conf").write_text(f"[storage]\n{store}")

    def make_directory(self, name: str) -> Path:
        """A new directory to build in."""
        path = self._work / name
        path.mkdir()
        return path

    def buildah(self, *words: str | Path) -> str:
        """Run one command and return its output. Raises ClusterError."""
        command, *rest = words
        policy: list[str | Path] = []
        if command in ("build", "commit", "from", "push"):
            policy = ["--signature-policy", self._work / "policy.json"]
        store: list[str | Path] = ["--root", self._work / "store"]
        store += ["--runroot", self._work / "run"]
        store += ["--storage-driver", "overlay"]
        return self.run_with_packages(["buildah", *store, command, *policy, *rest])

    def run_with_packages(self, command: Sequence[str | Path]) -> str:
        """Run a command of the unpacked packages: they lie over /usr while it runs."""
        layers = f"lowerdir={find_packages()}/usr:/usr"
        over = f'mount -t overlay overlay -o "{layers}" /usr && exec "$@"'
        unshare = ["nice", "-n", "5", "unshare", "--mount", "--propagation", "private"]
        environment = {
            **os.environ,
            "BUILDAH_ISOLATION": "chroot",
            "CONTAINERS_REGISTRIES_CONF": str(self._work / "registries.conf"),
            "CONTAINERS_STORAGE_CONF": str(self._work / "storage.conf"),
        }
        words = [*unshare, "sh", "-c", over, "sh", *map(str, command)]
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, timeout=BUILD_S, check=False
        )
        if done.returncode:
            raise ClusterError(f"{command[0]}: {done.stdout[-2000:]}{done.stderr[-4000:]}")
        return done.stdout

    def make_base(self, name: str) -> Path:
        """The archive of a Debian with BASES' packages, made once."""
        archive = find_cache() / "images" / f"base-{name}.tar"
        if not archive.exists():
            made = self._work / archive.name
            flags = ["--quiet", "--mode=root", "--variant=minbase", f"--include={BASES[name]}"]
            self.run_with_packages(["mmdebstrap", *flags, _find_release(), made])
            made.replace(archive)
        return archive

    def import_base(self, name: str) -> str:
        """`make_base` as an image. Returns the image's name."""
        archive = self.make_base(name)
        image = f"localhost/base-{name}:1"
        container = self.buildah("from", "scratch").strip()
        self.buildah("add", container, archive, "/")
        self.buildah("commit", "--rm", container, image)
        return image

    def save(self, image: str, archive: Path) -> None:
        """Write an image's archive, by one rename."""
        made = self._work / archive.name
        self.buildah("push", image, f"docker-archive:{made}:{image}")
        made.replace(archive)


@contextmanager
def building() -> Iterator[Builder]:
    """A builder whose store ends with the block. Its layers are overlays, so that it lies in the cache."""
    with tempfile.TemporaryDirectory(dir=find_cache(), ignore_cleanup_errors=True) as work:
        yield Builder(Path(work))


def build_fixed_images() -> None:
    """The images that do not change with the repository: pause and the broker's."""
    if not find_image("pause").exists():
        with building() as builder:
            directory = builder.make_directory("pause")
            source = HERE / "images/pause"
            flags = ["-Os", "-static", "-s", "-Wall", "-Wextra", "-Werror"]
            run(["gcc", *flags, "-o", directory / "pause", source / "pause.c"])
            _build(builder, "localhost/pause:1", source / "Containerfile", directory)
            builder.save("localhost/pause:1", find_image("pause"))
    if not find_image(KAFKA_ARCHIVE).exists():
        with building() as builder:
            directory = builder.make_directory("kafka")
            source = HERE / "images/kafka"
            shutil.copytree(kafka_jars(KAFKA_4), directory / "libs")
            run(["cp", source / "kafka.sh", directory / "kafka.sh"])
            base = builder.import_base("java")
            _build(builder, KAFKA, source / "Containerfile", directory, BASE=base)
            builder.save(KAFKA, find_image(KAFKA_ARCHIVE))


def build_forebay_image(tag: str) -> Path:
    """Forebay's own image from the work tree, and its archive's path. Built anew for another tag."""
    archive = find_image(f"forebay-{tag}")
    if archive.exists():
        return archive
    for old in archive.parent.glob("forebay-*.tar"):
        old.unlink()
    mounts = [f"--volume={name}:{name}:ro" for name in MACHINE_FILES if Path(name).exists()]
    with building() as builder:
        base = builder.import_base("python")
        name = f"{FOREBAY}:{tag}"
        file = ROOT / "helm/image/Containerfile"
        _build(builder, name, file, ROOT, *mounts, BASE=base, COMMIT=find_commit())
        builder.save(name, archive)
    return archive


def _build(
    builder: Builder, name: str, file: Path, context: Path, *flags: str, **arguments: str
) -> None:
    given = [f"--build-arg={key}={value}" for key, value in arguments.items()]
    builder.buildah("build", "-f", file, *given, *flags, "-t", name, context)


def find_commit() -> str:
    """The commit of the work tree."""
    return run(["git", "-C", ROOT, "rev-parse", "HEAD"]).strip()


@cache
def find_tag() -> str:
    """A tag that is another one after each change of what the image is built from. FOREBAY_IMAGE_TAG names an image
    that is in the cache already.
    """
    if named := os.environ.get("FOREBAY_IMAGE_TAG"):
        return named
    paths = ["helm/image", "pyproject.toml", "runtime.lock", "build.lock", "README.md", *PRODUCT]
    listed = run(
        ["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard", *paths]
    )
    hashed = run(["git", "-C", ROOT, "hash-object", "--stdin-paths"], stdin=_existing(listed))
    tree = run(["git", "-C", ROOT, "hash-object", "--stdin"], stdin=listed + hashed).strip()
    return f"t{tree[:12]}"


def _existing(listed: str) -> str:
    return "".join(f"{ROOT / name}\n" for name in listed.splitlines() if (ROOT / name).is_file())


def _find_release() -> str:
    for line in Path("/etc/os-release").read_text().splitlines():
        key, _, value = line.partition("=")
        if key == "VERSION_CODENAME":
            return value.strip('"')
    raise ClusterError("/etc/os-release names no release of Debian")

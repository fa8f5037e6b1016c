"""How each language's programme is made ready to run: jars and classes, Go binaries, npm's packages, an old wheel.

Owns the toolchains and what is cached. All versions are pinned with their hashes (*.lock, go.sum, package-lock.json,
librdkafka.txt); what is downloaded or built lies in the user's cache or in a temporary folder, never in the tree.
Invariant: a missing toolchain raises Unavailable with what to install; a build that fails is an error.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.kit.broker.class_archive import share_classes
from tests.kit.broker.jars import cache_home, kafka_jars, locked_jars
from tests.kit.broker.java import JavaMissing, find_java
from tests.kit.broker.process import JVM_FLAGS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUILD_TIMEOUT_S = 600.0
PYTHON = f"py{sys.version_info.major}{sys.version_info.minor}"


class Unavailable(RuntimeError):
    """A client's toolchain is not on this machine; the message says what is missing."""


class BuildFailed(RuntimeError):
    """A toolchain is there and failed; the message is what it printed."""


class Program(NamedTuple):
    """`command` takes BOOTSTRAP RUN STEP... behind it; `environment` is added to the caller's."""

    command: Sequence[str]
    environment: dict[str, str]


def run_tool(
    command: Sequence[str | Path], folder: Path, environment: dict[str, str] | None = None
) -> str:
    """What a build tool printed. Raises BuildFailed, subprocess.TimeoutExpired."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise BuildFailed(
            f"{' '.join(map(str, command))}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        )
    return done.stdout


def find_tool(name: str, package: str) -> str:
    """Path of a command. Raises Unavailable."""
    found = shutil.which(name)
    if found is None:
        raise Unavailable(f"no `{name}` command here (Debian: {package})")
    return found


def build_java(version: str, folder: Path, main: str = "Matrix", lock: str = "") -> Program:
    """The programme in Java, compiled against one version's jars: a lock beside it, or a broker's own."""
    try:
        java = Path(find_java())
        jars = (
            locked_jars(lock, (HERE / "java" / f"{lock}.lock").read_text())
            if lock
            else kafka_jars(version)
        )
    except JavaMissing as missing:
        raise Unavailable(str(missing)) from missing
    beside = java.resolve().with_name("javac")
    javac = str(beside) if beside.exists() else find_tool("javac", "openjdk-17-jdk-headless")
    sources = sorted((HERE / "java").glob("*.java"))
    if main == "Matrix":
        sources = [path for path in sources if not path.name.startswith("Streams")]
    classes = folder / f"classes-{lock or version}"
    flags = (f"-J{flag}" for flag in JVM_FLAGS)
    run_tool([javac, *flags, "-nowarn", "-d", classes, "-cp", f"{jars}/*", *sources], folder)
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
    shared = [] if lock else share_classes(version)
    path = (
        f"{jars}/*:{classes}"  # in this order: an archive is mapped where its jars are named first
    )
    return Program([str(java), "-Xmx192m", *JVM_FLAGS, *shared, quiet, "-cp", path, main], {})


def build_go(name: str, folder: Path) -> Program:
    """A programme in Go: the folder `name` of the module in go/, whose go.mod names what it imports itself.

    Versions of the rest follow from these (minimal version selection), and Go's checksum database vouches for their
    bytes: their names stay out of the tree, where go/ would otherwise list them; hence the copy.
    """
    go = find_tool("go", "golang-go")
    module = folder / "go"
    if not module.exists():
        shutil.copytree(HERE / "go", module)
    binary = folder / name
    run_tool([go, "build", "-mod=mod", "-o", binary, f"./{name}"], module)
    return Program([str(binary)], {})


def build_python(module: str) -> Program:
    """A programme in Python, with the libraries of this interpreter."""
    return Program([sys.executable, "-m", f"tests.matrix.programs.{module}"], {})


def build_codecs(module: str) -> Program:
    """A programme in Python whose library takes its codecs from packages that it does not require itself."""
    pins = HERE / "programs" / "codecs.txt"

    def make(folder: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--only-binary", ":all:"]
        run_tool([*pip, "--target", folder, "-r", pins], ROOT)

    folder = cached(f"codecs-{PYTHON}", [pins], make)
    return build_python(module)._replace(environment={"PYTHONPATH": str(folder)})


def cached(name: str, pins: Sequence[Path], make: Callable[[Path], None]) -> Path:
    """A folder of the user's cache, made once for these pins; it appears by one rename."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in pins)).hexdigest()[:12]
    target = cache_home() / f"{name}-{digest}"
    if not target.is_dir():
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=cache_home()) as staging:
            made = Path(staging) / "made"
            made.mkdir()
            make(made)
            made.rename(target)
    return target


def build_node(program: str) -> Program:
    """The programme in JavaScript, with npm's packages as locked, beside them so that imports find them."""
    node, npm = find_tool("node", "nodejs"), find_tool("npm", "npm")
    source = HERE / "js"
    sources = sorted(path for path in source.iterdir() if path.is_file())

    def make(folder: Path) -> None:
        for path in sources:
            shutil.copy(path, folder / path.name)
        run_tool([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], folder)

    return Program(
        [node, str(cached("kafkajs", sources, make) / program)],
        {"KAFKAJS_NO_PARTITIONER_WARNING": "1"},
    )


def build_librdkafka() -> Program:
    """confluent-kafka 1.9.2 over librdkafka 1.9.2, for this Python.

    Its wheels end before Python 3.11, so its extension is compiled, against the static library and header that
    confluent-kafka-go 1.9.2 carries: the same build of librdkafka as the wheels'.
    """
    go, source = find_tool("go", "golang-go"), HERE / "librdkafka"

    def make(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            module = shutil.copytree(source, Path(scratch) / "module")  # Go adds to go.sum
            said = run_tool([go, "mod", "download", "-json"], module)
            vendor = Path(json.loads(said)["Dir"]) / "kafka" / "librdkafka_vendor"
            include = Path(scratch) / "include" / "librdkafka"
            include.mkdir(parents=True)
            for header in vendor.glob("*.h"):
                shutil.copy(header, include)
            shutil.copy(vendor / "librdkafka_glibc_linux.a", Path(scratch) / "librdkafka.a")
            environment = os.environ | {
                "C_INCLUDE_PATH": str(include.parent),
                "LIBRARY_PATH": scratch,
                "LDFLAGS": "-lm -ldl -lpthread -lrt",
            }
            pip = [
                sys.executable,
                "-m",
                "pip",
                "install",
                "-q",
                "--no-deps",
                "--no-binary",
                ":all:",
            ]
            pins = ["--require-hashes", "-r", str(source / "requirements.txt")]
            run_tool([*pip, "--target", folder, *pins], ROOT, environment)

    find_tool("cc", "gcc libc6-dev")
    folder = cached(f"confluent-kafka-1.9.2-{PYTHON}", sorted(source.iterdir()), make)
    return build_python("confluent")._replace(environment={"PYTHONPATH": str(folder)})

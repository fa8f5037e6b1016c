"""Kafka's jars: pinned by version and SHA-256, fetched once into the user's cache, verified before each use.

Owns the cache directory (forebay/kafka under $XDG_CACHE_HOME or ~/.cache), shared by all clones. A version's
directory appears by one rename, complete and verified, under a lock held by the fetching process. The
fetching is Apache Ivy's, which PySpark carries and which knows Maven Central by itself. Must not know what
the jars are used for.
"""

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.kit.broker.java import find_java

if TYPE_CHECKING:
    from collections.abc import Sequence

KAFKA_4 = "4.3.1"
KAFKA_3 = "3.9.2"
VERSIONS = (KAFKA_4, KAFKA_3)
ATTEMPTS = 3
FETCH_TIMEOUT_S = 900.0
PINNED = 'transitive="false" conf="all->master"'


class FetchFailed(RuntimeError):
    """The jars could not be fetched, or are not the pinned ones."""


class Jar(NamedTuple):
    """One line of a lock: `sha256 group:artifact:version`, or `...:version:classifier` (Maven's, e.g. "test")."""

    sha256: str
    group: str
    artifact: str
    version: str
    classifier: str = ""

    @property
    def file_name(self) -> str:
        return "--".join(filter(None, self[1:])) + ".jar"

    @property
    def dependency(self) -> str:
        """Ivy's element for this jar alone."""
        said = f'org="{self.group}" name="{self.artifact}" rev="{self.version}" {PINNED}'
        if not self.classifier:
            return f"<dependency {said}/>"
        maven = f'm:classifier="{self.classifier}" xmlns:m="http://ant.apache.org/ivy/maven"'
        return (
            f'<dependency {said}><artifact name="{self.artifact}" type="jar" {maven}/></dependency>'
        )


def lock_path(version: str) -> Path:
    """The lock of one Kafka version; raises ValueError for one that is not pinned."""
    if version not in VERSIONS:
        raise ValueError(f"Kafka {version} is not pinned; there are {', '.join(VERSIONS)}")
    return Path(__file__).with_name(f"kafka-{version}.lock")


def scan_lock(text: str) -> list[Jar]:
    """The jars of a lock's text; `#` begins a comment line."""
    jars = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            sha256, coordinates = line.split(" ")
            jars.append(Jar(sha256, *coordinates.split(":")))
    return jars


def cache_home() -> Path:
    """The user's cache directory of this project (created)."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    home = Path(base) / "forebay" / "kafka"
    home.mkdir(parents=True, exist_ok=True)
    return home


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def wrong_jars(directory: Path, jars: "Sequence[Jar]") -> list[str]:
    """Names of the jars that are absent from the directory or are not the pinned bytes."""
    return [
        jar.file_name
        for jar in jars
        if not (directory / jar.file_name).is_file()
        or hash_file(directory / jar.file_name) != jar.sha256
    ]


@functools.cache
def kafka_jars(version: str = KAFKA_4) -> Path:
    """The directory with a version's verified jars, fetched if need be. Raises FetchFailed, JavaMissing."""
    return locked_jars(version, lock_path(version).read_text())


def locked_jars(name: str, lock: str) -> Path:
    """The directory with the verified jars of a lock's text, fetched if need be. Raises FetchFailed, JavaMissing."""
    jars = scan_lock(lock)
    home = cache_home()
    target = home / f"{name}-{hashlib.sha256(lock.encode()).hexdigest()[:12]}"
    with (home / ".lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if target.is_dir() and not wrong_jars(target, jars):
            return target
        shutil.rmtree(target, ignore_errors=True)
        staging = Path(tempfile.mkdtemp(prefix=".fetch-", dir=home))
        try:
            fetch(name, jars, staging).rename(target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return target


def fetch(name: str, jars: "Sequence[Jar]", staging: Path) -> Path:
    """Fetches and verifies the pinned jars; returns the directory below `staging` that holds them."""
    print(f"fetching {len(jars)} jars of {name}, once for this user", file=sys.stderr, flush=True)
    wanted = "".join(jar.dependency for jar in jars)
    wrong = ["everything"]
    for _ in range(ATTEMPTS):
        said = run_ivy(wanted, staging)
        wrong = wrong_jars(staging / "jars", jars)
        if not wrong:
            return staging / "jars"
    raise FetchFailed(
        f"jars of {name}: missing or not the pinned bytes: {', '.join(wrong)}\n{said[-2000:]}"
    )


def run_ivy(dependencies: str, staging: Path) -> str:
    """Resolves `<dependency>` elements, puts the jars into staging/jars and returns what Ivy printed."""
    description = staging / "ivy.xml"
    description.write_text(
        '<ivy-module version="2.0"><info organisation="forebay" module="kafka"/>'
        '<configurations><conf name="all"/></configurations>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )
    pattern = f"{staging}/jars/[organisation]--[module]--[revision](--[classifier]).jar"
    command = [
        find_java(),
        "-jar",
        str(ivy_jar()),
        "-cache",
        str(staging / "ivy"),
        "-ivy",
        str(description),
    ]
    command += ["-types", "jar", "bundle", "-retrieve", pattern]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=FETCH_TIMEOUT_S,
        check=False,
    )
    return done.stdout


def ivy_jar() -> Path:
    """Apache Ivy out of the PySpark installed beside us."""
    for directory in map(Path, sys.path):
        for jar in sorted((directory / "pyspark" / "jars").glob("ivy-*.jar")):
            return jar
    raise FetchFailed(
        "Apache Ivy not found: it comes with PySpark (pip install '.[audit]', or make build)"
    )

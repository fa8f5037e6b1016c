"""A Spark session for the audit, and the Java it needs.

Owns finding a Java that Spark runs on and the session's settings. Must not know what is computed. Invariants:
whatever is missing is said with the package that brings it (NotReady), never as a stack trace; a Java that
the user chose by JAVA_HOME is used if it fits, else one that fits is looked for.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from pyspark.sql import SparkSession

GOOD_RELEASES: Final = (17, 21)
VECTOR_MODULE: Final = "jdk.incubator.vector"
SMALL_INPUT_BYTES: Final = 256 << 20
TINY_INPUT_BYTES: Final = 4 << 20
_TINY_INPUT_SETTINGS: Final[dict[str, str]] = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Over tiny input plans are neither changed while they run nor compiled: a third less CPU."""
_JVM_DIRECTORY: Final = Path("/usr/lib/jvm")
_INSTALL: Final = (
    "The audit runs on Spark, which needs Java 17 or 21. On Debian 12 or Ubuntu: apt install"
    " openjdk-17-jre-headless; on Debian 13: apt install openjdk-21-jre-headless. Elsewhere set JAVA_HOME."
)
_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")


class NotReady(Exception):
    """Something that the audit needs is not installed; the message says what to do."""


class Java(NamedTuple):
    """A Java installation: its home, feature release (17, 21 …) and whether it has Spark's vector module."""

    home: Path
    release: int
    has_vector: bool

    @property
    def fits(self) -> bool:
        """Whether Spark 4 runs on it."""
        return self.release in GOOD_RELEASES and self.has_vector


def open_session(master: str | None, input_bytes: int = 0) -> SparkSession:
    """A quiet session: local on all cores, or on `master` with its settings. NotReady: no Java fits."""
    os.environ["JAVA_HOME"] = str(find_java().home)
    builder = (
        SparkSession.builder.appName("forebay audit")
        .master(master or "local[*]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.extraJavaOptions", _java_options(input_bytes))
    )
    if master is None or master.startswith("local"):
        builder = (
            builder.config("spark.sql.shuffle.partitions", "4")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
        )
        if input_bytes < TINY_INPUT_BYTES:
            builder = builder.config(map={**_TINY_INPUT_SETTINGS})
    return builder.getOrCreate()


def _java_options(input_bytes: int) -> str:
    """Over little input most of the time goes to the compiler: its first tier alone takes 40 % less CPU.
    One thread collects what little garbage there is.
    """
    options = f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}"
    quick = " -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    return options + (quick if input_bytes < SMALL_INPUT_BYTES else "")


def find_java() -> Java:
    """JAVA_HOME's or PATH's Java if it fits, else the first below the usual directory. NotReady: none."""
    seen = []
    for home in _candidate_homes():
        java = probe_java(home)
        if java is not None and java.fits:
            return java
        if java is not None:
            seen.append(java)
    raise NotReady(describe_unfit(seen))


def describe_unfit(seen: Iterable[Java]) -> str:
    """What was found instead of a fitting Java, and what to install."""
    reasons = []
    for java in seen:
        if java.release not in GOOD_RELEASES:
            reasons.append(f"{java.home} is Java {java.release}")
        else:
            reasons.append(f"{java.home} lacks the module {VECTOR_MODULE} (a trimmed runtime)")
    found = f" Found: {'; '.join(reasons)}." if reasons else " Found: no Java at all."
    return _INSTALL + found


def probe_java(home: Path) -> Java | None:
    """Ask the Java in `home` what it is; None if there is none that answers."""
    java = home / "bin" / "java"
    try:
        version = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=60, check=True
        )
        modules = subprocess.run(
            [java, "--list-modules"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return Java(home, scan_release(version.stderr), VECTOR_MODULE in modules.stdout)


def scan_release(text: str) -> int:
    """The feature release in `java -version`'s text (1.8 is 8); 0 if there is none."""
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match[1]) if match else 0


def _candidate_homes() -> Iterable[Path]:
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"])
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path).resolve().parent.parent
    if _JVM_DIRECTORY.is_dir():
        yield from sorted(
            path for path in _JVM_DIRECTORY.iterdir() if (path / "bin" / "java").exists()
        )

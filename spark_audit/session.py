"""A Spark session for the audit, and the Java it needs.

Owns finding a Java that Spark runs on and the session's settings. Must not know what is computed. Invariants:
whatever is missing is said with the package that brings it (NotReady), and a failed job with its reason, never as a
stack trace; a Java that the user chose by JAVA_HOME is used if it fits, else one that fits is looked for.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

SPARK_ERRORS: Final = (PySparkException, Py4JError)
"""What a failed job or an unreachable store raises."""
GOOD_RELEASES: Final = (17, 21)
VECTOR_MODULE: Final = "jdk.incubator.vector"
SMALL_INPUT_BYTES: Final = 256 << 20
TINY_INPUT_BYTES: Final = 4 << 20
_SMALL_INPUT_SETTINGS: Final[dict[str, str]] = {"spark.sql.adaptive.enabled": "false"}
"""Over small input plans do not change while they run: each shuffle would be a job of its own, a fifth more CPU."""
_TINY_INPUT_SETTINGS: Final[dict[str, str]] = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.maxPlanStringLength": "1000",
}
"""Over tiny input plans are neither compiled nor described: a third less CPU, with the other settings."""
_SKEW_SETTINGS: Final[dict[str, str]] = {
    "spark.sql.adaptive.skewJoin.skewedPartitionFactor": "2",
    "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes": "64m",
}
"""Many fetches at one place of a partition are one key of a join: Spark divides a task that has twice the median."""
_MEMORY_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_JVM_DIRECTORY: Final = Path("/usr/lib/jvm")
_INSTALL: Final = (
    "The audit runs on Spark, which needs Java 17 or 21. On Debian 12 or Ubuntu: apt install"
    " openjdk-17-jre-headless; on Debian 13: apt install openjdk-21-jre-headless. Elsewhere set JAVA_HOME."
)
_IS_FULL: Final = "No space left on device"
_NO_ROOM: Final = (
    "Spark sorts in files, which may take more room than the table does; --conf spark.local.dir=DIR names"
    " another disk for them"
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


def describe_spark_error(error: Exception) -> str:
    """The reason of one of SPARK_ERRORS in one line, without a trace: its first cause where it names one. A full disk
    has its remedy.
    """
    text = _find_root(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
    causes = [line for line in text.splitlines() if line.startswith("Caused by: ")]
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    reason = causes[-1].removeprefix("Caused by: ") if causes else first.strip()
    return f"{reason}: {_NO_ROOM}" if _IS_FULL in text else reason


def _find_root(exception: Any) -> str:
    """What the first cause of a Java exception says."""
    while (cause := exception.getCause()) is not None:
        exception = cause
    return str(exception.toString())


def open_session(
    master: str | None, input_bytes: int | None = 0, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A quiet session. Under spark-submit its master and configuration hold, else `master` (None: this machine's
    cores); `settings` are the user's and come last. `input_bytes`: what is read, None where nobody knows: then no
    setting counts on little. NotReady: no Java fits, or Spark does not start.
    """
    own: dict[str, bool | float | int | str | None] = {**(settings or {})}
    if is_submitted():
        return _fit(
            _start(SparkSession.builder.appName("forebay audit").config(map=own)),
            settings or {},
            input_bytes,
        )
    os.environ["JAVA_HOME"] = str(find_java().home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    chosen = {**read_defaults(os.environ), **(settings or {})}
    master = master or chosen.get("spark.master") or os.environ.get("MASTER") or "local[*]"
    planned = plan_settings(master, input_bytes)
    builder = SparkSession.builder.appName("forebay audit").master(master)
    builder = builder.config(map={key: planned[key] for key in planned if key not in chosen})
    return _fit(_start(builder.config(map=own)), chosen, input_bytes)


def plan_settings(
    master: str, input_bytes: int | None
) -> dict[str, bool | float | int | str | None]:
    """What a session is started with where the user has chosen nothing else."""
    planned: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": _java_options(input_bytes),
        "spark.driver.memory": f"{plan_heap_bytes(machine_memory_bytes()) >> 20}m",
    }
    if master.startswith("local"):
        planned |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
        if _is_below(input_bytes, SMALL_INPUT_BYTES):
            planned |= _SMALL_INPUT_SETTINGS
        if _is_below(input_bytes, TINY_INPUT_BYTES):
            planned |= _TINY_INPUT_SETTINGS
    return planned


def plan_shuffle_tasks(parallelism: int, has_local_workers: bool, input_bytes: int | None) -> int:
    """Tasks of a shuffle: for tiny input one, for small input four, else two for each core or one for 64 MiB."""
    if has_local_workers and _is_below(input_bytes, SMALL_INPUT_BYTES):
        return 1 if _is_below(input_bytes, TINY_INPUT_BYTES) else 4
    return min(max(4, 2 * parallelism, (input_bytes or 0) >> 26), 2000)


def _is_below(input_bytes: int | None, bound: int) -> bool:
    return input_bytes is not None and input_bytes < bound


def _start(builder: SparkSession.Builder) -> SparkSession:
    """NotReady: the master cannot be reached, or Spark refuses a setting."""
    try:
        return builder.getOrCreate()
    except SPARK_ERRORS as error:
        raise NotReady(f"Spark did not start: {describe_spark_error(error)}") from error


def is_submitted() -> bool:
    """Whether spark-submit has started this process: then there is a JVM with a master and a configuration."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def is_local(spark: SparkSession) -> bool:
    """Whether the session's workers are this process's threads."""
    return (spark.sparkContext.master or "").startswith("local")


def _fit(
    spark: SparkSession, chosen: Mapping[str, str], input_bytes: int | None = 0
) -> SparkSession:
    """Settings of the session that the user has not chosen. Times are UTC everywhere."""
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    given = {key for key, _ in spark.sparkContext.getConf().getAll()} | chosen.keys()
    if "spark.sql.shuffle.partitions" not in given:
        parallelism = spark.sparkContext.defaultParallelism
        tasks = plan_shuffle_tasks(parallelism, is_local(spark), input_bytes)
        spark.conf.set("spark.sql.shuffle.partitions", str(tasks))
    for key in _SKEW_SETTINGS.keys() - given:
        spark.conf.set(key, _SKEW_SETTINGS[key])
    return spark


def read_defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """The user's spark-defaults.conf; empty without one."""
    home = environment.get("SPARK_HOME")
    directory = environment.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else "")
    path = Path(directory) / "spark-defaults.conf"
    if not directory or not path.is_file():
        return {}
    words = [line.split(None, 1) for line in path.read_text(encoding="utf-8").splitlines()]
    return {pair[0]: pair[1].strip() for pair in words if len(pair) == 2 and pair[0][0] != "#"}


def machine_memory_bytes(
    limits: Iterable[Path] = _MEMORY_LIMITS, total_bytes: int | None = None
) -> int:
    """What this process may use: the machine's memory, or its container's limit."""
    total = total_bytes or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in limits:
        with suppress(OSError, ValueError):
            total = min(total, int(path.read_text()))
    return total


def plan_heap_bytes(memory_bytes: int) -> int:
    """A quarter of the memory, from 1 to 2 GiB: beside the heap there are a worker of about 300 MiB for each core
    and the page cache.
    """
    return min(max(memory_bytes // 4, 1 << 30), 2 << 30)


def plan_partition_bytes(spark: SparkSession, total_bytes: int) -> int:
    """Stored bytes of one task: at least four tasks for each core, from 1 to 32 MiB."""
    share = total_bytes // (4 * max(1, spark.sparkContext.defaultParallelism))
    return min(max(share, 1 << 20), 32 << 20)


def _java_options(input_bytes: int | None) -> str:
    """Half of a report's time went to the compiler. Over little input its first tier alone takes 40 % less CPU, and one
    thread collects what little garbage there is; over more, the second tier compiles only what runs for long.
    """
    options = f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}"
    quick = " -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    patient = (
        " -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=20000"
        " -XX:Tier4CompileThreshold=100000 -XX:Tier4BackEdgeThreshold=800000"
    )
    return options + (quick if _is_below(input_bytes, SMALL_INPUT_BYTES) else patient)


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

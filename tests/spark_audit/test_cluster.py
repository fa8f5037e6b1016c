"""On a standalone cluster whose workers share HDFS or S3 with the driver and nothing else, a report is that of one
machine.

Each run is a process of its own, as a user starts it; the workers' mounts hide the driver's directory.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import spark_audit
from spark_audit.console import EXIT_DONE, EXIT_USAGE
from spark_audit.job import SCRATCH
from tests.spark_audit.cluster import HOST, SPARK_HOME, STORES, WORKERS, Cluster, can_unshare
from tests.spark_audit.traffic import write_log

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not can_unshare(), reason="this user may not unshare mounts: run as root, or allow it"
    ),
]

PARTITIONS = 7
HEAP = "700m"


class Ran(NamedTuple):
    """What a command printed and said (spark-submit prints both), and the events of its session."""

    printed: str
    said: str
    events: list[dict[str, Any]]

    @property
    def properties(self) -> dict[str, str]:
        """Spark's settings, of all that the session began with."""
        told = [one for one in self.events if one["Event"] == "SparkListenerEnvironmentUpdate"]
        found: dict[str, str] = told[0]["Spark Properties"]
        return found

    @property
    def shuffles(self) -> set[int]:
        """Numbers of partitions after shuffles by keys, of all plans."""
        found = re.findall(r"hashpartitioning\([^()]*, (\d+)\)", json.dumps(self.events))
        return set(map(int, found))

    @property
    def executors(self) -> int:
        """How many worked for it."""
        return sum(one["Event"] == "SparkListenerExecutorAdded" for one in self.events)


class Place(NamedTuple):
    """The cluster, and the driver's directory with `logs`, of which the store has a copy."""

    cluster: Cluster
    driver: Path

    @property
    def logs(self) -> Path:
        return self.driver / "logs"

    def read(self, out: str) -> dict[str, Any]:
        """The summary of a report in the store."""
        found: dict[str, Any] = json.loads(self.cluster.read(f"{out}/summary.json"))
        return found

    def run(self, command: list[str], name: str, exit_code: int = EXIT_DONE) -> Ran:
        """The command in the driver's directory, to this end."""
        events = self.driver / f"events-{name}"
        events.mkdir()
        (self.driver / "tmp").mkdir(exist_ok=True)
        defaults = self.driver / "spark-defaults.conf"
        defaults.write_text(
            f"spark.eventLog.enabled true\nspark.eventLog.compress false\nspark.eventLog.dir {events.as_uri()}\n"
            "spark.eventLog.rolling.enabled false\nspark.sql.shuffle.partitions 5\n"
            + "".join(f"{key} {value}\n" for key, value in self.cluster.settings.items())
        )
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_CONF_DIR": str(self.driver),
            "PYSPARK_PYTHON": sys.executable,
            "TMPDIR": str(self.driver / "tmp"),
        }
        done = subprocess.run(
            command,
            cwd=self.driver,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == exit_code, done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr, done.stdout + done.stderr
        (log,) = events.iterdir()
        said = [json.loads(line) for line in log.read_text().splitlines()]
        return Ran(done.stdout, done.stderr, said)


@pytest.fixture(scope="module", params=STORES)
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    root, driver = tmp_path_factory.mktemp("cluster"), tmp_path_factory.mktemp("driver")
    for boot in ("b1", "b22"):
        write_log(driver / "logs", boot, rounds=800)
    with Cluster(root, driver, request.param) as cluster:
        for path in (driver / "logs").iterdir():
            cluster.put(f"logs/{path.name}", path.read_bytes())
        yield Place(cluster, driver)


@pytest.fixture(scope="module")
def expected(place: Place) -> dict[str, Any]:
    """The report of one machine over the same files."""
    command = [sys.executable, "-m", "spark_audit", str(place.logs), "--out", "local"]
    place.run([*command, "--master", "local[2]"], "local")
    found: dict[str, Any] = json.loads((place.driver / "local" / "summary.json").read_text())
    return found


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name in set(found) - {"log"}:
        assert found[name] == expected[name], name
    for name in set(found["log"]) - {"files", "incompleteFiles"}:
        assert found["log"][name] == expected["log"][name], name


def test_a_report_of_a_cluster_is_that_of_one_machine(
    place: Place, expected: dict[str, Any]
) -> None:
    """`--conf` and `--master` win over the audit's own settings and over spark-defaults.conf."""
    out = f"{place.cluster.root}/report"
    command = [sys.executable, "-m", "spark_audit", f"{place.cluster.root}/logs", "--out", out]
    command += ["--master", place.cluster.master, "--conf", f"spark.driver.memory={HEAP}"]
    command += ["--conf", f"spark.sql.shuffle.partitions={PARTITIONS}"]
    ran = place.run(command, "cluster")
    assert ran.printed.split() == [f"{out}/index.html", f"{out}/summary.json"]
    assert_same(place.read("report"), expected)
    assert b"</html>" in place.cluster.read("report/index.html")
    assert place.cluster.holds("report/tables") and not place.cluster.holds(f"report/{SCRATCH}")
    chosen = ran.properties
    assert (chosen["spark.master"], chosen["spark.driver.memory"]) == (place.cluster.master, HEAP)
    assert ran.shuffles == {PARTITIONS} and ran.executors == WORKERS


def test_spark_submit_has_the_last_word(place: Place, expected: dict[str, Any]) -> None:
    """A table of ingest, then its report, both submitted."""
    table, out = f"{place.cluster.root}/table", f"{place.cluster.root}/submitted"
    submit = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", place.cluster.master]
    submit += ["--conf", f"spark.sql.shuffle.partitions={PARTITIONS}"]
    submit += ["--conf", "spark.executor.memory=600m"]
    submit.append(str(next(iter(spark_audit.__path__))) + "/__main__.py")
    before = len(place.cluster.list_applications())
    ran = place.run([*submit, "ingest", f"{place.cluster.root}/logs", table], "ingest")
    assert "100 % of" in ran.printed and ran.properties["spark.executor.memory"] == "600m"
    ran = place.run([*submit, table, "--out", out], "submit")
    assert_same(place.read("submitted"), expected)
    assert ran.properties["spark.master"] == place.cluster.master
    assert ran.shuffles == {PARTITIONS}
    applications = place.cluster.list_applications()[before:]
    assert [one["memoryperexecutor"] for one in applications] == [600, 600]


def test_workers_that_see_nothing_of_the_driver_are_an_error_and_no_empty_report(
    place: Place,
) -> None:
    """Their `file:` is another machine's."""
    out = place.driver / "alone"
    command = [sys.executable, "-m", "spark_audit", f"{place.cluster.root}/logs", "--out", str(out)]
    ran = place.run([*command, "--master", place.cluster.master], "alone", EXIT_USAGE)
    assert "Spark's workers share no file:" in ran.said and ran.executors == WORKERS
    assert not (out / "index.html").exists()

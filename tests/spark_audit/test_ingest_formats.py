"""Tables of Delta and Iceberg, by Spark's format option, say what Parquet and the logs themselves say.

The newest runtime of both is for an older Spark than the newest: PySpark 4.1 runs the audit here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_audit.session import find_java
from tests.spark_audit.pinned import fetch_jars, fetch_packages
from tests.spark_audit.traffic import write_log

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parents[2]
PYSPARK = "pyspark-4.1.4"
DELTA, ICEBERG = "delta-4.2.0", "iceberg-1.12.0"
SETTINGS = {
    DELTA: {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    },
    ICEBERG: {
        "spark.sql.catalog.default_iceberg": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.default_iceberg.type": "hadoop",
    },
}
SUMS = ("topics.json", "periods.json")


class Place:
    """Two logs, and the audit under another PySpark with the jars of a format."""

    def __init__(self, root: Path, jars: str) -> None:
        self.root = root
        files = sorted(str(path) for path in fetch_jars(jars).glob("*.jar"))
        settings = SETTINGS[jars] | {"spark.jars": ",".join(files)}
        if jars == ICEBERG:
            settings["spark.sql.catalog.default_iceberg.warehouse"] = (root / "other").as_uri()
        self.settings = [f"--conf={key}={value}" for key, value in settings.items()]
        for name, boot in (("one", "b1"), ("two", "b22")):
            write_log(root / name, boot, rounds=100)

    def run(self, *arguments: str) -> None:
        path = os.pathsep.join([str(fetch_packages(PYSPARK)), str(ROOT)])
        named = {"PYTHONPATH": path, "JAVA_HOME": str(find_java().home)}
        command = [sys.executable, "-m", "spark_audit", *arguments, *self.settings]
        done = subprocess.run(
            command,
            cwd=self.root,
            env=os.environ | named,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def report(self, *inputs: str) -> dict[str, Any]:
        out = self.root / f"out-{'-'.join(inputs)}"
        self.run(*inputs, "--out", str(out))
        found: dict[str, Any] = {name: (out / name).read_text() for name in SUMS}
        summary = json.loads((out / "summary.json").read_text())
        return found | {"sizing": summary["sizing"], "fetches": summary["fetches"]}


def list_ingests(table: Path) -> list[Sequence[Any]]:
    commits = sorted((table / "_forebay").glob("*.json"))
    return [json.loads(path.read_text())["files"] for path in commits]


@pytest.mark.parametrize(("data_format", "jars"), [("delta", DELTA), ("iceberg", ICEBERG)])
def test_a_table_of_a_format_says_what_the_logs_say(
    tmp_path: Path, data_format: str, jars: str
) -> None:
    place = Place(tmp_path, jars)
    for name in ("one", "two", "one"):
        place.run("ingest", name, "table", "--format", data_format)
    ingests = list_ingests(tmp_path / "table")
    assert len(ingests) == 2 and all(ingests), "what was read is not read again"
    assert place.report("table") == place.report("one", "two")
    marks = {"delta": "_delta_log", "iceberg": "metadata"}
    assert (tmp_path / "table" / "lines" / marks[data_format]).is_dir()

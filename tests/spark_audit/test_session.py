"""Settings of a session: they count on little input only where it is known to be little."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spark_audit.reading import find_inputs
from spark_audit.session import (
    SMALL_INPUT_BYTES,
    TINY_INPUT_BYTES,
    plan_settings,
    plan_shuffle_tasks,
)

if TYPE_CHECKING:
    from pathlib import Path

CODEGEN = "spark.sql.codegen.wholeStage"
OPTIONS = "spark.driver.extraJavaOptions"


@pytest.mark.parametrize(
    "name", ["s3a://bucket/table", "hdfs://host:8020/logs", "s3a://bucket/logs/*.jsonl.gz"]
)
def test_a_remote_table_is_not_taken_for_tiny_input(name: str, tmp_path: Path) -> None:
    (tmp_path / "access-a.jsonl").write_bytes(b"x" * 10)
    size_bytes = find_inputs([tmp_path, name]).size_bytes
    assert size_bytes is None
    settings = plan_settings("local[*]", size_bytes)
    assert CODEGEN not in settings and "TieredStopAtLevel" not in str(settings[OPTIONS])
    assert plan_shuffle_tasks(2, True, size_bytes) == 4
    assert plan_shuffle_tasks(16, True, size_bytes) == 32


def test_input_of_this_machine_is_measured_by_path_uri_and_pattern(tmp_path: Path) -> None:
    for name, size_bytes in (("a.jsonl", 10), ("b.jsonl", 200), ("c.jsonl.gz", 3000)):
        (tmp_path / name).write_bytes(b"x" * size_bytes)
    for name, expected in (
        (str(tmp_path), 3210),
        (tmp_path.as_uri(), 3210),
        (f"{tmp_path}/*.jsonl", 210),
        (f"{tmp_path}/a.jsonl", 10),
        (f"{tmp_path}/absent", 0),
    ):
        assert find_inputs([name]).size_bytes == expected, name


@pytest.mark.parametrize(
    ("input_bytes", "is_interpreted", "is_quick", "tasks"),
    [
        (0, True, True, 1),
        (TINY_INPUT_BYTES - 1, True, True, 1),
        (TINY_INPUT_BYTES, False, True, 4),
        (SMALL_INPUT_BYTES - 1, False, True, 4),
        (SMALL_INPUT_BYTES, False, False, 8),
        (100 << 26, False, False, 100),
        (1 << 50, False, False, 2000),
    ],
)
def test_settings_go_by_the_amount(
    input_bytes: int, is_interpreted: bool, is_quick: bool, tasks: int
) -> None:
    settings = plan_settings("local[*]", input_bytes)
    assert (settings.get(CODEGEN) == "false") is is_interpreted
    assert ("TieredStopAtLevel=1" in str(settings[OPTIONS])) is is_quick
    assert plan_shuffle_tasks(4, True, input_bytes) == tasks


def test_workers_of_a_cluster_get_no_settings_for_tiny_input() -> None:
    assert CODEGEN not in plan_settings("spark://host:7077", 0)
    assert plan_shuffle_tasks(16, False, 0) == 32

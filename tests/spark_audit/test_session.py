"""Settings of a session: they count on little input only where it is known to be little."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from spark_audit.reading import find_inputs
from spark_audit.session import (
    SMALL_INPUT_BYTES,
    SPARK_ERRORS,
    TINY_INPUT_BYTES,
    describe_spark_error,
    machine_memory_bytes,
    plan_heap_bytes,
    plan_partition_bytes,
    plan_settings,
    plan_shuffle_tasks,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

CODEGEN = "spark.sql.codegen.wholeStage"
ADAPTIVE = "spark.sql.adaptive.enabled"
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
    assert (settings.get(ADAPTIVE) == "false") is is_quick
    assert plan_shuffle_tasks(4, True, input_bytes) == tasks


def test_workers_of_a_cluster_get_no_settings_for_tiny_input() -> None:
    assert not {CODEGEN, ADAPTIVE} & plan_settings("spark://host:7077", 0).keys()
    assert plan_shuffle_tasks(16, False, 0) == 32


def test_the_heap_is_a_quarter_of_the_memory_within_bounds() -> None:
    gib = 1 << 30
    heaps = [plan_heap_bytes(memory) for memory in (gib, 4 * gib, 6 * gib, 8 * gib, 512 * gib)]
    assert heaps == [gib, gib, 3 * gib // 2, 2 * gib, 2 * gib]


def test_a_container_s_limit_is_its_memory(tmp_path: Path) -> None:
    limits = [tmp_path / name for name in ("limit", "unlimited", "absent")]
    limits[0].write_text("3000000000\n")
    limits[1].write_text("max\n")
    assert machine_memory_bytes(limits, 8_000_000_000) == 3_000_000_000
    assert machine_memory_bytes(limits[1:], 8_000_000_000) == 8_000_000_000


@pytest.mark.parametrize(
    ("cores", "total_bytes", "task_bytes"),
    [(2, 1, 1 << 20), (2, 128 << 20, 16 << 20), (16, 128 << 20, 2 << 20), (2, 1 << 40, 32 << 20)],
)
def test_a_task_s_share_leaves_work_for_every_core(
    cores: int, total_bytes: int, task_bytes: int
) -> None:
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=cores))
    assert plan_partition_bytes(spark, total_bytes) == task_bytes


def test_an_error_is_told_by_its_first_cause_and_a_full_disk_with_its_remedy(
    spark: SparkSession,
) -> None:
    """As Spark gives it: what was waited for in a thread of its own says only that it failed."""
    jvm: Any = spark._jvm
    full = jvm.java.io.IOException("No space left on device")
    for inner in (full, jvm.java.io.IOException("disk quota")):
        waited = jvm.java.util.concurrent.CompletableFuture()
        waited.completeExceptionally(jvm.java.lang.RuntimeException("job aborted", inner))
        with pytest.raises(SPARK_ERRORS) as failed:
            waited.get()
        told = describe_spark_error(failed.value)
        assert told.startswith(f"java.io.IOException: {inner.getMessage()}")
        assert ("--conf spark.local.dir=DIR" in told) is (inner is full)

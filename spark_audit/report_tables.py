"""The Parquet tables of a report, in `<out>/tables`, and their rows for the page.

Owns which tables there are, how each is written, and the order in which rows are shown. Must not know the page.
Invariants: nothing is computed twice; a table that is as long as there are results, topics or boots is collected once
and written from here; others, as long as there are partitions, clients, windows or sections, are written by workers
and read back from there, TOP rows of them or WINDOWS windows.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import functions as F

from spark_audit import tables
from spark_audit.sections import merge_sections
from spark_audit.storage import Store, escape_glob
from spark_audit.sums import ADMISSIONS, BY_TIME
from spark_audit.table_file import build_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession

TOP: Final = 15
WRITERS: Final = 3
"""Tables that are computed at a time: the driver plans one while workers compute another."""
COLLECTED: Final = frozenset(
    {
        *("totals", "by_topic", "misses", "passes", "by_boot", "lag_bands", "lag_times"),
        *("fresh_misses", "stored", "latency", "delays_by_topic"),
    }
)
"""Tables that are collected: of each topic and boot they have at most a row for each result and reason."""
_FILE: Final = "part-00000.snappy.parquet"

TableRow = dict[str, Any]


class Facts(NamedTuple):
    """All answers, summed in three ways (`tables.sum_answered`), each cached: by window, topic, result and reason; by
    partition and result; by connection, result and reason, with the `learned` groups filled in. Each adds up to the
    same.
    """

    by_time: DataFrame
    by_partition: DataFrame
    by_client: DataFrame
    learned: DataFrame


class WrittenTables(NamedTuple):
    """The tables by name: rows of those in COLLECTED, in no order; the others as they are read back."""

    rows: dict[str, list[TableRow]]
    frames: dict[str, DataFrame]

    def top(self, name: str, *keys: str, by: str = "bytes") -> list[TableRow]:
        """The TOP rows with most of `by`, those that have the same by `keys`."""
        if name in self.rows:
            return sort_rows(self.rows[name], *keys, most=by)[:TOP]
        return list_rows(self.frames[name].orderBy(F.desc(by), *keys).limit(TOP))


def build_facts(frames: Mapping[str, DataFrame], window_ms: int) -> Facts:
    """`frames`: of `sums.build_sums`, by windows that divide `window_ms`."""
    start = tables.floor_to(F.col("windowMs"), window_ms)
    by_client = frames["by_client"].persist()
    learned = tables.learn_groups(by_client)
    return Facts(
        frames[BY_TIME].withColumn("windowMs", start).persist(),
        frames["by_partition"],
        tables.fill_groups(by_client, learned),
        learned,
    )


def plan_tables(
    facts: Facts, frames: Mapping[str, DataFrame], window_ms: int
) -> dict[str, DataFrame]:
    """The tables by name, not computed yet."""
    by_time, by_client = facts.by_time, facts.by_client
    return {
        "totals": tables.totals(by_time),
        "by_partition": tables.hit_ratio(facts.by_partition, "topic", "partition"),
        "by_client": tables.hit_ratio(by_client, "clientId"),
        "by_topic": tables.hit_ratio(by_time, "topic"),
        "by_window": tables.hit_ratio(by_time, "windowMs"),
        "misses": tables.reasons(by_time, "miss", "topic"),
        "passes": tables.reasons(by_time, "pass", "topic"),
        "by_group": tables.hit_ratio(tables.name_groups(by_client), "group"),
        "by_boot": tables.hit_ratio(by_client, "boot"),
        "by_section": merge_sections(frames["by_section"]),
        "lag_bands": tables.lag_bands(frames["lags"]),
        "lag_times": tables.lag_times(frames["lag_times"]),
        "laggards": tables.laggards(frames["behind"], facts.learned),
        "fresh_misses": tables.fresh_misses(frames["fresh"]),
        "stored": tables.stored(frames["stored"]),
        "latency": tables.latency(frames["total_times"], frames["wait_times"]),
        "delays_by_client": tables.delays(frames["delays_by_client"], "clientId"),
        "delays_by_topic": tables.delays(frames["delays_by_topic"], "topic"),
        "admissions": tables.admissions(frames[ADMISSIONS], window_ms),
    }


def write_tables(
    spark: SparkSession,
    planned: Mapping[str, DataFrame],
    directory: str,
    say: Callable[[str], None],
) -> WrittenTables:
    """Write each table as Parquet below `directory`, WRITERS at a time. StoreError: it cannot be written there."""
    store = Store(spark)
    written = WrittenTables({}, {})

    def write(name: str) -> None:
        path = f"{directory}/{name}"
        if name in COLLECTED:
            table = planned[name].toArrow()
            store.delete(path)
            store.write_bytes(f"{path}/{_FILE}", build_file(table))
            written.rows[name] = table.to_pylist()
        else:
            planned[name].coalesce(1).write.mode("overwrite").parquet(path)
            reader = spark.read.schema(planned[name].schema)
            written.frames[name] = reader.parquet(escape_glob(path))
        say(f"table {name}")

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, planned))
    return written


def list_rows(table: DataFrame) -> list[TableRow]:
    """All of a small table's rows."""
    return [row.asDict() for row in table.collect()]


def sort_rows(rows: Iterable[TableRow], *keys: str, most: str = "") -> list[TableRow]:
    """By `keys`, null first; those with most of `most` before others."""

    def order(row: TableRow) -> list[Any]:
        value = row[most] if most else 0
        first = (value is None, -value if value is not None else 0)
        return [first, *((row[key] is not None, row[key]) for key in keys)]

    return sorted(rows, key=order)

"""The Parquet tables of a report, in `<out>/tables`, and their rows for the page.

Owns which tables there are, how each is written, and the order in which rows are shown. Must not know the page.
Invariants: nothing is computed twice; a table that is as long as there are results, topics or boots is collected once
and written from here, and so is any other of at most COLLECTED_ROWS rows; a longer one is written by workers and read
back from there, TOP rows of it or WINDOWS windows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow.compute as pc
from pyspark.sql import functions as F

from spark_audit import tables
from spark_audit.sections import merge_sections
from spark_audit.storage import Store, escape_glob
from spark_audit.sums import ADMISSIONS, BY_TIME
from spark_audit.table_file import build_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from concurrent.futures import Executor, Future

    from pyspark.sql import DataFrame, SparkSession

TOP: Final = 15
COLLECTED: Final = frozenset(
    {
        *("by_topic", "by_boot", "lag_bands", "lag_times", "fresh_misses", "stored", "latency"),
        "delays_by_topic",
    }
)
"""Tables that are always collected: of each topic and boot they have at most a row for each result and reason."""
COLLECTED_ROWS: Final = 10_000
"""Others that are as short are collected as well: a job that writes and one that reads back cost more than the rows."""
_REASON_KEYS: Final = ("topic", "result", "reason")
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


class WrittenTable(NamedTuple):
    """`rows`, in no order, of a table that was collected, else None; `read`: how all are read back."""

    rows: list[TableRow] | None
    read: Callable[[], DataFrame]


class WrittenTables(NamedTuple):
    """The tables by name, while they are made: who asks for one waits for it."""

    made: Mapping[str, Future[WrittenTable]]

    def wait(self) -> None:
        """For all of them. StoreError: one cannot be written."""
        for one in self.made.values():
            one.result()

    def frame(self, name: str) -> DataFrame:
        """All rows, to be computed with."""
        return self.made[name].result().read()

    def rows(self, name: str) -> list[TableRow]:
        """All rows of one of COLLECTED, in no order."""
        rows = self.made[name].result().rows
        if rows is None:
            raise ValueError(f"{name} is not among the tables that are always collected")
        return rows

    def top(self, name: str, *keys: str, by: str = "bytes", count: int = TOP) -> list[TableRow]:
        """The `count` rows with most of `by`, those that have the same by `keys`."""
        table = self.made[name].result()
        if table.rows is not None:
            return sort_rows(table.rows, *keys, most=by)[:count]
        return list_rows(table.read().orderBy(F.desc(by), *keys).limit(count))


def build_facts(frames: Mapping[str, DataFrame], window_ms: int) -> Facts:
    """`frames`: of `sums.build_sums`, by windows that divide `window_ms`."""
    start = tables.floor_to(F.col("windowMs"), window_ms)
    by_client = frames["by_client"].persist()
    learned = tables.learn_groups(by_client).persist()
    return Facts(
        frames[BY_TIME].withColumn("windowMs", start).persist(),
        frames["by_partition"],
        tables.fill_groups(by_client, learned).persist(),
        learned,
    )


def plan_tables(
    facts: Facts, frames: Mapping[str, DataFrame], window_ms: int
) -> dict[str, DataFrame]:
    """The tables by name, not computed yet, but for those of `split_reasons`; the one that curves need is first."""
    by_time, by_client = facts.by_time, facts.by_client
    return {
        "by_topic": tables.hit_ratio(by_time, "topic"),
        "by_partition": tables.hit_ratio(facts.by_partition, "topic", "partition"),
        "by_client": tables.hit_ratio(by_client, "clientId"),
        "by_window": tables.hit_ratio(by_time, "windowMs"),
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
    pool: Executor,
    spark: SparkSession,
    planned: Mapping[str, DataFrame],
    directory: str,
    say: Callable[[str], None],
) -> WrittenTables:
    """Have `pool` write each table as Parquet below `directory`, in their order. What goes wrong is raised to who
    asks for the table.
    """
    store = Store(spark)

    def write(name: str) -> WrittenTable:
        path, frame = f"{directory}/{name}", planned[name]
        asked = frame if name in COLLECTED else frame.limit(COLLECTED_ROWS + 1)
        table = asked.toArrow()
        rows = None
        if name in COLLECTED or table.num_rows <= COLLECTED_ROWS:
            write_file(store, path, table)
            rows = table.to_pylist()
        else:
            frame.coalesce(1).write.mode("overwrite").parquet(path)
        say(f"table {name}")
        reader = spark.read.schema(frame.schema)
        return WrittenTable(rows, lambda: reader.parquet(escape_glob(path)))

    return WrittenTables({name: pool.submit(write, name) for name in planned})


def split_reasons(reasons: Any) -> dict[str, Any]:
    """Three tables that are made of one, as Arrow tables: what the counters count, and reasons of misses and of passes.
    `reasons`: of `tables.totals` by topic.
    """
    summed = reasons.drop_columns(["topic"]).group_by(["result", "reason"])
    added = [(name, "sum") for name in reasons.schema.names if name not in _REASON_KEYS]
    sums = summed.aggregate(added)
    parts = {
        name: reasons.filter(pc.equal(reasons["result"], result)).drop_columns(["result"])
        for name, result in (("misses", "miss"), ("passes", "pass"))
    }
    named = [name.removesuffix("_sum") for name in sums.schema.names]
    return {"totals": sums.rename_columns(named), **parts}


def write_file(store: Store, path: str, table: Any) -> None:
    """A directory with one Parquet file, of an Arrow table, in the place of what was there."""
    store.delete(path)
    store.write_bytes(f"{path}/{_FILE}", build_file(table))


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

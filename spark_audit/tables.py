"""The tables of the audit: pure functions from DataFrame to DataFrame.

Owns what is summed by what. Must not know files, the session or the report; collects nothing. Invariants:
every partition of a response is counted in exactly one row of each table, whether it has a fetch line or is in the
counts of an empty line; bytes are record bytes handed to clients; a hit ratio's denominator is all of them: hits,
misses and passes; ratios of nothing are null.
"""

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from metrics.access_log_schema import OBSERVED, RESULTS

UNKNOWN_TOPIC = "(unknown)"
NO_CLIENT_ID = "(none)"
NO_GROUP = "(none)"
LAG_BANDS: tuple[tuple[int, str], ...] = (
    (1, "0"),
    (10, "1-9"),
    (100, "10-99"),
    (1_000, "100-999"),
    (10_000, "1k-10k"),
    (100_000, "10k-100k"),
    (1_000_000, "100k-1M"),
    (1 << 62, "1M and more"),
)
"""(lag below which a fetch belongs to the band, the band's name), ascending: 1 and powers of ten, as an empty line's
lags are rounded.
"""
UNKNOWN_LAG = "unknown"
LAGGARD_MS = 8 * 60_000
LAG_TIMES: tuple[tuple[int, str], ...] = (
    (1_000, "below 1 s"),
    (10_000, "1 s to 10 s"),
    (60_000, "10 s to 1 min"),
    (LAGGARD_MS, "1 min to 8 min"),
    (3_600_000, "8 min to 1 h"),
    (86_400_000, "1 h to 1 d"),
    (1 << 62, "1 d and more"),
)
"""(lag in ms below which a fetch belongs to the band, the band's name), ascending. 8 minutes are Meituan's: a page
cache of 80 GB holds so much of 170 MB/s, and reads further behind are of the disk ("Kafka in Meituan's data platform",
1.2).
"""
CLOCK_SKEW_MS = 60_000
"""A time stamp that is later than the response by more is no age: producers set it as they like (CreateTime)."""
BULK_TYPES = ("fetch", "empty", "block")
"""Types of rows of which there are many: they are summed before a report looks at them (`sums`)."""
_ALIKE = (
    *("boot", "section", "ts", "connection", "listener", "clientId", "group", "topic", "topicId"),
    *("result", "reason"),
)
_DELAY_PERCENTILES = {"p50": 0.5, "p95": 0.95}
_PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}


def build_answered(fetches: DataFrame, empties: DataFrame) -> DataFrame:
    """A row for each line about a response, of both types: it stands for `partitions` of them, alike in all columns;
    `emptyPartitions` of them had no records.
    """
    lines = fetches.select(*_ALIKE, "bytes", "wouldHit", *_one_partition())
    sums = empties.select(
        *_ALIKE, *_nothing(), "partitions", F.col("partitions").alias("emptyPartitions")
    )
    return lines.unionByName(sums)


def build_places(fetches: DataFrame, empties: DataFrame) -> DataFrame:
    """The same by `partition` and `lag`: an empty line is as many rows as it names partitions at a lag."""
    lines = fetches.select(*_ALIKE, "partition", "lag", "bytes", "wouldHit", *_one_partition())
    counts = empties.select(*_ALIKE, F.explode("counts").alias("count"))
    sums = counts.select(
        *_ALIKE,
        F.explode("count.partitions").alias("partition"),
        F.col("count.lag").alias("lag"),
        *_nothing(),
        F.col("count.responses").alias("partitions"),
        F.col("count.responses").alias("emptyPartitions"),
    )
    return lines.unionByName(sums)


def _one_partition() -> list[Column]:
    is_empty = F.when(F.col("bytes") == 0, 1).otherwise(0)
    return [
        F.lit(1).cast("long").alias("partitions"),
        is_empty.cast("long").alias("emptyPartitions"),
    ]


def _nothing() -> list[Column]:
    """Bytes of what was answered without records."""
    return [F.lit(0).cast("long").alias("bytes"), F.lit(None).cast("long").alias("wouldHit")]


def learn_groups(answered: DataFrame) -> DataFrame:
    """Connections of which some rows name a group and others none, with that group: a connection that a new Forebay
    sees first has none until its client's next JoinGroup, OffsetCommit or ConsumerGroupHeartbeat. Small, worth caching.
    """
    return (
        answered.groupBy("boot", "connection")
        .agg(
            F.min("group").alias("learnedGroup"),
            F.max("group").alias("otherGroup"),
            F.count_if(F.col("group").isNull()).alias("unnamed"),
        )
        .where((F.col("learnedGroup") == F.col("otherGroup")) & (F.col("unnamed") > 0))
        .drop("otherGroup", "unnamed")
    )


def fill_groups(answered: DataFrame, learned: DataFrame) -> DataFrame:
    """Rows of connections, with the group that each had later. `learned`: of `learn_groups`."""
    joined = answered.join(F.broadcast(learned), ["boot", "connection"], "left")
    return joined.withColumn("group", F.coalesce("group", "learnedGroup")).drop("learnedGroup")


def name_topics(fetches: DataFrame) -> DataFrame:
    """The same with the `topic` that tables show: its name, else its id, else UNKNOWN_TOPIC."""
    return fetches.withColumn("topic", F.coalesce("topic", "topicId", F.lit(UNKNOWN_TOPIC)))


def sum_answered(answered: DataFrame, window_ms: int, *keys: str) -> DataFrame:
    """Facts: the measures that `hit_ratio` and `totals` add up, by `keys`. A few such sums over few keys, each in one
    pass, are smaller and cheaper than one over all keys, which is nearly as long as the log. `windowMs` may be a key.
    """
    named = answered.withColumns(
        {
            "topic": F.coalesce("topic", "topicId", F.lit(UNKNOWN_TOPIC)),
            "clientId": F.coalesce("clientId", F.lit(NO_CLIENT_ID)),
            "windowMs": floor_to(F.col("ts"), window_ms),
        }
    )
    return named.groupBy(*keys).agg(
        _sum_of("partitions"),
        _sum_of("emptyPartitions"),
        _sum_of("bytes"),
        F.sum(F.when(is_observed(), F.col("bytes")).otherwise(0)).alias("observedBytes"),
        F.sum(F.coalesce("wouldHit", F.lit(0))).alias("wouldHitBytes"),
    )


def is_observed() -> Column:
    """A pass of `cache.mode: observe`: a serving cache would have had it as a hit or a miss."""
    result, reason = OBSERVED
    return (F.col("result") == result) & (F.col("reason") == reason)


def hit_ratio(facts: DataFrame, *keys: str) -> DataFrame:
    """Bytes and partitions-of-fetch by result, and the hit ratios, for each combination of `keys`."""
    sums = [_sum_of(name) for name in ("bytes", "partitions", "emptyPartitions")]
    sums += [_sum_of("observedBytes"), _sum_of("wouldHitBytes")]
    for result in RESULTS:
        sums += [_sum_of("bytes", result), _sum_of("partitions", result)]
    table = facts.groupBy(*keys).agg(*sums)
    return table.withColumns(
        {
            "hitRatioBytes": _ratio("hitBytes", "bytes"),
            "hitRatioPartitions": _ratio("hitPartitions", "partitions"),
        }
    )


def name_groups(facts: DataFrame) -> DataFrame:
    """`facts` with a group where one can be known, else NO_GROUP. A broker learns the groups that it coordinates; of
    other groups' members only the client id is known. So where a boot knows no group of a client id, the group is the
    one that all other boots know of it.
    """
    known = facts.where(F.col("group").isNotNull())
    by_client = known.where(F.col("clientId") != NO_CLIENT_ID).groupBy("clientId")
    only = by_client.agg(
        F.count_distinct("group").alias("groups"), F.first("group").alias("onlyGroup")
    ).where(F.col("groups") == 1)
    here = known.select("boot", "clientId", F.lit(True).alias("isKnownHere")).distinct()
    found = facts.join(F.broadcast(only.drop("groups")), "clientId", "left").join(
        F.broadcast(here), ["boot", "clientId"], "left"
    )
    elsewhere = F.when(F.col("isKnownHere").isNull(), F.col("onlyGroup"))
    group = F.coalesce("group", elsewhere, F.lit(NO_GROUP))
    return found.withColumn("group", group).drop("onlyGroup", "isKnownHere")


def totals(facts: DataFrame, *keys: str) -> DataFrame:
    """By result and reason (and `keys`): what the counters count."""
    return facts.groupBy(*keys, "result", "reason").agg(
        _sum_of("partitions"), _sum_of("emptyPartitions"), _sum_of("bytes")
    )


def lag_bands(lags: DataFrame) -> DataFrame:
    """Hit ratio by how far behind the high watermark the fetch began; `bandIndex` orders the bands. `lags`: of
    `sums.sum_lags`.
    """
    return hit_ratio(lags, "bandIndex", "band")


def lag_times(lag_times: DataFrame) -> DataFrame:
    """Hit ratio by the age of the first record handed out; `bandIndex` orders the bands. `lag_times`: of
    `sums.sum_lag_times`.
    """
    return hit_ratio(lag_times, "bandIndex", "band")


def laggards(behind: DataFrame, learned: DataFrame) -> DataFrame:
    """Bytes read further behind than LAGGARD_MS from the broker, by topic, client id and group, and how far at most.
    `behind`: of `sums.sum_behind`; `learned`: of `learn_groups`.
    """
    named = fill_groups(behind, learned).withColumn("group", F.coalesce("group", F.lit(NO_GROUP)))
    return named.groupBy("topic", "clientId", "group").agg(
        _sum_of("bytes"), _sum_of("partitions"), F.max("lagMs_max").alias("lagMs_max")
    )


def fresh_misses(fresh: DataFrame) -> DataFrame:
    """Bytes of misses at most LAGGARD_MS behind, by topic. `fresh`: of `sums.sum_fresh`."""
    return fresh.groupBy("topic").agg(_sum_of("bytes"))


def stored(stored: DataFrame) -> DataFrame:
    """Bytes stored by topic and source. `stored`: of `sums.sum_stored`."""
    return stored.groupBy("topic", "source").agg(_sum_of("bytes"))


def latency(total: DataFrame, wait: DataFrame) -> DataFrame:
    """Percentiles (see `step_of`) and maxima of totalMs and waitMs of fetches that carried bytes. `total`, `wait`: of
    `sums.count_times`.
    """
    ranked = _rank_times(wait, "waitMs").drop("partitions")
    return _rank_times(total, "totalMs").join(ranked, "result")


def _rank_times(counted: DataFrame, time: str) -> DataFrame:
    ranks = F.percentile("micros", list(_PERCENTILES.values()), F.col("partitions"))
    return counted.groupBy("result").agg(
        F.sum("partitions").alias("partitions"),
        *_name_ranks(ranks, time, _PERCENTILES),
        F.max("most").alias(f"{time}_max"),
    )


def delays(counted: DataFrame, key: str) -> DataFrame:
    """Misses that waited until their disk could bear them, by `key`: how many, their bytes, and for how long.
    `counted`: of `sums.count_delays` by the same key.
    """
    ranks = F.percentile("micros", list(_DELAY_PERCENTILES.values()), F.col("partitions"))
    return counted.groupBy(key).agg(
        _sum_of("partitions"),
        _sum_of("bytes"),
        (F.sum("delayMicros") / 1000).alias("delayMs_sum"),
        *_name_ranks(ranks, "delayMs", _DELAY_PERCENTILES),
        F.max("most").alias("delayMs_max"),
    )


def _name_ranks(ranks: Column, field: str, shares: Mapping[str, float]) -> list[Column]:
    return [(ranks[number] / 1000).alias(f"{field}_{name}") for number, name in enumerate(shares)]


def step_of(field: str) -> Column:
    """A time in ms as microseconds, rounded down to four digits, and to ten seconds above a day. Whole numbers, so that
    no sum depends on the order of the lines; digits bound how many different ones there are.
    """
    micros = micros_of(field)
    stepped = F.when(micros < 10_000, micros)
    for power in range(1, 7):
        step = 10**power
        stepped = stepped.when(micros < 10_000 * step, micros - micros % step)
    return stepped.otherwise(micros - micros % 10**7)


def micros_of(field: str) -> Column:
    """A time in ms as whole microseconds: sums of them are exact in any order."""
    return F.round(F.col(field) * 1000).cast("long")


def admissions(admitted: DataFrame, window_ms: int) -> DataFrame:
    """Bytes admitted by window and source. `admitted`: of `sums.sum_admissions`, by windows that divide this one."""
    return (
        admitted.withColumn("windowMs", floor_to(F.col("windowMs"), window_ms))
        .groupBy("windowMs", "source")
        .agg(_sum_of("runs"), _sum_of("bytes"))
    )


def boots(sums: DataFrame, lines: DataFrame) -> DataFrame:
    """Per boot: version, first and last line, admitted bytes then, the writer's own counts, the cache's size, and what
    `ages.find_log_starts` needs. `keeper`: of a worker one that it had; null: the clock is its own. `sums`: of
    `sums.sum_boot_lines`; of `lines`, those of other types are read.
    """
    others = lines.where(~F.col("type").isin(*BULK_TYPES)).select(
        *_BOOT_FIELDS,
        F.col("admittedBytes").alias("admittedBytesLast"),
        F.col("admittedBytes").alias("clock"),
        F.lit(1).cast("long").alias("lines"),
    )
    opened = (F.col("type") == "log") & (F.col("event") == "open")
    closed = (F.col("type") == "log") & (F.col("event") == "close")
    return (
        others.unionByName(sums, allowMissingColumns=True)
        .groupBy("boot")
        .agg(
            F.max("v").alias("schemaVersion"),
            F.min(F.coalesce("firstMs", "ts")).alias("firstMs"),
            F.max("ts").alias("lastMs"),
            F.min("admittedBytes").alias("admittedBytesFirst"),
            F.max("admittedBytesLast").alias("admittedBytesLast"),
            F.min("clock").alias("clockFirst"),
            F.max("droppedLines").alias("droppedLines"),
            F.max("cacheSizeBytes").alias("cacheSizeBytes"),
            F.max("nodeId").alias("nodeId"),
            F.max("keeper").alias("keeper"),
            F.max_by("listeners", "sequence").alias("listeners"),
            F.min_by("upstream", "number").alias("upstreamFirst"),
            F.max_by("upstream", "number").alias("upstreamLast"),
            (F.max("leaseLapses") - F.min("leaseLapses")).alias("leaseLapses"),
            (F.max("producedBytes") - F.min("producedBytes")).alias("producedBytes"),
            F.count(F.when(opened, 1)).alias("filesOpened"),
            F.count(F.when(closed, 1)).alias("filesClosed"),
            F.min("sequence").alias("sequenceFirst"),
            F.max("sequence").alias("sequenceLast"),
            F.count_distinct(F.when(opened, F.col("sequence"))).alias("sequences"),
            *(
                F.sum(F.when(F.col("type") == of, F.col("lines")).otherwise(0)).alias(f"{of}Lines")
                for of in ("fetch", "empty", "block", "counters")
            ),
        )
    )


_BOOT_FIELDS = (
    *("boot", "type", "v", "ts", "keeper", "firstMs", "admittedBytes", "droppedLines"),
    *("cacheSizeBytes", "nodeId", "listeners", "sequence", "upstream", "number", "leaseLapses"),
    *("producedBytes", "event"),
)


def clock_of() -> Column:
    """The boot whose clock of stored bytes a line has: of a worker its keeper's, "" where none was known."""
    return F.coalesce("keeper", "boot")


def floor_to(time: Column, window_ms: int) -> Column:
    """The start of the window that a time in ms lies in."""
    return time - time % F.lit(window_ms)


def _sum_of(measure: str, result: str | None = None) -> Column:
    if result is None:
        return F.sum(measure).alias(measure)
    name = f"{result}{measure[0].upper()}{measure[1:]}"
    return F.sum(F.when(F.col("result") == result, F.col(measure)).otherwise(0)).alias(name)


def _ratio(part: str, whole: str) -> Column:
    return F.when(F.col(whole) > 0, F.col(part) / F.col(whole))

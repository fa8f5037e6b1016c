"""What a load's partitions are like, for sizes that follow from it.

Owns the classes of partitions by rate and batch length. Must not know what is made of them. Invariants: every byte
of the block lines that say how many batches they stand for is in one class; there are at most a few hundred classes,
however many partitions.
"""

from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

CLASSES_A_DOUBLING: Final = 2


class PartitionClass(NamedTuple):
    """Partitions of about one rate and one mean length of batches: their number, and the sums of what they stored.
    `is_mixed`: lengths of batches differ within a partition.
    """

    partitions: int
    bytes: int
    batches: int
    is_mixed: bool = True


class Load(NamedTuple):
    """What the block lines of one boot say: the `boot`, None where there are none; its classes; the mean of the bytes
    that its full cache held, None where it was never full or the log's version does not say so; and whether the
    number of batches is known (version 3), or assumed from ASSUMED_BATCH_BYTES.
    """

    boot: str | None
    classes: tuple[PartitionClass, ...]
    held_bytes: float | None
    has_batches: bool


ASSUMED_BATCH_BYTES: Final = 16_384
"""The producer's default `batch.size`: the length of batches in logs that do not say how many there were."""


_LOW_BITS: Final = 20
"""`heldBytes` is added up in two parts, each of which is exact for any log."""


def sum_boots(blocks: DataFrame) -> DataFrame:
    """By boot, what `build_load` chooses by."""
    low = F.col("heldBytes") % F.lit(1 << _LOW_BITS)
    return blocks.groupBy("boot").agg(
        F.count("heldBytes").alias("held"),
        F.sum(F.shiftright("heldBytes", _LOW_BITS)).alias("heldHigh"),
        F.sum(low).alias("heldLow"),
        F.sum("bytes").alias("bytes"),
        F.count("batches").alias("known"),
    )


def sum_partitions(blocks: DataFrame) -> DataFrame:
    """By boot and partition: bytes and offsets of all runs; of those that say how many batches they stand for, their
    bytes, batches, and the least and greatest mean length; the same as if none said it (`assumed`).
    """
    assumed = F.ceil(F.col("bytes") / ASSUMED_BATCH_BYTES)
    length, assumed_length = F.col("bytes") / F.col("batches"), F.col("bytes") / assumed
    return blocks.groupBy("boot", F.coalesce("topicId", "topic").alias("of"), "partition").agg(
        F.sum("bytes").alias("bytes"),
        F.sum(F.col("nextOffset") - F.col("baseOffset")).alias("offsets"),
        F.sum(F.when(F.col("batches").isNotNull(), F.col("bytes"))).alias("knownBytes"),
        F.sum("batches").alias("batches"),
        F.min(length).alias("shortest"),
        F.max(length).alias("longest"),
        F.sum(assumed).alias("assumedBatches"),
        F.min(assumed_length).alias("assumedShortest"),
        F.max(assumed_length).alias("assumedLongest"),
    )


def merge_partitions(sums: DataFrame) -> DataFrame:
    """One row for each boot and partition, of rows of `sum_partitions` of several sets."""
    added = ("bytes", "offsets", "knownBytes", "batches", "assumedBatches")
    return sums.groupBy("boot", "of", "partition").agg(
        *(F.sum(name).alias(name) for name in added),
        *(F.min(name).alias(name) for name in ("shortest", "assumedShortest")),
        *(F.max(name).alias(name) for name in ("longest", "assumedLongest")),
    )


def build_load(boots: DataFrame, partitions: DataFrame) -> Load:
    """The load of the boot that tells most of it: whose cache was full for most lines, else that stored most. `boots`:
    of `sum_boots`; `partitions`: of `merge_partitions`.
    """
    sums = boots.groupBy("boot").agg(
        *(F.sum(name).alias(name) for name in ("held", "heldHigh", "heldLow", "bytes", "known"))
    )
    chosen = sums.orderBy(F.desc("held"), F.desc("bytes"), "boot").first()
    if chosen is None:
        return Load(None, (), None, False)
    held_bytes = None
    if chosen["held"]:
        held_bytes = ((chosen["heldHigh"] << _LOW_BITS) + chosen["heldLow"]) / chosen["held"]
    has_batches = chosen["known"] > 0
    classes = _build_classes(partitions.where(F.col("boot") == chosen["boot"]), has_batches)
    return Load(chosen["boot"], classes, held_bytes, has_batches)


def _build_classes(partitions: DataFrame, has_batches: bool) -> tuple[PartitionClass, ...]:
    names = ("knownBytes", "batches", "shortest", "longest")
    if not has_batches:
        names = ("bytes", "assumedBatches", "assumedShortest", "assumedLongest")
    size, batches, shortest, longest = map(F.col, names)
    counted = partitions.where(batches.isNotNull()).select(
        size.alias("bytes"),
        batches.alias("batches"),
        ((longest > shortest) | (size % batches != 0)).alias("mixed"),
    )
    classes = counted.groupBy(
        _class_of(F.col("bytes")), _class_of(F.col("bytes") / F.col("batches")), "mixed"
    ).agg(
        F.count("*").alias("partitions"),
        F.sum("bytes").alias("bytes"),
        F.sum("batches").alias("batches"),
    )
    return tuple(
        PartitionClass(row["partitions"], row["bytes"], row["batches"], row["mixed"])
        for row in sorted(classes.collect())
    )


def _class_of(size: Column) -> Column:
    return F.round(F.log2(size) * CLASSES_A_DOUBLING)

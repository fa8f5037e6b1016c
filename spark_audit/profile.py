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


def build_load(blocks: DataFrame) -> Load:
    """The load of the boot that tells most of it: whose cache was full for most lines, else that stored most. A few
    small jobs over the block lines.
    """
    boots = blocks.groupBy("boot").agg(
        F.count("heldBytes").alias("held"),
        F.avg("heldBytes").alias("heldBytes"),
        F.sum("bytes").alias("bytes"),
        F.count("batches").alias("known"),
    )
    chosen = boots.orderBy(F.desc("held"), F.desc("bytes"), "boot").first()
    if chosen is None:
        return Load(None, (), None, False)
    has_batches = chosen["known"] > 0
    classes = _build_classes(blocks.where(F.col("boot") == chosen["boot"]), has_batches)
    return Load(chosen["boot"], classes, chosen["heldBytes"], has_batches)


def _build_classes(blocks: DataFrame, has_batches: bool) -> tuple[PartitionClass, ...]:
    assumed = F.ceil(F.col("bytes") / ASSUMED_BATCH_BYTES)
    runs = blocks.where(F.col("batches").isNotNull()) if has_batches else blocks
    counted = runs.withColumn("batches", F.coalesce("batches", assumed))
    length = F.col("bytes") / F.col("batches")
    partitions = counted.groupBy(F.coalesce("topicId", "topic").alias("of"), "partition").agg(
        F.sum("bytes").alias("bytes"),
        F.sum("batches").alias("batches"),
        ((F.max(length) > F.min(length)) | (F.sum("bytes") % F.sum("batches") != 0)).alias("mixed"),
    )
    classes = partitions.groupBy(
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

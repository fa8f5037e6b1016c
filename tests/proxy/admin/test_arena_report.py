"""The text of `forebay arena inspect`."""

import dataclasses

from blockcache.cache import BlockCache
from blockcache.inspect import ArenaPicture, PartitionPicture, StoredSpan, inspect
from proxy.admin.arena_report import describe
from tests.kit.cache_batches import TOPIC, build_run, insert


def picture(**changed: object) -> ArenaPicture:
    cache = BlockCache(1 << 20)
    insert(cache, cache.open(TOPIC, 0), build_run(0, 10))
    return dataclasses.replace(inspect(cache._arena.view), **changed)  # type: ignore[arg-type]


def partition(**changed: object) -> PartitionPicture:
    given = PartitionPicture(TOPIC, 0, 10, 2000, 0, -1, 0, (StoredSpan(0, 10),), False)
    return dataclasses.replace(given, **changed)  # type: ignore[arg-type]


def test_occupancy() -> None:
    text = describe(picture(), True, 20)
    assert "live records    2.0 KiB (0.2%) in 10 batches" in text
    assert "shared  blocks  1 blocks, 16.0 KiB (1.6%), live 2.0 KiB (12.2%)" in text
    assert "admitted        2.0 KiB, the oldest 1.8 KiB of admissions ago" in text
    assert "[0, 10)" in text and "torn" not in text


def test_torn_sums_and_an_observing_arena_say_so() -> None:
    assert "sums may be off by a batch" in describe(picture(torn=True), True, 0)
    assert "ended in the middle of a change" in describe(picture(torn=True), False, 0)
    assert "an index and no data" in describe(picture(observe=True), True, 0)


def test_largest_partitions_are_listed_the_rest_counted() -> None:
    three = tuple(partition(partition=i, live_bytes=i * 1024) for i in range(3))
    lines = describe(picture(partitions=three), True, 2).splitlines()
    assert [line.split()[1] for line in lines[-3:-1]] == ["2", "1"]
    assert lines[-1] == "and 1 smaller ones"


def test_newest_of_many_runs_are_shown() -> None:
    runs = tuple(StoredSpan(i * 10, i * 10 + 4) for i in range(6))
    text = describe(picture(partitions=(partition(runs=runs, block_bytes=65536),)), True, 9)
    assert "64.0 KiB" in text
    assert (
        "2 older runs, then [20, 24) hole of 6 [30, 34) hole of 6 [40, 44) hole of 6 [50, 54)"
        in text
    )


def test_empty_and_changing_partitions() -> None:
    assert "nothing stored\n" in describe(picture(partitions=(partition(runs=()),)), True, 9)
    sent_count = partition(runs=(), evicted_end=77)
    assert "nothing stored; evicted below 77" in describe(
        picture(partitions=(sent_count,)), True, 9
    )
    assert "changing at every look" in describe(
        picture(partitions=(partition(torn=True),)), True, 9
    )

"""Findings in words: how many, in which order, from which share on, and at which price.

Faults themselves are planted in real runs (test_diagnosis_real_runs).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spark_audit.calibration import Calibration
from spark_audit.diagnosis import (
    GIB,
    LEAST_SHARE,
    MIB,
    MOST,
    Evidence,
    Prices,
    diagnose,
    plan_topic_needs,
    round_size,
    write_size,
)
from spark_audit.sizing import Ages, Bucket, NeededSize, Sizing

DAY_S = 86_400


def build_curve(*ages: tuple[float, int]) -> Sizing:
    """A curve of fetches of these ages and sizes in GiB, of which 99 % need 4 GiB."""
    buckets = [Bucket(round(age * GIB), round(age * GIB), size * GIB, 1) for age, size in ages]
    return Sizing(
        points=(),
        needed=(NeededSize(0.99, 4 * GIB - 1, 3 * GIB, 0.99, 0.99),),
        known_bytes=100 * GIB,
        never_bytes=0,
        unknown_bytes=0,
        known_partitions=len(ages),
        never_partitions=0,
        unknown_partitions=0,
        calibration=Calibration(()),
        ages=Ages(buckets),
        possible=Ages([]),
    )


CURVE = build_curve((0.5, 40), (1.2, 20), (3.0, 39), (200.0, 1))
"""A cache of 1, 2 and 4 GiB, of which each holds more than eight tenths, hits 40, 60 and 99 of 100 GiB."""


def build_evidence(**changes: Any) -> Evidence:
    """100 GiB in a day from a cache of 1 GiB; nothing is wrong."""
    boot = {"firstMs": 0, "lastMs": 1000 * DAY_S, "leaseLapses": 0, "listeners": None}
    boot["producedBytes"] = 60 * GIB
    healthy = Evidence(
        boots=[boot],
        total={"bytes": 100 * GIB},
        topic_reasons=[row("orders", "hit", "", 100 * GIB)],
        stored=[{"topic": "orders", "source": "produce", "bytes": 50 * GIB}],
        fresh_misses=[],
        laggards=[],
        sizing=CURVE,
        topic_sizing={},
        cache_size_bytes=GIB,
    )
    return replace(healthy, **changes)


def row(topic: str, result: str, reason: str, size_bytes: int) -> dict[str, Any]:
    return {"topic": topic, "result": result, "reason": reason, "bytes": size_bytes}


def laggard(client_id: str, size_bytes: int, group: str = "(none)") -> dict[str, Any]:
    return {
        "topic": "orders",
        "clientId": client_id,
        "group": group,
        "bytes": size_bytes,
        "lagMs_max": 1000 * DAY_S,
    }


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    assert diagnose(build_evidence()) == []


@pytest.mark.parametrize(("extra_bytes", "found"), [(-1, 0), (0, 1)])
def test_a_fault_is_worth_a_sentence_from_a_share_on(extra_bytes: int, found: int) -> None:
    size_bytes = round(LEAST_SHARE * 100 * GIB) + extra_bytes
    evidence = build_evidence(topic_reasons=[row("orders", "miss", "evicted", size_bytes)])
    assert len(diagnose(evidence)) == found


def test_a_small_cache_has_a_size_an_effect_and_a_price() -> None:
    evidence = build_evidence(topic_reasons=[row("orders", "miss", "evicted", 30 * GIB)])
    (one,) = diagnose(evidence, Prices(gib_month=2.0, read_gib=0.5))
    assert (one.kind, one.key, one.value, one.bytes) == ("size", "cache.size", "4GiB", 30 * GIB)
    assert "from 40.0 % to 99.0 %" in one.effect
    assert one.price == "costs 6.00 a month, saves reads for 450.00 a month"
    assert one.sentence.startswith("the cache of 1.00 GiB is too small: 30.0 GiB of orders")
    (unpriced,) = diagnose(evidence)
    assert unpriced.price == "" and "(" not in unpriced.sentence


def test_a_cache_that_is_large_enough_is_not_called_small() -> None:
    evidence = build_evidence(
        topic_reasons=[row("orders", "miss", "evicted", 30 * GIB)], cache_size_bytes=4 * GIB
    )
    assert diagnose(evidence) == []


def test_at_most_seven_are_given_the_largest_first() -> None:
    laggards = [laggard(f"c{number}", (10 + number) * GIB) for number in range(MOST + 3)]
    found = diagnose(build_evidence(laggards=laggards))
    assert [one.bytes for one in found] == [
        (10 + number) * GIB for number in range(MOST + 2, 2, -1)
    ]
    assert found[0].value == "[{clientId: c9, weight: 0.1}]"


def test_a_group_s_lag_is_known_to_whoever_watches_groups() -> None:
    assert diagnose(build_evidence(laggards=[laggard("c", 50 * GIB, group="billing")])) == []


def test_leases_are_blamed_only_if_some_lapsed() -> None:
    lost = [row("orders", "miss", "epoch", 30 * GIB)]
    assert diagnose(build_evidence(topic_reasons=lost)) == []
    boots = [{**build_evidence().boots[0], "leaseLapses": 12}]
    (one,) = diagnose(build_evidence(topic_reasons=lost, boots=boots))
    assert one.kind == "leases" and "12 times" in one.cause


def test_writers_past_forebay_are_those_of_more_than_was_produced() -> None:
    """A topic may be stored from the watch although its Produces pass Forebay."""
    stored = [
        {"topic": "orders", "source": "watch", "bytes": 50 * GIB},
        {"topic": "past", "source": "watch", "bytes": 30 * GIB},
        {"topic": "here", "source": "produce", "bytes": 9 * GIB},
    ]
    boot = {**build_evidence().boots[0], "producedBytes": 64 * GIB}
    boot["listeners"] = [{"name": "main", "address": "broker-1:9092", "upstream": "b:19092"}]
    (one,) = diagnose(build_evidence(stored=stored, boots=[boot]))
    assert (one.kind, one.bytes) == ("writers", 25 * GIB)
    assert "orders, past" in one.cause and "here" not in one.cause
    assert "broker-1:9092" in one.value
    older = [{**boot, "producedBytes": None}]
    assert diagnose(build_evidence(stored=stored, boots=older)) == []


def test_rights_are_missing_where_nothing_fresh_was_ever_stored() -> None:
    fresh = [{"topic": name, "bytes": 20 * GIB} for name in ("orders", "secret")]
    (one,) = diagnose(build_evidence(fresh_misses=fresh))
    assert (one.kind, one.bytes) == ("rights", 20 * GIB)
    assert "secret" in one.cause and "orders" not in one.cause


@pytest.mark.parametrize(
    ("size_bytes", "written"),
    [(1, "1MiB"), (15 * MIB, "15MiB"), (17 * MIB, "18MiB"), (GIB - 1, "1GiB"), (3 * GIB, "3GiB")],
)
def test_sizes_are_such_as_one_writes(size_bytes: int, written: str) -> None:
    assert write_size(round_size(size_bytes)) == written
    assert size_bytes <= round_size(size_bytes) <= max(MIB, size_bytes * 9 / 8)


def test_a_topic_s_need_and_what_a_gib_is_worth_to_it() -> None:
    flat = build_curve((0.5, 5), (200.0, 95))
    first, second = plan_topic_needs({"flat": flat, "steep": CURVE}, GIB)
    assert (first.topic, first.needed_bytes, first.next_gib_bytes) == (
        "steep",
        4 * GIB - 1,
        20 * GIB,
    )
    assert (second.topic, second.hit_bytes, second.next_gib_bytes) == ("flat", 5 * GIB, 0)

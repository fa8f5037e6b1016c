"""Findings in words: what costs the most bytes, why, and which setting changes it.

Owns the rules by which a fault is recognised, and their sentences. Must not know Spark or HTML: evidence comes in as
values of the tables. Invariants: each finding has a cause, a configuration key with a value, and an effect; a finding
needs LEAST_SHARE of the bytes handed to clients; at most MOST are given, those with the most bytes first; a log in
which nothing goes wrong gives none.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from spark_audit.sizing import Sizing
from spark_audit.tables import NO_GROUP
from spark_audit.units import show_bytes, show_duration, show_ratio

MOST: Final = 7
LEAST_SHARE: Final = 0.05
"""Share of the bytes handed to clients below which a fault is not worth a sentence."""
TARGET: Final = 0.99
FLOOD_SHARE: Final = 0.5
FLOOD_READ: Final = 0.1
"""A topic floods if it has FLOOD_SHARE of all stored bytes or more, and memory has served at most FLOOD_READ of them.
"""
PAST_SHARE: Final = 0.5
"""A topic is written past Forebay if at least this share of its stored bytes was read back from the broker."""
MIB: Final = 1 << 20
GIB: Final = 1 << 30
_MONTH_S: Final = 30 * 86_400
_TOPICS_SHOWN: Final = 3

EvidenceRow = dict[str, Any]


class Prices(NamedTuple):
    """What a GiB of memory costs in a month, and a GiB that the broker reads and sends; None: not known."""

    gib_month: float | None = None
    read_gib: float | None = None


NO_PRICES: Final = Prices()


class TopicNeed(NamedTuple):
    """How much cache one topic is worth. `needed_bytes`: the smallest size that hits TARGET of what any size hits of
    it, None where no age is known; `next_gib_bytes`: bytes of it that a cache larger by 1 GiB would have hit beside.
    """

    topic: str
    bytes: int
    hit_bytes: int
    needed_bytes: int | None
    next_gib_bytes: int


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One finding. `bytes`: record bytes that it concerns, by which findings are ranked; `key` and `value`: the setting
    to change; `price`: what that costs or saves, "" without prices.
    """

    kind: str
    bytes: int
    cause: str
    key: str
    value: str
    effect: str
    price: str = ""

    @property
    def sentence(self) -> str:
        """All of it in one sentence."""
        price = f" ({self.price})" if self.price else ""
        return f"{self.cause}: set {self.key} to {self.value}, so that {self.effect}{price}."


@dataclass(frozen=True, slots=True)
class Evidence:
    """Rows of the audit's tables, as `spark_audit.job.Findings` has them."""

    boots: Sequence[EvidenceRow]
    total: EvidenceRow
    topic_reasons: Sequence[EvidenceRow]
    stored: Sequence[EvidenceRow]
    fresh_misses: Sequence[EvidenceRow]
    laggards: Sequence[EvidenceRow]
    sizing: Sizing
    topic_sizing: Mapping[str, Sizing]
    cache_size_bytes: int | None

    @property
    def span_s(self) -> float:
        """Time from the first line to the last, in seconds, at least one."""
        first_ms: int = min(boot["firstMs"] for boot in self.boots)
        last_ms: int = max(boot["lastMs"] for boot in self.boots)
        return max(1.0, (last_ms - first_ms) / 1000)

    def bytes_of(self, result: str, reason: str) -> dict[str, int]:
        """Bytes of a result and reason by topic, those of 0 left out."""
        return {
            row["topic"]: row["bytes"]
            for row in self.topic_reasons
            if (row["result"], row["reason"]) == (result, reason) and row["bytes"]
        }

    def is_worth(self, size_bytes: float) -> bool:
        """Whether so many bytes are worth a sentence."""
        handed_out: int = self.total["bytes"]
        return size_bytes > 0 and size_bytes >= LEAST_SHARE * handed_out


def plan_topic_needs(topics: Mapping[str, Sizing], cache_size_bytes: int | None) -> list[TopicNeed]:
    """One for each topic, those to which a further GiB is worth the most first."""
    needs = []
    for topic, sizing in topics.items():
        here = hit_bytes_at(sizing, cache_size_bytes or 0)
        more = hit_bytes_at(sizing, (cache_size_bytes or 0) + GIB)
        needed = sizing.needed_bytes.get(TARGET)
        needs.append(TopicNeed(topic, sizing.total_bytes, here, needed, more - here))
    return sorted(needs, key=lambda need: (-need.next_gib_bytes, -need.bytes, need.topic))


def hit_bytes_at(sizing: Sizing, size_bytes: int) -> int:
    """Bytes that a `cache.size` of `size_bytes` hits; 0 without a cache."""
    return sizing.point_at(size_bytes).hit_bytes if size_bytes else 0


def diagnose(evidence: Evidence, prices: Prices = NO_PRICES) -> list[Diagnosis]:
    """The findings, most bytes first."""
    found = [one for rule in _RULES for one in rule(evidence)]
    ranked = sorted(found, key=lambda one: (-one.bytes, one.kind))[:MOST]
    return [replace(one, price=_price(one, evidence, prices)) for one in ranked]


def round_size(size_bytes: int) -> int:
    """The next size that one writes into a configuration: at most an eighth more, in whole MiB."""
    step = MIB
    while step * 16 <= size_bytes:
        step *= 2
    return -(-size_bytes // step) * step


def write_size(size_bytes: int) -> str:
    """`512MiB`, `3GiB`, as the configuration reads it."""
    return f"{size_bytes // GIB}GiB" if size_bytes % GIB == 0 else f"{size_bytes // MIB}MiB"


def _find_flood(evidence: Evidence) -> tuple[str, float] | None:
    """The topic that fills the cache and is hardly read from it, and its share of all stored bytes."""
    by_topic: dict[str, int] = defaultdict(int)
    for row in evidence.stored:
        by_topic[row["topic"]] += row["bytes"]
    total = sum(by_topic.values())
    if not total or len(by_topic) < 2:
        return None
    topic = max(by_topic, key=lambda one: (by_topic[one], one))
    share = by_topic[topic] / total
    hit_bytes = evidence.bytes_of("hit", "").get(topic, 0)
    is_flood = share >= FLOOD_SHARE and hit_bytes <= FLOOD_READ * by_topic[topic]
    return (topic, share) if is_flood else None


def _lost_to_size(evidence: Evidence) -> dict[str, int]:
    """Bytes by topic that were stored once and are not any more."""
    return evidence.bytes_of("miss", "evicted")


def diagnose_flood(evidence: Evidence) -> Iterable[Diagnosis]:
    """One topic pushes out what others read."""
    flood, cache_bytes = _find_flood(evidence), evidence.cache_size_bytes
    if flood is None or not cache_bytes:
        return
    topic, share = flood
    lost = {name: size for name, size in _lost_to_size(evidence).items() if name != topic}
    if not evidence.is_worth(sum(lost.values())):
        return
    value = _enough(evidence) or round_size(2 * cache_bytes)
    yield Diagnosis(
        "flood",
        sum(lost.values()),
        f"{topic} has {show_ratio(share)} of all stored bytes, hardly anybody reads it from memory, and it pushed out"
        f" {show_bytes(sum(lost.values()))} that {_name(lost)} would have hit",
        "cache.size",
        write_size(value),
        f"both fit, or let the producers of {topic} use a listener of the broker without Forebay, which stores nothing"
        " of what nobody reads",
    )


def diagnose_size(evidence: Evidence) -> Iterable[Diagnosis]:
    """The cache is smaller than what is read again."""
    lost, cache_bytes, enough = (
        _lost_to_size(evidence),
        evidence.cache_size_bytes,
        _enough(evidence),
    )
    if not evidence.is_worth(sum(lost.values())) or not cache_bytes or enough is None:
        return
    if next(iter(diagnose_flood(evidence)), None) is not None:
        return
    sizing = evidence.sizing
    now, then = (hit_bytes_at(sizing, size) for size in (cache_bytes, enough))
    yield Diagnosis(
        "size",
        sum(lost.values()),
        f"the cache of {show_bytes(cache_bytes)} is too small: {show_bytes(sum(lost.values()))} of {_name(lost)} had"
        " been evicted when they were read",
        "cache.size",
        write_size(enough),
        f"hits grow from {show_ratio(sizing.hit_ratio(now))} to {show_ratio(sizing.hit_ratio(then))} of hits and"
        " misses",
    )


def _enough(evidence: Evidence) -> int | None:
    """A size for the configuration that hits TARGET of what any size hits; None where the present one does."""
    needed = evidence.sizing.needed_bytes.get(TARGET)
    if needed is None or not evidence.cache_size_bytes or needed <= evidence.cache_size_bytes:
        return None
    return round_size(needed)


def diagnose_leases(evidence: Evidence) -> Iterable[Diagnosis]:
    """The broker answers Forebay's own Fetches later than a lease lasts."""
    lost = evidence.bytes_of("miss", "epoch")
    lapses = sum(boot["leaseLapses"] or 0 for boot in evidence.boots)
    if lapses and evidence.is_worth(sum(lost.values())):
        yield Diagnosis(
            "leases",
            sum(lost.values()),
            f"leases lapsed {lapses:,} times before the broker answered, so that {show_bytes(sum(lost.values()))} of"
            f" {_name(lost)} were read from it",
            "cache.confirmEvery",
            "5s",
            "memory serves them for as long as the broker answers within 5 s",
        )


def diagnose_rights(evidence: Evidence) -> Iterable[Diagnosis]:
    """Topics that are read while they are fresh, and of which nothing was ever stored: Forebay may not ask."""
    stored = {row["topic"] for row in evidence.stored if row["bytes"]}
    topics = {
        row["topic"]: row["bytes"] for row in evidence.fresh_misses if row["topic"] not in stored
    }
    size_bytes = sum(topics.values())
    if evidence.is_worth(size_bytes):
        yield Diagnosis(
            "rights",
            size_bytes,
            f"{show_bytes(size_bytes)} of {_name(topics)} were read while they were fresh, and nothing of it was ever"
            " stored: Forebay has no right to read there itself",
            "listeners[].upstreamCredentials",
            "a principal with READ and DESCRIBE on these topics",
            "its own Fetches prove them, and these bytes come from memory",
        )


def diagnose_writers(evidence: Evidence) -> Iterable[Diagnosis]:
    """Records reach the broker past Forebay, which reads them back: more is stored than was produced here."""
    produced = [boot["producedBytes"] for boot in evidence.boots]
    if any(size is None for size in produced):
        return
    by_source: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in evidence.stored:
        by_source[row["topic"]][row["source"]] += row["bytes"]
    read_back = {
        topic: sizes["watch"] + sizes["fetch"]
        for topic, sizes in by_source.items()
        if sizes["watch"] + sizes["fetch"] >= PAST_SHARE * sum(sizes.values())
    }
    stored = sum(row["bytes"] for row in evidence.stored)
    past = min(stored - sum(produced), sum(read_back.values()))
    if evidence.is_worth(past):
        listeners = [one["address"] for boot in evidence.boots for one in boot["listeners"] or ()]
        yield Diagnosis(
            "writers",
            past,
            f"at least {show_bytes(past)} of {_name(read_back)} were written past Forebay, which read them back from"
            " the broker to store them",
            "advertised.listeners of the broker's listener for producers",
            f"Forebay's address {listeners[-1]}" if listeners else "Forebay's address",
            f"the broker sends {show_bytes(past)} less",
        )


def diagnose_laggards(evidence: Evidence) -> Iterable[Diagnosis]:
    """Somebody reads history from the broker's disk, and no consumer group shows it."""
    by_client: dict[str, list[EvidenceRow]] = defaultdict(list)
    for row in evidence.laggards:
        if row["group"] == NO_GROUP:
            by_client[row["clientId"]].append(row)
    for client_id, rows in by_client.items():
        size_bytes = sum(row["bytes"] for row in rows)
        if evidence.is_worth(size_bytes):
            behind = show_duration(max(row["lagMs_max"] for row in rows) / 1000)
            topics = {row["topic"]: row["bytes"] for row in rows}
            yield Diagnosis(
                "laggard",
                size_bytes,
                f"client {client_id}, which no consumer group shows, read {show_bytes(size_bytes)} of {_name(topics)}"
                f" up to {behind} behind from the broker",
                "throttle.weights",
                f"[{{clientId: {client_id}, weight: 0.1}}]",
                "while the disk is busy it gets a tenth of another reader's share",
            )


def _name(by_topic: Mapping[str, int]) -> str:
    """The topics with the most bytes."""
    names = sorted(by_topic, key=lambda topic: (-by_topic[topic], topic))
    more = len(names) - _TOPICS_SHOWN
    return ", ".join(names[:_TOPICS_SHOWN]) + (f" and {more} more topics" if more > 0 else "")


def _price(one: Diagnosis, evidence: Evidence, prices: Prices) -> str:
    """What the remedy costs and saves in a month, as far as prices are known."""
    said = []
    if one.key == "cache.size" and prices.gib_month is not None:
        enough = _enough(evidence)
        if enough is not None:
            more = (enough - (evidence.cache_size_bytes or 0)) / GIB * prices.gib_month
            said.append(f"costs {more:,.2f} a month")
    if prices.read_gib is not None and one.kind != "laggard":
        saved = one.bytes / GIB * prices.read_gib * _MONTH_S / evidence.span_s
        said.append(f"saves reads for {saved:,.2f} a month")
    return ", ".join(said)


_RULES: Final[tuple[Callable[[Evidence], Iterable[Diagnosis]], ...]] = (
    diagnose_flood,
    diagnose_size,
    diagnose_leases,
    diagnose_rights,
    diagnose_writers,
    diagnose_laggards,
)

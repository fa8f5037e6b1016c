"""What the demo found, in the words of an operator's questions.

Owns the arithmetic over access log, scrape and latencies, and the text. Must not know processes or clients.
Invariants: ratios are of bytes; what only the clients can see (latency) comes from them, everything else from
what Forebay itself wrote, which is what an operator has.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from bench.demo.plan import DIRECT, LOADERS, MIB, REPLAY, THROUGH

WANTED_RATIO = 0.99
LABELS = (DIRECT, THROUGH, REPLAY, LOADERS)


class Latency(NamedTuple):
    """From due to received, over all records of a label and all groups; milliseconds."""

    label: str
    records: int
    p50_ms: float
    p99_ms: float


class Result(NamedTuple):
    """`tail_bytes`: client id -> (from memory, all); `decided`: (result, reason) -> (partitions, bytes)."""

    tail_bytes: dict[str, tuple[int, int]]
    decided: dict[tuple[str, str], tuple[int, int]]
    upstream_bytes: int
    latencies: list[Latency]

    @property
    def tail_ratio(self) -> float:
        """Share of the tailing groups' bytes that came from memory; 0 where they read nothing."""
        hit, total = (sum(column) for column in zip(*self.tail_bytes.values(), strict=True))
        return hit / total if total else 0.0


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile; 0 of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else 0.0


def build_result(
    lines: Iterable[Mapping[str, Any]],
    tail_clients: Sequence[str],
    upstream_bytes: int,
    latencies_ms: Mapping[str, Sequence[float]],
) -> Result:
    """From the access log's lines, those of responses as a line for each partition, the record bytes that the broker
    sent to Forebay, and the latencies.
    """
    hits: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    partitions: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for line in lines:
        if line["type"] == "empty":
            partitions[line["result"], line["reason"]] += line["partitions"]
        if line["type"] != "fetch":
            continue
        decision = line["result"], line["reason"]
        partitions[decision] += 1
        sizes[decision] += line["bytes"]
        totals[line["clientId"]] += line["bytes"]
        hits[line["clientId"]] += line["bytes"] * (line["result"] == "hit")
    return Result(
        {client: (hits[client], totals[client]) for client in tail_clients},
        {decision: (partitions[decision], sizes[decision]) for decision in sorted(partitions)},
        upstream_bytes,
        [
            Latency(label, len(values), percentile(values, 50), percentile(values, 99))
            for label in LABELS
            if (values := latencies_ms.get(label))
        ],
    )


def describe(result: Result) -> str:
    """The answers, as lines."""
    total_bytes = sum(size for _, size in result.decided.values())
    lines = ["Do the tailing groups hit?"]
    lines += [
        f"  {client:<36}{_percent(hit, total):>9} of {_mib(total)} from memory"
        for client, (hit, total) in result.tail_bytes.items()
    ]
    lines += [
        f"  {'together':<36}{_percent(result.tail_ratio, 1):>9} of bytes",
        "",
        "What did the broker not have to send?",
        f"  {'read by consumers through Forebay':<36}{_mib(total_bytes)}",
        f"  {'sent by the broker to Forebay':<36}{_mib(result.upstream_bytes)}",
        f"  {'never left the broker':<36}{_mib(total_bytes - result.upstream_bytes)}",
        "",
        "How long from a record's due time to its receipt?     p50        p99    records",
    ]
    lines += [
        f"  {one.label:<46}{one.p50_ms:>7.1f} ms{one.p99_ms:>8.1f} ms{one.records:>10}"
        for one in result.latencies
    ]
    lines += ["", f"{'What was no hit, and why?':<40}partitions      bytes"]
    lines += [
        f"  {result_name + ', ' + reason:<36}{count:>12} {_mib(size)}"
        for (result_name, reason), (count, size) in result.decided.items()
        if result_name != "hit"
    ]
    return "\n".join(lines)


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.2f} %" if whole else "nothing"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:8.1f} MiB"

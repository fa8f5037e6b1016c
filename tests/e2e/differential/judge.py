"""Whether Forebay's answer is one that the broker could have given, beside the answer that it did give.

Owns the rules of comparison. Must not know connections or how requests are drawn. Errors, offsets, epochs, leaders,
replicas, endpoints and null lists must be equal. The freedom of an answer is in how much it brings:
* records are whole batches of the log from the fetch offset on, below the limit of the isolation level. The broker may
  cut the last batch (FileRecords.slice) and ends at a segment's end (LocalLog.read); Forebay need not.
* budgets are the request's: a partition's bytes and what is left of the request's, the first batch regardless
  (ReplicaManager.readFromLog). A cut batch uses up the broker's budget; it may use up Forebay's, which then brings less
  of what follows where the broker's read has ended with a segment (`_fits`). What follows and has no records lists null
  where some budget was left, and nothing where none was: this is compared where both brought as much of the others,
  and no read of the broker's may have ended with a segment.
* the broker's list of aborted transactions may reach beyond its records (LogSegment.fetchUpperBoundOffset).
* an incremental answer may name what has not changed (a forwarded one does); what it leaves out is as it was shown.
* the broker also answers what lacks min_bytes at once where an offset lies in an older segment or above the LSO
  (DelayedFetch, case F). Forebay knows no segments, and waits (`must_answer`).
* a partition whose read is under way is named empty (`Verdict.pending`); asked again, it must come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.e2e.differential.answers import Answer, Key, Part
    from tests.e2e.differential.cases import Case, Wanted
    from tests.e2e.differential.logs import Log

UNORDERED = (3, 100)
"""Errors of partitions that the broker does not know: they come behind all others (KafkaApis.handleFetchRequest)."""
COMMITTED = 1


class Verdict(NamedTuple):
    """`differences`: (kind, text). `pending`: partitions with records in the broker's answer alone."""

    differences: list[tuple[str, str]]
    pending: list[Key]


def must_answer(case: Case, direct: Answer, broker_max_bytes: int) -> bool:
    """Whether what the broker has said, before max_wait, ends the wait by itself (ReplicaManager.fetchMessages)."""
    parts = direct.parts.values()
    least = min(case.min_bytes, case.max_bytes, broker_max_bytes)
    is_full = sum(len(part.records) for part in parts) >= least
    has_error = any(part.error and part.error not in UNORDERED for part in parts)
    is_diverging = any(part.said["diverging_epoch"][0] >= 0 for part in parts)
    is_idle = all(part.error in UNORDERED for part in parts)
    return is_full or has_error or is_diverging or is_idle


class View:
    """What the answers of one session have shown so far: HW and log start by partition (CachedPartition)."""

    def __init__(self) -> None:
        self.shown: dict[Key, tuple[int, int, int]] = {}

    def update(self, answer: Answer) -> None:
        """Take what an answer names."""
        for key, part in answer.parts.items():
            self.shown[key] = part.error, part.said["high_watermark"], part.said["log_start_offset"]


def judge(
    case: Case,
    asked: Mapping[Key, Wanted],
    direct: Answer,
    through: Answer,
    logs: Mapping[Key, Log],
    views: tuple[View, View] | None,
    broker_max_bytes: int,
) -> Verdict:
    """Compare. `asked` is all that is asked, in the request's order; `views` of a session that goes on, else None."""
    found: list[tuple[str, str]] = []
    pending: list[Key] = []
    for name, one, other in (
        ("top error", direct.error, through.error),
        ("session granted", direct.session_id != 0, through.session_id != 0),
        ("throttled", direct.throttle_ms > 0, through.throttle_ms > 0),
        ("endpoints", sorted(direct.endpoints), sorted(through.endpoints)),
        ("a partition twice", direct.is_repeating, through.is_repeating),
    ):
        if one != other:
            found.append((name, f"{name}: {one} directly, {other} through"))
    if direct.error != through.error or (direct.throttle_ms > 0) != (through.throttle_ms > 0):
        return Verdict(found, pending)
    if views is None:
        found += _judge_names(direct, through)
    for key in direct.parts.keys() & through.parts.keys():
        has_same_room = _has_same_room(case, key, direct, through, logs)
        differences, is_pending = _judge_part(
            case,
            asked.get(key),
            direct.parts[key],
            through.parts[key],
            logs.get(key),
            has_same_room=has_same_room,
        )
        found += [(kind, f"{key[0]!r}-{key[1]} {text}") for kind, text in differences]
        pending += [key] if is_pending else []
    if views is not None:
        found += _judge_views(direct, through, views, pending)
        for key in through.parts.keys() - direct.parts.keys():
            if key in asked and key in logs:
                texts = _judge_records(case, asked[key], through.parts[key], logs[key])
                found += [(kind, f"{key[0]!r}-{key[1]} {text}") for kind, text in texts]
    if not direct.error:
        found += _judge_budgets(case, asked, through, broker_max_bytes)
    return Verdict(
        found,
        [
            key
            for key in pending
            if _fits(case, asked, key, direct, through, logs, broker_max_bytes)
        ],
    )


def _fits(
    case: Case,
    asked: Mapping[Key, Wanted],
    key: Key,
    direct: Answer,
    through: Answer,
    logs: Mapping[Key, Log],
    broker_max_bytes: int,
) -> bool:
    """Whether there was room left for the first batch of a partition that has none, even if of each other one as much
    was charged as a broker would have cut from a log without segments.
    """
    room = min(case.max_bytes, broker_max_bytes)
    brought = {
        other: part for other, part in through.parts.items() if part.records and other in asked
    }
    for other, part in brought.items():
        log, wanted = logs[other], asked[other]
        first = log.batches[log.find(wanted.offset)].start
        room -= max(len(part.records), min(len(log.raw) - first, wanted.max_bytes))
    return not brought or direct.parts[key].batches[0].end <= min(asked[key].max_bytes, room)


def _judge_names(direct: Answer, through: Answer) -> list[tuple[str, str]]:
    if direct.parts.keys() != through.parts.keys():
        return [("names", f"names {list(direct.parts)} directly, {list(through.parts)} through")]
    one, other = (
        [key for key in answer.parts if direct.parts[key].error not in UNORDERED]
        for answer in (direct, through)
    )
    return [] if one == other else [("order", f"order {one} directly, {other} through")]


def _judge_views(
    direct: Answer, through: Answer, views: tuple[View, View], pending: list[Key]
) -> list[tuple[str, str]]:
    """What only one side names must be what the other side has shown before; records may be under way."""
    found = []
    for view, answer in zip(views, (direct, through), strict=True):
        view.update(answer)
    for key in direct.parts.keys() ^ through.parts.keys():
        one, other = (view.shown.get(key) for view in views)
        if one != other:
            found.append(
                (
                    "omission",
                    f"{key[0]!r}-{key[1]} has shown (error, HW, log start) {one} directly, {other} through",
                )
            )
        if key in direct.parts and direct.parts[key].whole:
            pending.append(key)
    return found


def _has_same_room(
    case: Case, key: Key, direct: Answer, through: Answer, logs: Mapping[Key, Log]
) -> bool:
    """Whether the other partitions have left as much of the budget in both answers. Nobody knows that where the
    broker's read of one has ended with a segment, and Forebay may have charged a cut batch.
    """
    others = [(other, part) for other, part in direct.parts.items() if other != key]
    if any(other in logs and _ends_early(case, part, logs[other]) for other, part in others):
        return False
    brought = [part for other, part in through.parts.items() if other != key]
    return sum(len(part.records) for _, part in others) == sum(len(one.records) for one in brought)


def _ends_early(case: Case, part: Part, log: Log) -> bool:
    """Whether a broker's records are whole batches although another follows below the limit."""
    if not part.batches or len(part.whole) < len(part.records):
        return False
    following = log.find(part.batches[-1].last_offset + 1)
    limit = log.stable if case.isolation_level == 1 else log.end
    return following < len(log.batches) and log.batches[following].base_offset < limit


def _judge_part(
    case: Case,
    asked: Wanted | None,
    direct: Part,
    through: Part,
    log: Log | None,
    *,
    has_same_room: bool,
) -> tuple[list[tuple[str, str]], bool]:
    """Differences of a partition that both name, and whether its records are under way."""
    other = [name for name, value in direct.said.items() if value != through.said[name]]
    found = []
    if other:
        kind = "error" if direct.error != through.error else ", ".join(other)
        found = [
            (
                kind,
                "; ".join(
                    f"{name} {direct.said[name]} directly, {through.said[name]} through"
                    for name in other
                ),
            )
        ]
    if direct.error != through.error:
        return found, False
    is_pending = bool(direct.whole) and not through.records
    if not is_pending and (direct.aborted is None) != (through.aborted is None):
        has_more = bool(through.records) and not direct.records
        is_empty = not through.records and not direct.records
        if not has_more and (has_same_room or not is_empty):
            found.append(
                ("null list", f"aborted: {direct.aborted} directly, {through.aborted} through")
            )
    if log is not None and asked is not None and not direct.error:
        found += _judge_records(case, asked, through, log)
    elif direct.records != through.records:
        found.append(("records", f"records: {direct} directly, {through} through"))
    return found, is_pending


def _judge_records(case: Case, asked: Wanted, through: Part, log: Log) -> list[tuple[str, str]]:
    """Its record bytes are the log's from the offset on, and its aborted transactions those that lie there."""
    found = []
    limit = log.stable if case.isolation_level == COMMITTED and case.is_consumer else log.end
    first = log.find(asked.offset)
    expected = (
        log.raw[log.batches[first].start :][: len(through.records)]
        if first < len(log.batches)
        else b""
    )
    end_offset = through.batches[-1].last_offset + 1 if through.batches else asked.offset
    if through.records != expected:
        found.append(("records", f"records are not the log's from {asked.offset} on: {through}"))
    elif through.batches and end_offset > limit:
        found.append(("limit", f"records up to {end_offset}, beyond {limit}"))
    if through.aborted is None:
        return found
    if case.isolation_level != COMMITTED or not case.is_consumer:
        return [
            *found,
            ("aborted", f"aborted transactions for read_uncommitted: {through.aborted}"),
        ]
    known = {
        (one.producer_id, one.first_offset)
        for one in log.aborted
        if one.last_offset >= asked.offset
    }
    wanted = [
        (one.producer_id, one.first_offset)
        for one in log.aborted
        if one.last_offset >= asked.offset and one.first_offset < end_offset
    ]
    listed = [pair for pair in through.aborted if pair[1] < end_offset]
    if not set(through.aborted) <= known or (through.batches and sorted(listed) != sorted(wanted)):
        found.append(
            ("aborted", f"aborted up to {end_offset}: {through.aborted}, expected {wanted}")
        )
    return found


def _judge_budgets(
    case: Case, asked: Mapping[Key, Wanted], through: Answer, broker_max_bytes: int
) -> list[tuple[str, str]]:
    """No more bytes than the request and the broker allow; the first batch comes regardless."""
    room = min(case.max_bytes, broker_max_bytes)
    parts: Sequence[tuple[Key, Part]] = [
        (key, part) for key, part in through.parts.items() if part.records
    ]
    first = True
    for key, part in parts:
        if key not in asked:
            continue
        most = max(min(asked[key].max_bytes, room), 0)
        if first and part.batches:
            most = max(most, part.batches[0].end)
        if len(part.records) > most:
            text = f"{key[0]!r}-{key[1]} has {len(part.records)} bytes where {most} are allowed"
            return [("budget", f"{text}; {room} were left of the request's")]
        room = max(0, room - len(part.records))
        first = False
    return []

"""Is what was read of a changing topic what its log holds, or held? Readings, changes and the logs in; violations out.

Owns the rules, one function each. Pure; must not know how any of it came about. What is promised:
* each batch is, byte for byte, one that a replica of a lawful incarnation has or had at that offset ("unequal"; but for
  a changed codec, CODEC_S): by id of that id, by name of any id of the name, until the incarnation is gone ("stale").
* a Fetch that carries leader epoch E brings batches of the log of E's leader; one without, of the latest unclean
  election's or a later one's ("undone"). Nothing is read below a log start that was moved ("deleted").
* an answer leaves no offset out ("hole"); at last all is read ("differs"), and no deleted key ("revived").
An incarnation is gone, and an election or a log start is known, from `settled_at` on: no bare broker answers otherwise
then. A reader may be behind by one lease (cache.confirmEvery, LEASE_S), counted to the sending of its question: memory
serves for that long what an earlier answer confirmed. A reader who was told has no lease: one on whose connection
Metadata named the newer id, whose Fetch carries the epoch, or whose client was made afterwards.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections import defaultdict
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING

from kafka.errors import KafkaError
from kafka.record import MemoryRecords

from protocol import batch
from tests.chaos.broker_logs import Log, digest_of, is_of
from tests.chaos.checker import Violation, first
from tests.chaos.history import digest_of as digest_record
from tests.chaos.readings import AT_LAST, NEVER, NO_EPOCH, Taken, digest_sent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from protocol.batch import Batch
    from tests.chaos.broker_logs import Held, Kept, Lineage
    from tests.chaos.readings import Changes, Delivered, Fetched

LEASE_S = 1.0
"""The default of cache.confirmEvery."""
CODEC_S = 5.0
"""How long after a batch is in the log it may be served in its producer's codec, where the broker stores another by
then: `compression.type` was changed, and no batch of the topic has been compared since (docs/decisions/0007).
"""
MISMATCH = re.compile(
    r"^(?P<at>\S+) .* offsets .* and (?P<crc>[0-9a-f]{8}) at the broker.* partition=(?P<partition>\d+)\b"
)
TOMBSTONES_STAY_S = 3.0
"""delete.retention.ms of the topics that are compacted."""


def check_changes(changes: Changes, held: Held) -> list[Violation]:
    """Every violation, at most MOST_SHOWN of a rule."""
    lawful = Lawful(changes, held)
    records = Records(held)
    return [
        *first(find_unheld(changes, held, lawful)),
        *first(find_undone(changes, held, lawful)),
        *first(find_deleted(changes)),
        *first(find_holes(changes)),
        *first(find_unheld_records(changes, records, lawful)),
        *first(find_undone_records(changes, records, lawful)),
        *first(find_missing_records(changes)),
        *first(find_behind(changes)),
        *first(find_differing_ends(changes)),
        *first(find_revived(changes)),
    ]


class Lawful:
    """What a reader may know at a time."""

    def __init__(self, changes: Changes, held: Held) -> None:
        self._changes, self._held = changes, held
        self._gone: dict[bytes, float] = {}
        self._ids: dict[str, list[bytes]] = defaultdict(list)
        for former, later in pairs_of_topics(changes):
            self._gone[former] = later
        for one in changes.incarnations:
            self._ids[one.topic].append(one.topic_id)

    def is_gone(self, topic_id: bytes, sent_at: float, *, told: bool) -> bool:
        return sent_at > self._gone.get(topic_id, NEVER) + (0 if told else LEASE_S)

    def ids(self, one: Fetched) -> list[bytes]:
        """The incarnations whose records a Fetch may bring."""
        known = self._ids.get(one.topic, [])
        names = [one.topic_id] if one.by_id or one.topic_id not in known else known
        at = known.index(one.topic_id) if one.topic_id in known else -1
        return [
            each
            for each in names
            if not self.is_gone(each, one.sent_at, told=each in known and known.index(each) < at)
        ]

    def ids_of_client(self, one: Delivered) -> list[bytes]:
        """The same for a client, which was told when it was made."""
        return [
            each
            for each in self._ids.get(one.topic, [])
            if not self.is_gone(each, one.made_at, told=True)
        ]

    def lineages(self, log: Log, sent_at: float, *, carried: int, told: bool) -> list[Lineage]:
        """The logs that may be read: the one of the epoch that was carried, or those of the latest election that is
        known and of later epochs. Empty: nothing can be said.
        """
        due = sent_at - (0 if told else LEASE_S)
        known = self._held.lineages.get(log, {})
        elected = [
            one.epoch
            for one in self._changes.elections
            if (one.topic_id, one.partition) == log and one.settled_at < due
        ]
        least = max(elected, default=NO_EPOCH)
        if carried > NO_EPOCH and carried >= least:
            return [known[carried]] if carried in known else []
        return [] if least == NO_EPOCH else [one for epoch, one in known.items() if epoch >= least]


def pairs_of_topics(changes: Changes) -> Iterator[tuple[bytes, float]]:
    """(an id, since when it is gone)."""
    for topic in {one.topic for one in changes.incarnations}:
        mine = [one for one in changes.incarnations if one.topic == topic]
        for former, later in pairwise(mine):
            settled = [one.settled_at for one in mine[mine.index(later) :]]
            yield former.topic_id, min(settled)


# -- what raw readers got ------------------------------------------------------------------------------------


def find_unheld(changes: Changes, held: Held, lawful: Lawful) -> Iterator[Violation]:
    """Each wrong batch once, as its first reader had it."""
    told: set[bytes] = set()
    for one in changes.fetched:
        ids = lawful.ids(one)
        logs = [Log(each, one.partition) for each in ids]
        for data in one.batches:
            digest = digest_of(data)
            if digest in told or any(digest in held.batches.get(log, {}) for log in logs):
                continue
            told.add(digest)
            (head,) = batch.scan_batches(data, 0, len(data))
            former = [
                log.topic_id.hex()
                for log, batches in held.batches.items()
                if log.partition == one.partition and digest in batches
            ]
            if former:
                lawfully = [each.hex() for each in ids]
                yield Violation("stale", f"{one}: {head} is of {former}, lawful is {lawfully}")
            elif not was_fleeting(changes, one, data, head) and not is_first_of_codec(
                one, data, head, logs, held
            ):
                yield Violation("unequal", f"{one}: {head}; {explain(data, head, logs, held)}")


def was_fleeting(changes: Changes, one: Fetched, data: bytes, head: Batch) -> bool:
    """Whether a leader may have had the batch for less than a scan of its log: one that was elected away while it stood
    still goes on where it stood, appends, and is cut. It is as it was sent, of a former epoch, and was asked for before
    every broker knew of the election, or a lease later.
    """
    return digest_sent(data) in changes.sent.get(one.topic, ()) and any(
        head.leader_epoch < election.epoch and one.sent_at <= election.settled_at + LEASE_S
        for election in changes.elections
        if (election.topic_id, election.partition) == (one.topic_id, one.partition)
    )


def is_first_of_codec(one: Fetched, data: bytes, head: Batch, logs: list[Log], held: Held) -> bool:
    """Whether the log has the same batch in another codec, and it was asked for soon after it was there."""
    return any(
        one.sent_at - kept.seen_at <= CODEC_S
        and describe_difference(data, head, kept) == "differs in codec"
        for kept in at_its_place(head, logs, held)
    )


def tells_of_first_of_codec(line: str, held: Held) -> bool:
    """Whether what the verifier says is of such a batch: compressed by its broker, and new when it was compared."""
    told = MISMATCH.search(line)
    if told is None:
        return False
    at = datetime.fromisoformat(told["at"]).timestamp() - (time.time() - time.monotonic())
    crc = int(told["crc"], 16)
    return any(
        log.partition == int(told["partition"])
        and kept.head.crc & 0xFFFFFFFF == crc
        and batch.codec(kept.head.attributes) != 0
        and at - kept.seen_at <= CODEC_S
        for log, batches in held.batches.items()
        for kept in batches.values()
    )


def at_its_place(head: Batch, logs: list[Log], held: Held) -> list[Kept]:
    """What the logs have at a batch's offsets."""
    return [
        kept
        for log in logs
        for kept in held.batches.get(log, {}).values()
        if kept.head.base_offset <= head.last_offset and kept.head.last_offset >= head.base_offset
    ]


def explain(data: bytes, head: Batch, logs: list[Log], held: Held) -> str:
    """What the logs have at a batch's place."""
    there = at_its_place(head, logs, held)
    said = [f"{kept.head} ({describe_difference(data, head, kept)})" for kept in there[:3]]
    return f"the log has {'; '.join(said)}" if said else "the log has nothing there"


def describe_difference(data: bytes, head: Batch, kept: Kept) -> str:
    """Which promises of a batch differ."""
    same = [
        (
            "offsets",
            (head.base_offset, head.last_offset),
            (kept.head.base_offset, kept.head.last_offset),
        ),
        ("epoch", head.leader_epoch, kept.head.leader_epoch),
        ("codec", batch.codec(head.attributes), batch.codec(kept.head.attributes)),
        (
            "timestamp type",
            batch.is_log_append_time(head.attributes),
            batch.is_log_append_time(kept.head.attributes),
        ),
        ("timestamp", head.max_timestamp, kept.head.max_timestamp),
        ("records", scan_values(data), scan_values(kept.data)),
    ]
    return "differs in " + ", ".join(name for name, mine, theirs in same if mine != theirs)


def scan_values(data: bytes) -> list[tuple[int, int]] | None:
    """(offset, digest) of its records; None of a batch that nobody can read."""
    try:
        return [(one.offset, one.digest) for one in scan_records(data)]
    except (KafkaError, ValueError, OSError):
        return None


def find_undone(changes: Changes, held: Held, lawful: Lawful) -> Iterator[Violation]:
    for one in changes.fetched:
        for topic_id in lawful.ids(one):
            log = Log(topic_id, one.partition)
            known = held.batches.get(log, {})
            logs = lawful.lineages(log, one.sent_at, carried=one.epoch, told=False)
            for data in one.batches if logs else ():
                kept = known.get(digest_of(data))
                if kept is not None and not is_of_any(logs, kept.head):
                    yield Violation("undone", f"{one}: {kept.head} is of none of the logs {logs}")


def is_of_any(logs: list[Lineage], head: Batch) -> bool:
    return any(is_of(one, head.leader_epoch, head.base_offset) for one in logs)


def find_deleted(changes: Changes) -> Iterator[Violation]:
    cuts = defaultdict(list)
    for cut in changes.cuts:
        cuts[Log(cut.topic_id, cut.partition)].append(cut)
    for one in changes.fetched:
        for cut in cuts[Log(one.topic_id, one.partition)]:
            if one.sent_at > cut.settled_at + LEASE_S and one.offset < cut.before:
                yield Violation(
                    "deleted", f"{one}: the log began at {cut.before} by {cut.settled_at:.2f}"
                )


def find_holes(changes: Changes) -> Iterator[Violation]:
    """Of a topic that was never compacted: the first batch holds the offset, the others follow each other."""
    for one in changes.fetched:
        if one.topic in changes.compacted:
            continue
        heads = [batch.scan_batches(data, 0, len(data))[0] for data in one.batches]
        if not heads[0].base_offset <= one.offset <= heads[0].last_offset:
            yield Violation("hole", f"{one}: the first batch is {heads[0]}")
        for before, after in pairwise(heads):
            if after.base_offset != before.last_offset + 1:
                yield Violation("hole", f"{one}: {before}, then {after}")


# -- what clients got ----------------------------------------------------------------------------------------


class Records:
    """The logs' records, parsed where they are asked for."""

    def __init__(self, held: Held) -> None:
        self._parsed: dict[bytes, dict[int, Taken]] = {}
        self._sorted: dict[Log, list[tuple[int, bytes, Kept]]] = {
            log: sorted((kept.head.base_offset, digest, kept) for digest, kept in batches.items())
            for log, batches in held.batches.items()
        }
        self._longest: dict[Log, int] = {
            log: max(kept.head.last_offset - kept.head.base_offset for _, _, kept in batches) + 1
            for log, batches in self._sorted.items()
        }

    def at(self, log: Log, offset: int) -> list[tuple[Taken, Batch]]:
        """Every record that a replica holds or held at an offset, with its batch."""
        batches = self._sorted.get(log, [])
        longest = self._longest.get(log, 0)
        low = bisect_right(batches, offset - longest, key=lambda one: one[0])
        high = bisect_right(batches, offset, key=lambda one: one[0])
        found = []
        for _, digest, kept in batches[low:high]:
            if digest not in self._parsed:
                self._parsed[digest] = {one.offset: one for one in scan_records(kept.data)}
            if offset in self._parsed[digest]:
                found.append((self._parsed[digest][offset], kept.head))
        return found


def scan_records(data: bytes) -> list[Taken]:
    """The records of a batch, as a client would have them."""
    return [
        Taken(
            record.offset,
            digest_record(record.key, record.value),
            (int(record.timestamp_type or 0), int(record.timestamp)),
        )
        for one in iter(MemoryRecords(data).next_batch, None)
        for record in one
    ]


def settled_elections(changes: Changes, one: Delivered) -> list[float]:
    ids = changes.ids_of(one.topic)
    return [each.settled_at for each in changes.elections if each.topic_id in ids]


def find_unheld_records(changes: Changes, records: Records, lawful: Lawful) -> Iterator[Violation]:
    for one in changes.delivered:
        logs = [Log(each, one.partition) for each in lawful.ids_of_client(one)]
        for taken in one.records:
            there = [known for log in logs for known, _ in records.at(log, taken.offset)]
            if taken not in there:
                if one.topic in changes.sent and one.made_at < max(
                    settled_elections(changes, one), default=0.0
                ):
                    continue  # as in `was_fleeting`; raw readers tell more
                former = [
                    each.hex()
                    for each in changes.ids_of(one.topic)
                    if taken
                    in [known for known, _ in records.at(Log(each, one.partition), taken.offset)]
                ]
                rule = "stale" if former else "unequal"
                yield Violation(rule, f"{one}: {taken}, of {former}; the log has {there}")


def find_undone_records(changes: Changes, records: Records, lawful: Lawful) -> Iterator[Violation]:
    for one in changes.delivered:
        for topic_id in lawful.ids_of_client(one):
            log = Log(topic_id, one.partition)
            logs = lawful.lineages(log, one.made_at, carried=NO_EPOCH, told=True)
            for taken in one.records if logs else ():
                heads = [head for known, head in records.at(log, taken.offset) if known == taken]
                if heads and not any(is_of_any(logs, head) for head in heads):
                    yield Violation("undone", f"{one}: {taken} is of none of the logs {logs}")


def find_missing_records(changes: Changes) -> Iterator[Violation]:
    """Of a topic that loses nothing but its beginning every offset is read, or the reader goes on at a new start."""
    for one in changes.delivered:
        if one.topic not in changes.whole:
            continue
        starts = {cut.before for cut in changes.cuts if cut.partition == one.partition}
        for before, after in pairwise(one.records):
            if after.offset != before.offset + 1 and after.offset not in starts:
                yield Violation("hole", f"{one}: {before.offset}, then {after.offset}")


# -- what was there at last ----------------------------------------------------------------------------------


def find_behind(changes: Changes) -> Iterator[Violation]:
    """Of each partition's last reading the client comes to the end."""
    latest = {(one.reader, one.topic, one.partition): one for one in changes.delivered}
    for one in latest.values():
        if one.reader.startswith(AT_LAST) and one.reached < one.end:
            yield Violation("behind", f"{one}: at {one.reached} of {one.end}")


def find_differing_ends(changes: Changes) -> Iterator[Violation]:
    """Through Forebay everything is read that is read past it: the same bytes, or of a compacted topic the offsets."""
    for one in changes.last:
        heads = [batch.scan_batches(data, 0, len(data))[0] for data in one.through]
        for data in one.direct:
            (head,) = batch.scan_batches(data, 0, len(data))
            covered = any(
                mine.base_offset <= head.last_offset and mine.last_offset >= head.base_offset
                for mine in heads
            )
            if not covered or (one.topic not in changes.compacted and data not in one.through):
                yield Violation(
                    "differs", f"{one.reader}: {one.topic}-{one.partition} lacks {head}"
                )


def find_revived(changes: Changes) -> Iterator[Violation]:
    """A key has the value that it has at the broker: none that a tombstone deleted. A reading that took longer than
    tombstones stay may miss one.
    """
    for one in changes.last:
        if one.topic in changes.compacted and one.took_s < TOMBSTONES_STAY_S:
            mine, brokers = fold(one.through), fold(one.direct)
            for key in mine.keys() | brokers.keys():
                if mine.get(key) != brokers.get(key):
                    yield Violation(
                        "revived",
                        f"{one.reader}: {one.topic}-{one.partition} has {mine.get(key)} of {key!r}, "
                        f"the broker has {brokers.get(key)}",
                    )


def fold(batches: tuple[bytes, ...]) -> dict[bytes, int]:
    """Key -> offset of its value, without those that were deleted."""
    latest: dict[bytes, int] = {}
    for data in batches:
        for one in iter(MemoryRecords(data).next_batch, None):
            for record in one:
                if record.value is None:
                    latest.pop(record.key, None)
                else:
                    latest[record.key] = record.offset
    return latest

"""Readings that keep every promise pass; with one thing broken they do not, and the rule is named."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from protocol import batch
from tests.chaos.broker_logs import Held, Log, scan_whole
from tests.chaos.checker import MOST_SHOWN
from tests.chaos.log_checker import (
    CODEC_S,
    LEASE_S,
    TOMBSTONES_STAY_S,
    check_changes,
    scan_records,
    tells_of_first_of_codec,
)
from tests.chaos.readings import (
    AT_LAST,
    NEVER,
    NO_EPOCH,
    Changes,
    Cut,
    Delivered,
    Election,
    Fetched,
    Incarnation,
    Last,
    digest_sent,
)

if TYPE_CHECKING:
    from collections.abc import Callable

FORMER, LATTER, OTHER, KEYS = (bytes([number]) * 16 for number in range(1, 5))
SETTLED, CUT_AT, ELECTED_AT = 100.0, 50.0, 60.0
LATE = SETTLED + LEASE_S + 0.01
STAMP_MS = 1_700_000_000_000
NONE, GZIP = 0, 1


def build(
    base: int,
    word: bytes,
    *,
    epoch: int = 3,
    codec: int = NONE,
    count: int = 2,
    stamped_ms: int = 0,
    key: bytes | None = None,
    dies: bool = False,
) -> bytes:
    """A batch as a broker stores it."""
    builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 1 << 20)
    for index in range(count):
        value = None if dies else word * 20
        builder.append(index, timestamp=STAMP_MS + base + index, key=key, value=value, headers=[])
    data = bytearray(builder.build())
    batch.stamp_base_offset(data, 0, base)
    batch.stamp_leader_epoch(data, 0, epoch)
    if stamped_ms:
        batch.stamp_log_append_time(data, 0, stamped_ms)
    return bytes(data)


OLD = tuple(build(base, b"old") for base in range(0, 20, 2))
NEW = tuple(build(base, b"new") for base in range(0, 10, 2))
KEPT = tuple(build(base, b"kept", epoch=1) for base in range(0, 4, 2))
LOST = tuple(build(base, b"lost", epoch=1) for base in range(4, 10, 2))
INSTEAD = tuple(build(base, b"instead", epoch=2) for base in range(4, 12, 2))
VALUE, TOMBSTONE = build(0, b"v", key=b"k", count=1), build(3, b"", key=b"k", count=1, dies=True)


def build_world() -> tuple[Changes, Held]:
    """A topic made twice, one that lost records in an unclean election, one that is compacted; all read rightly."""
    held = Held()
    for log, batches in (
        (Log(FORMER, 0), OLD),
        (Log(LATTER, 0), NEW),
        (Log(OTHER, 0), KEPT + LOST + INSTEAD),
        (Log(KEYS, 0), (VALUE, TOMBSTONE)),
    ):
        for data in batches:
            held.add(log, data, scan_whole(data)[0], 0.0)
    held.add_lineage(Log(OTHER, 0), ((1, 0),))
    held.add_lineage(Log(OTHER, 0), ((1, 0), (2, 4)))
    changes = Changes(
        incarnations=[
            Incarnation("again", FORMER, NEVER),
            Incarnation("again", LATTER, SETTLED),
            Incarnation("unclean", OTHER, NEVER),
            Incarnation("keyed", KEYS, NEVER),
        ],
        cuts=[Cut(LATTER, 0, 2, SETTLED + 20)],
        elections=[Election(OTHER, 0, 2, ELECTED_AT)],
        compacted=frozenset(("keyed",)),
        whole=frozenset(("again",)),
    )
    changes.fetched += [
        read("again", FORMER, OLD, sent_at=SETTLED + LEASE_S, by_id=True),
        read("again", FORMER, OLD, sent_at=SETTLED + LEASE_S),
        read("again", FORMER, OLD, sent_at=SETTLED - 1),
        read("again", FORMER, NEW, sent_at=SETTLED - 1),
        read("again", LATTER, NEW, sent_at=LATE),
        read("again", LATTER, NEW, sent_at=SETTLED + 20 + LEASE_S),
        read("again", LATTER, NEW[1:], sent_at=SETTLED + 30, offset=3),
        read("unclean", OTHER, KEPT + LOST, sent_at=ELECTED_AT - 1, epoch=1),
        read("unclean", OTHER, KEPT + LOST, sent_at=ELECTED_AT + LEASE_S),
        read("unclean", OTHER, KEPT + INSTEAD, sent_at=ELECTED_AT - 1, epoch=2),
        read("unclean", OTHER, KEPT + INSTEAD, sent_at=ELECTED_AT + 9),
        read("keyed", KEYS, (VALUE, TOMBSTONE), sent_at=1.0),
    ]
    changes.delivered += [
        deliver("again", OLD, made_at=SETTLED),
        deliver("again", NEW, made_at=LATE),
        deliver("again", NEW[1:], made_at=LATE + 50),
        deliver("unclean", KEPT + LOST, made_at=ELECTED_AT),
        deliver("unclean", KEPT + INSTEAD, made_at=ELECTED_AT + 1),
    ]
    changes.last += [
        Last("r", "again", 0, NEW[1:], NEW[1:], 1.0),
        Last("r", "unclean", 0, KEPT + INSTEAD, KEPT + INSTEAD, 1.0),
        Last("r", "keyed", 0, (VALUE, TOMBSTONE), (), 1.0),
    ]
    return changes, held


def read(
    topic: str,
    topic_id: bytes,
    batches: tuple[bytes, ...],
    *,
    sent_at: float,
    by_id: bool = False,
    epoch: int = NO_EPOCH,
    offset: int | None = None,
) -> Fetched:
    start = scan_whole(batches[0])[0].base_offset if offset is None else offset
    version = 13 if by_id else 12
    return Fetched("reader", version, topic, topic_id, 0, by_id, sent_at, epoch, start, batches)


def deliver(
    topic: str, batches: tuple[bytes, ...], *, made_at: float, reader: str = "client", lag: int = 0
) -> Delivered:
    records = tuple(record for data in batches for record in scan_records(data))
    end = records[-1].offset + 1
    return Delivered(reader, topic, 0, made_at, end + lag, end, records)


def rules(changes: Changes, held: Held) -> set[str]:
    return {one.rule for one in check_changes(changes, held)}


def test_readings_that_keep_every_promise() -> None:
    assert check_changes(*build_world()) == []


BROKEN: list[tuple[str, Callable[[], Fetched], set[str]]] = [
    (
        "a deleted topic by name",
        lambda: read("again", LATTER, OLD, sent_at=SETTLED + 0.01),
        {"stale"},
    ),
    (
        "by name, not told, after a lease",
        lambda: read("again", FORMER, OLD, sent_at=LATE),
        {"stale"},
    ),
    (
        "by id, after a lease",
        lambda: read("again", FORMER, OLD, sent_at=LATE, by_id=True),
        {"stale"},
    ),
    (
        "another id's",
        lambda: read("again", LATTER, OLD, sent_at=SETTLED - 1, by_id=True),
        {"stale"},
    ),
    (
        "new ones, then old ones",
        lambda: read("again", LATTER, NEW + OLD[5:], sent_at=LATE),
        {"stale"},
    ),
    (
        "other bytes",
        lambda: read("again", LATTER, (build(0, b"forged"),), sent_at=LATE),
        {"unequal"},
    ),
    (
        "another epoch",
        lambda: read("again", LATTER, (build(0, b"new", epoch=4),), sent_at=LATE),
        {"unequal"},
    ),
    (
        "another codec",
        lambda: read("again", LATTER, (build(0, b"new", codec=GZIP),), sent_at=LATE),
        {"unequal"},
    ),
    (
        "the broker's clock, which is not the broker's",
        lambda: read("again", LATTER, (build(0, b"new", stamped_ms=STAMP_MS),), sent_at=LATE),
        {"unequal"},
    ),
    ("another place", lambda: read("again", LATTER, (build(2, b"old"),), sent_at=LATE), {"stale"}),
    (
        "lost ones, in the new epoch",
        lambda: read("unclean", OTHER, KEPT + LOST, sent_at=ELECTED_AT - 5, epoch=2),
        {"undone"},
    ),
    (
        "lost ones without an epoch, after a lease",
        lambda: read("unclean", OTHER, LOST, sent_at=ELECTED_AT + LEASE_S + 0.01),
        {"undone"},
    ),
    (
        "records of an epoch above the one that was carried",
        lambda: read("unclean", OTHER, KEPT + INSTEAD, sent_at=ELECTED_AT - 5, epoch=1),
        {"undone"},
    ),
    (
        "lost ones in the epoch that every broker knows to be over",
        lambda: read("unclean", OTHER, LOST, sent_at=ELECTED_AT + LEASE_S + 0.01, epoch=1),
        {"undone"},
    ),
    (
        "what was deleted",
        lambda: read("again", LATTER, NEW, sent_at=SETTLED + 20 + LEASE_S + 0.01),
        {"deleted"},
    ),
    ("a gap", lambda: read("again", LATTER, NEW[:1] + NEW[2:], sent_at=LATE), {"hole"}),
    (
        "not what was asked for",
        lambda: read("again", LATTER, NEW[1:], sent_at=LATE, offset=1),
        {"hole"},
    ),
]


@pytest.mark.parametrize(
    ("broken", "expected"), [one[1:] for one in BROKEN], ids=[one[0] for one in BROKEN]
)
def test_a_fetch_that_breaks_a_promise(broken: Callable[[], Fetched], expected: set[str]) -> None:
    changes, held = build_world()
    changes.fetched.append(broken())
    assert rules(changes, held) == expected


def with_other_stamp(one: Delivered) -> Delivered:
    (first, *rest) = one.records
    return one._replace(records=(first._replace(stamp=(1, first.stamp[1])), *rest))


DELIVERED: list[tuple[str, Delivered, set[str]]] = [
    ("a deleted topic", deliver("again", OLD, made_at=SETTLED + 0.01), {"stale"}),
    ("what nobody wrote", deliver("again", (build(0, b"forged"),), made_at=LATE), {"unequal"}),
    ("the wrong timestamp", with_other_stamp(deliver("again", NEW, made_at=LATE)), {"unequal"}),
    ("lost ones", deliver("unclean", KEPT + LOST, made_at=ELECTED_AT + 0.01), {"undone"}),
    ("a gap", deliver("again", NEW[:2] + NEW[3:], made_at=LATE), {"hole"}),
    ("not all in time", deliver("again", NEW, made_at=LATE, lag=1), set()),
    (
        "not all at last",
        deliver("again", NEW, made_at=LATE, lag=1, reader=f"{AT_LAST}, x"),
        {"behind"},
    ),
]


@pytest.mark.parametrize(
    ("broken", "expected"), [one[1:] for one in DELIVERED], ids=[one[0] for one in DELIVERED]
)
def test_a_client_that_was_told_otherwise(broken: Delivered, expected: set[str]) -> None:
    changes, held = build_world()
    changes.delivered.append(broken)
    assert rules(changes, held) == expected


LAST: list[tuple[str, Last, set[str]]] = [
    ("the end is missing", Last("r", "again", 0, NEW[1:-1], NEW[1:], 1.0), {"differs"}),
    ("a batch has other bytes", Last("r", "again", 0, OLD[:5], NEW, 1.0), {"differs"}),
    (
        "a compacted topic's offset is missing",
        Last("r", "keyed", 0, (), (VALUE,), 1.0),
        {"differs", "revived"},
    ),
    ("a deleted key is back", Last("r", "keyed", 0, (VALUE,), (), 1.0), {"revived"}),
    ("a tombstone may have gone", Last("r", "keyed", 0, (VALUE,), (), TOMBSTONES_STAY_S), set()),
]


@pytest.mark.parametrize(
    ("last", "expected"), [one[1:] for one in LAST], ids=[one[0] for one in LAST]
)
def test_what_was_there_at_last(last: Last, expected: set[str]) -> None:
    changes, held = build_world()
    changes.last.append(last)
    assert rules(changes, held) == expected


def test_what_settled_later_is_gone_with_a_later_one() -> None:
    """That nobody saw a re-creation settle is no leave to read the former one when the next has."""
    changes, held = build_world()
    third = bytes([9]) * 16
    changes.incarnations[1] = Incarnation("again", LATTER, NEVER)
    changes.incarnations.append(Incarnation("again", third, SETTLED))
    changes.fetched = [read("again", third, OLD, sent_at=LATE)]
    changes.delivered, changes.last = [], []
    assert rules(changes, held) == {"stale"}


def test_a_reelected_log_may_be_read_in_its_own_epoch() -> None:
    """A later unclean election may bring back what the one before had lost."""
    changes, held = build_world()
    held.add_lineage(Log(OTHER, 0), ((1, 0), (5, 10)))
    changes.fetched.append(read("unclean", OTHER, KEPT + LOST, sent_at=ELECTED_AT + 9))
    changes.fetched.append(read("unclean", OTHER, KEPT + LOST, sent_at=ELECTED_AT + 9, epoch=5))
    assert check_changes(changes, held) == []
    changes.elections.append(Election(OTHER, 0, 5, ELECTED_AT + 20))
    changes.fetched.append(read("unclean", OTHER, INSTEAD, sent_at=ELECTED_AT + 30))
    assert rules(changes, held) == {"undone"}


def test_what_a_former_leader_had_for_a_moment() -> None:
    """It stood still while it was elected away, appended what had come, was read and cut, all between two scans."""
    fleeting = build(10, b"fleeting", epoch=1)
    for sent, data, sent_at, expected in (
        (fleeting, fleeting, ELECTED_AT + LEASE_S, set()),
        (fleeting, build(20, b"fleeting", epoch=1), ELECTED_AT + LEASE_S + 0.01, {"unequal"}),
        (fleeting, build(10, b"fleeting", epoch=2), ELECTED_AT, {"unequal"}),
        (b"another", fleeting, ELECTED_AT, {"unequal"}),
    ):
        changes, held = build_world()
        moved = bytearray(sent)  # offset and epoch are the broker's
        moved[:21] = bytes(21)
        changes.sent["unclean"] = {digest_sent(bytes(moved))}
        changes.fetched.append(read("unclean", OTHER, (data,), sent_at=sent_at))
        assert rules(changes, held) == expected


def test_of_many_violations_some_are_shown() -> None:
    changes, held = build_world()
    wrong = [build(base, b"forged") for base in range(0, 6 * MOST_SHOWN, 2)]
    changes.fetched += [
        read("again", LATTER, (data,), sent_at=LATE) for data in (*wrong[:3] * 9, *wrong)
    ]
    shown = [one.what for one in check_changes(changes, held)]
    assert len(shown) == len(set(shown)) == MOST_SHOWN


@pytest.mark.parametrize(
    ("data", "sent_at", "expected"),
    [
        (build(0, b"v", codec=GZIP, key=b"k", count=1), CODEC_S, set()),
        (build(0, b"v", codec=GZIP, key=b"k", count=1), CODEC_S + 0.01, {"unequal"}),
        (build(0, b"w", codec=GZIP, key=b"k", count=1), 1.0, {"unequal"}),
        (build(0, b"v", codec=GZIP, key=b"k", count=1, stamped_ms=STAMP_MS), 1.0, {"unequal"}),
    ],
    ids=[
        "at once",
        "too late",
        "another value",
        "another time",
    ],  # gzip puts the time into the bytes
)
def test_only_the_codec_may_differ_and_not_for_long(
    data: bytes, sent_at: float, expected: set[str]
) -> None:
    changes, held = build_world()
    changes.fetched.append(read("keyed", KEYS, (data,), sent_at=sent_at))
    assert {one.rule for one in check_changes(changes, held)} == expected


@pytest.mark.parametrize(
    ("codec", "crc_of", "age_s", "explained"),
    [
        (GZIP, GZIP, 1, True),
        (GZIP, GZIP, CODEC_S + 1, False),
        (NONE, NONE, 1, False),
        (GZIP, NONE, 1, False),
    ],
)
def test_a_verifiers_line_is_explained_by_a_new_batch_that_its_broker_compressed(
    codec: int, crc_of: int, age_s: float, explained: bool
) -> None:
    held, data = Held(), build(0, b"new", codec=codec)
    held.add(Log(KEYS, 2), data, scan_whole(data)[0], time.monotonic() - age_s)
    other = build(0, b"other" if crc_of != codec else b"new", codec=crc_of)
    crc = scan_whole(other)[0].crc & 0xFFFFFFFF
    line = (
        f"{datetime.now(UTC).isoformat()} ERROR memory served other bytes than the broker has: offsets 0 to 1, "
        f"first differing byte 10 of the batch, CRC 00000000 stored and {crc:08x} at the broker, the stored batch "
        "agrees with its own CRC; dropping the topic's blocks topic=t partition=2"
    )
    assert tells_of_first_of_codec(line, held) is explained
    assert not tells_of_first_of_codec(line.replace("partition=2", "partition=1"), held)
    assert not tells_of_first_of_codec("something else", held)

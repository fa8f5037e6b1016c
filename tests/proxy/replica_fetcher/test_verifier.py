"""The verifier: differences, equal records, limits and consequences."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from blockcache.cache import BlockCache
from protocol import batch
from protocol.errors import ErrorCode
from protocol.fetch_build import FetchAnswer, build_response
from proxy.accounting.counters import Counters
from proxy.partitions.table import Partition, Partitions
from proxy.partitions.topics import Topic, Topics
from proxy.replica_fetcher.verifier import (
    DELETE_HORIZON,
    QUEUE_SAMPLES,
    SAMPLE_BYTES,
    VERSION,
    Committed,
    Difference,
    ServedSample,
    Verifier,
    find_difference,
    find_untrue,
    scan_answer,
)
from tests.kit import fetch_messages
from tests.protocol.batches import batch_v2
from tests.proxy.followed_partition import LEADERS, known, stand_in

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20
TOPIC_ID = bytes(15) + b"\x01"
ATTRIBUTES_AT, RECORD_AT, CRC_AT = 22, 70, 17


def build_at(base_offset: int, count: int = 2, **more: Any) -> bytearray:
    built = bytearray(batch_v2(count, **more))
    batch.stamp_base_offset(built, 0, base_offset)
    return built


def build_answer(
    records: bytes,
    error_code: int = 0,
    aborted: list[tuple[int, int]] | None = None,
    stable: int = 99,
) -> bytes:
    views = (records,) if records else ()
    said = FetchAnswer(TOPIC_ID, 0, error_code, 99, stable, 0, aborted, views, len(records))
    parts = build_response(
        VERSION, 0, throttle_time_ms=0, error_code=0, session_id=0, partitions=[said]
    )
    return b"".join(parts)


def build_sample(
    offset: int, records: bytes, is_cut: bool = False, committed: Committed | None = None
) -> ServedSample:
    """What memory served, of a partition that no comparison reads."""
    return ServedSample(stand_in(None), 0, offset, records, is_cut, committed)


def judge(
    ours: bytes | bytearray, theirs: bytes | bytearray, *, cut: bool = False, offset: int = 10
) -> Difference | None:
    frame = build_answer(bytes(theirs))
    answered = scan_answer(frame)
    assert answered is not None
    return find_difference(build_sample(offset, bytes(ours), cut), frame, answered)


RUN = build_at(10) + build_at(12) + build_at(14)
ONE = len(build_at(10))


@pytest.mark.parametrize("size_bytes", [ONE, 2 * ONE, 2 * ONE + 30, 3 * ONE])
def test_responses_are_compared_over_their_common_part(size_bytes: int) -> None:
    assert judge(RUN, RUN[:size_bytes]) is None
    assert judge(RUN[: size_bytes // ONE * ONE], RUN) is None
    assert judge(RUN[:size_bytes], RUN, cut=True) is None


@pytest.mark.parametrize("at", [0, 8, 12, CRC_AT, ATTRIBUTES_AT, RECORD_AT, ONE - 1])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_any_changed_byte_is_found_where_it_is(number: int, at: int) -> None:
    ours = bytearray(RUN)
    ours[number * ONE + at] ^= 0x01
    found = judge(ours, RUN)
    assert found is not None and found.base_offset == 10 + 2 * number and found.at_byte == at
    assert found.is_whole == (at in (0, 12)), "what lies outside the CRC"


def test_rewritten_batch_is_a_difference() -> None:
    brokers = build_at(10, value=b"other")
    found = judge(build_at(10), brokers)
    assert found is not None and found.is_whole
    (mine,), (their,) = (batch.scan_batches(one, 0, len(one)) for one in (build_at(10), brokers))
    assert (found.stored_crc, found.broker_crc) == (mine.crc, their.crc)
    assert judge(build_at(10, 2), build_at(10, 3)) is not None, "more records than we have"


def test_missing_batch_is_a_difference() -> None:
    assert judge(build_at(12), build_at(10) + build_at(12)) is not None


def stamp_last_delta(built: bytearray, delta: int) -> bytearray:
    """As the cleaner does: fewer records, the offsets as they were."""
    built[23:27] = delta.to_bytes(4, "big")
    return built


def test_compaction_is_no_difference() -> None:
    cleaned = stamp_last_delta(build_at(12, 1), 1)
    assert judge(RUN, build_at(10) + cleaned + build_at(14)) is None
    assert judge(RUN, build_at(10) + build_at(14)) is None, "removed between"
    assert judge(RUN, build_at(14)) is None, "removed before"
    horizon = build_at(12)
    horizon[ATTRIBUTES_AT] |= DELETE_HORIZON
    assert judge(RUN, build_at(10) + horizon + build_at(14)) is None
    corrupt = bytearray(RUN)
    corrupt[ONE + RECORD_AT] ^= 1
    assert judge(corrupt, build_at(10) + cleaned + build_at(14)) is not None, "and hides nothing"


def tell_apart(
    told: list[tuple[int, int]],
    brokers: list[tuple[int, int]] | None,
    *,
    ours: bytes = bytes(RUN),
    theirs: bytes = bytes(RUN),
    stable: int = 16,
    brokers_stable: int = 16,
) -> str:
    frame = build_answer(theirs, 0, brokers, brokers_stable)
    answered = scan_answer(frame)
    assert answered is not None
    sample = build_sample(10, ours, committed=Committed(told, stable))
    return find_untrue(sample, frame, answered)


@pytest.mark.parametrize(
    ("told", "brokers"),
    [
        ([], []),
        ([], None),
        ([(7, 12)], [(7, 12)]),
        ([(7, 12), (8, 10)], [(8, 10), (7, 12)]),
        ([(7, 12), (7, 14)], [(7, 12), (7, 14)]),
        ([(7, 9)], [(7, 3)]),
        ([], [(7, 16), (8, 20)]),
    ],
    ids=[
        "none",
        "null",
        "one",
        "another-order",
        "twice",
        "began-before",
        "more-than-its-records-need",
    ],
)
def test_the_same_aborted_transactions_are_no_difference(
    told: list[tuple[int, int]], brokers: list[tuple[int, int]] | None
) -> None:
    assert tell_apart(told, brokers) == ""


@pytest.mark.parametrize(
    ("told", "brokers"),
    [
        ([(7, 12)], []),
        ([(7, 12)], None),
        ([], [(7, 12)]),
        ([(7, 12)], [(7, 14)]),
        ([(7, 12)], [(8, 12)]),
    ],
    ids=["too-many", "too-many-of-none", "too-few", "another-place", "another-producer"],
)
def test_other_aborted_transactions_are_a_difference(
    told: list[tuple[int, int]], brokers: list[tuple[int, int]] | None
) -> None:
    assert "offsets 10 to 15" in tell_apart(told, brokers)


def test_transactions_are_compared_over_common_batches() -> None:
    assert tell_apart([(7, 14)], [], theirs=bytes(RUN[: 2 * ONE])) == "", (
        "the broker's answer ends before it"
    )
    assert tell_apart([], [(7, 14)], ours=bytes(RUN[: 2 * ONE])) == "", "ours does"
    assert tell_apart([(7, 14)], [], theirs=bytes(RUN[:ONE] + RUN[2 * ONE :])) == "", (
        "the cleaner has been there"
    )
    assert "offsets 10 to 13" in tell_apart([(7, 12)], [], theirs=bytes(RUN[: 2 * ONE]))


def test_lso_may_be_higher_but_not_lower() -> None:
    assert tell_apart([], [], stable=16, brokers_stable=17) == ""
    assert "16, the broker's is 15" in tell_apart([], [], stable=16, brokers_stable=15)


class Setting:
    """A verifier over a real cache, and a broker that answers when told to."""

    def __init__(self, ratio: float = 1.0, draw: Callable[[], float] = lambda: 0.5) -> None:
        self.cache = BlockCache(8 * MIB)
        self.partitions = Partitions(self.cache, 8, 8)
        self.topics = Topics()
        self.topics.learn("orders", TOPIC_ID, LEADERS)
        self.counters = Counters()
        self.sent: list[tuple[bytes, Callable[[bytes | None], None]]] = []
        self.dropped: list[Partition] = []
        link = SimpleNamespace(
            send=lambda frame, _id, on_answer: self.sent.append((frame, on_answer))
        )
        self.own_connections = SimpleNamespace(usable=True, link=lambda _name: link)
        self.partition = self.follow(0)
        self.verifier = Verifier(stand_in(self), ratio, draw)

    def now(self) -> float:
        return 0.0

    def distrust(self, topic: Topic, reason: str) -> None:
        assert reason == "verify"
        topic.fidelity.begin_generation()

    def follow(self, index: int) -> Partition:
        followed = known(self.partitions.follow(known(self.topics.find("orders")), index))
        followed.leader_state.epoch = 3
        return followed

    def attempt(self, action: Callable[[], object], _doing: str) -> None:
        action()

    def invalidate(self, partition: Partition, from_offset: int, reason: str) -> None:
        assert (from_offset, reason) == (0, "verify")
        self.dropped.append(partition)

    def serve(self, records: bytes, offset: int = 10, committed: Committed | None = None) -> None:
        hit = SimpleNamespace(views=(memoryview(records),), size_bytes=len(records))
        if self.verifier.choose(1):
            self.verifier.take(self.partition, offset, stand_in(hit), committed)


def test_a_sample_is_asked_of_the_broker_itself() -> None:
    setting = Setting()
    setting.serve(bytes(RUN))
    ((frame, on_answer),) = setting.sent
    (asked,) = fetch_messages.scan_request(
        frame, VERSION, frame.index(b"forebay-verify") + 15
    ).partitions
    assert (asked.topic, asked.partition, asked.fetch_offset, asked.current_leader_epoch) == (
        TOPIC_ID,
        0,
        10,
        3,
    )
    on_answer(build_answer(bytes(RUN)))
    assert setting.verifier.verdicts == {"equal": 1}
    assert setting.counters.upstream.fetch_bytes["verify"] == len(RUN)


def test_difference_drops_the_topic_and_is_logged(caplog) -> None:
    setting = Setting()
    other = setting.follow(1)
    setting.partition.topic.fidelity.learn(False)
    setting.partition.topic.fidelity.trust(0)
    setting.partition.topic.fidelity.trust(4)
    setting.serve(bytes(RUN))
    wrong = bytearray(RUN)
    wrong[ONE + RECORD_AT] ^= 1
    setting.sent[0][1](build_answer(bytes(wrong)))
    assert setting.verifier.verdicts == {"mismatch": 1}
    assert setting.dropped == [setting.partition, other]
    assert not setting.partition.topic.fidelity.equal_codecs
    assert "offsets 12 to 13, first differing byte 70" in caplog.text


@pytest.mark.parametrize("aborted", [[], [(7, 12)]], ids=["untrue", "true"])
def test_read_committed_sample_is_asked_as_committed(
    aborted: list[tuple[int, int]], caplog: pytest.LogCaptureFixture
) -> None:
    setting = Setting()
    setting.serve(bytes(RUN), committed=Committed([(7, 12)], 16))
    frame, on_answer = setting.sent[0]
    assert (
        fetch_messages.scan_request(
            frame, VERSION, frame.index(b"forebay-verify") + 15
        ).isolation_level
        == 1
    )
    on_answer(build_answer(bytes(RUN), 0, aborted))
    assert setting.verifier.verdicts == {"equal" if aborted else "mismatch": 1}
    assert bool(setting.dropped) != bool(aborted)
    assert ("aborted transactions" in caplog.text) != bool(aborted)


@pytest.mark.parametrize(
    "answer",
    [None, build_answer(b"", ErrorCode.OFFSET_OUT_OF_RANGE), build_answer(b""), b"\0\0\0\1x"],
)
def test_an_answer_without_records_compares_nothing(answer: bytes | None) -> None:
    setting = Setting()
    setting.serve(bytes(RUN))
    setting.sent[0][1](answer)
    assert setting.verifier.verdicts == {"unanswered": 1}


def test_another_epoch_since_makes_a_sample_worthless() -> None:
    setting = Setting()
    setting.serve(bytes(RUN))
    setting.partition.leader_state.epoch = 4
    setting.sent[0][1](build_answer(bytes(build_at(10, value=b"other"))))
    assert setting.verifier.verdicts == {"outdated": 1} and not setting.dropped


def test_one_sample_is_in_flight_others_wait() -> None:
    setting = Setting()
    for _ in range(1 + QUEUE_SAMPLES):
        setting.serve(bytes(RUN))
    assert (len(setting.sent), len(setting.verifier)) == (1, 1 + QUEUE_SAMPLES)
    assert setting.verifier.verdicts == {}
    setting.serve(bytes(RUN))
    assert setting.verifier.verdicts == {"dropped": 1}
    for number in range(1 + QUEUE_SAMPLES):
        setting.sent[number][1](build_answer(bytes(RUN)))
    assert setting.verifier.verdicts["equal"] == 1 + QUEUE_SAMPLES and len(setting.verifier) == 0


@pytest.mark.parametrize(
    ("ratio", "draw", "taken"), [(0.0, 0.0, 0), (0.3, 0.3, 0), (0.3, 0.29, 1), (1.0, 0.999, 1)]
)
def test_the_ratio_is_a_share(ratio: float, draw: float, taken: int) -> None:
    setting = Setting(ratio, lambda: draw)
    setting.serve(bytes(RUN))
    assert len(setting.sent) == taken


def test_beginning_of_a_long_response_is_compared() -> None:
    setting = Setting()
    run = b"".join(bytes(build_at(10 + 2 * n, value=bytes(30_000))) for n in range(20))
    assert len(run) > SAMPLE_BYTES
    setting.serve(run)
    setting.sent[0][1](build_answer(run))
    assert setting.verifier.verdicts == {"equal": 1}


def test_samples_wait_without_a_connection() -> None:
    setting = Setting()
    setting.own_connections.usable = False
    setting.serve(bytes(RUN))
    assert not setting.sent and len(setting.verifier) == 1
    setting.own_connections.usable = True
    setting.verifier.tick(0.0)
    assert len(setting.sent) == 1
    setting.partition.back_off.refused_until = float("inf")
    setting.serve(bytes(RUN))
    assert setting.verifier.verdicts == {"dropped": 1}

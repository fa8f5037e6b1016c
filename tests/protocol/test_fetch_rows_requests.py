"""Rows that C makes of Fetch requests, held against the scanner in Python, which had read them before."""

import random
from functools import partial
from itertools import chain, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import fetch
from protocol.api import APIS, FETCH
from protocol.errors import BadFrame
from protocol.fetch import FetchPartition
from protocol.fetch_build import build_request
from protocol.fetch_rows import ROOM, scan_head, scan_request
from protocol.header import CLIENT_ID_START, peek_request
from protocol.primitives import INT32_PAIR, MOST_TAGS, MOST_TEXT_BYTES, build_uvarint
from protocol.weight import weigh_request
from tests.fuzz.mutations import read_golden, spoil
from tests.kit import fetch_messages
from tests.kit.examples import examples
from tests.protocol import oracle
from tests.proxy.tracing import count_calls

VERSIONS = oracle.versions(FETCH)
FIRST, LAST = VERSIONS[0], VERSIONS[-1]
FLEXIBLE = [version for version in VERSIONS if version >= fetch.FLEXIBLE_FROM]
NAMED = [version for version in VERSIONS if version < fetch.TOPIC_IDS_FROM]
SESSIONS = [version for version in VERSIONS if version >= fetch.SESSIONS_FROM]
GOLDEN = [one.frame for one in read_golden() if (one.api_key, one.kind) == (FETCH, "request")]
SPOILED = 60


def scan(frame, most=None):
    return scan_request(frame, len(frame) if most is None else most)


def scan_in_python(frame):
    """Header and content; None for a malformed frame, another version, or another request."""
    try:
        head = peek_request(frame)
        if head.api_key != FETCH or not APIS[FETCH].decodes(head.api_version):
            return None
        return head, fetch_messages.scan_request(frame, head.api_version, head.body_start)
    except BadFrame:
        return None


def check(frame):
    """Return whether the frame is a Fetch; then both read the same in it."""
    frame = bytes(frame)
    scanned, head = scan(frame), scan_head(frame, len(frame))
    assert scanned == scan_in_python(frame), frame.hex()
    for buffer in (bytearray(frame), memoryview(frame)):
        assert scan(buffer) == scanned
        assert scan_head(buffer, len(frame)) == head
    assert (scanned is None) == (head is None)
    if scanned is not None:
        assert type(scanned[1].partitions) is list
        check_head(frame, head, *scanned)
    return scanned is not None


def check_head(frame, head, header, request):
    """The head says the same as the objects, and its positions show what they should."""
    assert (*head[:4:3], head.correlation_id) == (
        header.api_version,
        header.body_start,
        header.correlation_id,
    )
    client_id = frame[CLIENT_ID_START + 2 : head.client_id_end].decode("utf-8", "replace")
    assert client_id == (header.client_id or "")
    assert head[4:12] == request[:8]
    if head.session_at >= 0:
        session = INT32_PAIR.unpack_from(frame, head.session_at)
        assert session == (request.session_id, request.session_epoch)
    assert (head.partitions, head.forgotten) == (len(request.partitions), len(request.forgotten))
    assert frame[head.rack_start : head.rack_end].decode() == request.rack_id
    names = frame[head.names_start : head.names_end]
    if request.partitions:
        first = request.partitions[0]
        assert names.endswith(first.partition.to_bytes(4, "big", signed=True))
        assert (first.topic if isinstance(first.topic, bytes) else first.topic.encode()) in names


def topic_of(version, number=0):
    return number.to_bytes(16, "big") if version >= fetch.TOPIC_IDS_FROM else f"topic-{number:07}"


def build(version, partitions=(), *, client_id="c", forgotten=(), rack_id="r1"):
    return build_request(
        version,
        42,
        client_id,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=1,
        session_id=5,
        session_epoch=6,
        partitions=partitions,
        forgotten=forgotten,
        rack_id=rack_id,
    )


def ask(topic, index, offset=40):
    return FetchPartition(topic, index, 3, offset, 2, 1, 1 << 20)


def many(version, topics, partitions):
    return [ask(topic_of(version, t), index) for t in range(topics) for index in range(partitions)]


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=examples(12), deadline=None)
@given(data=st.data())
def test_any_request_of_kio_is_read_as_by_python(version, data):
    client_id = data.draw(st.sampled_from((None, "", "c", "naïve")))
    frame = oracle.request_frame(data.draw(oracle.requests(FETCH, version)), client_id=client_id)
    assert check(frame)
    assert check(frame + b"\0\1"), "what is behind the last field is ignored"


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=examples(12), deadline=None)
@given(data=st.data())
def test_any_spoiled_request_of_kio_is_read_as_by_python(version, data):
    frame = bytearray(oracle.request_frame(data.draw(oracle.requests(FETCH, version))))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(frame) - 1))
        frame[at] = data.draw(
            st.one_of(st.integers(0, 255), st.sampled_from((0, 1, 127, 128, 255)))
        )
    check(frame)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_part_of_a_frame_is_malformed(version):
    forgotten = [(topic_of(version), 1), (topic_of(version, 1), 2)]
    frame = build(version, many(version, 2, 3), forgotten=forgotten)
    assert check(frame)
    assert not any(check(frame[:end]) for end in range(len(frame)))


def test_requests_of_real_clients_are_read_as_by_python_and_so_are_spoiled_ones():
    rng = random.Random(16)
    assert all(map(check, GOLDEN))
    for frame in GOLDEN:
        for version in {FIRST, LAST, rng.choice(VERSIONS), frame[7]}:
            other = frame[:7] + bytes((version,)) + frame[8:]
            for _ in range(SPOILED // 4):
                check(spoil(other, rng))
        for at in range(len(frame)):
            check(frame[:at] + bytes((frame[at] ^ 1 << rng.randrange(8),)) + frame[at + 1 :])


def test_other_versions_and_other_requests_are_not_read():
    frame = build(LAST, many(LAST, 1, 1))
    for version in (FIRST - 1, LAST + 1, 0x7FFF):
        assert not check(frame[:6] + version.to_bytes(2, "big") + frame[8:])
    assert not check(frame[:4] + b"\0\0" + frame[6:])


UTF_8 = st.one_of(
    st.binary(max_size=6),
    st.text(max_size=4).map(str.encode),
    st.lists(
        st.sampled_from((0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0))
        | st.sampled_from((0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF)),
        max_size=5,
    ).map(bytes),
)


class Raw(str):
    """A text that is encoded as the bytes that it names."""

    def encode(self, encoding: str = "", errors: str = "") -> bytes:
        return bytes.fromhex(self)


def add_empty_topic(version, text):
    """A request for one topic, of which it names no partition."""
    frame = build(version)
    head = scan_head(frame, len(frame))
    assert head is not None
    at = head.names_start
    if version >= fetch.FLEXIBLE_FROM:
        count, topic = b"\2", build_uvarint(len(text) + 1) + text + b"\1\0"
    else:
        count, topic = b"\0\0\0\1", len(text).to_bytes(2, "big") + text + bytes(4)
    return frame[:at] + count + topic + frame[at + len(count) :]


@pytest.mark.parametrize("version", [11, 12])
@pytest.mark.parametrize("place", ["asked", "empty", "forgotten", "rack"])
@settings(max_examples=examples(100), deadline=None)
@given(raw=UTF_8)
def test_texts_are_those_that_python_decodes(version, place, raw):
    text, other = Raw(raw.hex()), topic_of(version)
    frame = {
        "asked": lambda: build(version, [ask(other, 0), ask(text, 0)]),
        "empty": lambda: add_empty_topic(version, raw),
        "forgotten": lambda: build(version, [ask(other, 0)], forgotten=[(text, 7)]),
        "rack": lambda: build(version, [ask(other, 0)], rack_id=text),
    }[place]()
    assert check(frame) == is_utf_8(raw)


def is_utf_8(raw):
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("version", [11, 12])
def test_all_short_texts_are_those_that_python_decodes(version):
    """All of two bytes, and all edges of four."""
    edges = (0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xED, 0xFF)
    leads = (0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5)
    pairs = product(range(256), repeat=2)
    for raw in map(bytes, chain(pairs, product(leads, edges, edges, edges))):
        frame = add_empty_topic(version, raw)
        assert (scan_head(frame, len(frame)) is not None) == is_utf_8(raw), raw.hex()


@pytest.mark.parametrize("version", NAMED)
@pytest.mark.parametrize("over", [0, 1])
def test_a_name_has_an_end(version, over):
    frame = build(version, [ask("é" * (MOST_TEXT_BYTES // 2) + "a", 0)])
    assert check(frame)
    if version >= fetch.FLEXIBLE_FROM:
        longer = build(version, [ask("a" * (MOST_TEXT_BYTES + over), 0)])
        assert check(longer) is not bool(over)


@pytest.mark.parametrize("version", FLEXIBLE)
@pytest.mark.parametrize("over", [0, 1])
def test_a_tagged_section_has_an_end(version, over):
    whole = build(version, many(version, 1, 1))
    tags = build_uvarint(MOST_TAGS + over) + b"\x7f\0" * (MOST_TAGS + over)
    assert check(whole[:-1] + tags) is not bool(over)


@pytest.mark.parametrize("version", FLEXIBLE)
def test_the_first_replica_state_counts(version):
    whole = build(version, many(version, 1, 1))
    state = b"\1\x0c" + (9).to_bytes(4, "big") + bytes(8)
    other = b"\1\x0c" + (8).to_bytes(4, "big") + bytes(8)
    assert check(whole[:-1] + b"\3\x05\1\0" + state + other)
    assert scan(whole[:-1] + b"\3\x05\1\0" + state + other)[1].replica_id == (
        9 if version >= fetch.REPLICA_STATE_FROM else -1
    )
    short = whole[:-1] + b"\1\1\3\0\0\0"
    assert check(short) is (version < fetch.REPLICA_STATE_FROM)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("topics", "partitions"), [(1, ROOM), (1, ROOM + 1), (ROOM, 1), (ROOM + 1, 1), (40, 40)]
)
def test_the_scratch_memory_grows(version, topics, partitions):
    asked = many(version, topics, partitions)
    frame = build(version, asked)
    assert check(frame)
    assert scan(frame)[1].partitions == [
        one._replace(
            current_leader_epoch=3 if version >= 9 else -1,
            last_fetched_epoch=2 if version >= 12 else -1,
            log_start_offset=1 if version >= 5 else -1,
        )
        for one in asked
    ]


@pytest.mark.parametrize("version", SESSIONS)
@pytest.mark.parametrize("asked", [0, 1, ROOM])
@pytest.mark.parametrize("forgotten", [1, 3, ROOM + 1])
def test_forgotten_partitions_stand_behind_those_asked_for(version, asked, forgotten):
    left = [(topic_of(version, 1 + index % 3), index) for index in range(forgotten)]
    frame = build(version, many(version, 1, asked), forgotten=left)
    assert check(frame)
    assert scan(frame)[1].forgotten == left


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_that_names_a_partition_twice_says_so(version):
    one, other = topic_of(version), topic_of(version, 1)
    for asked, is_distinct in (
        ([], True),
        ([(one, 0)], True),
        ([(one, 1), (one, 0)], True),
        ([(one, 0), (one, 0)], False),
        ([(one, 0), (other, 0)], True),
        ([(one, 0), (other, 0), (one, 0)], False),
        ([(one, 0), (other, 0), (one, 1)], True),
    ):
        frame = build(version, [ask(*key) for key in asked])
        assert check(frame)
        assert scan(frame)[1].is_distinct is is_distinct


@pytest.mark.parametrize("version", VERSIONS)
def test_more_than_may_be_read_is_not(version):
    frame = build(version, many(version, 30, 7))
    weight = weigh_request(peek_request(frame), frame, 1000)
    assert weight in (0, 240)
    frame += bytes(2 * 240)
    for scanner in (scan_request, scan_head):
        assert scanner(frame, 240) is not None
        assert scanner(frame, 239) is None


@pytest.mark.parametrize("version", [FIRST, 11, 12, 13, LAST])
@pytest.mark.parametrize("topics", [1, 3])
def test_partitions_share_the_object_of_their_topic_and_call_nothing(version, topics):
    counts = []
    for partitions in (1, 300):
        frame = build(version, many(version, topics, partitions))
        request = scan(frame)[1]
        assert len({id(one.topic) for one in request.partitions}) == topics
        counts.append(count_calls(partial(scan_request, frame, len(frame))))
    assert counts[0] == counts[1] <= 2

"""A client connection as bytes on a socket: order, ends, bad frames, the drain, a broker that comes back.

Owns raw sockets and what must come back on them; must not know how Forebay is built, beyond what it logs.
"""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import struct
import time
from typing import TYPE_CHECKING

import pytest

from protocol import api
from tests.e2e.families import confluent_consume
from tests.e2e.raw_frames import (
    FETCH_VERSION,
    TIMEOUT_S,
    Raw,
    asked_correlation,
    build_fetch,
    build_metadata,
    build_plain,
    build_produce,
    correlation,
    fetched,
    read_batch,
    warm_up,
)
from tests.kit.broker.ports import lease_port
from tests.kit.broker.settings import HOST
from tests.kit.broker.topics import create_topic
from tests.kit.sidecar import Pair, Sidecar

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

UNKNOWN_API = 12345
ROUNDS = 40


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Pair() as running:
        yield running


def test_answers_come_in_the_order_of_the_requests(pair: Pair) -> None:
    topic = create_topic(pair.direct)
    batch = read_batch(pair)
    with Raw(pair.through) as connection:
        warm_up(pair.sidecar, connection, topic)
        sent = [
            build_metadata(),
            build_fetch(topic, 0, 400),  # waits: what follows must wait behind it
            build_plain(api.API_VERSIONS, 0),
            build_produce(topic, batch, -1),
            *(build_metadata() for _ in range(40)),
            build_fetch(topic, 0, 400),
            build_plain(api.API_VERSIONS, 0),
        ]
        connection.send(*sent)
        answers = [connection.take() for _ in sent]
        assert [correlation(one) for one in answers] == [asked_correlation(one) for one in sent]
        found = fetched(answers[-2])
        assert answers[-2][found.start : found.end][12:] == batch[12:], (
            "all but base offset and length"
        )


@pytest.mark.parametrize("max_wait_ms", [0, 400])
def test_what_was_acknowledged_is_in_the_next_answer(pair: Pair, max_wait_ms: int) -> None:
    """Also where the answer may not wait: nothing is on its way any more for a client that has its acknowledgement."""
    topic = create_topic(pair.direct)
    batch = read_batch(pair)
    with Raw(pair.through) as connection:
        warm_up(pair.sidecar, connection, topic)
        for offset in range(ROUNDS):
            sent = [
                build_produce(topic, batch, -1),
                build_fetch(topic, offset, max_wait_ms),
                build_metadata(),
            ]
            connection.send(*sent)
            found = fetched([connection.take() for _ in sent][1])
            assert found.end > found.start, f"nothing at {offset}"


def api_ranges(frame: bytes) -> dict[int, tuple[int, int]]:
    """Of an ApiVersions answer, version 0: error code, then (key, from, to)."""
    error, count = struct.unpack_from(">hi", frame, 8)
    assert error == 0
    rows = struct.iter_unpack(">hhh", frame[14 : 14 + 6 * count])
    return {key: (lowest, highest) for key, lowest, highest in rows}


def test_api_versions_are_the_brokers_but_for_the_cap(pair: Pair) -> None:
    host, port = pair.broker.address("CLIENT")
    asking = build_plain(api.API_VERSIONS, 0)
    with Raw(f"{host}:{port}") as direct, Raw(pair.through) as through:
        said, told = direct.call(asking), through.call(asking)
    expected = api_ranges(said)
    lowest, highest = expected[api.FETCH]
    expected[api.FETCH] = (
        max(lowest, api.CAPS[api.FETCH][0]),
        min(highest, api.CAPS[api.FETCH][1]),
    )
    lowest, highest = expected[api.PRODUCE]
    expected[api.PRODUCE] = (
        lowest,
        min(highest, api.CAPS[api.PRODUCE][1]),
    )  # KAFKA-18659: its minimum stays
    assert api_ranges(told) == expected
    assert len(expected) > 50


def test_acks_0_then_close_still_delivers(pair: Pair) -> None:
    topic = create_topic(pair.direct)
    batch = read_batch(pair)
    with Raw(pair.through) as connection:
        connection.send(build_produce(topic, batch, 0), build_produce(topic, batch, 0))
    records = confluent_consume(pair.direct, topic, 2)
    assert [(record.offset, record.value) for record in records] == [(0, b"value"), (1, b"value")]


def test_half_closed_client_gets_its_answers(pair: Pair) -> None:
    topic = create_topic(pair.direct)
    with Raw(pair.through) as connection:
        warm_up(pair.sidecar, connection, topic)
        sent = [build_metadata(), build_fetch(topic, 0, 50_000), build_metadata()]
        connection.send(*sent)
        connection.socket.shutdown(socket.SHUT_WR)
        started = time.monotonic()
        assert [correlation(connection.take()) for _ in sent] == [
            asked_correlation(one) for one in sent
        ]
        assert connection.ends()
        assert time.monotonic() - started < 25, (
            "a parked fetch of a client that is done leaves at once"
        )


PATIENCE_S = 60.0
SUPPRESSED = re.compile(r" suppressed=(\d+)$")
BAD_FRAMES = {
    "negative length": b"\xff\xff\xff\xff rest",
    "one above 100 MiB": struct.pack(">i", (100 << 20) + 1) + b"\0" * 64,
    "greatest length": b"\x7f\xff\xff\xff" + b"\0" * 64,
    "HTTP": b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n",
    "TLS hello on plain text": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x55" * 64,
    "empty frame": b"\0\0\0\0",
    "frame shorter than a header": b"\0\0\0\x04\0\x01\0\x0b",
    "client id beyond the frame": struct.pack(">ihhih", 10, 3, 1, 1, 500),
    "fetch whose body is cut": struct.pack(">ihhih", 14, 1, 11, 1, -1) + b"\0\0\0\0",
    "fetch that names 2^31-1 topics": build_plain(
        api.FETCH, FETCH_VERSION, struct.pack(">iiiibiii", -1, 1, 1, 1, 0, 0, -1, 0x7FFFFFFF)
    ),
}


def count_told(pair: Pair) -> int:
    """Bad frames that the log tells of, or counts in a line about another."""
    lines = pair.sidecar.log_path.read_text().splitlines()
    told = [line for line in lines if " WARNING " in line and "a frame that cannot be read" in line]
    return len(told) + sum(int(found[1]) for line in told if (found := SUPPRESSED.search(line)))


@pytest.mark.parametrize("frame", BAD_FRAMES.values(), ids=BAD_FRAMES.keys())
def test_bad_frame_ends_its_connection_alone(pair: Pair, frame: bytes) -> None:
    with Raw(pair.through) as good, Raw(pair.through) as bad:
        asked = build_metadata()
        good.send(asked[:7])  # half a request, so that both are at work
        with contextlib.suppress(ConnectionError):
            bad.send(frame)
        assert bad.ends()
        good.send(asked[7:])
        assert correlation(good.take()) == asked_correlation(asked)
        assert correlation(good.call(build_metadata())) > 0
    deadline = time.monotonic() + PATIENCE_S
    while (told := count_told(pair)) != (
        counted := pair.sidecar.metrics()["forebay_bad_frames_total",]
    ):
        assert time.monotonic() < deadline, (told, counted)
        time.sleep(0.05)


def test_unknown_api_key_reaches_the_broker(pair: Pair) -> None:
    with Raw(pair.through) as good, Raw(pair.through) as odd:
        good.call(build_metadata())
        odd.send(build_plain(UNKNOWN_API, 0, b"whatever"))
        assert odd.ends(), "a broker closes on a key that it does not know"
        assert correlation(good.call(build_metadata())) > 0
    assert str(UNKNOWN_API) in pair.broker.log_path().read_text()


def test_drain_answers_the_parked_and_exits_at_once(pair: Pair) -> None:
    topic = create_topic(pair.direct)
    host, port = pair.broker.address("CLIENT")
    with lease_port() as lease:
        entry = {"listen": f"{HOST}:{lease.port}", "upstream": f"{host}:{port}"}
        with (
            Sidecar([entry]) as second,
            Raw(second.bootstrap) as waiting,
            Raw(second.bootstrap) as idle,
        ):
            warm_up(second, waiting, topic)
            idle.call(build_metadata())
            asked = build_fetch(topic, 0, 25_000)
            waiting.send(asked)
            time.sleep(0.3)  # it is parked by then; were it not, it would be answered as well
            started = time.monotonic()
            assert second.stop(signal.SIGTERM) == 0
            assert time.monotonic() - started < 20
            answer = waiting.take()
            assert correlation(answer) == asked_correlation(asked)
            found = fetched(answer)
            assert (found.error_code, found.high_watermark, found.end - found.start) == (0, 0, 0)
            assert waiting.ends()
            assert idle.ends()
            with pytest.raises(OSError):
                Raw(second.bootstrap)


def test_broker_that_comes_back(pair: Pair) -> None:
    """The reopen rule: who can miss nothing keeps the connection, everybody else is closed."""
    topic = create_topic(pair.direct)
    batch = read_batch(pair)
    with (
        Raw(pair.through) as idle,
        Raw(pair.through) as waiting,
        Raw(pair.through) as unheard,
    ):
        for connection in (idle, waiting, unheard):
            connection.call(build_metadata())
        unheard.send(build_produce(topic, batch, 0))
        confluent_consume(pair.direct, topic, 1)
        waiting.send(build_fetch(topic, 1, 60_000))  # its first: the broker's to answer
        time.sleep(0.3)
        pair.broker.stop()
        assert waiting.ends(), "a request was unanswered"
        assert unheard.ends(), "closing is how a broker reports a failed acks=0 Produce"
        pair.broker.start()
        assert correlation(idle.call(build_metadata())) > 0
        deadline = time.monotonic() + TIMEOUT_S
        while not pair.sidecar.is_ready():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        records = confluent_consume(pair.through, topic, 1)
        assert [record.value for record in records] == [b"value"]

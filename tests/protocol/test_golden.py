"""Frames of real brokers and real clients, captured by `golden_capture`; each file names the version."""

import json
from pathlib import Path

import pytest

from protocol import fetch, fetch_build
from protocol.api import API_VERSIONS, CAPS, FETCH, PRODUCE
from protocol.api_versions import cut_response
from protocol.batch import (
    is_control,
    is_crc_right,
    is_log_append_time,
    is_transactional,
    scan_batches,
    stamp_base_offset,
    stamp_leader_epoch,
    stamp_log_append_time,
)
from protocol.control import scan_api_versions_response
from protocol.framing import Framer
from protocol.header import peek_correlation_id, peek_request
from tests.kit import produce_messages
from tests.kit.fetch_messages import scan_in_c
from tests.protocol import oracle

FILES = [
    json.loads(path.read_text())
    for path in sorted((Path(__file__).parent / "golden").glob("*.json"))
]
NONE = (None, None, None)
# scenario: error, high watermark, last stable offset, log start offset, aborted, diverging, current leader
FETCHED = {
    "fetch": (0, 6, 6, 0, None, None, None),
    "fetch aborted": (0, 2, 2, 0, [(0, 0)], None, None),
    "fetch committed": (0, 6, 6, 0, [], None, None),
    "fetch out of range": (1, -1, -1, -1, *NONE),
    "fetch unknown epoch": (75, -1, -1, -1, *NONE),
    "fetch diverging": (0, 6, 6, 0, None, (0, 6), None),
    "fetch elsewhere": (6, -1, -1, -1, None, None, (1, 0)),
}


def of_exchanges(*scenarios):
    """Runs a test for each exchange of these scenarios, with its file and row."""
    return for_each(
        {
            f"{file['kafka']} {row['scenario']} {row['version']}": (file, row)
            for file in FILES
            for row in file["exchanges"]
            if row["scenario"] in scenarios
        }
    )


def of_clients(api_key):
    """Runs a test for each exchange of a real client, with its row."""
    return for_each(
        {
            f"{file['kafka']} {number} {row['client']} {row['version']}": (row,)
            for file in FILES
            for number, row in enumerate(file["clients"])
            if row["api"] == api_key
        }
    )


def for_each(cases):
    """One test for all cases; a failure names its case."""

    def decorate(check):
        def test():
            assert cases
            for name, arguments in cases.items():
                try:
                    check(*arguments)
                except Exception as failure:
                    failure.add_note(f"in the exchange {name!r}")
                    raise

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        return test

    return decorate


def frames(row):
    """The request, checked for what its header says, and the response, checked for whose answer it is."""
    request, response = bytes.fromhex(row["request"]), bytes.fromhex(row["response"])
    header = peek_request(request)
    assert (header.api_key, header.api_version) == (row["api"], row["version"])
    assert peek_correlation_id(response) == header.correlation_id
    framer = Framer(1 << 20)
    assert framer.received(request + response) == [request, response]
    return request, response, header


def named(file, row, topic):
    ids_from = 13
    return bytes.fromhex(file["topic ids"][topic]) if row["version"] >= ids_from else topic


def scan_fetch(row):
    request, response, _ = frames(row)
    asked = scan_in_c(request)
    return asked, fetch.scan_response(response, row["version"]), response


def rebuilt(response, answer, version):
    """The answer written again by us from what was scanned of it."""
    partitions = [
        fetch_build.FetchAnswer._make(
            [
                *p[:6],
                p.aborted,
                [response[p.start : p.end]] if p.end > p.start else [],
                p.end - p.start,
            ]
        )
        for p in answer.partitions
    ]
    buffers = fetch_build.build_response(
        version,
        peek_correlation_id(response),
        throttle_time_ms=answer.throttle_time_ms,
        error_code=answer.error_code,
        session_id=answer.session_id,
        partitions=partitions,
    )
    return b"".join(buffers)


@of_exchanges(*FETCHED)
def test_fetch(file, row):
    asked, answer, response = scan_fetch(row)

    (partition,) = answer.partitions
    error_code, high_watermark, stable, log_start, aborted, diverging, leader = FETCHED[
        row["scenario"]
    ]
    assert partition.topic == asked.partitions[0].topic
    assert partition[1:5] == (0, error_code, high_watermark, stable)
    assert partition.log_start_offset == (log_start if row["version"] >= 5 else -1)
    assert (partition.preferred_read_replica, partition.aborted) == (-1, aborted)
    assert (partition.diverging, answer.throttle_time_ms, answer.session_id) == (diverging, 0, 0)
    assert partition.current_leader == (leader if row["version"] >= 16 else None)
    batches = scan_batches(response, partition.start, partition.end)
    assert all(is_crc_right(response, batch) and batch.leader_epoch == 0 for batch in batches)
    if error_code == 0 and diverging is None:
        assert batches[-1].last_offset == high_watermark - 1
        assert batches[0].base_offset == asked.partitions[0].fetch_offset
    else:
        assert batches == []


@of_exchanges(*FETCHED)
def test_what_is_built_here_is_what_the_broker_sends_byte_for_byte(file, row):
    _, answer, response = scan_fetch(row)

    hints = [p for p in answer.partitions if p.diverging or p.current_leader]
    if hints:
        assert len(rebuilt(response, answer, row["version"])) < len(response)
    else:
        assert rebuilt(response, answer, row["version"]) == response


@of_exchanges(*FETCHED)
def test_a_request_built_here_is_the_one_that_the_broker_accepted(file, row):
    request, _, header = frames(row)
    asked = scan_in_c(request)
    limits = {
        name: getattr(asked, name)
        for name in (
            "max_wait_ms",
            "min_bytes",
            "max_bytes",
            "isolation_level",
            "session_id",
            "session_epoch",
        )
    }

    built = fetch_build.build_request(
        row["version"],
        header.correlation_id,
        header.client_id,
        partitions=asked.partitions,
        **limits,
    )

    assert built == request


@of_exchanges("fetch aborted")
def test_an_aborted_transaction_and_its_marker(file, row):
    asked, answer, response = scan_fetch(row)
    assert asked.isolation_level == 1

    (partition,) = answer.partitions
    data, marker = scan_batches(response, partition.start, partition.end)
    assert [is_transactional(b.attributes) for b in (data, marker)] == [True, True]
    assert [is_control(b.attributes) for b in (data, marker)] == [False, True]
    assert data.producer_id == marker.producer_id == partition.aborted[0][0]


PRODUCED = {"produce": (0, True), "produce stamped": (0, True), "produce absent": (3, False)}


@of_exchanges(*PRODUCED, "produce elsewhere")
def test_produce(file, row):
    request, response, header = frames(row)
    sent = produce_messages.scan_request(request, row["version"], header.body_start)
    answer = produce_messages.scan_response(response, row["version"])

    assert (sent.transactional_id, sent.acks, sent.timeout_ms) == (None, -1, 5000)
    (asked,), (partition,) = sent.partitions, answer.partitions
    assert (partition.topic, partition.partition) == (asked.topic, 0)
    assert len(scan_batches(request, asked.start, asked.end)) == 1
    if row["scenario"] in ("produce", "produce stamped"):
        assert partition.topic == named(
            file, row, {"produce": "plain"}.get(row["scenario"], "stamped")
        )
        assert (partition.error_code, partition.base_offset) == (0, 2 * (row["version"] - 3))
        assert partition.log_start_offset == (0 if row["version"] >= 5 else -1)
        assert (partition.log_append_time_ms > 0) == (row["scenario"] == "produce stamped")
    else:
        absent = 100 if row["version"] >= 13 else 3
        assert partition.error_code == (6 if row["scenario"] == "produce elsewhere" else absent)
        assert (partition.base_offset, partition.log_append_time_ms) == (-1, -1)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file["kafka"])
@pytest.mark.parametrize("topic", ["plain", "stamped"])
def test_a_produced_batch_stamped_here_is_what_the_broker_returns(file, topic):
    produced = stamped_batches(file, "produce" if topic == "plain" else "produce stamped")
    rows = [
        r
        for r in file["exchanges"]
        if r["scenario"] == ("fetch" if topic == "plain" else "fetch stamped")
    ]
    assert rows
    for row in rows:
        _, answer, response = scan_fetch(row)
        (partition,) = answer.partitions
        batches = scan_batches(response, partition.start, partition.end)
        assert batches
        for batch in batches:
            assert response[batch.start : batch.end] == produced[batch.base_offset]
            assert is_log_append_time(batch.attributes) == (topic == "stamped")


def stamped_batches(file, scenario):
    """By base offset: the produced batches with what their answers said stamped in, leader epoch 0."""
    found = {}
    for row in file["exchanges"]:
        if row["scenario"] == scenario:
            request, response, header = frames(row)
            (asked,) = produce_messages.scan_request(
                request, row["version"], header.body_start
            ).partitions
            (answer,) = produce_messages.scan_response(response, row["version"]).partitions
            batch = bytearray(request[asked.start : asked.end])
            stamp_base_offset(batch, 0, answer.base_offset)
            stamp_leader_epoch(batch, 0, 0)
            if answer.log_append_time_ms >= 0:
                stamp_log_append_time(batch, 0, answer.log_append_time_ms)
            found[answer.base_offset] = batch
    return found


@of_exchanges("api versions")
def test_the_cut(file, row):
    _, response, _ = frames(row)
    ranges = scan_api_versions_response(response, row["version"]).ranges

    cut = cut_response(response, row["version"], CAPS)

    assert ranges[PRODUCE][0] == 0, "KAFKA-18659"
    if file["kafka"].startswith("4."):
        assert cut is response
    else:
        expected = ranges | {FETCH: (4, ranges[FETCH][1])}
        assert scan_api_versions_response(cut, row["version"]).ranges == expected
        assert len(cut) == len(response)
    oracle.read_response(API_VERSIONS, row["version"], bytes(cut))


@of_exchanges("unknown version")
def test_the_downgrade_answer(file, row):
    _, response, _ = frames(row)

    assert cut_response(response, row["version"], CAPS) is response
    assert scan_api_versions_response(response, row["version"]).error_code == 35


@of_clients(PRODUCE)
def test_what_clients_produce(row):
    request, response, header = frames(row)
    sent = produce_messages.scan_request(request, row["version"], header.body_start)
    answer = produce_messages.scan_response(response, row["version"])

    (asked,), (partition,) = sent.partitions, answer.partitions
    (batch,) = scan_batches(request, asked.start, asked.end)
    assert is_crc_right(request, batch)
    assert batch.end == asked.end
    assert (partition.error_code, partition.base_offset) == (0, 0)
    assert b"one" in request[batch.start : batch.end]


@of_clients(FETCH)
def test_what_clients_fetch(row):
    asked, answer, response = scan_fetch(row)

    assert (asked.replica_id, asked.rack_id) == (-1, "")
    assert asked.isolation_level == (0 if row["client"] == "aiokafka" else asked.isolation_level)
    (partition,) = answer.partitions
    assert partition.topic == asked.partitions[0].topic
    assert (partition.error_code, partition.high_watermark) == (0, 3)
    assert partition.aborted == ([] if asked.isolation_level else None)
    batches = scan_batches(response, partition.start, partition.end)
    assert batches[-1].last_offset == 2
    assert rebuilt(response, answer, row["version"]) == response

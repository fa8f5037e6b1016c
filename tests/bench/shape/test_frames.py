"""A request of several partitions is what kio and Forebay's own scanner read."""

from bench.shape.frames import (
    FETCH_VERSION,
    build_wide_answers,
    build_wide_fetch,
    build_wide_produce,
)
from protocol import batch, fetch, header
from tests.kit import produce_messages
from tests.kit.frames import PRODUCE_VERSION, build_batch
from tests.kit.raw_fetch import TopicWords


def test_a_wide_produce_has_a_batch_for_each_partition() -> None:
    one_batch = build_batch(1000)
    frame = build_wide_produce("topic", one_batch, range(3))
    head = header.peek_request(frame)
    assert (head.api_version, head.client_id) == (PRODUCE_VERSION, "shape")
    request = produce_messages.scan_request(frame, head.api_version, head.body_start)
    assert request.acks == -1
    assert [(one.topic, one.partition) for one in request.partitions] == [
        ("topic", index) for index in range(3)
    ]
    assert all(frame[one.start : one.end] == one_batch for one in request.partitions)


def test_a_wide_fetch_asks_each_partition_from_its_offset() -> None:
    words = TopicWords("topic", bytes(range(16)), {})
    frame = build_wide_fetch(words, [5, 7], 1 << 16)
    request = fetch.scan_request(frame, FETCH_VERSION, header.peek_request(frame).body_start)
    assert [(one.topic, one.partition, one.fetch_offset) for one in request.partitions] == [
        (words.id, 0, 5),
        (words.id, 1, 7),
    ]
    assert (request.session_id, request.session_epoch) == (0, -1)


def test_the_floors_answers_have_a_batch_for_each_partition_at_the_offsets_of_their_step() -> None:
    answers = list(build_wide_answers(build_batch(8000), 3, 4))
    records = 8
    assert len(answers) == 4
    for step, answer in enumerate(answers):
        said = fetch.scan_response(answer, FETCH_VERSION)
        assert [one.partition for one in said.partitions] == [0, 1, 2]
        for one in said.partitions:
            (found,) = batch.scan_batches(answer, one.start, one.end)
            assert (found.base_offset, found.record_count) == (step * records, records)

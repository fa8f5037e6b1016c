"""A request of several partitions is what kio and Forebay's own scanner read."""

from bench.shape.frames import FETCH_VERSION, build_wide_fetch, build_wide_produce
from protocol import fetch, header
from tests.kit import produce_messages
from tests.kit.frames import PRODUCE_VERSION, build_batch
from tests.kit.raw_fetch import TopicWords


def test_a_wide_produce_has_a_batch_for_each_partition() -> None:
    batch = build_batch(1000)
    frame = build_wide_produce("topic", batch, range(3))
    head = header.peek_request(frame)
    assert (head.api_version, head.client_id) == (PRODUCE_VERSION, "shape")
    request = produce_messages.scan_request(frame, head.api_version, head.body_start)
    assert request.acks == -1
    assert [(one.topic, one.partition) for one in request.partitions] == [
        ("topic", index) for index in range(3)
    ]
    assert all(frame[one.start : one.end] == batch for one in request.partitions)


def test_a_wide_fetch_asks_each_partition_from_its_offset() -> None:
    words = TopicWords("topic", bytes(range(16)), {})
    frame = build_wide_fetch(words, [5, 7], 1 << 16)
    request = fetch.scan_request(frame, FETCH_VERSION, header.peek_request(frame).body_start)
    assert [(one.topic, one.partition, one.fetch_offset) for one in request.partitions] == [
        (words.id, 0, 5),
        (words.id, 1, 7),
    ]
    assert (request.session_id, request.session_epoch) == (0, -1)

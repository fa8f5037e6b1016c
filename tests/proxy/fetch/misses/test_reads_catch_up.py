"""Miss fetches over the catch-up connection: only history goes there, and only records come back."""

from types import SimpleNamespace
from uuid import UUID

from kio.index import load_payload_module
from kio.static.constants import EntityType

from protocol.fetch import FetchPartition
from proxy.fetch.misses.read import PATIENCE_S, Stage
from tests.protocol import oracle
from tests.proxy.fetch.misses.test_reads import (
    RECORDS,
    Link,
    Upstream,
    Waiter,
    answer,
    asked,
    begin,
    find,
)

TOPIC_ID = bytes(range(16))


def open_catch_up(link):
    """A second link that may be used; its answers come from the test, too."""
    link.catch_up = Upstream()
    link.catch_up.usable = True
    link.catch_up.framed = object()
    return link.catch_up


def test_only_history_uses_the_catch_up_connection():
    link = Link()
    second = open_catch_up(link)
    begin(link, asked(0))
    begin(link, asked(1), reason="hole")
    assert (len(second.sent), len(link.upstream.sent)) == (1, 1)
    second.usable = False
    begin(link, asked(2))
    assert (len(second.sent), len(link.upstream.sent)) == (1, 2)


def test_byte_budget_holds_the_connection_that_read():
    link = Link()
    brought = []
    link.broker.responses = SimpleNamespace(add=lambda size, framed: brought.append((size, framed)))
    second = open_catch_up(link)
    begin(link, asked(0))
    second.answer(answer(0))
    begin(link, asked(1), reason="hole")
    link.upstream.answer(answer(1))
    assert brought == [(len(RECORDS), second.framed), (len(RECORDS), link.upstream.framed)]


def not_leader(endpoint_host):
    """A Fetch answer, version 16, that names another leader and where it is (KIP-951)."""
    module = load_payload_module(1, 16, EntityType.response)
    leader = module.LeaderIdAndEpoch(leader_id=2, leader_epoch=9)
    data = module.PartitionData(
        partition_index=0,
        error_code=oracle.ErrorCode.not_leader_or_follower,
        high_watermark=-1,
        current_leader=leader,
        aborted_transactions=None,
        records=None,
    )
    topic = module.FetchableTopicResponse(topic_id=UUID(bytes=TOPIC_ID), partitions=(data,))
    endpoint = module.NodeEndpoint(node_id=2, host=endpoint_host, port=9, rack=None)
    body = module.FetchResponse(
        throttle_time=oracle.timedelta(),
        error_code=oracle.ErrorCode.none,
        session_id=0,
        responses=(topic,),
        node_endpoints=(endpoint,),
    )
    return oracle.response_frame(body, 0)


def test_leader_endpoints_of_the_second_listener_are_dropped():
    """Its endpoints are the second listener's: the client asks again on its first link, which has its own."""
    link, waiter = Link(), Waiter()
    second = open_catch_up(link)
    wanted = FetchPartition(TOPIC_ID, 0, -1, 100, -1, -1, 1000)
    begin(link, wanted, version=16, waiter=waiter)
    frame = not_leader("second-listener.example")
    assert b"second-listener.example" in frame
    second.sent.pop()[1](frame)
    read = find(link, wanted, version=16)
    assert (read.stage, read.frame, read.answered, waiter.wakeups) == (Stage.FAILED, b"", None, 1)


def test_silent_connection_fails_its_reads_in_time():
    link, waiter = Link(), Waiter()
    link.broker.disk_throttle.holds = True
    begin(link, asked(), waiter=waiter)
    link.clock.now = 100.0
    link.broker.disk_throttle.release()
    link.clock.now += PATIENCE_S
    assert find(link, asked()).stage is Stage.READING, "counted from the asking, not from the delay"
    link.clock.now += 0.1
    assert find(link, asked()).stage is Stage.FAILED
    link.reads.leave(waiter)
    link.reads.drop_asked([asked()])
    link.upstream.answer(answer())
    assert (len(link.reads), link.broker.responses.in_flight_bytes) == (0, 0)
    assert link.broker.disk_throttle.finished == [len(RECORDS)]

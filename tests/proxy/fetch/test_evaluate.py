"""Rights are asked for before anything is read where memory may answer, now or soon."""

from types import SimpleNamespace

import pytest

from protocol.fetch import FetchPartition
from proxy.fetch.evaluate import find_unproven
from tests.kit.cache_batches import build_run, insert
from tests.proxy.followed_partition import EPOCH, TOPIC_ID, QuietBroker, stand_in

STORED_END = 10
PERIOD_S = 10.0


def find(
    offset, high_watermark=STORED_END, lease_until=5.0, is_known=True, max_wait_ms=500, rack_id=""
):
    """The topics to ask for at time 1, of a Fetch at this offset of a partition that stores offsets [0, STORED_END)."""
    broker = QuietBroker()
    broker.config.cache.authorize_every_s = PERIOD_S
    partition = broker.follow()
    insert(broker.cache, partition.slot, build_run(0, STORED_END, epoch=EPOCH))
    if is_known:
        state = partition.leader_state
        state.suggest(EPOCH, True)
        state.learn(EPOCH, high_watermark, high_watermark, 0, lease_until)
        state.await_check(False)
        partition.move_tail(STORED_END)
    link = SimpleNamespace(
        broker=broker,
        handlers=SimpleNamespace(
            authorization=SimpleNamespace(allows=lambda _topic, _now: False),
            reads=SimpleNamespace(fetches_separately=False),
        ),
    )
    fetch = SimpleNamespace(
        link=link,
        request=SimpleNamespace(rack_id=rack_id, isolation_level=0, max_wait_ms=max_wait_ms),
        head=SimpleNamespace(api_version=13),
    )
    asked = FetchPartition(TOPIC_ID, 0, -1, offset, -1, -1, 1000)
    return list(find_unproven(stand_in(fetch), [asked], 1.0))


@pytest.mark.parametrize(
    ("offset", "of_partition"),
    [
        pytest.param(3, {}, id="stored"),
        pytest.param(3, {"lease_until": 0.5}, id="stored, without a lease"),
        pytest.param(3, {"is_known": False}, id="stored, in no proven epoch"),
        pytest.param(10, {"high_watermark": 12}, id="on its way"),
    ],
)
def test_the_right_to_what_memory_may_answer_is_asked_for(offset, of_partition):
    assert find(offset, **of_partition) == [TOPIC_ID]


@pytest.mark.parametrize(
    ("offset", "of_partition"),
    [
        pytest.param(10, {}, id="at the end"),
        pytest.param(10, {"lease_until": 0.5}, id="at the end, without a lease"),
        pytest.param(10, {"is_known": False}, id="not stored, in no proven epoch"),
    ],
)
def test_the_right_to_anything_else_is_shown_by_the_fetch_itself(offset, of_partition):
    assert find(offset, **of_partition) == []


@pytest.mark.parametrize(("max_wait_ms", "is_asked"), [(4999, False), (5000, True), (60_000, True)])
def test_long_poll_gives_no_right_so_that_it_is_asked_for(max_wait_ms, is_asked):
    """Its answer would be as old as the right that it gives; the next one, too: memory would serve it never."""
    assert find(10, max_wait_ms=max_wait_ms) == ([TOPIC_ID] if is_asked else [])
    assert find(10, max_wait_ms=max_wait_ms, rack_id="a") == []

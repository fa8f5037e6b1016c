"""What storing an acknowledgement leaves behind where it raises."""

from random import Random
from struct import pack

import pytest

from protocol.produce_rows import scan_produced
from proxy.partitions import store
from tests.protocol.batches import batch_v2
from tests.proxy.followed_partition import known, stand_in
from tests.proxy.forwarded_life import NAMED, ZSTD, Life, Request

CODEC_AT = 22
"""In a batch's attributes (DefaultRecordBatch)."""
APPENDED_AT = {"create time": -1, "log append time": 5}


class Broken(Exception):
    """The cache's own."""


@pytest.mark.parametrize("log_append_time_ms", APPENDED_AT.values(), ids=APPENDED_AT)
def test_a_cache_that_raises_leaves_no_lease_of_an_epoch_that_has_changed(
    log_append_time_ms, monkeypatch
):
    life = Life(Random(1))
    broker, request = life.broker, Request(life)
    sent = bytearray(batch_v2(2))
    sent[CODEC_AT] = ZSTD  # the first of a partition is stored by itself
    request.named, request.version = [("a", [(0, bytes(sent)), (1, bytes(sent))])], NAMED
    request.frame = request.build_frame()
    fidelity = known(broker.topics.find("a")).fidelity
    fidelity.learn(log_append_time_ms >= 0)
    fidelity.trust(ZSTD)
    request.forward()
    partitions = [life.mirrors["a", index].partition for index in (0, 1)]
    of_before, now = partitions[1].leader_state, broker.clock_s
    of_before.learn(of_before.epoch + 1, 0, 0, 0, now + 1)
    of_before.await_check(False)

    def fail(*_):
        raise Broken

    monkeypatch.setattr(broker.cache, "insert", fail)
    answer = acknowledge_both(log_append_time_ms)
    produced = known(scan_produced(answer, NAMED))
    with pytest.raises(Broken):
        store.admit_response(
            stand_in(broker), request.frame, known(request.batches), answer, produced, now
        )
    assert [one.leader_state.has_lease(now) for one in partitions] == [True, False]


def acknowledge_both(log_append_time_ms):
    """A response to a Produce of partitions 0 and 1 of one topic."""
    partitions = b"".join(
        pack(">ihqqq", index, 0, 0, log_append_time_ms, 0) + b"\1\0\0" for index in (0, 1)
    )
    topic = b"\2a\3" + partitions + b"\0"
    body = pack(">i", 7) + b"\0\2" + topic + pack(">i", 0) + b"\0"
    return pack(">i", len(body)) + body

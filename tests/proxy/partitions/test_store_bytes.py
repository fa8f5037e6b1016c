"""Bytes in a real cache: a produced batch as the broker returns it, and a fetched one at the tail.

Batches are aiokafka's; the broker's own version of a produced batch is built beside, by hand.
"""

from struct import Struct

import pytest
from crc32c import crc32c

from protocol import batch
from protocol.fetch import FetchPartition
from proxy.partitions.store import admit_fetched
from tests.kit.cache_batches import read
from tests.protocol.batches import batch_v2
from tests.proxy.followed_partition import EPOCH, TOPIC_ID, QuietBroker, learn
from tests.proxy.produce_link import Link

GZIP, ZSTD = 1, 4
LOG_APPEND_TIME = 8
APPENDED_MS = 1_800_000_000_000


def as_stored(sent, base_offset, epoch=EPOCH, append_time_ms=None):
    """What the log holds of a batch that was sent so (LogValidator.assignOffsets...)."""
    out = bytearray(sent)
    Struct(">q").pack_into(out, 0, base_offset)
    Struct(">i").pack_into(out, 12, epoch)
    if append_time_ms is not None:
        out[22] |= LOG_APPEND_TIME
        Struct(">q").pack_into(out, 35, append_time_ms)
        Struct(">I").pack_into(out, 17, crc32c(bytes(out[21:])))
    return bytes(out)


def said_to_be(codec, sent):
    """The same batch with a codec in its attributes: nothing here looks into the records."""
    out = bytearray(sent)
    out[22] |= codec
    Struct(">I").pack_into(out, 17, crc32c(bytes(out[21:])))
    return bytes(out)


class Storing:
    """A partition at HW and tail 100 whose topic is known to store what producers send."""

    def __init__(self, log_append_time=False):
        self.broker = QuietBroker()
        self.partition = self.broker.follow()
        learn(self.partition, 100)
        self.partition.tail = self.partition.young_from = 100
        self.fidelity = self.partition.topic.fidelity
        self.fidelity.learn(log_append_time)
        self.fidelity.trust(0)
        self.link = Link(self.broker)

    def produce(self, sent, base_offset, frame_type=bytes, append_time_ms=-1):
        """Whether it was stored."""
        admitted = self.broker.counters.stored.batches
        before = admitted["produce"]
        assert self.link.produce(sent, frame_type=frame_type)
        self.link.reply(base_offset, append_time_ms)
        assert self.link.failures == []
        return admitted["produce"] > before

    def fetch(self, offset, stored):
        asking = FetchPartition(TOPIC_ID, 0, EPOCH, offset, -1, -1, 1 << 20)
        batches = batch.scan_batches(stored, 0, len(stored))
        admit_fetched(self.broker, self.partition, asking, stored, batches)

    def read(self, offset):
        return read(self.broker.cache, self.partition.slot, offset)

    @property
    def plans(self):
        return dict(self.broker.counters.produce.batches)


@pytest.mark.parametrize("frame_type", [bytes, bytearray])
def test_produced_batch_is_stored_as_fetched(frame_type):
    storing = Storing()
    sent = batch_v2(3)
    assert storing.produce(sent, 100, frame_type)
    assert storing.read(100) == as_stored(sent, 100)
    assert storing.partition.tail == 103
    assert storing.partition.produced_from == 100
    assert storing.plans == {"store": 1}


def test_log_append_time_is_stamped():
    storing = Storing(log_append_time=True)
    sent = batch_v2(3)
    storing.produce(sent, 100, append_time_ms=APPENDED_MS)
    assert storing.read(100) == as_stored(sent, 100, append_time_ms=APPENDED_MS)


def test_acknowledgements_in_any_order_fill_their_holes():
    storing = Storing()
    sent = batch_v2(3)
    storing.produce(sent, 103)
    assert storing.partition.tail == 100
    assert storing.read(100) is None
    storing.produce(sent, 100)
    assert storing.partition.tail == 106
    assert storing.read(100) == as_stored(sent, 100) + as_stored(sent, 103)
    assert storing.broker.invalidated == []


def test_unchecked_codec_is_sampled_before_storing():
    storing = Storing()
    sent = said_to_be(ZSTD, batch_v2(3))
    assert not storing.produce(sent, 100)
    assert storing.read(100) is None
    storing.fetch(100, as_stored(sent, 100))
    assert ZSTD in storing.fidelity.equal_codecs
    assert storing.partition.zstd
    assert storing.produce(sent, 103)
    assert storing.read(100) == as_stored(sent, 100) + as_stored(sent, 103)
    assert storing.plans == {"sample": 1, "store": 1}


def test_recompressed_batches_are_not_stored_from_produce():
    storing = Storing()
    sent = said_to_be(ZSTD, batch_v2(3))
    storing.produce(sent, 100)
    recompressed = as_stored(said_to_be(GZIP, batch_v2(3)), 100)
    storing.fetch(100, recompressed)
    assert ZSTD not in storing.fidelity.equal_codecs
    assert storing.fidelity.generation == 1
    assert storing.read(100) == recompressed


def test_differing_stored_batch_is_dropped():
    storing = Storing()
    storing.produce(batch_v2(3), 100)
    storing.fetch(100, as_stored(batch_v2(3, value=b"other"), 100))
    assert storing.broker.invalidated == [(storing.partition, 100, "mismatch")]
    assert 0 not in storing.fidelity.equal_codecs


def test_batch_from_before_the_start_proves_nothing():
    storing = Storing()
    storing.partition.young_from = 100
    storing.fetch(97, as_stored(batch_v2(3), 97, append_time_ms=APPENDED_MS))
    assert storing.fidelity.log_append_time is False
    assert storing.fidelity.generation == 0


def test_other_timestamp_type_begins_a_generation():
    storing = Storing()
    other = storing.broker.follow(1)
    learn(other, 50)
    other.produced_from = 30
    assert storing.produce(batch_v2(3), 100)
    assert not storing.produce(batch_v2(3), 103, append_time_ms=APPENDED_MS)
    assert storing.fidelity.generation == 1
    assert storing.fidelity.log_append_time is None
    assert [said[1:] for said in storing.broker.invalidated] == [(100, "unlike"), (30, "unlike")]
    assert other.young_from == 50
    assert storing.plans == {"store": 1, "unlike": 1}


def test_missing_log_append_time_begins_a_generation():
    storing = Storing(log_append_time=True)
    assert not storing.produce(batch_v2(3), 100)
    assert storing.fidelity.generation == 1
    assert storing.read(100) is None


def test_batch_of_an_older_generation_is_not_stored():
    storing = Storing()
    assert storing.link.produce(batch_v2(3))
    storing.broker.distrust(storing.partition.topic, "verify")
    storing.fidelity.learn(False)
    storing.fidelity.trust(0)
    storing.link.reply(100)
    assert storing.read(100) is None
    assert storing.plans == {"unlike": 1}


def test_acknowledgement_below_hw_revokes_the_lease():
    storing = Storing()
    assert not storing.produce(batch_v2(3), 99)
    assert storing.broker.replica_fetcher.doubted == [storing.partition]
    assert storing.produce(batch_v2(3), 100)
    assert storing.broker.replica_fetcher.doubted == [storing.partition]


def test_acknowledgements_that_cross_are_all_of_producers():
    storing = Storing()
    assert storing.produce(batch_v2(3), 103)
    assert storing.produce(batch_v2(3), 100)
    assert storing.partition.produced_from == 100


def test_acknowledgement_proves_the_leader_of_its_epoch():
    storing = Storing()
    assert storing.partition.leader_state.is_replica
    storing.produce(batch_v2(3), 100)
    assert storing.partition.leader_state.is_led
    assert storing.link.produce(batch_v2(3))
    learn(storing.partition, 103, epoch=EPOCH + 1)
    storing.link.reply(103)
    assert storing.partition.acknowledged_end == 103
    assert not storing.partition.leader_state.has_lease(0.0)


def test_a_fetched_batch_at_the_tail_enters():
    storing = Storing()
    stored = as_stored(batch_v2(3), 100)
    storing.fetch(100, stored)
    assert storing.read(100) == stored
    assert storing.partition.tail == 103


def test_bytes_of_history_do_not_enter():
    storing = Storing()
    storing.fetch(50, as_stored(batch_v2(3), 50))
    assert storing.read(50) is None
    assert storing.partition.tail == 100


def test_only_records_beyond_the_tail_are_stored():
    storing = Storing()
    old, new = as_stored(batch_v2(3), 97), as_stored(batch_v2(3), 100)
    storing.fetch(97, old + new)
    assert storing.read(97) is None
    assert storing.read(100) == new


def test_produced_batches_teach_transactions():
    storing = Storing()
    transactions = storing.partition.transactions
    transactions.shown(100, 100, 0, 0.0)
    for number in range(6):
        storing.produce(batch_v2(1, transactional=True, producer=(7, 0, number)), 100 + number)
    assert storing.plans == {"warm-up": 5, "store": 1}
    assert transactions.end == 100  # the watch brings those that are not stored
    transactions.observed(b"", (), 100, 105)
    assert transactions.end == 106
    assert transactions.last_stable_offset(106) == 105

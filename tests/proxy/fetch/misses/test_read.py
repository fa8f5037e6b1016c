"""Records of a read that fit into a response, and their offsets."""

from protocol.fetch import FetchedPartition, FetchPartition
from proxy.fetch.misses.read import Asker, Read, Stage
from proxy.partitions.readable import PartitionStatus, ReadState
from tests.protocol.batches import batch_v2, message_v1

ASKER = Asker(12, "c", 1 << 20, 0)


def arrived(records, limit=500):
    """A read that has brought `records`, behind some bytes of another partition."""
    asked = FetchPartition("t", 0, -1, 100, -1, -1, 1000)
    read = Read(PartitionStatus(asked, None, ReadState.MISS, "cold", limit), ASKER, 1000, 0.0)
    read.stage, read.frame = Stage.ARRIVED, b"head" + records
    read.answered = FetchedPartition(
        "t", 0, 0, 500, 500, 0, -1, None, None, None, 4, 4 + len(records)
    )
    return read


def sizes(read, one, rooms):
    return [len(read.records(room, False)) // one for room in rooms]


def test_first_batch_fits_regardless_of_the_limit():
    one = len(batch_v2(3))
    read = arrived(batch_v2(3) * 4)
    assert sizes(read, one, (0, one - 1, one, 3 * one - 1, 4 * one)) == [0, 0, 1, 2, 4]
    assert len(read.records(1, True)) == one


def test_old_formats_are_cut_between_messages_too():
    one = len(message_v1())
    read = arrived(message_v1() * 3)
    assert sizes(read, one, (one - 1, one, 3 * one - 1, 3 * one)) == [0, 1, 2, 3]
    assert len(read.records(1, True)) == one


def test_odd_read_is_left_to_the_broker():
    read = arrived(b"", limit=-1)
    assert read.offsets_unknown and not arrived(b"").offsets_unknown
    read.stage = Stage.READING
    assert read.holds_up
    read.said = read.answered
    assert not read.holds_up

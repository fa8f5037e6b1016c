"""Record batches as aiokafka makes and reads them, so that batches too have a foreign witness."""

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder

TIMESTAMP_MS = 1_700_000_000_000


def batch_v2(
    count=3,
    *,
    codec=0,
    transactional=False,
    producer=(-1, -1, -1),
    value=b"value",
    timestamp_ms=TIMESTAMP_MS,
):
    """A v2 batch of `count` records as a producer sends it, base offset 0, timestamps one ms apart."""
    producer_id, producer_epoch, base_sequence = producer
    builder = DefaultRecordBatchBuilder(
        2, codec, transactional, producer_id, producer_epoch, base_sequence, 1 << 20
    )
    for index in range(count):
        builder.append(index, timestamp=timestamp_ms + index, key=None, value=value, headers=[])
    return bytes(builder.build())


def message_v1(magic=1):
    """A message set of one message in format 0 or 1."""
    builder = LegacyRecordBatchBuilder(magic, 0, 1 << 20)
    builder.append(0, timestamp=TIMESTAMP_MS, key=None, value=b"value")
    return bytes(builder.build())


def read_v2(buf):
    """aiokafka's reading of one v2 batch."""
    return DefaultRecordBatch(buf)

"""Whether a topic's broker stores what producers send. Pure.

Owns, per topic, the timestamp type and the codecs of which one batch was seen both ways and was equal: only
those are stored from Produce. Brokers may recompress (compression.type), rewrite timestamps or correct a
maximum (LogValidator), so this is asked of the bytes, not of the configuration. Must not know the cache.
Invariants: one sample a codec is held, of bounded size; a mismatch suspends its codec until a later batch is
seen equal again; compaction does not reach batches this young (the cleaner leaves the active segment alone),
so an unequal young batch is a mismatch.
"""

from __future__ import annotations

from typing import NamedTuple

SAMPLE_LIMIT_BYTES = 1 << 20
CODEC_MASK = 0x07
HEAD_OUTSIDE_CRC = 17
"""Base offset, length, leader epoch and magic: what a broker assigns outside the CRC (DefaultRecordBatch)."""


class Sample(NamedTuple):
    """A batch as its producer sent it, and the offset it was acknowledged with."""

    partition: int
    base_offset: int
    body: bytes


class Fidelity:
    """One topic. `log_append_time` is None until a fetched batch has shown it; from then on a produced batch of one of
    `equal_codecs` is, once stamped, what the broker stores, and of another codec a sample is wanted.
    """

    __slots__ = ("_samples", "equal_codecs", "log_append_time", "mismatches")

    def __init__(self) -> None:
        self.log_append_time: bool | None = None
        self.equal_codecs: set[int] = set()
        self.mismatches = 0
        self._samples: dict[int, Sample] = {}

    def keep_sample(self, partition: int, base_offset: int, codec: int, body: bytes) -> None:
        """Remember a produced batch (from its CRC field on, stamped) until the same offset is fetched."""
        if len(body) <= SAMPLE_LIMIT_BYTES:
            self._samples[codec] = Sample(partition, base_offset, body)

    def saw_fetched(
        self, partition: int, base_offset: int, log_append_time: bool, body: memoryview
    ) -> bool | None:
        """A batch came from the broker. True: equal to the sample; False: a mismatch; None: nothing to
        compare with.
        """
        if self.log_append_time != log_append_time:
            self.log_append_time = log_append_time
            self.equal_codecs.clear()
            self._samples.clear()
            return None
        for codec, sample in self._samples.items():
            if sample.partition == partition and sample.base_offset == base_offset:
                del self._samples[codec]
                if sample.body == body:
                    self.equal_codecs.add(codec)
                    return True
                self.suspend(codec)
                return False
        return None

    def suspend(self, codec: int) -> None:
        """Storing from Produce stops for this codec until a batch is seen equal again."""
        self.mismatches += 1
        self.equal_codecs.discard(codec)

    def suspend_all(self) -> None:
        """What was served was not what the broker has: nothing that was seen equal before counts any more."""
        self.mismatches += 1
        self.equal_codecs.clear()
        self._samples.clear()

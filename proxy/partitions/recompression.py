"""Whether a topic's broker stores what producers send. Pure.

Owns, per topic, the timestamp type and the codecs of which one batch was seen both ways and was equal: only
those are stored from Produce. Brokers may recompress (compression.type), rewrite timestamps or correct a
maximum (LogValidator), so this is asked of the bytes, not of the configuration. Must not know the cache.
Invariants: one sample a codec is held, of bounded size; any surprise begins a new generation, in which nothing is
known; a batch that was forwarded in one generation teaches nothing in the next; compaction does not reach batches
this young (the cleaner leaves the active segment alone), so an unequal young batch is a surprise.
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


class Recompression:
    """One topic. `log_append_time` is None until a fetched batch has shown it; from then on a produced batch of one of
    `equal_codecs` is, once stamped, what the broker stores, and of another codec a sample is wanted.
    """

    __slots__ = ("_samples", "equal_codecs", "generation", "log_append_time")

    def __init__(self) -> None:
        self.generation = 0
        self.log_append_time: bool | None = None
        self.equal_codecs: set[int] = set()
        self._samples: dict[int, Sample] = {}

    def begin_generation(self) -> None:
        """The broker does not store, or no longer, what was believed: nothing that was seen before counts."""
        self.generation += 1
        self.log_append_time = None
        self.equal_codecs.clear()
        self._samples.clear()

    def keep_sample(self, partition: int, base_offset: int, codec: int, body: bytes) -> None:
        """Remember a produced batch (from its CRC field on, stamped) until the same offset is fetched."""
        if len(body) <= SAMPLE_LIMIT_BYTES:
            self._samples[codec] = Sample(partition, base_offset, body)

    def is_as_known(self, log_append_time: bool) -> bool:
        """Whether a young batch, fetched or acknowledged, of this timestamp type is no surprise."""
        return self.log_append_time is None or self.log_append_time == log_append_time

    def compare_fetched(self, partition: int, base_offset: int, body: memoryview) -> bool | None:
        """A batch came from the broker. True: equal to the sample, so that its codec is stored from Produce; False:
        unequal, a surprise; None: nothing to compare with.
        """
        for codec, sample in self._samples.items():
            if sample.partition == partition and sample.base_offset == base_offset:
                del self._samples[codec]
                if sample.body != body:
                    return False
                self.equal_codecs.add(codec)
                return True
        return None

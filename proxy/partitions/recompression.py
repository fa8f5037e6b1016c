"""Whether a topic's broker stores batches as producers send them. Pure.

Owns, per topic, the timestamp type and the codecs for which one batch was seen both as sent and as
stored, and was equal. Only those codecs are stored from Produce. Brokers may recompress
(compression.type), rewrite timestamps or correct a maximum timestamp (LogValidator). So the bytes
decide, not the configuration. Must not know the cache. Invariants:
* one sample per codec is held, of bounded size.
* any surprise starts a new generation, in which nothing is known; a batch forwarded in one
  generation teaches nothing in the next.
* compaction does not reach batches this young, since the cleaner leaves the active segment alone.
  So an unequal young batch is a surprise.
"""

from __future__ import annotations

from operator import attrgetter
from typing import NamedTuple

from proxy.partitions._rows import ffi

SAMPLE_LIMIT_BYTES = 1 << 20
UNKNOWN = -1
CODEC_MASK = 0x07
HEAD_OUTSIDE_CRC = 17
"""Length in bytes of base offset, batch length, leader epoch and magic: the fields outside the CRC,
which the broker assigns (DefaultRecordBatch).
"""


class CodecSample(NamedTuple):
    """A batch as its producer sent it, with the offset at which it was acknowledged. `body` starts
    at the CRC field.
    """

    partition: int
    base_offset: int
    body: bytes


class Recompression:
    """The check of one topic. `log_append_time` is None until a fetched batch has shown the
    timestamp type.

    From then on, a produced batch of a codec in `equal_codecs` is, once stamped, equal to the
    stored one. Of any other codec a sample is wanted. `native`: what C reads of it (`pt_fidelity *`).
    """

    __slots__ = ("_samples", "native")

    generation: int = property(attrgetter("native.generation"))  # type: ignore[assignment]

    def __init__(self) -> None:
        self.native = ffi.new(
            "pt_fidelity *", {"log_append_time": UNKNOWN, "may_be_compacted": True}
        )
        self._samples: dict[int, CodecSample] = {}

    @property
    def log_append_time(self) -> bool | None:
        """Whether the topic's batches carry the log append time; None while that is unknown."""
        known = self.native.log_append_time
        return None if known == UNKNOWN else known > 0

    @property
    def equal_codecs(self) -> set[int]:
        """The codecs of which a batch was seen both as sent and as stored, and was equal."""
        return {codec for codec in range(CODEC_MASK + 1) if self.native.equal_codecs >> codec & 1}

    def trust(self, codec: int) -> None:
        """Note that the broker stores batches of this codec as they are sent."""
        self.native.equal_codecs |= 1 << codec

    def begin_generation(self) -> None:
        """Forget everything seen so far: the broker does not store batches as believed, or no
        longer does.
        """
        self.native.generation += 1
        self.native.log_append_time = UNKNOWN
        self.native.equal_codecs = 0
        self._samples.clear()

    def keep_sample(self, partition: int, base_offset: int, codec: int, body: bytes) -> None:
        """Remember a produced batch (stamped, from its CRC field on) until the same offset is
        fetched. A body above SAMPLE_LIMIT_BYTES is ignored.
        """
        if len(body) <= SAMPLE_LIMIT_BYTES:
            self._samples[codec] = CodecSample(partition, base_offset, body)

    def learn(self, log_append_time: bool) -> None:
        """Note whether the topic's batches carry the log append time, as a fetched batch shows."""
        self.native.log_append_time = log_append_time

    def is_as_known(self, log_append_time: bool) -> bool:
        """True if a young batch of this timestamp type, fetched or acknowledged, is no surprise."""
        return self.native.log_append_time in (UNKNOWN, log_append_time)

    def compare_fetched(self, partition: int, base_offset: int, body: memoryview) -> bool | None:
        """Compare a fetched batch (from its CRC field on) with the sample of the same offset, and
        drop that sample.

        Return True if they are equal: the codec is stored from Produce from now on. Return False if
        they differ, which is a surprise. Return None if there is no such sample.
        """
        for codec, sample in self._samples.items():
            if sample.partition == partition and sample.base_offset == base_offset:
                del self._samples[codec]
                if sample.body != body:
                    return False
                self.trust(codec)
                return True
        return None

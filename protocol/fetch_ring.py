"""The partitions of a client's Fetches without a session, as a ring of rows that C compares (native/ring.c).

Owns the memory of the rows, and what the last request changed in them. Must not know sockets, or what is
done with a partition. A client without fetch sessions names all its partitions in each Fetch. librdkafka
begins one partition later each time (rd_kafka_broker_fetch_toppars), and leaves out those that may not be
fetched now. Invariants:
* a slot is one partition; its number never changes.
* a request that names a partition without a slot, or one partition twice, is not matched; the ring is
  then of no use any more.
"""

from __future__ import annotations

from array import array
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from protocol._ordinary import ffi, lib
from protocol.fetch import FetchPartition
from protocol.word_layout import count_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocol.primitives import TopicNameOrId

ASKED_WORDS: Final = count_words("po_asked", *FetchPartition._fields[1:])
_ANSWERED: Final = (
    "error_code",
    "high_watermark",
    "last_stable_offset",
    "log_start_offset",
    "aborted",
    "records_bytes",
)
ANSWERED_WORDS: Final = count_words("po_answered", *_ANSWERED)
ABORTED_WORD: Final = _ANSWERED.index("aborted")
RECORDS_WORD: Final = _ANSWERED.index("records_bytes")
_SLOT_WORDS: Final = ("topic_of", "named", "mark", "place", "order", "dropped")
_match: Final = lib.po_match_ring
_new = tuple.__new__


class FetchRing:
    """`version`: of the Fetches. `isolation_level`: theirs. `asked`: what was asked of each slot last.

    After a match, `changed` are the slots of which something else is asked than before, or which the
    request before did not name; `dropped` are those that it no longer names. `place[slot]`: number of
    the slot in the request. `answered`: the answer of each slot as last shown, ANSWERED_WORDS each.
    """

    __slots__ = (
        "_asked_words",
        "_changed",
        "_changed_words",
        "_order",
        "_parts",
        "answered",
        "answered_words",
        "asked",
        "changed",
        "dropped",
        "isolation_level",
        "native",
        "place",
        "version",
    )

    def __init__(
        self, version: int, isolation_level: int, partitions: Sequence[FetchPartition]
    ) -> None:
        """`partitions`: at least one, each once, in the order of the request."""
        self.version = version
        self.isolation_level = isolation_level
        self.asked = list(partitions)
        self.changed: list[int] = []
        self.dropped: list[int] = []
        slots = len(self.asked)
        numbers: dict[TopicNameOrId, int] = {}
        topic_of = [numbers.setdefault(one.topic, len(numbers)) for one in self.asked]
        names = [one.encode() if isinstance(one, str) else one for one in numbers]
        cuts, at = [], 0
        for text in names:
            cuts.append((at, at + len(text), 0))
            at += len(text)
        self.native = ffi.new("po_ring *")
        self._parts: dict[str, Any] = {
            "names": ffi.new("uint8_t[]", b"".join(names) or b"\0"),
            "topic": ffi.new("po_topic[]", cuts),
            "asked": ffi.new("po_asked[]", slots),
            **{name: ffi.new("int64_t[]", slots) for name in _SLOT_WORDS},
        }
        for name, part in self._parts.items():
            setattr(self.native, name, part)
        self.native.slots, self.native.topics = slots, len(names)
        memoryview(ffi.buffer(self._parts["topic_of"])).cast("q")[:] = array("q", topic_of)
        self._asked_words = memoryview(ffi.buffer(self._parts["asked"])).cast("q")
        flat = chain.from_iterable(one[1:] for one in self.asked)
        self._asked_words[:] = array("q", flat)
        self._changed = ffi.new("int64_t[]", slots)
        self._changed_words = memoryview(ffi.buffer(self._changed)).cast("q")
        self._order = memoryview(ffi.buffer(self._parts["order"])).cast("q")
        self.place = memoryview(ffi.buffer(self._parts["place"])).cast("q")
        self.answered = ffi.new("int64_t[]", slots * ANSWERED_WORDS)
        self.answered_words = memoryview(ffi.buffer(self.answered)).cast("q")

    def match(
        self, source: Any, topics: Any, topic_count: int, rows: Any, count: int
    ) -> list[FetchPartition] | None:
        """Return the partitions of a request, in its order; None if it is not matched.

        `source` is its frame as C takes it, scanned into `topics` (po_topic) and `rows` (po_asked).
        """
        changes = _match(self.native, source, topics, topic_count, rows, count, self._changed)
        if changes < 0:
            return None
        self.changed = self._changed_words[:changes].tolist()
        asked, words = self.asked, self._asked_words
        for slot in self.changed:
            at = slot * ASKED_WORDS
            fields = asked[slot].topic, *words[at : at + ASKED_WORDS]
            asked[slot] = _new(FetchPartition, fields)
        drops = self.native.drops
        self.dropped = list(self.native.dropped[0:drops]) if drops else []
        return list(map(asked.__getitem__, self._order[:count].tolist()))

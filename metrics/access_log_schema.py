"""The access log's words and fields: the one table that its writer, the counters' labels and the audit share.

Owns the results and reasons of a fetched partition, the fields of each type of line and the schema's version.
Must not know the writer, Prometheus or Spark: standard library only, so that the audit imports nothing else.
Invariants: a line is one JSON object in ASCII on one line, its fields in the order given here, `v` first; a
field that is not nullable is always there; a change that old readers would misread raises SCHEMA_VERSION.
"""

from typing import Final, Literal, NamedTuple

SCHEMA_VERSION: Final = 1

RESULTS: Final[dict[str, tuple[str, ...]]] = {
    "hit": ("",),
    "miss": (
        "cold",
        "evicted",
        "hole",
        "unproven",
        "epoch",
        "unauthorized-yet",
        "transaction",
        "pending",
        "refused",
    ),
    "pass": (
        "follower",
        "old-format",
        "preferred-replica",
        "session",
        "mixed",
        "unknown-topic",
        "version",
        "disabled",
        "observe",
    ),
}
"""Result of a partition of a Fetch -> its possible reasons. A hit needs none: its reason is empty."""

OBSERVED: Final = ("pass", "observe")
"""A pass that a serving cache would have had as a hit or a miss: it belongs to the sizing curve."""

RESULT_REASONS: Final[tuple[tuple[str, str], ...]] = tuple(
    (result, reason) for result, reasons in RESULTS.items() for reason in reasons
)
"""Every (result, reason), in the order in which tables and pages show them."""

REASON_MEANING: Final[dict[tuple[str, str], str]] = {
    ("hit", ""): "answered from memory, or parked at the tail and answered empty",
    ("miss", "cold"): "never admitted, or so long ago that the ghost of evicted blocks has forgotten it",
    ("miss", "evicted"): "was in memory; the queue has pushed it out since",
    ("miss", "hole"): "newer and older batches are stored, this one is not",
    ("miss", "unproven"): "stored, but no answer of the broker covers it yet",
    ("miss", "epoch"): "the lease has expired, the broker answered an error, or the leader epoch is another",
    ("miss", "unauthorized-yet"): "the broker has not yet answered this connection's own Fetch of the topic",
    ("miss", "transaction"): "read_committed, where it is not known which transactions were aborted",
    ("miss", "pending"): "named empty while its read was under way or delayed; counted when it is delivered",
    ("miss", "refused"): "answered empty: its queue toward the broker was full, or a quota was used up",
    ("pass", "follower"): "a replica's fetch (replica id at least 0)",
    ("pass", "old-format"): "the partition holds batches of magic below 2",
    ("pass", "preferred-replica"): "a rack id was sent and the broker has named a preferred replica",
    ("pass", "session"): "the request belongs to a fetch session of the broker",
    (
        "pass",
        "mixed",
    ): "memory could have served it, but another partition of the request made the broker answer it whole",
    ("pass", "unknown-topic"): "the topic, or its id, is not known to Forebay",
    (
        "pass",
        "version",
    ): "a Fetch that Forebay does not decode: of another version, with a value that brokers refuse, "
    "or naming more than `limits.requestPartitions`",
    ("pass", "disabled"): "the cache is switched off for the topic or the listener",
    ("pass", "observe"): "`cache.mode` is observe: `wouldHit` says what memory would have answered",
}

JsonType = Literal["string", "integer", "number"]


class Field(NamedTuple):
    """One field of a line. `unit` is empty for names and plain numbers; `nullable`: may hold JSON's null."""

    name: str
    json_type: JsonType
    meaning: str
    unit: str = ""
    nullable: bool = False


_HEAD: Final = (
    Field("v", "integer", "version of this schema"),
    Field("type", "string", "fetch, block or log"),
    Field("boot", "string", "id of the process's start; counters begin at 0 with it"),
    Field(
        "ts", "integer", "when the line was made: the answer left, the run of batches ended", "ms since 1970"
    ),
)

FETCH_FIELDS: Final[tuple[Field, ...]] = (
    *_HEAD,
    Field("listener", "string", "name of the listener"),
    Field("connection", "integer", "number of the client's connection within the boot"),
    Field("clientId", "string", "client id of the request header, cut to 256 characters", nullable=True),
    Field("apiVersion", "integer", "version of the Fetch request"),
    Field("topic", "string", "topic name, null while only its id is known", nullable=True),
    Field("topicId", "string", "topic id as Kafka's tools print it, null while unknown", nullable=True),
    Field("partition", "integer", "partition index"),
    Field("offset", "integer", "fetch offset"),
    Field("isolation", "integer", "isolation level: 0 read_uncommitted, 1 read_committed"),
    Field("result", "string", "hit, miss or pass"),
    Field("reason", "string", "why; empty for a hit"),
    Field("bytes", "integer", "record bytes handed to the client for this partition", "bytes"),
    Field("highWatermark", "integer", "high watermark in the answer, null if it had none", "offset", True),
    Field("lag", "integer", "high watermark minus fetch offset, at least 0", "records", True),
    Field("ageBytes", "integer", "age of the fetch offset: bytes admitted since it was", "bytes", True),
    Field("waitMs", "number", "time parked, queued or waiting for the broker", "ms"),
    Field("totalMs", "number", "from the request's last byte to the answer handed to the socket", "ms"),
    Field("admittedBytes", "integer", "bytes admitted so far, all partitions", "bytes"),
    Field("delayMs", "number", "time the miss waited until its disk could bear it, null if none", "ms", True),
    Field(
        "wouldHit", "integer", "observing: bytes that memory would have answered, else null", "bytes", True
    ),
)
"""One line per partition that the answer to a Fetch names: an incremental one (KIP-227) leaves out what has not
changed. A Fetch that cannot be read has one line for all of it: pass/version, topic null, partition and offset -1.
"""

BLOCK_FIELDS: Final[tuple[Field, ...]] = (
    *_HEAD,
    Field("listener", "string", "name of the listener"),
    Field("topic", "string", "topic name, null while only its id is known", nullable=True),
    Field("topicId", "string", "topic id as Kafka's tools print it, null while unknown", nullable=True),
    Field("partition", "integer", "partition index"),
    Field("baseOffset", "integer", "first offset admitted", "offset"),
    Field("nextOffset", "integer", "one above the last offset admitted", "offset"),
    Field("bytes", "integer", "bytes admitted", "bytes"),
    Field("source", "string", "produce, fetch or watch"),
    Field("admittedBytes", "integer", "bytes admitted so far, these included", "bytes"),
)
"""One line per run of batches admitted to the cache: those of one partition that came without a gap, from one source,
within two seconds.
"""

LOG_FIELDS: Final[tuple[Field, ...]] = (
    *_HEAD,
    Field("event", "string", "open or close"),
    Field("sequence", "integer", "number of the file within the boot, from 1"),
    Field("cacheSizeBytes", "integer", "size of the block cache, 0 without one", "bytes"),
    Field("writtenLines", "integer", "fetch and block lines written so far in this boot", "lines"),
    Field("droppedLines", "integer", "lines dropped so far in this boot", "lines"),
)
"""First line of every file, and the last of every file that was finished in order."""

LINE_TYPES: Final[dict[str, tuple[Field, ...]]] = {
    "fetch": FETCH_FIELDS,
    "block": BLOCK_FIELDS,
    "log": LOG_FIELDS,
}

BLOCK_SOURCES: Final = ("produce", "fetch", "watch")

"""The access log's words and fields: the one table that its writer, the counters' labels and the audit share.

Owns the results and reasons of a fetched partition, the fields of each type of line and the schema's version.
Must not know the writer, Prometheus or Spark: standard library only, so that the audit imports nothing else.
Invariants: a line is one JSON object in ASCII on one line, its fields in the order given here, `v` first; a
field that is not nullable is always there; a change that old readers would misread raises SCHEMA_VERSION.

| version | difference |
| --- | --- |
| 1 | each partition that an answer names has a `fetch` line |
| 2 | partitions answered without records are summed in `empty` lines |
| 3 | `counters` lines; every line has its `section`; group, time stamp of the records, broker and listeners |
| 3 | an age includes the batch itself; a `block` line says when its batches were stored |
| 4 | the partitions of a response stand in one `response` line instead of a `fetch` line each |
| 5 | a line of one of several workers names the `keeper` whose clock it has |
"""

from typing import Final, Literal, NamedTuple

SCHEMA_VERSION: Final = 5
READ_VERSIONS: Final = (1, 2, 3, 4, 5)
"""Versions whose lines have the meaning that is written here."""
RESPONSE_SINCE: Final = 4
"""The first version with `response` lines."""
RESPONSE_PARTITIONS: Final = 128
RESPONSE_BYTES: Final = 450_000
"""Partitions and bytes of a `response` line, at most. So long is a line of as many topics, each with a name of 256
characters that JSON escapes; 128 partitions of one topic take about 10 KB.
"""
EMPTY_INTERVAL_MS: Final = 5_000
"""Longest time that an `empty` line covers. No line covers time on both sides of a multiple of it since 1970, so that
sums by windows of such multiples are exact.
"""

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
        "locked",
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
    ("hit", ""): "answered from memory, or answered empty after waiting at the end of the log",
    ("miss", "cold"): "never stored, or evicted so long ago that the ghost has forgotten it",
    ("miss", "evicted"): "was stored and has been evicted",
    ("miss", "hole"): "newer and older batches are stored, this one is not",
    ("miss", "unproven"): "no response of the broker covers the offset yet",
    (
        "miss",
        "epoch",
    ): "the lease has expired, the broker returned an error, or the leader epoch differs",
    (
        "miss",
        "unauthorized-yet",
    ): "the broker has not answered a Fetch of the topic by this client's principal yet",
    ("miss", "transaction"): "read_committed, and the aborted transactions are not known",
    (
        "miss",
        "pending",
    ): "named empty while its read was in flight or delayed; the bytes count when they "
    "are delivered",
    (
        "miss",
        "refused",
    ): "answered empty because the queue toward the broker was full or a quota used up",
    (
        "miss",
        "locked",
    ): "with several workers: a process was stopped or killed while it held the cache's lock",
    ("pass", "follower"): "a replica's fetch (replica id at least 0)",
    ("pass", "old-format"): "the partition holds batches of magic below 2",
    (
        "pass",
        "preferred-replica",
    ): "the request has a rack id and the broker has named a preferred replica",
    ("pass", "session"): "the request belongs to a fetch session of the broker",
    (
        "pass",
        "mixed",
    ): "memory could have served it, but the request was forwarded whole for another partition",
    ("pass", "unknown-topic"): "the topic, or its id, is not known to Forebay",
    (
        "pass",
        "version",
    ): "Forebay does not read the Fetch: other version, a value that brokers refuse, or "
    "more than `limits.requestPartitions`",
    (
        "pass",
        "disabled",
    ): "memory does not serve: the mode of process, listener or topic is off (`cache.mode`, `listeners[].cacheMode`, "
    "`cache.topicModes[].mode`, `forebay switch cache off`), or the clients of the listener share one identity "
    "(`listeners[].allowSharedIdentity`)",
    (
        "pass",
        "observe",
    ): "the mode of process, listener or topic is observe: `wouldHit` has the bytes that memory would have served",
}

JsonType = Literal["string", "integer", "number", "array"]


class Field(NamedTuple):
    """One field of a line. `unit` is empty for names and plain numbers; `nullable`: may hold JSON's null. `since`: the
    version from which on lines have it. `elements`: the fields of an array's objects; none: it holds integers.
    `are_rows`: the elements are arrays of the fields' values, in their order, instead of objects.
    """

    name: str
    json_type: JsonType
    meaning: str
    unit: str = ""
    nullable: bool = False
    since: int = 1
    elements: tuple["Field", ...] = ()
    are_rows: bool = False


_HEAD: Final = (
    Field("v", "integer", "version of this schema"),
    Field("type", "string", "response, empty, block, counters or log; fetch up to version 3"),
    Field("boot", "string", "id of the process's start; all counters begin at 0 then"),
    Field(
        "ts",
        "integer",
        "time of the line: the response left (of `empty`: the last one), or the run of batches ended",
        "ms since 1970",
    ),
    Field(
        "section",
        "integer",
        "`number` of the `counters` line that the line follows, 0 before the first",
        since=3,
    ),
    Field(
        "keeper",
        "string",
        "of one of several workers: `boot` of the keeper whose clock of stored bytes the line has, empty while none"
        " was known; else null: the clock is this process's own",
        nullable=True,
        since=5,
    ),
)

_LISTENER: Final = Field("listener", "string", "name of the listener")
_CLIENT: Final = (
    _LISTENER,
    Field("connection", "integer", "number of the client's connection within the boot"),
    Field(
        "clientId",
        "string",
        "client id of the request header, cut to 256 characters",
        nullable=True,
    ),
    Field(
        "group",
        "string",
        "consumer group, null where none or several are known; cut to 256 characters",
        nullable=True,
        since=3,
    ),
)
_TOPIC: Final = (
    Field("topic", "string", "topic name, null while only its id is known", nullable=True),
    Field(
        "topicId", "string", "topic id as Kafka's tools print it, null while unknown", nullable=True
    ),
)
_VERDICT: Final = (
    Field("result", "string", "hit, miss or pass"),
    Field("reason", "string", "why; empty for a hit"),
)

_API_VERSION: Final = Field("apiVersion", "integer", "version of the Fetch request")
_PARTITION: Final = (
    Field("partition", "integer", "partition index"),
    Field("offset", "integer", "fetch offset"),
)
_ISOLATION: Final = Field(
    "isolation", "integer", "isolation level: 0 read_uncommitted, 1 read_committed"
)
_BYTES: Final = Field(
    "bytes", "integer", "record bytes handed to the client for this partition", "bytes"
)
_HIGH_WATERMARK: Final = Field(
    "highWatermark",
    "integer",
    "high watermark in the response, null if it had none",
    "offset",
    True,
)
_AGE: Final = Field(
    "ageBytes",
    "integer",
    "age of the fetch offset: bytes stored since it was stored; since version 3 its own batch is included, so "
    "that a FIFO hits if it holds so many bytes",
    "bytes",
    True,
)
_TIMES: Final = (
    Field("waitMs", "number", "time as a delayed Fetch", "ms"),
    Field("totalMs", "number", "from the request's last byte until the response has left", "ms"),
    Field("admittedBytes", "integer", "bytes stored so far, all partitions", "bytes"),
)
_WOULD_HIT: Final = Field(
    "wouldHit",
    "integer",
    "with `cache.mode: observe`, bytes that memory would have served, else null",
    "bytes",
    True,
)
_TIMESTAMP: Final = Field(
    "timestamp",
    "integer",
    "largest time stamp in the first batch handed out (maxTimestamp of its header), null where not read",
    "ms since 1970",
    True,
    since=3,
)

PARTITION_FIELDS: Final[tuple[Field, ...]] = (
    *_PARTITION,
    _BYTES,
    _HIGH_WATERMARK,
    _AGE,
    _TIMESTAMP._replace(since=1),
    Field(
        "delayUs",
        "integer",
        "time that the miss waited for its disk, null if none",
        "microseconds",
        True,
    ),
    _WOULD_HIT,
)
"""One element of an answer's `partitions`."""

ANSWER_FIELDS: Final[tuple[Field, ...]] = (
    *_TOPIC,
    *_VERDICT,
    Field(
        "partitions",
        "array",
        "at least one partition: arrays of the values of the fields below, in this order",
        elements=PARTITION_FIELDS,
        are_rows=True,
    ),
)
"""One element of `answers`: partitions of one topic, result and reason that follow each other in the response."""

RESPONSE_FIELDS: Final[tuple[Field, ...]] = (
    *_HEAD,
    *_CLIENT,
    _API_VERSION,
    _ISOLATION,
    *_TIMES,
    Field(
        "answers",
        "array",
        f"its partitions with records or a delay, at least one and at most {RESPONSE_PARTITIONS}: objects of the "
        "fields below",
        elements=ANSWER_FIELDS,
    ),
)
"""One line per response to a Fetch, for all partitions that it names with records, or whose read was delayed. More than
RESPONSE_PARTITIONS of them make several lines. A Fetch that cannot be read is one partition of pass/version: topic
null, partition and offset -1.
"""

FETCH_FIELDS: Final[tuple[Field, ...]] = (
    *_HEAD,
    *_CLIENT,
    _API_VERSION,
    *_TOPIC,
    *_PARTITION,
    _ISOLATION,
    *_VERDICT,
    _BYTES,
    _HIGH_WATERMARK,
    Field("lag", "integer", "high watermark minus fetch offset, at least 0", "records", True),
    _AGE,
    *_TIMES,
    Field("delayMs", "number", "time that the miss waited for its disk, null if none", "ms", True),
    _WOULD_HIT,
    _TIMESTAMP,
)
"""Up to version 3 each partition of a `response` line had a line of its own; the audit's table has a row of these
fields for each, whatever the version. In version 1 all partitions that a response names have one; an incremental
response (KIP-227) leaves out what has not changed.
"""

COUNT_FIELDS: Final[tuple[Field, ...]] = (
    Field(
        "lag",
        "integer",
        "lag, rounded down to 0 or a power of ten; null where the high watermark is not known",
        "records",
        True,
    ),
    Field("responses", "integer", "responses that named each of these partitions at this lag"),
    Field("partitions", "array", "partition indices"),
)
"""One element of `counts`."""

EMPTY_FIELDS: Final[tuple[Field, ...]] = (
    *_HEAD,
    Field("firstMs", "integer", "time at which the first of the responses left", "ms since 1970"),
    *_CLIENT,
    *_TOPIC,
    *_VERDICT,
    Field("responses", "integer", "responses that named at least one such partition"),
    Field("partitions", "integer", "such partitions, each as often as a response named it"),
    Field(
        "admittedBytes",
        "integer",
        "bytes stored so far, all partitions, when the first of the responses left",
        "bytes",
    ),
    Field(
        "counts",
        "array",
        "the same by partition and lag: objects of the fields below",
        elements=COUNT_FIELDS,
    ),
)
"""One line per connection, topic, result and reason, and interval of EMPTY_INTERVAL_MS, in which partitions were
answered without records and without a delay. Over the elements of `counts`, `responses` times the number of
`partitions` adds up to `partitions`.
"""

BLOCK_FIELDS: Final[tuple[Field, ...]] = (
    *_HEAD,
    _LISTENER,
    *_TOPIC,
    Field("partition", "integer", "partition index"),
    Field("baseOffset", "integer", "first offset stored", "offset"),
    Field("nextOffset", "integer", "one above the last offset stored", "offset"),
    Field("bytes", "integer", "bytes stored", "bytes"),
    Field("source", "string", "produce, fetch or watch"),
    Field("admittedBytes", "integer", "bytes stored so far, these included", "bytes"),
    Field("batches", "integer", "batches stored", since=3),
    Field(
        "beganBytes",
        "integer",
        "bytes stored so far, all partitions, before the run's first batch",
        "bytes",
        since=3,
    ),
    Field(
        "endedBytes",
        "integer",
        "bytes stored so far, all partitions, behind its last batch",
        "bytes",
        since=3,
    ),
    Field(
        "points",
        "array",
        "pairs of integers for batches between, one behind another: offset above `baseOffset`, and bytes stored "
        "between `beganBytes` and the batch, below 0 where it was stored first: acknowledgements cross",
        since=3,
    ),
    Field(
        "heldBytes",
        "integer",
        "bytes of the batches in the cache, null while it was never full",
        "bytes",
        True,
        since=3,
    ),
)
"""One line per run of batches admitted to the cache: those of one partition that came without a gap, from one source,
within two minutes, mostly a few seconds. Since version 3 a line through its first batch, its `points` and its end comes
within 128 KiB of when each of its batches was stored.
"""

RESULT_FIELDS: Final[tuple[Field, ...]] = (
    *_VERDICT,
    Field("partitions", "integer", "as `forebay_fetch_partitions_total`"),
    Field("bytes", "integer", "as `forebay_fetch_bytes_total`", "bytes"),
    Field("unwritten", "integer", "of `partitions`, those in sums whose `empty` lines come later"),
)
"""One element of `results`."""

UPSTREAM_FIELDS: Final[tuple[Field, ...]] = (
    Field("purpose", "string", "client, watch, proof, verify: why the broker was asked"),
    Field("bytes", "integer", "as `forebay_upstream_fetch_bytes_total`", "bytes"),
)
"""One element of `upstream`."""

COUNTERS_FIELDS: Final[tuple[Field, ...]] = (
    *_HEAD,
    Field("event", "string", "open, minute, scrape (somebody read `/metrics`) or close"),
    Field("number", "integer", "number of the line within the boot, from 1; some may be missing"),
    Field(
        "results",
        "array",
        "by result and reason: objects of the fields below; none that is 0",
        elements=RESULT_FIELDS,
    ),
    Field(
        "upstream",
        "array",
        "record bytes that the broker has sent, by purpose: objects of the fields below",
        elements=UPSTREAM_FIELDS,
    ),
    Field("wouldHitBytes", "integer", "as `forebay_fetch_would_hit_bytes_total`", "bytes"),
    Field("leaseLapses", "integer", "as `forebay_watch_lease_lapses_total`", "leases"),
    Field("producedBytes", "integer", "bytes of Produce requests of clients", "bytes"),
    Field("droppedLines", "integer", "lines dropped so far in this boot", "lines"),
    Field("admittedBytes", "integer", "bytes stored so far, all partitions", "bytes"),
)
"""The process's counters since its start, at the log's start and end, each minute, and at a scrape (at most one a
second). Of each result and reason, the lines whose `section` is below `number` have `partitions` less `unwritten`
partitions and all `bytes`, unless lines were dropped or lost.
"""

LISTENER_FIELDS: Final[tuple[Field, ...]] = (
    Field("name", "string", "name of the listener"),
    Field("address", "string", "address that clients connect to"),
    Field("upstream", "string", "address of the broker behind it"),
)
"""One element of `listeners`."""

LOG_FIELDS: Final[tuple[Field, ...]] = (
    *_HEAD,
    Field("event", "string", "open, close, or node: the broker's node id has become known"),
    Field("sequence", "integer", "number of the file within the boot, from 1"),
    Field("cacheSizeBytes", "integer", "size of the block cache, 0 without one", "bytes"),
    Field("writtenLines", "integer", "lines of other types written so far in this boot", "lines"),
    Field("droppedLines", "integer", "lines dropped so far in this boot", "lines"),
    Field("nodeId", "integer", "node id of the broker, null while not known", "", True, since=3),
    Field(
        "listeners",
        "array",
        "the listeners of the process: objects of the fields below",
        since=3,
        elements=LISTENER_FIELDS,
    ),
)
"""First line of every file, and the last of every file that was finished in order; once more when the node id becomes
known or changes.
"""

LINE_TYPES: Final[dict[str, tuple[Field, ...]]] = {
    "response": RESPONSE_FIELDS,
    "fetch": FETCH_FIELDS,
    "empty": EMPTY_FIELDS,
    "block": BLOCK_FIELDS,
    "counters": COUNTERS_FIELDS,
    "log": LOG_FIELDS,
}
ROW_TYPES: Final = {name: fields for name, fields in LINE_TYPES.items() if name != "response"}
"""Types of rows of the audit's table, and their fields: a `response` line becomes rows of type `fetch`."""
COUNTERS_EVENTS: Final = ("open", "minute", "scrape", "close")

BLOCK_SOURCES: Final = ("produce", "fetch", "watch")

"""The programme that every client runs, in words: its steps, and what records it sends.

Owns the names of the steps, their titles for the table, and the formula of the records, against which what a client
read is held (not only one run against the other). Must not know any client. Invariant: Records.java, records.go,
programs/api.py and records.mjs say the same formula.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TAIL, TAIL_COMMITTED = "tail", "tail-committed"


class Step(NamedTuple):
    """`title` heads its column; `says` explains it below the table."""

    name: str
    title: str
    says: str


STEPS = (
    Step(
        "codec-none",
        "records",
        "produce with acks=all; keys, nulls, all bytes, headers, timestamps; read from the start",
    ),
    *(Step(f"codec-{codec}", codec, f"the same, compressed with {codec}") for codec in CODECS[1:]),
    Step("seeks", "seeks", "to an offset, back, to both ends, and beyond the end"),
    Step("times", "times", "offsets by timestamp (ListOffsets), first and last offset"),
    Step(
        "group-classic",
        "group",
        "classic protocol: subscribe, commit, resume, share between two members",
    ),
    Step("group-consumer", "KIP-848", "the same with `group.protocol=consumer`"),
    Step(
        "transactions",
        "transactions",
        "commit, abort, offsets in a transaction, read_committed beside an open one, fencing",
    ),
    Step(TAIL, "tail", "a consumer at the tail while records arrive one by one"),
    Step(
        TAIL_COMMITTED,
        "tail, committed",
        "the same with read_committed, a quarter of the transactions aborted",
    ),
    Step(
        "admin",
        "admin",
        "create, again, describe, more partitions, alter and describe configs, delete records, groups, delete",
    ),
)
NAMES = tuple(step.name for step in STEPS)
EXACTLY_ONCE = "exactly-once"
"""Kafka Streams' only step: it has no calls of its own for the others."""


def build_value(number: int) -> bytes | None:
    """The value of record `number`."""
    if number % 10 == 6:
        return None
    return b"v%d-" % number + b"x" * (200 + number * 37 % 400) + b"\xff\x00"


def digest_of(value: bytes | None) -> str | None:
    """How a value is printed: its length, and six bytes of its SHA-256 in hex."""
    return None if value is None else f"{len(value)}:{hashlib.sha256(value).hexdigest()[:12]}"


def wrong_record(step: str, seen: Any) -> str:
    """Which record of a codec's step is not what was sent; "" where all are, or for another step."""
    if not step.startswith("codec-"):
        return ""
    records = seen["records"]
    if len(records) != 30 or seen["offsets"] != list(range(30)):
        return f"{len(records)} records at {seen['offsets']}"
    for number, (_, offset, key, digest, *_) in enumerate(records):
        wanted_key = None if number % 5 == 4 else f"k{number % 3}".encode().hex()
        if (offset, key, digest) != (number, wanted_key, digest_of(build_value(number))):
            return f"record {number} was read as {offset}, {key}, {digest}"
    return ""

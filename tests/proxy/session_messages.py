"""Short forms of Fetch requests and responses, for the tests of sessions.

Owns: defaults. Must not know: sessions' rules.
"""

from protocol.fetch import FetchPartition, FetchRequest
from protocol.fetch_build import FetchAnswer

IDS = 13
NAMES = 12


def asked(topic, partition, offset=0, *, epoch=-1, last_epoch=-1, max_bytes=100):
    """One partition as a consumer asks for it."""
    return FetchPartition(topic, partition, epoch, offset, last_epoch, -1, max_bytes)


def fetch(session: tuple[int, int], *partitions, forget=()):
    """A consumer's request with that (session id, session epoch)."""
    keys = {one[:2] for one in partitions}
    is_distinct = len(keys) == len(partitions)
    return FetchRequest(
        -1, 500, 1, 1 << 20, 0, *session, 0, "", list(partitions), list(forget), is_distinct
    )


def answer(topic, partition, high_watermark=10, *, log_start=0, stable=None, records=b"", error=0):
    """One partition's answer."""
    stable = high_watermark if stable is None else stable
    buffers = [records] if records else []
    return FetchAnswer(
        topic, partition, error, high_watermark, stable, log_start, None, buffers, len(records)
    )


def key(entry):
    """A request's or an answer's (topic, partition)."""
    return entry.topic, entry.partition


def keys(entries):
    """The same of many."""
    return [key(entry) for entry in entries]

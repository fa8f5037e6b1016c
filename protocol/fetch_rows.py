"""The answer to a Fetch of Forebay's own, read in one pass by C: native/answer_rows.c.

Owns the buffer of rows, and their way into `FetchResponse`. Must not know who asked. Invariants: one thread; None
means another form, or garbage, for `protocol.fetch` to judge; of any other frame the same is said as there.
"""

from typing import Final

from protocol._ordinary import ffi, lib
from protocol.fetch import FetchedPartition, FetchResponse
from protocol.primitives import TOPIC_ID_BYTES, Frame

ROWS_VERSION: Final = 13
"""The first version that names topics by id (KIP-516)."""
ROWS_MAX: Final = 1024
"""Partitions of one answer; more are left to `protocol.fetch`."""
_ROW_WORDS: Final = 9

_answer = ffi.new("po_answer *")
_rows = ffi.new("po_polled[]", ROWS_MAX)
_answer_words = memoryview(ffi.buffer(_answer)).cast("q")
_row_words = memoryview(ffi.buffer(_rows)).cast("q")
_scan_rows, _from_buffer = lib.po_scan_rows, ffi.from_buffer


def scan_rows(frame: Frame) -> FetchResponse | None:
    """`fetch.scan_response` of an answer of ROWS_VERSION, without aborted transactions, diverging epochs and hints of
    leaders; None for any other.
    """
    source = frame if type(frame) is bytes else _from_buffer(frame)
    count = _scan_rows(source, len(frame), _answer, _rows, ROWS_MAX)
    if count < 0:
        return None
    words = _row_words[: count * _ROW_WORDS].tolist()
    found = []
    for at in range(0, len(words), _ROW_WORDS):
        topic_at, index, error, high_watermark, stable, log_start, replica, start, end = words[
            at : at + _ROW_WORDS
        ]
        topic = bytes(frame[topic_at : topic_at + TOPIC_ID_BYTES])
        offsets = high_watermark, stable, log_start
        found.append(
            FetchedPartition(topic, index, error, *offsets, replica, None, None, None, start, end)
        )
    throttle_time_ms, error_code, session_id = _answer_words.tolist()
    return FetchResponse(throttle_time_ms, error_code, session_id, found)

"""Forebay's own log: JSON lines or text on standard error.

Owns the format of a line and the rules for its content; admin/log_queue.py writes lines to the
stream. Must not know events. The access log is not here (metrics). Invariants:
* an event is exactly one line, even with text from a client: control characters are escaped.
* bytes are never written, only their length, since frames carry credentials.
* the value of a field is replaced if the field's name indicates a secret.
"""

import io
import json
import logging
import re
import sys
import time
from collections.abc import Iterator
from typing import Literal

from proxy.admin.log_queue import LogQueue, Stream

LONGEST_TEXT = 4096  # characters of a field, since clients choose some of the text
LONGEST_TRACE = 16_384
EACH = frozenset({"forebay.verifier"})
"""Loggers whose lines are never suppressed (LogQueue)."""
REDACTED = "<redacted>"
_SECRET = re.compile(
    r"password|passwd|secret|token|credential|authorization|auth_?bytes", re.IGNORECASE
)
_NAMES_A_FILE = re.compile(r"_?file$", re.IGNORECASE)
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """A JSON object per line: `@timestamp`, `level`, `logger`, `message`, then the extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record, without its line break."""
        line: dict[str, object] = {
            "@timestamp": _timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _bounded(record.getMessage()),
        }
        line.update(_fields(record))
        if record.exc_info:
            line["exception"] = _bounded(self.formatException(record.exc_info), LONGEST_TRACE)
        return json.dumps(line, ensure_ascii=False, separators=(",", ":"))


class TextFormatter(logging.Formatter):
    """A line `TIME LEVEL message field=value ...`; a traceback follows with its line breaks
    escaped.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record, without its line break."""
        fields = "".join(f" {name}={_quoted(value)}" for name, value in _fields(record))
        trace = ""
        if record.exc_info:
            trace = f" exception={_quoted(_bounded(self.formatException(record.exc_info), LONGEST_TRACE))}"
        message = _escaped(_bounded(record.getMessage()))
        return f"{_timestamp(record.created)} {record.levelname:<7} {message}{fields}{trace}"


def configure(
    level: str, format: Literal["json", "text"], limit_lines: int, stream: Stream | None = None
) -> LogQueue:
    """Send all records from `level` up to `stream` (None: standard error), for which up to
    `limit_lines` lines may wait. Replaces an earlier configuration. Returns the queue, which the
    caller closes after the last record.
    """
    handler = LogQueue(
        stream or io.FileIO(sys.stderr.fileno(), "w", closefd=False), limit_lines, each=EACH
    )
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
        if isinstance(old, LogQueue):
            old.close()
    root.addHandler(handler)
    set_level(level)
    logging.captureWarnings(True)
    return handler


def set_level(level: str) -> None:
    """Write records from `level` up, from now on."""
    logging.getLogger().setLevel(level.upper())


def _fields(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    """The `extra` fields of a record, in their order, with values that may be written."""
    for name, value in vars(record).items():
        if name in _OWN:
            continue
        is_secret = _SECRET.search(name) and not _NAMES_A_FILE.search(name)
        yield name, REDACTED if is_secret else _plain(value)


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    return _bounded(str(value))


def _bounded(text: str, most: int = LONGEST_TEXT) -> str:
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def _escaped(text: str) -> str:
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def _quoted(value: object) -> str:
    text = _escaped(str(value))
    return text if re.fullmatch(r"[^\s\"=]+", text) else json.dumps(text, ensure_ascii=False)


def _timestamp(created_s: float) -> str:
    """ISO 8601 in UTC with milliseconds."""
    milliseconds = int(created_s * 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(milliseconds // 1000))}.{milliseconds % 1000:03d}Z"

"""A line of the log: its form, its limits, and the values that it never shows."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from proxy.admin.log import (
    LONGEST_TEXT,
    LONGEST_TRACE,
    REDACTED,
    JsonFormatter,
    TextFormatter,
    configure,
)


@pytest.fixture(autouse=True)
def root_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def record(message: str = "closed", **fields: object) -> logging.LogRecord:
    return logging.makeLogRecord(
        {"name": "proxy.x", "levelname": "WARNING", "msg": message, "created": 1.9996, **fields}
    )


def as_json(made: logging.LogRecord) -> dict[str, object]:
    line = JsonFormatter().format(made)
    assert "\n" not in line
    return dict(json.loads(line))


def test_json_has_four_fields_and_extras() -> None:
    assert as_json(record(clientId="c", bytesSent=5, lag=None)) == {
        "@timestamp": "1970-01-01T00:00:01.999Z",
        "level": "warning",
        "logger": "proxy.x",
        "message": "closed",
        "clientId": "c",
        "bytesSent": 5,
        "lag": None,
    }


def test_text_is_one_line_with_quotes_where_needed() -> None:
    line = TextFormatter().format(record(clientId="a b", n=5, empty=""))
    assert line == '1970-01-01T00:00:01.999Z WARNING closed clientId="a b" n=5 empty=""'


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_client_text_cannot_begin_a_line(
    formatter: logging.Formatter,
) -> None:
    line = formatter.format(record("id x\nforged \x1b[2J", clientId="y\r\nforged\u2028"))
    assert "\n" not in line
    assert "\r" not in line
    assert "\x1b" not in line


@pytest.mark.parametrize(
    "name", ["password", "saslToken", "clientSecret", "authBytes", "credentials", "Authorization"]
)
def test_fields_that_speak_of_secrets_are_replaced(name: str) -> None:
    assert as_json(record(**{name: "hunter2"}))[name] == REDACTED
    assert "hunter2" not in TextFormatter().format(record(**{name: "hunter2"}))


def test_name_of_a_secret_file_is_logged() -> None:
    assert as_json(record(passwordFile="/run/p"))["passwordFile"] == "/run/p"


@pytest.mark.parametrize("value", [b"hunter2", bytearray(b"hunter2"), memoryview(b"hunter2")])
def test_bytes_are_never_written(value: object) -> None:
    assert as_json(record(frame=value))["frame"] == "<7 bytes>"


def test_a_field_is_cut_beyond_its_bound() -> None:
    assert as_json(record(clientId="x" * LONGEST_TEXT))["clientId"] == "x" * LONGEST_TEXT
    cut = as_json(record("y" * (LONGEST_TEXT + 1)))["message"]
    assert cut == "y" * LONGEST_TEXT + f"... ({LONGEST_TEXT + 1} characters)"


def test_a_traceback_is_cut_beyond_its_bound() -> None:
    try:
        raise ValueError("y" * 2 * LONGEST_TRACE)
    except ValueError as error:
        made = record(exc_info=(type(error), error, error.__traceback__))
    for line in (JsonFormatter().format(made), TextFormatter().format(made)):
        assert LONGEST_TRACE < len(line) < LONGEST_TRACE + 1000


def test_an_exception_stays_on_the_line() -> None:
    try:
        raise ValueError("why")
    except ValueError as error:
        made = record(exc_info=(type(error), error, error.__traceback__))
    assert "ValueError: why" in str(as_json(made)["exception"])
    text = TextFormatter().format(made)
    assert "ValueError: why" in text
    assert "\n" not in text


def test_configure_replaces_what_was_and_keeps_the_level() -> None:
    first, second = io.BytesIO(), io.BytesIO()
    configure("info", "json", 10, first)
    queue = configure("warning", "text", 10, second)
    logging.getLogger("proxy.test").info("not this")
    logging.getLogger("proxy.test").warning("this %s", "one", extra={"topic": "t"})
    queue.close()
    assert first.getvalue() == b""
    assert second.getvalue().endswith(b" WARNING this one topic=t\n")

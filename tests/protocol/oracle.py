"""kio as the oracle: arbitrary messages of any API and version, and the frames that carry them.

Owns: strategies made from kio's schemas, building and reading whole frames with kio alone. Must not know: the
code under test, except its table of versions; only test modules import both. Invariants: a generated message
survives kio's own round trip, so that a difference is ours.
"""

import io
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from protocol.api import APIS


def _integers(bits: int) -> st.SearchStrategy[int]:
    top = (1 << bits - 1) - 1
    return st.one_of(st.sampled_from((-1, 0, 1, top, -top - 1)), st.integers(-top - 1, top))


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "int8": _integers(8),
    "int16": _integers(16),
    "int32": _integers(32),
    "int64": _integers(64),
    "bool": st.booleans(),
    "string": st.one_of(st.text(max_size=6), st.text("é", min_size=63, max_size=65)),
    "bytes": st.binary(max_size=8),
    "records": st.one_of(st.binary(max_size=8), st.binary(min_size=126, max_size=129)),
    "uuid": st.one_of(st.none(), st.uuids(allow_nil=False)),
    "error_code": st.sampled_from(ErrorCode),
    "timedelta_i32": st.integers(-(1 << 31), (1 << 31) - 1).map(
        lambda ms: timedelta(milliseconds=ms)
    ),
    "timedelta_i64": st.integers(0, 1 << 40).map(lambda ms: timedelta(milliseconds=ms)),
    "datetime_i64": st.integers(0, 1 << 42).map(lambda ms: EPOCH + timedelta(milliseconds=ms)),
}


def _field(hint: Any, kafka_type: str | None) -> st.SearchStrategy[Any]:
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    (inner,) = (option for option in options if option is not NoneType)
    if get_origin(inner) is tuple:
        element = get_args(inner)[0]
        found = st.lists(_field(element, kafka_type), max_size=3).map(tuple)
    elif is_dataclass(inner):
        found = messages(cast("type", inner))
    else:
        assert kafka_type is not None
        found = SCALARS[kafka_type]
    return st.one_of(st.none(), found) if NoneType in options else found


@cache
def messages(schema: Any) -> st.SearchStrategy[Any]:
    """Arbitrary values of one of kio's entities, tagged fields included."""
    hints = get_type_hints(schema)
    parts = {}
    for field in fields(schema):
        hint = hints[field.name]
        if "tag" in field.metadata and field.metadata.get("kafka_type") == "uuid":
            parts[field.name] = st.uuids(allow_nil=False)  # kio cannot write a tagged null uuid
        else:
            parts[field.name] = _field(hint, field.metadata.get("kafka_type"))
    return st.builds(schema, **parts)


def versions(api_key: int) -> range:
    """The versions of an API that `protocol` decodes, and this module thus makes."""
    decoded = APIS[api_key].decoded
    assert decoded is not None
    return range(decoded[0], decoded[1] + 1)


def requests(api_key: int, version: int) -> st.SearchStrategy[Any]:
    """Arbitrary request bodies."""
    return messages(load_request_schema(api_key, version))


def responses(api_key: int, version: int) -> st.SearchStrategy[Any]:
    """Arbitrary response bodies."""
    return messages(load_response_schema(api_key, version))


def _framed(*entities: Any) -> bytes:
    out = io.BytesIO()
    for entity in entities:
        entity_writer(type(entity))(out, entity)
    body = out.getvalue()
    return len(body).to_bytes(4, "big") + body


def request_frame(body: Any, correlation_id: int = 7, client_id: str | None = "client") -> bytes:
    """The frame that kio makes of a request body."""
    header = body.__header_schema__(
        request_api_key=body.__api_key__,
        request_api_version=body.__version__,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    return _framed(header, body)


def response_frame(body: Any, correlation_id: int = 7) -> bytes:
    """The frame that kio makes of a response body."""
    return _framed(body.__header_schema__(correlation_id=correlation_id), body)


def read_frame(schema: Any, frame: bytes) -> tuple[Any, Any]:
    """The header and body that kio reads from a frame; asserts that nothing is left over."""
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header, size = entity_reader(schema.__header_schema__)(frame, 4)
    body, body_size = entity_reader(schema)(frame, 4 + size)
    assert 4 + size + body_size == len(frame)
    return header, body


def read_request(api_key: int, version: int, frame: bytes) -> tuple[Any, Any]:
    """kio's reading of a request frame."""
    return read_frame(load_request_schema(api_key, version), frame)


def read_response(api_key: int, version: int, frame: bytes) -> tuple[Any, Any]:
    """kio's reading of a response frame."""
    return read_frame(load_response_schema(api_key, version), frame)


def topic_of(entry: Any, name: str = "name") -> str | bytes:
    """A topic entry's name, or in versions with ids its 16 bytes; kio shows the zero id as None."""
    if hasattr(entry, "topic_id"):
        return bytes(16) if entry.topic_id is None else entry.topic_id.bytes
    return getattr(entry, name)


def milliseconds(value: timedelta) -> int:
    """A timedelta as Kafka's integer."""
    return round(value / timedelta(milliseconds=1))

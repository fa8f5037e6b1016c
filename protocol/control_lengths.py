"""Are the lengths in a control message possible? Asked before kio reads it, which sets memory aside as announced.

Owns one walk over a message by its kio schema (dataclass fields and their metadata; kio itself is not needed). Must
not know what the message says, or build anything of it. Invariants: an array has at most as many elements as bytes
are left, since none is empty; everything lies within the frame; else `BadFrame`. kio's native reader (0.6) reserves
room for the announced count and ends the process where there is none: no exception could be caught. It also reads an
array that is null where the schema has none, which is refused here.
"""

from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, Union, get_args, get_origin, get_type_hints

from protocol.errors import BadFrame
from protocol.primitives import Frame

_FIXED: Final = {
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "uuid": 16,
}
_PREFIX: Final = {"string": 2, "bytes": 4, "records": 4}
_VARINT_BYTES: Final = 5


class _FieldSchema(NamedTuple):
    """`element`: the schema of a nested message, or a key of _FIXED or _PREFIX."""

    tag: int | None
    is_array: bool
    is_nullable: bool
    element: Any


@cache
def _fields_of(schema: Any) -> tuple[_FieldSchema, ...]:
    hints = get_type_hints(schema)
    found = []
    for one in fields(schema):
        hint = hints[one.name]
        options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        (inner,) = (option for option in options if option is not NoneType)
        is_array = get_origin(inner) is tuple
        inner = get_args(inner)[0] if is_array else inner
        element = inner if is_dataclass(inner) else one.metadata["kafka_type"]
        found.append(_FieldSchema(one.metadata.get("tag"), is_array, len(options) > 1, element))
    return tuple(found)


def check_lengths(frame: Frame, at: int, schema: Any) -> None:
    """Raises `BadFrame` where the message of this schema that starts at `at` announces more than there is."""
    _walk(frame, at, schema)


def _need(frame: Frame, at: int, size_bytes: int) -> int:
    """After so many bytes."""
    if size_bytes < 0 or size_bytes > len(frame) - at:
        raise BadFrame(f"{size_bytes} bytes announced, {len(frame) - at} left")
    return at + size_bytes


def _read_varint(frame: Frame, at: int) -> tuple[int, int]:
    value = 0
    for number in range(_VARINT_BYTES):
        _need(frame, at, 1)
        byte = frame[at]
        at += 1
        value |= (byte & 0x7F) << 7 * number
        if byte < 0x80:
            return value, at
    raise BadFrame("a varint of more than 5 bytes")


def _read_length(frame: Frame, at: int, flexible: bool, prefix_bytes: int) -> tuple[int, int]:
    """-1 is null."""
    if flexible:
        length, at = _read_varint(frame, at)
        return length - 1, at
    after = _need(frame, at, prefix_bytes)
    return int.from_bytes(frame[at:after], "big", signed=True), after


def _walk(frame: Frame, at: int, schema: Any) -> int:
    flexible = schema.__flexible__
    known = _fields_of(schema)
    for field in known:
        if field.tag is None:
            at = _walk_field(frame, at, field, flexible)
    if not flexible:
        return at
    tagged = {field.tag: field for field in known if field.tag is not None}
    count, at = _read_varint(frame, at)
    _need(frame, at, count)
    for _ in range(count):
        tag, at = _read_varint(frame, at)
        size_bytes, at = _read_varint(frame, at)
        after = _need(frame, at, size_bytes)
        if tag in tagged:
            _walk_field(frame, at, tagged[tag], flexible)
        at = after
    return at


def _walk_field(frame: Frame, at: int, field: _FieldSchema, flexible: bool) -> int:
    if field.is_array:
        count, at = _read_length(frame, at, flexible, 4)
        _need(frame, at, 0 if field.is_nullable and count == -1 else count)
        for _ in range(count):
            at = _walk_one(frame, at, field.element, flexible)
        return at
    if field.is_nullable and is_dataclass(field.element):
        marker = frame[at : _need(frame, at, 1)]
        at += 1
        return at if marker == b"\xff" else _walk_one(frame, at, field.element, flexible)
    return _walk_one(frame, at, field.element, flexible)


def _walk_one(frame: Frame, at: int, element: Any, flexible: bool) -> int:
    if is_dataclass(element):
        return _walk(frame, at, element)
    if element in _FIXED:
        return _need(frame, at, _FIXED[element])
    length, at = _read_length(frame, at, flexible, _PREFIX[element])
    return _need(frame, at, max(length, 0))

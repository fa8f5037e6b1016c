"""The primitives of Kafka's two encodings: classic, and flexible with tagged fields (KIP-482).

Owns: readers `(frame, at) -> (value, next)` and builders of strings, counts, byte lengths and tagged
sections, as two tables `CLASSIC` and `FLEXIBLE`, so that a message is scanned by one function in all its
versions. Must not know: any message. Invariants: a length or count is checked against the bytes that are left
before anything is sliced or allocated; what the readers raise on short input (struct.error, IndexError) is
turned into `BadFrame` by `refuses_garbage`.
"""

from collections.abc import Callable
from functools import wraps
from struct import Struct
from struct import error as StructError
from typing import NamedTuple, ParamSpec, TypeAlias, TypeVar

from protocol.errors import BadFrame

Frame: TypeAlias = bytes | bytearray | memoryview
TopicNameOrId: TypeAlias = str | bytes

INT16 = Struct(">h")
INT32 = Struct(">i")
INT64 = Struct(">q")
INT32_PAIR = Struct(">ii")
INT64_PAIR = Struct(">qq")

TOPIC_ID_BYTES = 16
VARINT_MAX_BYTES = 5
MOST_TEXT_BYTES = 2**15 - 1
"""Of a string, in both encodings (Kafka's generated readers: "had invalid length")."""
MOST_TAGS = 1000
"""Of one tagged section. No message of Kafka's has more than a few; each takes time to read."""

P = ParamSpec("P")
R = TypeVar("R")


def refuses_garbage(scan: Callable[P, R]) -> Callable[P, R]:
    """Turn what short or garbled input makes the readers raise into `BadFrame`."""

    @wraps(scan)
    def refusing(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return scan(*args, **kwargs)
        except (StructError, IndexError) as error:
            raise BadFrame(f"the frame ends too early: {error}") from error
        except UnicodeDecodeError as error:
            raise BadFrame(f"a string is not UTF-8: {error.reason}") from error

    return refusing


def read_uvarint(frame: Frame, at: int) -> tuple[int, int]:
    """An unsigned varint of at most five bytes (ByteUtils.readUnsignedVarint)."""
    byte = frame[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    for after in range(at + 1, at + VARINT_MAX_BYTES):
        byte = frame[after]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, after + 1
        shift += 7
    raise BadFrame("a varint is longer than five bytes")


def build_uvarint(value: int) -> bytes:
    """`value`, 0 to 2**32 - 1, as an unsigned varint."""
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x200000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _text(frame: Frame, at: int, length: int) -> tuple[str, int]:
    end = at + length
    if length > MOST_TEXT_BYTES or end > len(frame):
        raise BadFrame(f"a string of {length} bytes reaches beyond the frame, or is too long")
    return str(frame[at:end], "utf-8"), end


def _classic_string(frame: Frame, at: int) -> tuple[str | None, int]:
    (length,) = INT16.unpack_from(frame, at)
    if length < 0:
        if length < -1:
            raise BadFrame(f"a string's length is {length}")
        return None, at + 2
    return _text(frame, at + 2, length)


def _flexible_string(frame: Frame, at: int) -> tuple[str | None, int]:
    length = frame[at]
    length, at = (length, at + 1) if length < 0x80 else read_uvarint(frame, at)
    return _text(frame, at, length - 1) if length else (None, at)


def _classic_count(frame: Frame, at: int) -> tuple[int, int]:
    (count,) = INT32.unpack_from(frame, at)
    return _checked_count(frame, count, at + 4)


def _flexible_count(frame: Frame, at: int) -> tuple[int, int]:
    count = frame[at]
    if (
        0 < count < 0x80 and count < len(frame) - at
    ):  # nearly all: one byte, and more is left than is counted
        return count - 1, at + 1
    count, at = read_uvarint(frame, at)
    return _checked_count(frame, count - 1, at)


def _checked_count(frame: Frame, count: int, at: int) -> tuple[int, int]:
    """No element of an array, and no byte of a records field, takes less than a byte."""
    if count > len(frame) - at or count < -1:
        raise BadFrame(f"a length of {count} where {len(frame) - at} bytes are left")
    return count, at


def _classic_tags(_frame: Frame, at: int) -> int:
    return at


def skip_tags(frame: Frame, at: int) -> int:
    """The index after a tagged section whose content is of no interest; nearly all are empty."""
    if frame[at] == 0:
        return at + 1
    return scan_tags(frame, at)[1]


def read_tag(frame: Frame, at: int) -> tuple[int, int, int]:
    """One tagged field: its tag, where its content starts, and where it ends."""
    tag, at = read_uvarint(frame, at)
    size, at = read_uvarint(frame, at)
    end = at + size
    if end > len(frame):
        raise BadFrame(f"a tagged field of {size} bytes reaches beyond the frame")
    return tag, at, end


def scan_tags(frame: Frame, at: int) -> tuple[list[tuple[int, int, int]], int]:
    """All fields of a tagged section as (tag, start, end), and the index after the section."""
    if frame[at] == 0:
        return [], at + 1
    count, at = read_uvarint(frame, at)
    if count > MOST_TAGS:
        raise BadFrame(f"{count} tagged fields in one place")
    found = []
    for _ in range(count):
        tag, start, at = read_tag(frame, at)
        found.append((tag, start, at))
    return found, at


def read_topic_id(frame: Frame, at: int) -> tuple[bytes, int]:
    """The 16 bytes of a topic id (KIP-516)."""
    end = at + TOPIC_ID_BYTES
    if end > len(frame):
        raise BadFrame("a topic id reaches beyond the frame")
    return bytes(frame[at:end]), end


def read_array(encoding: "Encoding", frame: Frame, at: int) -> tuple[range, int]:
    """The count of an array that must not be null, as a range to walk."""
    count, at = encoding.read_count(frame, at)
    if count < 0:
        raise BadFrame("an array is null that must not be")
    return range(count), at


def read_string(encoding: "Encoding", frame: Frame, at: int) -> tuple[str, int]:
    """A string that must not be null."""
    value, at = encoding.read_nullable_string(frame, at)
    if value is None:
        raise BadFrame("a string is null that must not be")
    return value, at


def _build_classic_string(value: str | None) -> bytes:
    if value is None:
        return b"\xff\xff"
    raw = value.encode()
    return INT16.pack(len(raw)) + raw


def _build_flexible_string(value: str | None) -> bytes:
    if value is None:
        return b"\0"
    raw = value.encode()
    return build_uvarint(len(raw) + 1) + raw


_ONE_BYTE = [bytes((value,)) for value in range(0x80)]


def _build_flexible_count(count: int) -> bytes:
    return _ONE_BYTE[count + 1] if count < 0x7F else build_uvarint(count + 1)


class Encoding(NamedTuple):
    """One of the two encodings. A count or length of -1 is null; `no_tags` is an empty tagged section."""

    read_nullable_string: Callable[[Frame, int], tuple[str | None, int]]
    read_count: Callable[[Frame, int], tuple[int, int]]
    skip_tags: Callable[[Frame, int], int]
    build_string: Callable[[str | None], bytes]
    build_count: Callable[[int], bytes]
    no_tags: bytes


CLASSIC = Encoding(
    _classic_string, _classic_count, _classic_tags, _build_classic_string, INT32.pack, b""
)
FLEXIBLE = Encoding(
    _flexible_string,
    _flexible_count,
    skip_tags,
    _build_flexible_string,
    _build_flexible_count,
    b"\0",
)

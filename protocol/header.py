"""The first bytes of a request or response, before anybody looks at the body.

Owns: request headers v1 and v2, response headers v0 and v1 (RequestHeader.json, ResponseHeader.json). Must
not know: any body. Invariants: the client id is in the old encoding in every version; tags of a header are
skipped; an API that the table does not know has no body start, because nobody can say whether its header has
tags.
"""

from struct import Struct
from typing import NamedTuple

from protocol.api import APIS, has_flexible_response_header
from protocol.errors import BadFrame
from protocol.primitives import CLASSIC, INT16, INT32, Frame, refuses_garbage, skip_tags

_FIXED = Struct(">hhi")
FIXED_START = 4  # after the length
CLIENT_ID_START = FIXED_START + _FIXED.size
RESPONSE_TAGS_START = 8  # after the length and the correlation id
UNKNOWN = -1


class RequestHeader(NamedTuple):
    """`body_start`: index of the body in the frame, -1 where the API is unknown to Forebay."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_start: int


@refuses_garbage
def peek_request(frame: Frame) -> RequestHeader:
    """The header of a request frame; raises `BadFrame`. A client id's bad UTF-8 becomes U+FFFD."""
    api_key, api_version, correlation_id = _FIXED.unpack_from(frame, FIXED_START)
    (length,) = INT16.unpack_from(frame, CLIENT_ID_START)
    at = CLIENT_ID_START + 2 + max(length, 0)
    if length < -1 or at > len(frame):
        raise BadFrame(f"a client id of {length} bytes in a frame of {len(frame)}")
    client_id = None if length < 0 else str(frame[at - length : at], "utf-8", "replace")
    api = APIS.get(api_key)
    if api is None:
        return RequestHeader(api_key, api_version, correlation_id, client_id, UNKNOWN)
    body_start = skip_tags(frame, at) if api_version >= api.flexible_from else at
    return RequestHeader(api_key, api_version, correlation_id, client_id, body_start)


def peek_correlation_id(frame: Frame) -> int:
    """The correlation id of a response frame; raises `BadFrame`."""
    if len(frame) < RESPONSE_TAGS_START:
        raise BadFrame(f"the frame ends too early: {len(frame)} bytes")
    correlation_id: int = INT32.unpack_from(frame, FIXED_START)[0]
    return correlation_id


def response_body_start(frame: Frame, api_key: int, version: int) -> int:
    """Index of a response's body in the frame; raises as the readers of `primitives` do."""
    if has_flexible_response_header(api_key, version):
        return skip_tags(frame, RESPONSE_TAGS_START)
    return RESPONSE_TAGS_START


def build_request_header(
    api_key: int, version: int, correlation_id: int, client_id: str | None, flexible: bool
) -> bytearray:
    """A request frame up to its body; the length in the first four bytes is left to be set."""
    head = (
        bytearray(FIXED_START)
        + _FIXED.pack(api_key, version, correlation_id)
        + CLASSIC.build_string(client_id)
    )
    return head + b"\0" if flexible else head

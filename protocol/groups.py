"""The consumer group that a request names.

Owns: GroupId, the first field of JoinGroup, OffsetCommit and ConsumerGroupHeartbeat in every version
(JoinGroupRequest.json, OffsetCommitRequest.json, ConsumerGroupHeartbeatRequest.json). Must not know: the other fields.
"""

from typing import Final

from protocol.api import CONSUMER_GROUP_HEARTBEAT, JOIN_GROUP, OFFSET_COMMIT, is_flexible
from protocol.errors import BadFrame
from protocol.header import RequestHeader
from protocol.primitives import CLASSIC, FLEXIBLE, Frame, read_string, refuses_garbage

NAMING_GROUPS: Final = frozenset({OFFSET_COMMIT, JOIN_GROUP, CONSUMER_GROUP_HEARTBEAT})
"""API keys of the requests that are read."""


def find_group(head: RequestHeader, frame: Frame) -> str:
    """The group id of a request of NAMING_GROUPS; "" where it is empty or cannot be read."""
    try:
        return _read_group(head, frame)
    except BadFrame:
        return ""


@refuses_garbage
def _read_group(head: RequestHeader, frame: Frame) -> str:
    encoding = FLEXIBLE if is_flexible(head.api_key, head.api_version) else CLASSIC
    return read_string(encoding, frame, head.body_start)[0]

"""Kafka's error codes by name, and where a response has one for all of it.

Owns the names (org.apache.kafka.common.protocol.Errors of Kafka 4.3) and the positions (the response schemas of
Kafka 3.9 to 4.3). Must not know what is done about an error. Invariant: only a response whose first fields are an
optional throttle time and the error code has a position; in others the codes belong to partitions or groups.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from protocol import api

if TYPE_CHECKING:
    from protocol.primitives import Frame

NAMES: Final[dict[int, str]] = {
    -1: "UNKNOWN_SERVER_ERROR",
    1: "OFFSET_OUT_OF_RANGE",
    2: "CORRUPT_MESSAGE",
    3: "UNKNOWN_TOPIC_OR_PARTITION",
    4: "INVALID_FETCH_SIZE",
    5: "LEADER_NOT_AVAILABLE",
    6: "NOT_LEADER_OR_FOLLOWER",
    7: "REQUEST_TIMED_OUT",
    8: "BROKER_NOT_AVAILABLE",
    9: "REPLICA_NOT_AVAILABLE",
    10: "MESSAGE_TOO_LARGE",
    11: "STALE_CONTROLLER_EPOCH",
    12: "OFFSET_METADATA_TOO_LARGE",
    13: "NETWORK_EXCEPTION",
    14: "COORDINATOR_LOAD_IN_PROGRESS",
    15: "COORDINATOR_NOT_AVAILABLE",
    16: "NOT_COORDINATOR",
    17: "INVALID_TOPIC_EXCEPTION",
    18: "RECORD_LIST_TOO_LARGE",
    19: "NOT_ENOUGH_REPLICAS",
    20: "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    21: "INVALID_REQUIRED_ACKS",
    22: "ILLEGAL_GENERATION",
    23: "INCONSISTENT_GROUP_PROTOCOL",
    24: "INVALID_GROUP_ID",
    25: "UNKNOWN_MEMBER_ID",
    26: "INVALID_SESSION_TIMEOUT",
    27: "REBALANCE_IN_PROGRESS",
    28: "INVALID_COMMIT_OFFSET_SIZE",
    29: "TOPIC_AUTHORIZATION_FAILED",
    30: "GROUP_AUTHORIZATION_FAILED",
    31: "CLUSTER_AUTHORIZATION_FAILED",
    32: "INVALID_TIMESTAMP",
    33: "UNSUPPORTED_SASL_MECHANISM",
    34: "ILLEGAL_SASL_STATE",
    35: "UNSUPPORTED_VERSION",
    36: "TOPIC_ALREADY_EXISTS",
    37: "INVALID_PARTITIONS",
    38: "INVALID_REPLICATION_FACTOR",
    39: "INVALID_REPLICA_ASSIGNMENT",
    40: "INVALID_CONFIG",
    41: "NOT_CONTROLLER",
    42: "INVALID_REQUEST",
    43: "UNSUPPORTED_FOR_MESSAGE_FORMAT",
    44: "POLICY_VIOLATION",
    45: "OUT_OF_ORDER_SEQUENCE_NUMBER",
    46: "DUPLICATE_SEQUENCE_NUMBER",
    47: "INVALID_PRODUCER_EPOCH",
    48: "INVALID_TXN_STATE",
    49: "INVALID_PRODUCER_ID_MAPPING",
    50: "INVALID_TRANSACTION_TIMEOUT",
    51: "CONCURRENT_TRANSACTIONS",
    52: "TRANSACTION_COORDINATOR_FENCED",
    53: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    54: "SECURITY_DISABLED",
    55: "OPERATION_NOT_ATTEMPTED",
    56: "KAFKA_STORAGE_ERROR",
    57: "LOG_DIR_NOT_FOUND",
    58: "SASL_AUTHENTICATION_FAILED",
    59: "UNKNOWN_PRODUCER_ID",
    60: "REASSIGNMENT_IN_PROGRESS",
    61: "DELEGATION_TOKEN_AUTH_DISABLED",
    62: "DELEGATION_TOKEN_NOT_FOUND",
    63: "DELEGATION_TOKEN_OWNER_MISMATCH",
    64: "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED",
    65: "DELEGATION_TOKEN_AUTHORIZATION_FAILED",
    66: "DELEGATION_TOKEN_EXPIRED",
    67: "INVALID_PRINCIPAL_TYPE",
    68: "NON_EMPTY_GROUP",
    69: "GROUP_ID_NOT_FOUND",
    70: "FETCH_SESSION_ID_NOT_FOUND",
    71: "INVALID_FETCH_SESSION_EPOCH",
    72: "LISTENER_NOT_FOUND",
    73: "TOPIC_DELETION_DISABLED",
    74: "FENCED_LEADER_EPOCH",
    75: "UNKNOWN_LEADER_EPOCH",
    76: "UNSUPPORTED_COMPRESSION_TYPE",
    77: "STALE_BROKER_EPOCH",
    78: "OFFSET_NOT_AVAILABLE",
    79: "MEMBER_ID_REQUIRED",
    80: "PREFERRED_LEADER_NOT_AVAILABLE",
    81: "GROUP_MAX_SIZE_REACHED",
    82: "FENCED_INSTANCE_ID",
    83: "ELIGIBLE_LEADERS_NOT_AVAILABLE",
    84: "ELECTION_NOT_NEEDED",
    85: "NO_REASSIGNMENT_IN_PROGRESS",
    86: "GROUP_SUBSCRIBED_TO_TOPIC",
    87: "INVALID_RECORD",
    88: "UNSTABLE_OFFSET_COMMIT",
    89: "THROTTLING_QUOTA_EXCEEDED",
    90: "PRODUCER_FENCED",
    91: "RESOURCE_NOT_FOUND",
    92: "DUPLICATE_RESOURCE",
    93: "UNACCEPTABLE_CREDENTIAL",
    94: "INCONSISTENT_VOTER_SET",
    95: "INVALID_UPDATE_VERSION",
    96: "FEATURE_UPDATE_FAILED",
    97: "PRINCIPAL_DESERIALIZATION_FAILURE",
    98: "SNAPSHOT_NOT_FOUND",
    99: "POSITION_OUT_OF_RANGE",
    100: "UNKNOWN_TOPIC_ID",
    101: "DUPLICATE_BROKER_REGISTRATION",
    102: "BROKER_ID_NOT_REGISTERED",
    103: "INCONSISTENT_TOPIC_ID",
    104: "INCONSISTENT_CLUSTER_ID",
    105: "TRANSACTIONAL_ID_NOT_FOUND",
    106: "FETCH_SESSION_TOPIC_ID_ERROR",
    107: "INELIGIBLE_REPLICA",
    108: "NEW_LEADER_ELECTED",
    109: "OFFSET_MOVED_TO_TIERED_STORAGE",
    110: "FENCED_MEMBER_EPOCH",
    111: "UNRELEASED_INSTANCE_ID",
    112: "UNSUPPORTED_ASSIGNOR",
    113: "STALE_MEMBER_EPOCH",
    114: "MISMATCHED_ENDPOINT_TYPE",
    115: "UNSUPPORTED_ENDPOINT_TYPE",
    116: "UNKNOWN_CONTROLLER_ID",
    117: "UNKNOWN_SUBSCRIPTION_ID",
    118: "TELEMETRY_TOO_LARGE",
    119: "INVALID_REGISTRATION",
    120: "TRANSACTION_ABORTABLE",
    121: "INVALID_RECORD_STATE",
    122: "SHARE_SESSION_NOT_FOUND",
    123: "INVALID_SHARE_SESSION_EPOCH",
    124: "FENCED_STATE_EPOCH",
    125: "INVALID_VOTER_KEY",
    126: "DUPLICATE_VOTER",
    127: "VOTER_NOT_FOUND",
    128: "INVALID_REGULAR_EXPRESSION",
    129: "REBOOTSTRAP_REQUIRED",
    130: "STREAMS_INVALID_TOPOLOGY",
    131: "STREAMS_INVALID_TOPOLOGY_EPOCH",
    132: "STREAMS_TOPOLOGY_FENCED",
    133: "SHARE_SESSION_LIMIT_REACHED",
}
UNKNOWN: Final = "unknown"
"""The name of a code that is none of Kafka's."""

_INT16 = Struct(">h")
_NEVER = 1 << 15
_BODY_AT = 8
"""Where the body begins without tags in the header: behind length and correlation id."""
_THROTTLE_BYTES = 4
_POSITIONS: Final[dict[int, tuple[int, int, int]]] = {
    10: (0, 1, 3),
    api.JOIN_GROUP: (0, 2, 9),
    12: (0, 1, 4),
    13: (0, 1, 5),
    14: (0, 1, 5),
    16: (0, 1, 5),
    api.SASL_HANDSHAKE: (0, _NEVER, 1),
    api.API_VERSIONS: (0, _NEVER, 4),
    22: (0, 0, 6),
    24: (4, 0, 5),
    25: (0, 0, 4),
    26: (0, 0, 5),
    29: (1, 0, 3),
    api.DESCRIBE_LOG_DIRS: (3, 0, 5),
    api.SASL_AUTHENTICATE: (0, _NEVER, 2),
    api.CREATE_DELEGATION_TOKEN: (1, _NEVER, 3),
    api.RENEW_DELEGATION_TOKEN: (1, _NEVER, 2),
    api.EXPIRE_DELEGATION_TOKEN: (1, _NEVER, 2),
    api.DESCRIBE_DELEGATION_TOKEN: (1, _NEVER, 3),
    43: (1, 0, 2),
    45: (0, 0, 0),
    46: (0, 0, 0),
    47: (0, _NEVER, 0),
    48: (0, 0, 1),
    50: (0, 0, 0),
    55: (0, _NEVER, 2),
    57: (0, 0, 2),
    60: (0, 0, 2),
    66: (0, 0, 2),
    api.CONSUMER_GROUP_HEARTBEAT: (0, 0, 1),
    71: (0, 0, 0),
    72: (0, 0, 0),
    74: (0, 0, 1),
    76: (1, 0, 1),
    78: (1, 0, 2),
    79: (1, 0, 2),
    88: (0, 0, 0),
    91: (0, 0, 0),
    92: (0, 0, 0),
}
"""By API key: the first version with such an error code, the first in which it follows the throttle time, the last."""


def peek_error(frame: Frame, api_key: int, version: int) -> int:
    """The error code of a whole response, or of its first bytes, with the length before it. 0: no error, or the
    response has no such code, or is too short.
    """
    known = _POSITIONS.get(api_key)
    if known is None:
        return 0
    first, throttled_from, last = known
    if not first <= version <= last:
        return 0
    at = _BODY_AT
    if api.has_flexible_response_header(api_key, version):
        if len(frame) <= at or frame[at]:  # tags that this table does not know
            return 0
        at += 1
    if version >= throttled_from:
        at += _THROTTLE_BYTES
    if len(frame) < at + _INT16.size:
        return 0
    code: int = _INT16.unpack_from(frame, at)[0]
    return code

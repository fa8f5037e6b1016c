"""The control messages that Forebay itself sends or reads: ApiVersions, SASL, delegation tokens,
DescribeConfigs, CreateTopics; and Metadata requests.

Owns: the only use of kio, which copies and builds objects: fine for what is rare, not for the data path. Must
not know: when these are sent and what follows from the answers. Invariants: whole frames in and out, with
length and header; plain values come back, never kio's; whatever kio raises on an answer is a `BadFrame`; a
version that kio lacks is the caller's mistake (UnknownEntity).
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from kio.index import load_payload_module, load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from protocol.api import (
    API_VERSIONS,
    CREATE_DELEGATION_TOKEN,
    CREATE_TOPICS,
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    DESCRIBE_DELEGATION_TOKEN,
    DESCRIBE_LOG_DIRS,
    EXPIRE_DELEGATION_TOKEN,
    METADATA,
    RENEW_DELEGATION_TOKEN,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    is_flexible,
)
from protocol.control_lengths import check_lengths
from protocol.errors import BadFrame, ErrorCode
from protocol.header import build_request_header, response_body_start
from protocol.metadata import BrokerAddress
from protocol.primitives import (
    CLASSIC,
    FLEXIBLE,
    INT16,
    INT32,
    Frame,
    TopicNameOrId,
    refuses_garbage,
)

METADATA_BY_ID_FROM = (
    12  # topic ids are in requests from 10 on and answered from 12 on (MetadataRequest.json)
)
_ALL_TOPICS_NULL_FROM = 1
_TOPIC_RESOURCE, _BROKER_RESOURCE = 2, 4  # org.apache.kafka.common.config.ConfigResource.Type


class ApiVersions(NamedTuple):
    """`ranges`: API key -> first and last version. `features`: finalized feature -> level, such as
    metadata.version (KIP-584); empty below version 3.
    """

    error_code: int
    ranges: dict[int, tuple[int, int]]
    features: dict[str, int]


class SaslHandshake(NamedTuple):
    """`mechanisms`: those that the broker enables."""

    error_code: int
    mechanisms: list[str]


class SaslAuthenticate(NamedTuple):
    """`session_lifetime_ms` 0: the session does not expire (always so in version 0)."""

    error_code: int
    error_message: str | None
    auth_bytes: bytes
    session_lifetime_ms: int


class TopicRights(NamedTuple):
    """`operations`: bit N is set if the asking principal may do the operation with code N (AclOperation); the least
    int32 where the broker does not say.
    """

    error_code: int
    name: str
    is_internal: bool
    operations: int


class ClusterRights(NamedTuple):
    """As TopicRights, on the cluster; 0 without DESCRIBE on it (KafkaApis.handleDescribeCluster)."""

    error_code: int
    operations: int


class CreatedTopic(NamedTuple):
    """`error_code` 0: it was created."""

    error_code: int
    error_message: str | None


class CreatedToken(NamedTuple):
    """A delegation token (KIP-48). Times are milliseconds of the broker's clock. With an error all else is empty.
    `owner` and `requester` are names of users.
    """

    error_code: int
    owner: str = ""
    requester: str = ""
    issued_at_ms: int = 0
    expires_at_ms: int = 0
    ends_at_ms: int = 0
    token_id: str = ""
    hmac: bytes = b""


class DescribedConfig(NamedTuple):
    """Of one topic or broker, by its name. `values`: setting -> value in force, None where the broker hides it."""

    error_code: int
    name: str
    values: dict[str, str | None]
    error_message: str | None = None


class LogDirectory(NamedTuple):
    """One of the broker's log directories as it names it, and (topic, partition) of the logs in it."""

    path: str
    partitions: list[tuple[str, int]]


def _build(
    api_key: int,
    version: int,
    correlation_id: int,
    client_id: str | None,
    values: Mapping[str, object],
) -> bytes:
    """A whole request frame; of `values`, those that the version has."""
    schema: Any = load_request_schema(api_key, version)
    known = {field.name for field in fields(schema)}
    body = io.BytesIO()
    entity_writer(schema)(
        body, schema(**{name: value for name, value in values.items() if name in known})
    )
    frame = build_request_header(
        api_key, version, correlation_id, client_id, is_flexible(api_key, version)
    )
    frame += body.getvalue()
    INT32.pack_into(frame, 0, len(frame) - 4)
    return bytes(frame)


def _scan(frame: Frame, api_key: int, version: int) -> Any:
    """kio's object of a response frame; raises `BadFrame`."""
    schema: Any = load_response_schema(api_key, version)
    reader: Any = entity_reader(schema)
    try:
        at = response_body_start(frame, api_key, version)
        check_lengths(frame, at, schema)
        return reader(bytes(frame), at)[0]
    except (
        Exception
    ) as error:  # kio's own, or ValueError, OverflowError and the like from its conversions
        raise BadFrame(f"an answer to API {api_key}, version {version}: {error!r}") from error


def build_api_versions_request(
    version: int,
    correlation_id: int,
    client_id: str | None,
    *,
    software_name: str,
    software_version: str,
) -> bytes:
    """An ApiVersions request, version 0 to 4; the software is named from 3 on."""
    values = {"client_software_name": software_name, "client_software_version": software_version}
    return _build(API_VERSIONS, version, correlation_id, client_id, values)


def scan_api_versions_response(frame: Frame, version: int) -> ApiVersions:
    """Any ApiVersions answer; one with an error may be in version 0 instead (KIP-511). Raises `BadFrame`."""
    error_code = int.from_bytes(frame[8:10], "big", signed=True)
    answer = _scan(frame, API_VERSIONS, version if error_code == 0 else 0)
    ranges = {
        int(row.api_key): (int(row.min_version), int(row.max_version)) for row in answer.api_keys
    }
    finalized = getattr(answer, "finalized_features", ())
    features = {one.name: int(one.max_version_level) for one in finalized}
    return ApiVersions(error_code, ranges, features)


def build_metadata_request(
    version: int,
    correlation_id: int,
    client_id: str | None,
    *,
    topics: Sequence[TopicNameOrId] | None,
    with_rights: bool = False,
) -> bytes:
    """A Metadata request for topics by name, or by id (version 12 on); None is all. Never creates a topic.
    `with_rights` (version 8 on): the answer says what the asking principal may do with each topic.
    """
    if (
        topics is not None
        and version < METADATA_BY_ID_FROM
        and any(isinstance(t, bytes) for t in topics)
    ):
        raise ValueError(f"Metadata {version} has no topic ids")
    if topics is None and version < _ALL_TOPICS_NULL_FROM:
        topics = ()
    asked = None
    if topics is not None:
        row = load_payload_module(METADATA, version, EntityType.request).MetadataRequestTopic
        known = {field.name for field in fields(row)}
        asked = tuple(
            row(**{name: value for name, value in _topic_row(topic).items() if name in known})
            for topic in topics
        )
    values = {
        "topics": asked,
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": with_rights,
    }
    return _build(METADATA, version, correlation_id, client_id, values)


def _topic_row(topic: TopicNameOrId) -> dict[str, object]:
    if isinstance(topic, str):
        return {"name": topic, "topic_id": None}
    return {"name": None, "topic_id": UUID(bytes=bytes(topic))}


def scan_topic_rights_response(frame: Frame, version: int) -> list[TopicRights]:
    """The rights in a Metadata answer, version 8 to 13; raises `BadFrame`."""
    return [
        TopicRights(
            int(topic.error_code),
            topic.name or "",
            topic.is_internal,
            int(topic.topic_authorized_operations),
        )
        for topic in _scan(frame, METADATA, version).topics
    ]


def build_describe_cluster_request(
    version: int, correlation_id: int, client_id: str | None
) -> bytes:
    """A DescribeCluster request, version 0 to 2, for the asking principal's rights on the cluster."""
    values = {"include_cluster_authorized_operations": True, "include_fenced_brokers": False}
    return _build(DESCRIBE_CLUSTER, version, correlation_id, client_id, values)


def scan_describe_cluster_response(frame: Frame, version: int) -> ClusterRights:
    """The rights in a DescribeCluster answer; raises `BadFrame`."""
    answer = _scan(frame, DESCRIBE_CLUSTER, version)
    return ClusterRights(int(answer.error_code), int(answer.cluster_authorized_operations))


def build_sasl_handshake_request(
    version: int, correlation_id: int, client_id: str | None, *, mechanism: str
) -> bytes:
    """A SaslHandshake request, version 0 or 1; after 0 the tokens travel unframed by any header."""
    return _build(SASL_HANDSHAKE, version, correlation_id, client_id, {"mechanism": mechanism})


def scan_sasl_handshake_response(frame: Frame, version: int) -> SaslHandshake:
    """A SaslHandshake answer; raises `BadFrame`."""
    answer = _scan(frame, SASL_HANDSHAKE, version)
    return SaslHandshake(int(answer.error_code), list(answer.mechanisms))


def build_sasl_authenticate_request(
    version: int, correlation_id: int, client_id: str | None, *, auth_bytes: bytes
) -> bytes:
    """A SaslAuthenticate request, version 0 to 2, with the mechanism's own bytes."""
    return _build(SASL_AUTHENTICATE, version, correlation_id, client_id, {"auth_bytes": auth_bytes})


def scan_sasl_authenticate_response(frame: Frame, version: int) -> SaslAuthenticate:
    """A SaslAuthenticate answer; raises `BadFrame`."""
    answer = _scan(frame, SASL_AUTHENTICATE, version)
    lifetime = getattr(answer, "session_lifetime", None)
    lifetime_ms = 0 if lifetime is None else round(lifetime.total_seconds() * 1000)
    return SaslAuthenticate(
        int(answer.error_code), answer.error_message, answer.auth_bytes, lifetime_ms
    )


def find_accepted(frame: Frame, version: int) -> SaslAuthenticate | None:
    """This SaslAuthenticate answer if it has no error; None where it refuses, or cannot be read. Without an error it
    accepts, or asks for the next token.
    """
    try:
        answer = scan_sasl_authenticate_response(frame, version)
    except BadFrame:
        return None
    return answer if answer.error_code == 0 else None


def is_authenticated(frame: Frame, version: int) -> bool:
    """Whether this SaslAuthenticate answer accepts; False also for one that cannot be read."""
    return find_accepted(frame, version) is not None


def scan_sasl_mechanism(frame: Frame, body_start: int) -> str:
    """The mechanism that a SaslHandshake request (version 0 or 1) names; empty where it cannot be read."""
    try:
        return refuses_garbage(CLASSIC.read_nullable_string)(frame, body_start)[0] or ""
    except BadFrame:
        return ""


def scan_sasl_token(frame: Frame, body_start: int, version: int) -> bytes:
    """The token in a SaslAuthenticate request (version 0 to 2); empty where it cannot be read."""
    encoding = FLEXIBLE if is_flexible(SASL_AUTHENTICATE, version) else CLASSIC
    try:
        length, at = refuses_garbage(encoding.read_count)(frame, body_start)
    except BadFrame:
        return b""
    return bytes(frame[at : at + length]) if 0 < length <= len(frame) - at else b""


def build_describe_configs_request(
    version: int,
    correlation_id: int,
    client_id: str | None,
    *,
    topics: Sequence[str] = (),
    brokers: Sequence[int] = (),
    settings: Sequence[str],
) -> bytes:
    """A DescribeConfigs request, version 1 to 4, for some settings of topics, or of brokers by node id: a broker
    describes itself alone (ConfigHelper.describeConfigs).
    """
    row = load_payload_module(DESCRIBE_CONFIGS, version, EntityType.request).DescribeConfigsResource
    named = [
        *((_TOPIC_RESOURCE, topic) for topic in topics),
        *((_BROKER_RESOURCE, f"{node}") for node in brokers),
    ]
    resources = tuple(
        row(resource_type=kind, resource_name=name, configuration_keys=tuple(settings))
        for kind, name in named
    )
    return _build(DESCRIBE_CONFIGS, version, correlation_id, client_id, {"resources": resources})


def scan_describe_configs_response(frame: Frame, version: int) -> list[DescribedConfig]:
    """A DescribeConfigs answer, in the order of the question; raises `BadFrame`."""
    return [
        DescribedConfig(
            int(result.error_code),
            result.resource_name,
            {config.name: config.value for config in result.configs},
            result.error_message,
        )
        for result in _scan(frame, DESCRIBE_CONFIGS, version).results
    ]


def scan_cluster_brokers(frame: Frame, version: int) -> list[BrokerAddress]:
    """The brokers of a DescribeCluster answer, version 0 to 2; raises `BadFrame`."""
    return [
        BrokerAddress(int(one.broker_id), one.host, int(one.port), one.rack)
        for one in _scan(frame, DESCRIBE_CLUSTER, version).brokers
    ]


def build_describe_log_dirs_request(
    version: int, correlation_id: int, client_id: str | None
) -> bytes:
    """A DescribeLogDirs request, version 1 to 5, for all topics (null)."""
    return _build(DESCRIBE_LOG_DIRS, version, correlation_id, client_id, {"topics": None})


def scan_describe_log_dirs_response(frame: Frame, version: int) -> list[LogDirectory]:
    """A DescribeLogDirs answer's directories, those with an error left out; raises `BadFrame`. A copy under way to
    another disk (isFutureKey) is not there yet.
    """
    return [
        LogDirectory(
            result.log_dir,
            [
                (topic.name, int(one.partition_index))
                for topic in result.topics
                for one in topic.partitions
                if not one.is_future_key
            ],
        )
        for result in _scan(frame, DESCRIBE_LOG_DIRS, version).results
        if int(result.error_code) == 0
    ]


def build_create_topics_request(
    version: int,
    correlation_id: int,
    client_id: str | None,
    *,
    topic: str,
    replicas: Sequence[int],
    settings: Mapping[str, str],
    timeout_ms: int,
) -> bytes:
    """A CreateTopics request, version 2 to 7, for a topic with partition 0 alone, on the nodes `replicas`."""
    payload = load_payload_module(CREATE_TOPICS, version, EntityType.request)
    assignment = payload.CreatableReplicaAssignment(partition_index=0, broker_ids=tuple(replicas))
    setting = payload.CreatableTopicConfig
    row = payload.CreatableTopic(
        name=topic,
        num_partitions=-1,
        replication_factor=-1,
        assignments=(assignment,),
        configs=tuple(setting(name=name, value=value) for name, value in settings.items()),
    )
    values = {
        "topics": (row,),
        "timeout": timedelta(milliseconds=timeout_ms),
        "validate_only": False,
    }
    return _build(CREATE_TOPICS, version, correlation_id, client_id, values)


def scan_create_topics_response(frame: Frame, version: int) -> list[CreatedTopic]:
    """A CreateTopics answer, in the order of the question; raises `BadFrame`."""
    return [
        CreatedTopic(int(topic.error_code), topic.error_message)
        for topic in _scan(frame, CREATE_TOPICS, version).topics
    ]


# -- delegation tokens (KIP-48, KIP-373) -------------------------------------------------------------------

_USER = "User"


def _peek_error(frame: Frame, api_key: int, version: int) -> int:
    """The error code that such an answer begins with. kio reads no answer with an error: its times are -1."""
    try:
        return int(INT16.unpack_from(frame, response_body_start(frame, api_key, version))[0])
    except Exception as error:
        raise BadFrame(f"an answer to API {api_key} ends too early: {len(frame)} bytes") from error


def _epoch_ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def build_create_token_request(
    version: int,
    correlation_id: int,
    client_id: str | None,
    *,
    owner: str | None,
    renewers: Sequence[str],
    max_lifetime_ms: int,
) -> bytes:
    """A CreateDelegationToken request, version 3, for the user `owner`; None: for who asks."""
    row = load_payload_module(
        CREATE_DELEGATION_TOKEN, version, EntityType.request
    ).CreatableRenewers
    values = {
        "owner_principal_type": None if owner is None else _USER,
        "owner_principal_name": owner,
        "renewers": tuple(row(principal_type=_USER, principal_name=name) for name in renewers),
        "max_lifetime": timedelta(milliseconds=max_lifetime_ms),
    }
    return _build(CREATE_DELEGATION_TOKEN, version, correlation_id, client_id, values)


def scan_create_token_response(frame: Frame, version: int) -> CreatedToken:
    """A CreateDelegationToken answer; raises `BadFrame`."""
    error_code = _peek_error(frame, CREATE_DELEGATION_TOKEN, version)
    if error_code:
        return CreatedToken(error_code)
    answer = _scan(frame, CREATE_DELEGATION_TOKEN, version)
    return CreatedToken(
        0,
        answer.principal_name,
        answer.token_requester_principal_name,
        _epoch_ms(answer.issue_timestamp),
        _epoch_ms(answer.expiry_timestamp),
        _epoch_ms(answer.max_timestamp),
        answer.token_id,
        answer.hmac,
    )


def build_renew_token_request(
    version: int, correlation_id: int, client_id: str | None, *, hmac: bytes
) -> bytes:
    """A RenewDelegationToken request, version 1 or 2, for the period that the broker has as its default."""
    values = {"hmac": hmac, "renew_period": timedelta(milliseconds=-1)}
    return _build(RENEW_DELEGATION_TOKEN, version, correlation_id, client_id, values)


def scan_renew_token_response(frame: Frame, version: int) -> tuple[int, int]:
    """Error code, and when the token expires in milliseconds of the broker's clock; raises `BadFrame`."""
    error_code = _peek_error(frame, RENEW_DELEGATION_TOKEN, version)
    if error_code:
        return error_code, 0
    return 0, _epoch_ms(_scan(frame, RENEW_DELEGATION_TOKEN, version).expiry_timestamp)


def build_expire_token_request(
    version: int, correlation_id: int, client_id: str | None, *, hmac: bytes
) -> bytes:
    """An ExpireDelegationToken request, version 1 or 2: now."""
    values = {"hmac": hmac, "expiry_time_period": timedelta(milliseconds=-1)}
    return _build(EXPIRE_DELEGATION_TOKEN, version, correlation_id, client_id, values)


def scan_expire_token_response(frame: Frame, version: int) -> int:
    """The error code; raises `BadFrame`. The time beside it is -1 after success."""
    return _peek_error(frame, EXPIRE_DELEGATION_TOKEN, version)


def build_describe_tokens_request(
    version: int, correlation_id: int, client_id: str | None, *, owners: Sequence[str]
) -> bytes:
    """A DescribeDelegationToken request, version 1 to 3, for the tokens of some users."""
    row = load_payload_module(
        DESCRIBE_DELEGATION_TOKEN, version, EntityType.request
    ).DescribeDelegationTokenOwner
    values = {"owners": tuple(row(principal_type=_USER, principal_name=name) for name in owners)}
    return _build(DESCRIBE_DELEGATION_TOKEN, version, correlation_id, client_id, values)


def scan_described_tokens(frame: Frame, version: int) -> tuple[int, frozenset[str]]:
    """Error code, and the ids of the tokens that the broker itself knows; raises `BadFrame`."""
    error_code = _peek_error(frame, DESCRIBE_DELEGATION_TOKEN, version)
    if error_code:
        return error_code, frozenset()
    answer = _scan(frame, DESCRIBE_DELEGATION_TOKEN, version)
    return 0, frozenset(one.token_id for one in answer.tokens)


# -- SASL where there is none ------------------------------------------------------------------------------


def build_refusal_of_sasl(api_key: int, version: int, correlation_id: int) -> bytes:
    """The answer to a SaslHandshake or SaslAuthenticate where there is no SASL: ILLEGAL_SASL_STATE, as
    KafkaApis.handleSaslHandshakeRequest and handleSaslAuthenticateRequest have it.
    """
    error = INT16.pack(ErrorCode.ILLEGAL_SASL_STATE)
    if api_key == SASL_HANDSHAKE:
        body = error + INT32.pack(0)
    elif is_flexible(api_key, version):
        body = (
            b"\0" + error + b"\0\1" + bytes(8) + b"\0"
        )  # tags, no message, no bytes, no lifetime, tags
    else:
        body = error + INT16.pack(-1) + INT32.pack(0) + bytes(8 if version else 0)
    return INT32.pack(4 + len(body)) + INT32.pack(correlation_id) + body

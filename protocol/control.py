"""The control messages that Forebay itself sends or reads: ApiVersions, SASL, DescribeConfigs; and Metadata requests.

Owns: the only use of kio, which copies and builds objects: fine for what is rare, not for the data path. Must
not know: when these are sent and what follows from the answers. Invariants: whole frames in and out, with
length and header; plain values come back, never kio's; whatever kio raises on an answer is a `BadFrame`; a
version that kio lacks is the caller's mistake (UnknownEntity).
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple
from uuid import UUID

from kio.index import load_payload_module, load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from protocol.api import (
    API_VERSIONS,
    DESCRIBE_CONFIGS,
    DESCRIBE_LOG_DIRS,
    METADATA,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    is_flexible,
)
from protocol.control_lengths import check_lengths
from protocol.errors import BadFrame
from protocol.header import build_request_header, response_body_start
from protocol.primitives import CLASSIC, INT32, Frame, TopicNameOrId, refuses_garbage

METADATA_BY_ID_FROM = (
    12  # topic ids are in requests from 10 on and answered from 12 on (MetadataRequest.json)
)
_ALL_TOPICS_NULL_FROM = 1
_TOPIC_RESOURCE, _BROKER_RESOURCE = 2, 4  # org.apache.kafka.common.config.ConfigResource.Type


class ApiVersions(NamedTuple):
    """`ranges`: API key -> first and last version."""

    error_code: int
    ranges: dict[int, tuple[int, int]]


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
    return ApiVersions(error_code, ranges)


def build_metadata_request(
    version: int,
    correlation_id: int,
    client_id: str | None,
    *,
    topics: Sequence[TopicNameOrId] | None,
) -> bytes:
    """A Metadata request for topics by name, or by id (version 12 on); None is all. Never creates a topic."""
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
        "include_topic_authorized_operations": False,
    }
    return _build(METADATA, version, correlation_id, client_id, values)


def _topic_row(topic: TopicNameOrId) -> dict[str, object]:
    if isinstance(topic, str):
        return {"name": topic, "topic_id": None}
    return {"name": None, "topic_id": UUID(bytes=bytes(topic))}


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


def find_session_lifetime_ms(frame: Frame, version: int) -> int | None:
    """For how long this SaslAuthenticate answer accepts, 0 where it does not say; None where it refuses, or cannot be
    read.
    """
    try:
        answer = scan_sasl_authenticate_response(frame, version)
    except BadFrame:
        return None
    return answer.session_lifetime_ms if answer.error_code == 0 else None


def is_authenticated(frame: Frame, version: int) -> bool:
    """Whether this SaslAuthenticate answer accepts; False also for one that cannot be read."""
    return find_session_lifetime_ms(frame, version) is not None


def scan_sasl_mechanism(frame: Frame, body_start: int) -> str:
    """The mechanism that a SaslHandshake request (version 0 or 1) names; empty where it cannot be read."""
    try:
        return refuses_garbage(CLASSIC.read_nullable_string)(frame, body_start)[0] or ""
    except BadFrame:
        return ""


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

"""Control messages: requests as kio reads them, answers as kio writes them."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import UnknownEntity, load_payload_module, load_response_schema
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from protocol import control
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
)
from protocol.errors import BadFrame
from protocol.header import peek_request
from protocol.metadata import scan_brokers, scan_metadata_response
from tests.kit.examples import examples
from tests.protocol import oracle

DECODED = {
    API_VERSIONS: control.scan_api_versions_response,
    METADATA: scan_metadata_response,
    SASL_HANDSHAKE: control.scan_sasl_handshake_response,
    SASL_AUTHENTICATE: control.scan_sasl_authenticate_response,
    DESCRIBE_CONFIGS: control.scan_describe_configs_response,
    DESCRIBE_LOG_DIRS: control.scan_describe_log_dirs_response,
    CREATE_TOPICS: control.scan_create_topics_response,
    DESCRIBE_CLUSTER: control.scan_describe_cluster_response,
}
TOPIC_ID = bytes(range(16))


def body_of(api_key, version, frame):
    header, body = oracle.read_request(api_key, version, frame)
    assert (header.request_api_key, header.request_api_version) == (api_key, version)
    assert (header.correlation_id, header.client_id) == (8, "forebay")
    return body


@pytest.mark.parametrize("version", oracle.versions(API_VERSIONS))
def test_api_versions_request(version):
    frame = control.build_api_versions_request(
        version, 8, "forebay", software_name="forebay", software_version="0.1.0"
    )

    body = body_of(API_VERSIONS, version, frame)
    if version >= 3:
        assert (body.client_software_name, body.client_software_version) == ("forebay", "0.1.0")


@pytest.mark.parametrize("version", oracle.versions(METADATA))
@pytest.mark.parametrize("names", [None, ["a", "b"]])
def test_metadata_request_by_name_creates_nothing(version, names):
    body = body_of(
        METADATA, version, control.build_metadata_request(version, 8, "forebay", topics=names)
    )

    if names is None:
        assert body.topics == (() if version == 0 else None)
    else:
        assert [topic.name for topic in body.topics] == names
    assert not getattr(body, "allow_auto_topic_creation", False)


@pytest.mark.parametrize("version", [12, 13])
def test_metadata_request_by_id(version):
    body = body_of(
        METADATA, version, control.build_metadata_request(version, 8, "forebay", topics=[TOPIC_ID])
    )

    (topic,) = body.topics
    assert (topic.name, topic.topic_id) == (None, UUID(bytes=TOPIC_ID))


def test_metadata_by_id_before_version_12_is_the_callers_mistake():
    with pytest.raises(ValueError, match="no topic ids"):
        control.build_metadata_request(11, 8, "forebay", topics=[TOPIC_ID])


@pytest.mark.parametrize("version", oracle.versions(METADATA))
@settings(max_examples=examples(8), deadline=None)
@given(data=st.data())
def test_metadata_answers(version, data):
    body = data.draw(oracle.responses(METADATA, version))

    read = scan_metadata_response(oracle.response_frame(body), version)

    assert [tuple(b) for b in read.brokers] == [
        (b.node_id, b.host, b.port, getattr(b, "rack", None)) for b in body.brokers
    ]
    assert scan_brokers(oracle.response_frame(body), version) == read.brokers
    assert read.cluster_id == getattr(body, "cluster_id", None)
    assert read.controller_id == getattr(body, "controller_id", -1)
    assert read.error_code == getattr(body, "error_code", 0)
    assert [topic[:4] for topic in read.topics] == [
        (t.error_code, t.name, _id(t), getattr(t, "is_internal", False)) for t in body.topics
    ]
    assert [[tuple(p) for p in t.partitions] for t in read.topics] == [
        [
            (p.error_code, p.partition_index, p.leader_id, getattr(p, "leader_epoch", -1))
            for p in t.partitions
        ]
        for t in body.topics
    ]


def _id(topic):
    topic_id = getattr(topic, "topic_id", None)
    return None if topic_id is None else topic_id.bytes


@pytest.mark.parametrize("version", oracle.versions(API_VERSIONS))
def test_api_versions_answers_with_their_downgrade(version):
    for answered, error_code in ((version, 0), (0, 35)):
        module = load_payload_module(API_VERSIONS, answered, EntityType.response)
        values = {
            "error_code": oracle.ErrorCode(error_code),
            "api_keys": (module.ApiVersion(api_key=3, min_version=0, max_version=13),),
        }
        if answered >= 1:
            values["throttle_time"] = oracle.timedelta()
        features = {}
        if answered >= 3:
            level = module.FinalizedFeatureKey(
                name="metadata.version", max_version_level=25, min_version_level=7
            )
            values["finalized_features"], features = (level,), {"metadata.version": 25}
        frame = oracle.response_frame(module.ApiVersionsResponse(**values))

        read = control.scan_api_versions_response(frame, version)
        assert read == (error_code, {3: (0, 13)}, features)


@pytest.mark.parametrize("version", oracle.versions(SASL_HANDSHAKE))
def test_sasl_handshake(version):
    frame = control.build_sasl_handshake_request(version, 8, "forebay", mechanism="PLAIN")
    assert body_of(SASL_HANDSHAKE, version, frame).mechanism == "PLAIN"

    schema = load_payload_module(SASL_HANDSHAKE, version, EntityType.response).SaslHandshakeResponse
    answer = schema(error_code=oracle.ErrorCode(33), mechanisms=("PLAIN", "OAUTHBEARER"))
    read = control.scan_sasl_handshake_response(oracle.response_frame(answer), version)
    assert read == (33, ["PLAIN", "OAUTHBEARER"])


@pytest.mark.parametrize("version", oracle.versions(SASL_AUTHENTICATE))
def test_sasl_authenticate(version):
    frame = control.build_sasl_authenticate_request(
        version, 8, "forebay", auth_bytes=b"\0user\0pass"
    )
    assert body_of(SASL_AUTHENTICATE, version, frame).auth_bytes == b"\0user\0pass"

    schema = load_payload_module(
        SASL_AUTHENTICATE, version, EntityType.response
    ).SaslAuthenticateResponse
    values: dict[str, Any] = {
        "error_code": oracle.ErrorCode(0),
        "error_message": None,
        "auth_bytes": b"ok",
    }
    if version >= 1:
        values["session_lifetime"] = oracle.timedelta(seconds=90)
    read = control.scan_sasl_authenticate_response(oracle.response_frame(schema(**values)), version)
    assert read == (0, None, b"ok", 90_000 if version >= 1 else 0)


@pytest.mark.parametrize("version", oracle.versions(DESCRIBE_CONFIGS))
def test_describe_configs(version):
    settings_asked = ["compression.type", "message.timestamp.type"]
    frame = control.build_describe_configs_request(
        version, 8, "forebay", topics=["t", "u"], settings=settings_asked
    )
    rows = body_of(DESCRIBE_CONFIGS, version, frame).resources
    assert [(r.resource_type, r.resource_name, list(r.configuration_keys)) for r in rows] == [
        (2, "t", settings_asked),
        (2, "u", settings_asked),
    ]


@pytest.mark.parametrize("version", oracle.versions(DESCRIBE_CONFIGS))
@settings(max_examples=examples(8), deadline=None)
@given(data=st.data())
def test_describe_configs_answers(version, data):
    body = data.draw(oracle.responses(DESCRIBE_CONFIGS, version))

    read = control.scan_describe_configs_response(oracle.response_frame(body), version)

    assert read == [
        (r.error_code, r.resource_name, {c.name: c.value for c in r.configs}, r.error_message)
        for r in body.results
    ]


@pytest.mark.parametrize("version", oracle.versions(DESCRIBE_CLUSTER))
@settings(max_examples=examples(8), deadline=None)
@given(data=st.data())
def test_describe_cluster_answers(version, data):
    body = data.draw(oracle.responses(DESCRIBE_CLUSTER, version))

    read = control.scan_cluster_brokers(oracle.response_frame(body), version)

    assert read == [(b.broker_id, b.host, b.port, b.rack) for b in body.brokers]


@pytest.mark.parametrize("version", oracle.versions(DESCRIBE_CONFIGS))
def test_describe_configs_of_brokers(version):
    frame = control.build_describe_configs_request(
        version, 8, "forebay", brokers=[3], settings=["fetch.max.bytes"]
    )
    rows = body_of(DESCRIBE_CONFIGS, version, frame).resources
    assert [(r.resource_type, r.resource_name, list(r.configuration_keys)) for r in rows] == [
        (4, "3", ["fetch.max.bytes"])
    ]


@pytest.mark.parametrize("version", oracle.versions(DESCRIBE_LOG_DIRS))
def test_describe_log_dirs_asks_for_all_topics(version):
    frame = control.build_describe_log_dirs_request(version, 8, "forebay")
    assert body_of(DESCRIBE_LOG_DIRS, version, frame).topics is None


@pytest.mark.parametrize("version", oracle.versions(DESCRIBE_LOG_DIRS))
@settings(max_examples=examples(8), deadline=None)
@given(data=st.data())
def test_describe_log_dirs_answers_without_failed_directories_and_copies_under_way(version, data):
    body = data.draw(oracle.responses(DESCRIBE_LOG_DIRS, version))

    read = control.scan_describe_log_dirs_response(oracle.response_frame(body), version)

    assert read == [
        (
            r.log_dir,
            [
                (t.name, p.partition_index)
                for t in r.topics
                for p in t.partitions
                if not p.is_future_key
            ],
        )
        for r in body.results
        if r.error_code == 0
    ]


@pytest.mark.parametrize("api_key", DECODED)
@settings(max_examples=examples(25), deadline=None)
@given(data=st.data())
def test_garbled_answers_are_a_value_or_refused(api_key, data):
    version = data.draw(st.sampled_from(oracle.versions(api_key)))
    frame = bytearray(oracle.response_frame(data.draw(oracle.responses(api_key, version))))
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(4, len(frame) - 1))] = data.draw(
            st.sampled_from([0, 1, 0x7F, 0x80, 0xFF])
        )
    cut = bytes(frame[: data.draw(st.integers(0, len(frame)))])
    try:
        DECODED[api_key](cut, version)
    except BadFrame:
        return


def test_a_version_that_kio_lacks_is_the_callers_mistake():
    with pytest.raises(UnknownEntity):
        control.build_metadata_request(99, 8, "forebay", topics=None)


CREATED_AT = datetime(2020, 5, 17, tzinfo=UTC)


def build_created(version=3):
    body: Any = load_response_schema(CREATE_DELEGATION_TOKEN, version)
    return oracle.response_frame(
        body(
            error_code=ErrorCode.none,
            principal_type="User",
            principal_name="alice",
            token_requester_principal_type="User",
            token_requester_principal_name="forebay",
            issue_timestamp=CREATED_AT,
            expiry_timestamp=CREATED_AT + timedelta(seconds=7),
            max_timestamp=CREATED_AT + timedelta(seconds=9),
            token_id="id",
            hmac=b"secret",
            throttle_time=timedelta(),
        )
    )


def test_create_token_request():
    frame = control.build_create_token_request(
        3, 8, "forebay", owner="alice", renewers=["forebay"], max_lifetime_ms=86_400_001
    )
    body = body_of(CREATE_DELEGATION_TOKEN, 3, frame)
    assert (body.owner_principal_type, body.owner_principal_name) == ("User", "alice")
    assert [(row.principal_type, row.principal_name) for row in body.renewers] == [
        ("User", "forebay")
    ]
    assert body.max_lifetime == timedelta(milliseconds=86_400_001)


def test_create_token_response():
    created = control.scan_create_token_response(build_created(), 3)
    issued_at_ms = round(CREATED_AT.timestamp() * 1000)
    assert created == (
        0,
        "alice",
        "forebay",
        issued_at_ms,
        issued_at_ms + 7000,
        issued_at_ms + 9000,
        "id",
        b"secret",
    )


@pytest.mark.parametrize("version", [1, 2])
def test_renew_and_expire_token_requests(version):
    renewed = body_of(
        RENEW_DELEGATION_TOKEN,
        version,
        control.build_renew_token_request(version, 8, "forebay", hmac=b"s"),
    )
    assert (renewed.hmac, renewed.renew_period) == (b"s", timedelta(milliseconds=-1))
    expired = body_of(
        EXPIRE_DELEGATION_TOKEN,
        version,
        control.build_expire_token_request(version, 8, "forebay", hmac=b"s"),
    )
    assert (expired.hmac, expired.expiry_time_period) == (b"s", timedelta(milliseconds=-1))


def test_describe_tokens_request():
    frame = control.build_describe_tokens_request(3, 8, "forebay", owners=["alice", "bob"])
    body = body_of(DESCRIBE_DELEGATION_TOKEN, 3, frame)
    assert [(row.principal_type, row.principal_name) for row in body.owners] == [
        ("User", "alice"),
        ("User", "bob"),
    ]


def build_token_error(code):
    """As a broker writes it: the times beside an error are -1, which kio does not read."""
    body = bytes(5) + code.to_bytes(2, "big") + b"\xff" * 8 + bytes(5)
    return len(body).to_bytes(4, "big") + body


def test_errors_of_token_requests():
    frame = build_token_error(65)
    assert control.scan_create_token_response(frame, 3) == (65, "", "", 0, 0, 0, "", b"")
    assert control.scan_renew_token_response(frame, 2) == (65, 0)
    assert control.scan_expire_token_response(frame, 2) == 65
    assert control.scan_expire_token_response(build_token_error(0), 2) == 0
    assert control.scan_described_tokens(frame, 3) == (65, frozenset())


@pytest.mark.parametrize("size", range(24))
def test_token_answers_that_end_too_early(size):
    frame = build_created()[:size]
    for scan, version in (
        (control.scan_create_token_response, 3),
        (control.scan_renew_token_response, 2),
        (control.scan_described_tokens, 3),
    ):
        with pytest.raises(BadFrame):
            scan(frame, version)


@pytest.mark.parametrize("version", oracle.versions(SASL_AUTHENTICATE))
def test_bytes_of_a_sasl_authenticate_request(version):
    frame = control.build_sasl_authenticate_request(version, 8, "c", auth_bytes=b"n,,n=a,r=b")
    start = peek_request(frame).body_start
    assert control.scan_sasl_token(frame, start, version) == b"n,,n=a,r=b"
    assert control.scan_sasl_token(frame[: start + 3], start, version) == b""


@pytest.mark.parametrize("version", oracle.versions(SASL_AUTHENTICATE))
def test_refusal_of_sasl_is_a_whole_answer(version):
    refusal = control.build_refusal_of_sasl(SASL_AUTHENTICATE, version, 7)
    header, body = oracle.read_response(SASL_AUTHENTICATE, version, refusal)
    assert (header.correlation_id, body.error_code, body.auth_bytes) == (7, 34, b"")


@pytest.mark.parametrize("version", oracle.versions(SASL_HANDSHAKE))
def test_refusal_of_a_handshake_is_a_whole_answer(version):
    refusal = control.build_refusal_of_sasl(SASL_HANDSHAKE, version, 7)
    header, body = oracle.read_response(SASL_HANDSHAKE, version, refusal)
    assert (header.correlation_id, body.error_code, body.mechanisms) == (7, 34, ())


@pytest.mark.parametrize("version", oracle.versions(CREATE_TOPICS))
def test_create_topics_assigns_partition_0(version):
    frame = control.build_create_topics_request(
        version,
        8,
        "forebay",
        topic="t",
        replicas=[3],
        settings={"retention.ms": "600000"},
        timeout_ms=2500,
    )
    body = body_of(CREATE_TOPICS, version, frame)
    assert body.timeout.total_seconds() == 2.5 and not body.validate_only
    (topic,) = body.topics
    assert (topic.name, topic.num_partitions, topic.replication_factor) == ("t", -1, -1)
    assert [(one.partition_index, one.broker_ids) for one in topic.assignments] == [(0, (3,))]
    assert [(one.name, one.value) for one in topic.configs] == [("retention.ms", "600000")]


@pytest.mark.parametrize("version", oracle.versions(CREATE_TOPICS))
@settings(max_examples=examples(8), deadline=None)
@given(data=st.data())
def test_create_topics_answers(version, data):
    body = data.draw(oracle.responses(CREATE_TOPICS, version))

    read = control.scan_create_topics_response(oracle.response_frame(body), version)

    assert read == [(one.error_code, one.error_message) for one in body.topics]


@pytest.mark.parametrize("version", range(8, 14))
@settings(max_examples=examples(8), deadline=None)
@given(data=st.data())
def test_rights_on_topics(version, data):
    asked = control.build_metadata_request(version, 8, "forebay", topics=None, with_rights=True)
    assert body_of(METADATA, version, asked).include_topic_authorized_operations
    body = data.draw(oracle.responses(METADATA, version))

    read = control.scan_topic_rights_response(oracle.response_frame(body), version)

    assert read == [
        (one.error_code, one.name or "", one.is_internal, one.topic_authorized_operations)
        for one in body.topics
    ]


@pytest.mark.parametrize("version", oracle.versions(DESCRIBE_CLUSTER))
@settings(max_examples=examples(8), deadline=None)
@given(data=st.data())
def test_rights_on_the_cluster(version, data):
    asked = control.build_describe_cluster_request(version, 8, "forebay")
    assert body_of(DESCRIBE_CLUSTER, version, asked).include_cluster_authorized_operations
    body = data.draw(oracle.responses(DESCRIBE_CLUSTER, version))

    read = control.scan_describe_cluster_response(oracle.response_frame(body), version)

    assert read == (body.error_code, body.cluster_authorized_operations)

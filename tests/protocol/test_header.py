"""Headers of every API against kio, and those that nobody should send."""

import io
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer

from protocol.api import API_VERSIONS, APIS, FETCH, PRODUCE
from protocol.errors import BadFrame
from protocol.header import (
    UNKNOWN,
    RequestHeader,
    build_request_header,
    peek_correlation_id,
    peek_request,
    response_body_start,
)
from tests.protocol import oracle

EVERY_VERSION = [
    (key, version) for key, name in api_key_map.items() for version in schema_name_map[name]
]


def test_the_body_starts_where_kio_says():
    for key, version in EVERY_VERSION:
        schema: Any = load_request_schema(key, version).__header_schema__
        for client_id in (None, "", "clïent"):
            header = schema(
                request_api_key=key,
                request_api_version=version,
                correlation_id=-5,
                client_id=client_id,
            )
            frame = _written(header)

            assert peek_request(frame + b"body") == RequestHeader(
                key, version, -5, client_id, len(frame)
            )


def test_the_body_of_a_response_starts_where_kio_says():
    for key, version in EVERY_VERSION:
        schema: Any = load_response_schema(key, version).__header_schema__
        frame = _written(schema(correlation_id=77))

        assert peek_correlation_id(frame) == 77
        found = (key, version, response_body_start(frame + b"\0", key, version))
        assert found == (key, version, len(frame))


def _written(header):
    out = io.BytesIO()
    entity_writer(type(header))(out, header)
    return bytes(4) + out.getvalue()


@pytest.mark.parametrize("flexible", [False, True])
@pytest.mark.parametrize("client_id", [None, "", "forebay"])
def test_kio_reads_the_headers_built_here(flexible, client_id):
    version = APIS[FETCH].flexible_from - (0 if flexible else 1)
    frame = bytes(build_request_header(FETCH, version, 9, client_id, flexible))

    header, size = entity_reader(load_request_schema(FETCH, version).__header_schema__)(frame, 4)

    assert 4 + size == len(frame)
    assert (header.request_api_key, header.request_api_version) == (FETCH, version)
    assert (header.correlation_id, header.client_id) == (9, client_id)


def request(key, version, rest):
    body = key.to_bytes(2, "big") + version.to_bytes(2, "big") + (1).to_bytes(4, "big") + rest
    return len(body).to_bytes(4, "big") + body


def test_an_unknown_api_has_no_body_start_but_a_client_id():
    assert peek_request(request(9999, 0, b"\0\1c...")) == RequestHeader(9999, 0, 1, "c", UNKNOWN)


def test_a_version_newer_than_the_table_still_has_its_header_read():
    assert peek_request(request(PRODUCE, 99, b"\0\1c\0body")).body_start == 16


def test_the_header_of_api_versions_is_read_in_a_version_that_nobody_knows():
    assert peek_request(request(API_VERSIONS, 77, b"\0\1c\0")).client_id == "c"


def test_tags_of_a_header_are_skipped():
    tags = bytes.fromhex("01 07 02 aaaa")
    assert peek_request(request(PRODUCE, 9, b"\0\1c" + tags + b"body")).body_start == 15 + len(tags)


def test_a_client_id_that_is_not_utf8_is_shown_with_replacements():
    assert peek_request(request(PRODUCE, 3, b"\0\2\xffc")).client_id == "�c"


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        bytes(4),
        request(PRODUCE, 3, b""),
        request(PRODUCE, 3, b"\0"),
        request(PRODUCE, 3, b"\0\5cccc"),
        request(PRODUCE, 3, b"\xff\xfe"),
        request(PRODUCE, 3, b"\x7f\xffc"),
        request(PRODUCE, 9, b"\0\1c"),
        request(PRODUCE, 9, b"\0\1c\1\7\5"),
    ],
)
def test_garbled_headers_are_refused(frame):
    with pytest.raises(BadFrame):
        peek_request(frame)


def test_a_response_without_a_correlation_id_is_refused():
    with pytest.raises(BadFrame):
        peek_correlation_id(bytes(7))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40))
def test_any_bytes_are_a_header_or_refused(content):
    frame = len(content).to_bytes(4, "big") + content
    try:
        header = peek_request(frame)
    except BadFrame:
        return
    assert header.body_start <= len(frame)


def test_kio_agrees_on_whole_requests():
    schema: Any = load_request_schema(API_VERSIONS, 3)
    body = schema(client_software_name="a", client_software_version="b")
    frame = oracle.request_frame(body, 3, "x")

    assert frame[peek_request(frame).body_start :] == b"\2a\2b\0"

"""Lengths that cannot be are refused before kio reserves room for them; what kio writes passes."""

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_response_schema
from kio.serial import entity_writer

from protocol import control
from protocol.api import API_VERSIONS, APIS, DESCRIBE_LOG_DIRS, METADATA
from protocol.control_lengths import check_lengths
from protocol.errors import BadFrame
from tests.kit.examples import examples
from tests.protocol import oracle

CASES = [
    (key, version)
    for key, row in APIS.items()
    if row.decoded is not None
    for version in range(row.decoded[0], row.decoded[1] + 1)
]
HUGE = b"\xff\xff\xff\xff\x0f"


@pytest.mark.parametrize(("api_key", "version"), CASES)
@settings(max_examples=examples(3))
@given(data=st.data())
def test_what_kio_writes_passes_and_every_truncation_is_refused(api_key, version, data):
    schema = load_response_schema(api_key, version)
    out = io.BytesIO()
    entity_writer(schema)(out, data.draw(oracle.messages(schema)))
    body = out.getvalue()

    check_lengths(body, 0, schema)
    for length in range(len(body)):
        with pytest.raises(BadFrame):
            check_lengths(body[:length], 0, schema)


def test_an_array_of_more_elements_than_bytes_does_not_end_the_process():
    """Of kio's native reader that was the end: "memory allocation of 240518168560 bytes failed"."""
    head = bytes(8)
    with pytest.raises(BadFrame, match="announced"):
        control.scan_api_versions_response(head + bytes(2) + HUGE, 3)


def test_one_element_a_byte_is_the_bound():
    schema = load_response_schema(METADATA, 0)
    check_lengths(bytes(8), 0, schema)
    with pytest.raises(BadFrame):
        check_lengths(bytes(3) + b"\x01" + bytes(4), 0, schema)


def test_null_where_the_schema_has_none():
    with pytest.raises(BadFrame):
        check_lengths(bytes(4) + bytes(1) + bytes(1), 0, load_response_schema(DESCRIBE_LOG_DIRS, 2))
    with pytest.raises(BadFrame):
        check_lengths(
            bytes(2) + (-1).to_bytes(4, "big", signed=True),
            0,
            load_response_schema(API_VERSIONS, 0),
        )

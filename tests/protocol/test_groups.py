"""The group id of the requests that name one, in every version that kio knows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import api
from protocol.groups import NAMING_GROUPS, find_group
from protocol.header import peek_request
from tests.protocol.oracle import request_frame, requests

VERSIONS = {
    api.OFFSET_COMMIT: range(2, 11),
    api.JOIN_GROUP: range(10),
    api.CONSUMER_GROUP_HEARTBEAT: range(2),
}


@pytest.mark.parametrize(
    ("api_key", "version"), [(key, one) for key, found in VERSIONS.items() for one in found]
)
@given(data=st.data())
@settings(max_examples=5)
def test_the_group_is_found_in_every_version(api_key: int, version: int, data) -> None:
    group = data.draw(st.text(min_size=1, max_size=200))
    frame = request_frame(replace(data.draw(requests(api_key, version)), group_id=group))
    assert find_group(peek_request(frame), frame) == group


def test_all_apis_that_are_read_are_tested() -> None:
    assert set(VERSIONS) == NAMING_GROUPS


@pytest.mark.parametrize("api_key", sorted(NAMING_GROUPS))
@given(data=st.data())
@settings(max_examples=3)
def test_a_frame_that_ends_early_names_no_group(api_key: int, data) -> None:
    drawn = data.draw(requests(api_key, VERSIONS[api_key][-1]))
    frame = request_frame(replace(drawn, group_id="billing"))
    head = peek_request(frame)
    for end in range(head.body_start, head.body_start + 3):
        assert find_group(head, frame[:end]) == ""

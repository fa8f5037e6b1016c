"""The table against kio's schemas, which are made from Kafka's."""

import re

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType

from protocol.api import (
    API_VERSIONS,
    APIS,
    CAPS,
    FETCH,
    NEVER_FLEXIBLE,
    PRODUCE,
    has_flexible_response_header,
    is_flexible,
)

VERSIONS = {
    key: sorted(v for v, kinds in schema_name_map[name].items() if EntityType.request in kinds)
    for key, name in api_key_map.items()
}


def test_every_api_of_kio_is_in_the_table_under_its_name():
    def snake(name):
        return re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower()

    assert {key: snake(api.name) for key, api in APIS.items()} == dict(api_key_map)
    assert all(api.key == key for key, api in APIS.items())


@pytest.mark.parametrize("key", VERSIONS)
def test_flexible_versions_are_kios(key):
    for version in VERSIONS[key]:
        assert is_flexible(key, version) == load_request_schema(key, version).__flexible__
        header = load_response_schema(key, version).__header_schema__
        assert has_flexible_response_header(key, version) == (header.__version__ == 1)


@pytest.mark.parametrize(
    "api", [api for api in APIS.values() if api.decoded], ids=lambda api: api.name
)
def test_decoded_versions_are_those_that_the_oracle_can_check(api):
    first, last = api.decoded
    assert VERSIONS[api.key] == list(range(first, last + 1))
    assert api.decodes(first)
    assert api.decodes(last)
    assert not api.decodes(first - 1)
    assert not api.decodes(last + 1)


def test_what_is_not_decoded_decodes_no_version():
    assert not APIS[8].decodes(8)


def test_unknown_apis_are_not_flexible():
    assert not is_flexible(9999, 0)
    assert not has_flexible_response_header(9999, 0)
    assert is_flexible(PRODUCE, 32767)
    assert not is_flexible(47, NEVER_FLEXIBLE - 1)


def test_the_caps_are_what_is_decoded_of_the_data_apis():
    assert {key: APIS[key].decoded for key in (PRODUCE, FETCH)} == CAPS


def test_the_response_header_of_api_versions_never_has_tags():
    assert not any(has_flexible_response_header(API_VERSIONS, version) for version in range(10))

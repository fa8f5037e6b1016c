"""Error codes: their names, and where whole responses have one, against the schemas of kio."""

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator
from struct import pack
from typing import Any

import kio.schema
import pytest
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from protocol import api
from protocol.error_names import _POSITIONS, NAMES, peek_error


def test_names_are_those_of_kafka() -> None:
    assert {one.value: one.name.upper() for one in ErrorCode if one.value} == NAMES


def list_responses() -> Iterator[Any]:
    """Every response class of kio."""
    for package in pkgutil.iter_modules(kio.schema.__path__):
        if not package.ispkg:
            continue
        found = importlib.import_module(f"kio.schema.{package.name}")
        for version in pkgutil.iter_modules(found.__path__):
            try:
                module = importlib.import_module(
                    f"kio.schema.{package.name}.{version.name}.response"
                )
            except ImportError:
                continue
            yield from (
                one
                for one in vars(module).values()
                if isinstance(one, type)
                and one.__module__ == module.__name__
                and getattr(one, "__type__", None) is EntityType.response
            )


RESPONSES = list(list_responses())


def find_position(response: Any) -> int | None:
    """Bytes before the error code in the body; None: it has none that holds for all of it."""
    names = [one.name for one in dataclasses.fields(response)]
    if names[:1] == ["error_code"]:
        return 0
    return 4 if names[:2] == ["throttle_time", "error_code"] else None


@pytest.mark.parametrize("response", RESPONSES, ids=lambda one: f"{one.__name__}-{one.__version__}")
def test_the_code_is_found_where_the_schema_has_it(response: Any) -> None:
    key, version = int(response.__api_key__), int(response.__version__)
    position = find_position(response)
    if key not in _POSITIONS:
        position = None
    tags = b"\0" if response.__header_schema__.__version__ == 1 else b""
    assert bool(tags) == api.has_flexible_response_header(key, version)
    body = b"\xff" * (position or 0) + pack(">h", 16) + b"\0" * 8
    frame = pack(">i", 4 + len(tags) + len(body)) + pack(">i", 7) + tags + body
    assert peek_error(frame, key, version) == (0 if position is None else 16)
    for size_bytes in range(8 + len(tags) + (position or 0) + 2):
        assert peek_error(frame[:size_bytes], key, version) == 0


def test_all_apis_of_clients_have_a_position_if_their_schema_has_one() -> None:
    """Left out: what brokers and controllers say among themselves, and Fetch, whose responses are read."""
    among_brokers = {52, 53, 54, 56, 59, 62, 63, 64, 67, 70, 73, 80, 81, 82}
    with_code = {int(one.__api_key__) for one in RESPONSES if find_position(one) is not None}
    assert with_code - {api.FETCH} - among_brokers == set(_POSITIONS)


def test_unknown_tags_in_the_header_hide_the_code() -> None:
    frame = pack(">ii", 20, 7) + b"\1\0\1a" + b"\0" * 12
    assert peek_error(frame, 12, 4) == 0

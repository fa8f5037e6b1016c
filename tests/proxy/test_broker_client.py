"""A command's connection: every wait and every response has a bound."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from kio.schema.describe_configs.v4 import response as configs_v4
from kio.schema.errors import ErrorCode as KioError
from kio.static.primitive import i32Timedelta

from protocol import control
from protocol.api import DESCRIBE_CONFIGS
from protocol.errors import BadFrame
from proxy.broker_client import (
    LARGEST_RESPONSE_BYTES,
    NODES_ASKED,
    BrokerClient,
    Endpoint,
    connect,
    explain,
)
from proxy.config.units import Address
from tests.protocol import oracle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

PATIENCE_S = 60.0
HELLO = control.build_api_versions_request(3, 0, "c", software_name="s", software_version="0")


@contextlib.asynccontextmanager
async def serving(*answers: bytes) -> AsyncIterator[Address]:
    """Gives one of the answers to each request; closes the connection when there are none left."""
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while left:
                await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                writer.write(left.pop(0))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield Address(*server.sockets[0].getsockname()[:2])


def frame_of(body: bytes, correlation_id: int = 0) -> bytes:
    return (len(body) + 4).to_bytes(4, "big") + correlation_id.to_bytes(4, "big") + body


NO_VERSIONS = frame_of(b"\0\0" + b"\1" + b"\0\0\0\0" + b"\0")
"""An answer to ApiVersions 3 that names no API."""


async def test_a_connection_has_greeted() -> None:
    versions = frame_of(b"\0\0" + b"\2" + b"\0\1\0\4\0\x12\0" + b"\0\0\0\0" + b"\0")
    async with serving(versions) as address, connect(Endpoint(address), PATIENCE_S) as client:
        assert client.versions == {1: (4, 18)}


async def test_silence_ends_in_time() -> None:
    async with serving(b"", b"") as address:
        with pytest.raises(TimeoutError):
            async with connect(Endpoint(address), 0.05):
                raise AssertionError("nobody has answered")


@pytest.mark.parametrize(
    ("answer", "error", "reason"),
    [
        ((LARGEST_RESPONSE_BYTES + 1).to_bytes(4, "big"), BadFrame, "a response of 671088"),
        (b"\0\0\0\3", BadFrame, "a response of 3 bytes"),
        (b"\xff\xff\xff\xff", BadFrame, "a response of -1 bytes"),
        (frame_of(b"", 7), BadFrame, "another request"),
        (b"\0\0\0\x10half", ConnectionError, "closed instead"),
    ],
)
async def test_what_is_no_answer_ends_the_conversation(
    answer: bytes, error: type[Exception], reason: str
) -> None:
    async with (
        serving(NO_VERSIONS, answer) as address,
        connect(Endpoint(address), PATIENCE_S) as client,
    ):
        with pytest.raises(error, match=reason):
            await client.call(HELLO)


class DescribingClient(BrokerClient):
    """Answers DescribeConfigs as a broker with this node id, or with one error."""

    def __init__(self, node_id: int, error: int = 0, hints: bool = True) -> None:
        self.asked: list[int] = []
        self._node_id, self._error, self._hints = node_id, error, hints

    async def call(self, frame: bytes, correlation_id: int = 0) -> bytes:
        _, body = oracle.read_request(DESCRIBE_CONFIGS, 4, frame)
        (asked,) = body.resources
        self.asked.append(int(asked.resource_name))
        error, message = self._error, None
        if not error and self.asked[-1] != self._node_id:
            error = 42
            message = f"Unexpected broker id, expected {self._node_id}" if self._hints else None
        result = configs_v4.DescribeConfigsResult(
            error_code=KioError(error),
            error_message=message,
            resource_type=asked.resource_type,
            resource_name=asked.resource_name,
            configs=(),
        )
        answer = configs_v4.DescribeConfigsResponse(
            throttle_time=i32Timedelta.parse(timedelta(0)), results=(result,)
        )
        return oracle.response_frame(answer)


def clients() -> Sequence[tuple[Callable[[], DescribingClient], list[int], int | None, list[int]]]:
    return [
        (lambda: DescribingClient(3), [1, 2, 3], 3, [1, 3]),
        (lambda: DescribingClient(3, hints=False), [1, 2, 3], 3, [1, 2, 3]),
        (lambda: DescribingClient(9), [1, 2], None, [1, 2]),
        (lambda: DescribingClient(1, error=31), [1, 2], None, [1]),
        (
            lambda: DescribingClient(-1, hints=False),
            list(range(1000)),
            None,
            list(range(NODES_ASKED)),
        ),
        (lambda: DescribingClient(1), [], None, []),
    ]


@pytest.mark.parametrize(("make", "candidates", "found", "asked"), clients())
async def test_the_node_is_the_one_that_describes_itself(
    make: Callable[[], DescribingClient],
    candidates: list[int],
    found: int | None,
    asked: list[int],
) -> None:
    client = make()
    assert await client.find_node(candidates) == found
    assert client.asked == asked


def test_failures_have_words() -> None:
    assert explain(TimeoutError(), 2.5) == "no answer within 2.5 s"
    assert explain(ConnectionError("gone"), 1) == "gone"
    assert explain(ConnectionResetError(), 1) == "ConnectionResetError"

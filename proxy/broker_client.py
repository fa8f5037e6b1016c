"""A connection of a command's own (canary, doctor) to a broker, directly or through Forebay. [socket]

Owns connecting, TLS and SASL as Forebay's own connections do it, and one question at a time. Must not know what is
asked. It is no part of the data path, so asyncio's streams suffice. Invariants:
* every wait has a bound: to be connected and signed in, and for each response.
* a response has at most LARGEST_RESPONSE_BYTES.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from typing import TYPE_CHECKING, NamedTuple

from protocol import control, metadata
from protocol.errors import BadFrame, ErrorCode
from protocol.primitives import INT32
from proxy.config.units import Address
from proxy.net import sasl_client
from proxy.tls_context import build_client_context

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from protocol.primitives import Frame
    from proxy.config.admin import AdminTls
    from proxy.config.model import ListenerConfig, ListenerTls, UpstreamCredentials

CLIENT_ID = "forebay-command"
API_VERSIONS_VERSION, METADATA_VERSION, DESCRIBE_CONFIGS_VERSION = 3, 12, 4
LARGEST_RESPONSE_BYTES = 64 << 20
NODES_ASKED = 64
"""Nodes that are asked at most whether they are the broker behind a connection."""
NODE_SETTING = "node.id"
EXPECTED = re.compile(r"expected (\d+)")
"""As in replica_fetcher/broker_settings.py: a hint that saves questions."""
FAILURES = (OSError, TimeoutError, BadFrame, sasl_client.AuthenticationRefused)
"""What a conversation with a broker may raise; ConnectionError and ssl.SSLError are OSErrors."""


class Endpoint(NamedTuple):
    """How to reach a broker. `context` None: plain text. `server_name` None: that of `address`. `credentials` None: no
    SASL.
    """

    address: Address
    context: ssl.SSLContext | None = None
    server_name: str | None = None
    credentials: UpstreamCredentials | None = None


class BrokerClient:
    """An open connection. Made by `connect`."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, timeout_s: float
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._timeout_s = timeout_s
        self.versions: dict[int, tuple[int, int]] = {}
        """API key -> first and last version that the broker, or Forebay for it, offers."""
        self.features: dict[str, int] = {}
        """The cluster's finalized features."""

    def authenticate(self) -> None:
        """Nothing: a command never opens a connection anew."""

    async def call(self, frame: bytes, correlation_id: int = 0) -> Frame:
        """Send a request and wait for its response frame. Raises ConnectionError if the connection is lost first,
        TimeoutError, and BadFrame for a response to something else, or one that is too large.
        """
        async with asyncio.timeout(self._timeout_s):
            self._writer.write(frame)
            await self._writer.drain()
            try:
                head = await self._reader.readexactly(4)
                (size,) = INT32.unpack(head)
                if not 4 <= size <= LARGEST_RESPONSE_BYTES:
                    raise BadFrame(f"a response of {size} bytes")
                answer = head + await self._reader.readexactly(size)
            except asyncio.IncompleteReadError as end:
                raise ConnectionError("the connection was closed instead of an answer") from end
        if INT32.unpack_from(answer, 4)[0] != correlation_id:
            raise BadFrame("a response to another request")
        return answer

    async def ask_metadata(self, topics: list[str]) -> metadata.Metadata:
        """The cluster's nodes, as this listener advertises them, and these topics. Creates none. Raises as `call`."""
        frame = control.build_metadata_request(METADATA_VERSION, 0, CLIENT_ID, topics=topics)
        return metadata.scan_metadata_response(await self.call(frame), METADATA_VERSION)

    async def find_node(self, candidates: list[int]) -> int | None:
        """Which of these nodes the broker is; None where it does not say (DESCRIBE_CONFIGS on the cluster). A broker
        describes itself alone (ConfigHelper.describeConfigs). Raises as `call`.
        """
        left = candidates[:NODES_ASKED]
        while left:
            node_id = left.pop(0)
            frame = control.build_describe_configs_request(
                DESCRIBE_CONFIGS_VERSION, 0, CLIENT_ID, brokers=[node_id], settings=[NODE_SETTING]
            )
            answers = control.scan_describe_configs_response(
                await self.call(frame), DESCRIBE_CONFIGS_VERSION
            )
            if len(answers) != 1:
                raise BadFrame(f"one node was asked about, {len(answers)} were described")
            if answers[0].error_code == ErrorCode.NONE:
                return node_id
            if answers[0].error_code != ErrorCode.INVALID_REQUEST:
                return None
            hint = EXPECTED.search(answers[0].error_message or "")
            if hint is not None and int(hint[1]) in left:
                left = [int(hint[1])]
        return None


@contextlib.asynccontextmanager
async def connect(endpoint: Endpoint, timeout_s: float) -> AsyncIterator[BrokerClient]:
    """An open connection, signed in where there are credentials; `timeout_s` bounds that, and each response later.
    Raises one of FAILURES.
    """
    host, port = endpoint.address
    name = (endpoint.server_name or host) if endpoint.context is not None else None
    async with asyncio.timeout(timeout_s):
        reader, writer = await asyncio.open_connection(
            host, port, ssl=endpoint.context, server_hostname=name
        )
    try:
        client = BrokerClient(reader, writer, timeout_s)
        async with asyncio.timeout(timeout_s):
            await _greet(client, endpoint.credentials)
        yield client
    finally:
        writer.transport.abort()


async def _greet(client: BrokerClient, credentials: UpstreamCredentials | None) -> None:
    hello = control.build_api_versions_request(
        API_VERSIONS_VERSION, 0, CLIENT_ID, software_name="forebay", software_version="0"
    )
    offered = control.scan_api_versions_response(await client.call(hello), API_VERSIONS_VERSION)
    client.versions, client.features = offered.ranges, offered.features
    if credentials is not None:
        await sasl_client.authenticate(client, credentials)


def find_local(listen: Address) -> Address:
    """Where a process of the same host, or pod, reaches a listener. The port may be 0, which names none."""
    local = {"": "127.0.0.1", "*": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
    return Address(local.get(listen.host, listen.host), listen.port)


def build_direct_endpoint(listener: ListenerConfig, address: Address) -> Endpoint:
    """The broker behind a listener at `address`, by the present content of the files. Raises OSError."""
    tls = listener.upstream_tls
    context = build_client_context(tls) if tls.enabled else None
    return Endpoint(address, context, tls.server_name, listener.upstream_credentials)


def build_through_endpoint(
    listener: ListenerConfig,
    address: Address,
    certificate: str | None = None,
    key: str | None = None,
) -> Endpoint:
    """A listener of Forebay's own at `address`; arguments as of `build_listener_context`. Raises OSError."""
    tls = listener.tls
    context = build_listener_context(tls, certificate, key) if tls is not None else None
    return Endpoint(address, context, None, listener.upstream_credentials)


def build_listener_context(
    tls: ListenerTls | AdminTls, certificate: str | None = None, key: str | None = None
) -> ssl.SSLContext:
    """TLS toward a listener of Forebay's own: trusts the certificates in the listener's own file alone, whatever names
    are in them. `certificate` and `key`: files of a client certificate. Raises OSError if a file cannot be loaded.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(tls.certificate_file)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    return context


def explain(error: BaseException, timeout_s: float) -> str:
    """One sentence about a failed conversation."""
    if isinstance(error, TimeoutError) and not str(error):
        return f"no answer within {timeout_s:g} s"
    return str(error) or type(error).__name__

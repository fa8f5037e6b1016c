"""What aiokafka's clients are told: security, secrets, and the one address of their side."""

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.structs import BrokerMetadata

from proxy.broker_client import Endpoint
from proxy.canary.outcome import StepFailed
from proxy.canary.probe import Closing, Probe, build_options, expect_name, pin
from proxy.config.model import UpstreamCredentials
from proxy.config.units import Address

HERE = Address("127.0.0.1", 19092)


def credentials(**keys: str) -> UpstreamCredentials:
    return UpstreamCredentials.model_validate(keys, by_alias=True, by_name=False)


async def test_every_node_is_reached_at_the_sides_address() -> None:
    client = AIOKafkaClient(bootstrap_servers=f"{HERE}")
    pin(client, Endpoint(HERE))
    client.cluster._brokers = {7: BrokerMetadata(7, "advertised.example", 9092, None)}
    found = client.cluster.broker_metadata(7)
    assert (found.nodeId, found.host, found.port) == (7, "127.0.0.1", 19092)
    assert client.cluster.broker_metadata(8) is None


def test_plain_text_without_credentials() -> None:
    options = build_options(Endpoint(Address("::1", 9092)), 2.5)
    assert options["bootstrap_servers"] == "[::1]:9092"
    assert options["security_protocol"] == "PLAINTEXT"
    assert options["request_timeout_ms"] == 2500


def test_a_password_is_read_when_it_is_needed(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("s3cret\n")
    own = credentials(mechanism="SCRAM-SHA-256", username="u", passwordFile=str(secret))
    options = build_options(Endpoint(HERE, ssl.create_default_context(), None, own), 1.0)
    assert options["security_protocol"] == "SASL_SSL"
    assert options["sasl_mechanism"] == "SCRAM-SHA-256"
    assert (options["sasl_plain_username"], options["sasl_plain_password"]) == ("u", "s3cret")
    secret.unlink()
    with pytest.raises(OSError, match="No such file"):
        build_options(Endpoint(HERE, None, None, own), 1.0)


async def test_a_token_is_read_at_each_authentication(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    own = credentials(mechanism="OAUTHBEARER", tokenFile=str(secret))
    options = build_options(Endpoint(HERE, None, None, own), 1.0)
    assert options["security_protocol"] == "SASL_PLAINTEXT"
    for token in ("first", "second"):
        secret.write_text(token)
        assert await options["sasl_oauth_token_provider"].token() == token


def test_the_servers_name_is_the_configured_one() -> None:
    context = ssl.create_default_context()
    expect_name(context, "broker.example")
    wrapped: Any = context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="10.0.0.7")
    assert wrapped.server_hostname == "broker.example"


async def test_nobody_at_the_address_is_a_failure_to_connect() -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    probe = Probe(Endpoint(Address("127.0.0.1", port)), "t", 5.0)
    with pytest.raises(StepFailed, match="Unable to bootstrap") as failure:
        await probe.open(b"first")
    assert failure.value.step == "connect"
    await probe.close()


async def test_silence_at_the_address_ends_in_time() -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    probe = Probe(Endpoint(Address("127.0.0.1", port)), "t", 0.2)
    with pytest.raises(StepFailed):
        await probe.open(b"first")
    await probe.close()
    server.close()


class PlayedProbe:
    """A probe that is closed when the test says so."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self.is_closed = False

    async def close(self) -> None:
        await self.let_go.wait()
        self.is_closed = True


async def test_one_probe_is_closed_at_a_time() -> None:
    closing, probe = Closing(), PlayedProbe()
    assert await closing.wait(0.0)
    closing.begin(probe)  # type: ignore[arg-type]
    assert not await closing.wait(0.0)
    with pytest.raises(AssertionError):
        closing.begin(PlayedProbe())  # type: ignore[arg-type]
    probe.let_go.set()
    assert await closing.wait(60.0) and probe.is_closed


async def test_what_does_not_close_is_given_up_in_the_end() -> None:
    closing, probe = Closing(), PlayedProbe()
    closing.begin(probe)  # type: ignore[arg-type]
    await closing.end(0.0)
    assert await closing.wait(0.0) and not probe.is_closed

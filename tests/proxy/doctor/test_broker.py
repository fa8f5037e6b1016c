"""What a broker's answers mean, without one."""

import asyncio
from typing import Any

import pytest

from protocol.api import CAPS, FETCH, METADATA
from protocol.metadata import BrokerAddress, Metadata
from proxy.broker_client import BrokerClient
from proxy.config.model import Config
from proxy.config.units import Address
from proxy.doctor.broker import (
    ASKED_VERSIONS,
    check_advertised,
    check_clock,
    check_names,
    check_versions,
    examine,
)


class SilentClient(BrokerClient):
    """A client that has greeted a broker of these versions."""

    def __init__(self, versions: dict[int, tuple[int, int]], **features: int) -> None:
        self.versions, self.features = versions, features


def build_config(*listens: str, **keys: Any) -> Config:
    listeners = [
        {"name": f"l{index}", "listen": listen, "upstream": "127.0.0.1:1"} | keys
        for index, listen in enumerate(listens or (":9092",))
    ]
    return Config.model_validate({"listeners": listeners}, by_alias=True, by_name=False)


CURRENT = {key: (0, max(20, version)) for key, version in ASKED_VERSIONS.items()}


def test_a_current_broker_is_offered_within_the_caps() -> None:
    client = SilentClient(
        CURRENT | {FETCH: (4, 17)}, **{"metadata.version": 25, "transaction.version": 2}
    )
    (line,) = check_versions("b", client)
    assert line.status == "ok"
    assert line.text == (
        "clients are offered Produce 3 to 13, Fetch 4 to 17; finalized features: metadata.version 25,"
        " transaction.version 2"
    )
    (line,) = check_versions("b", SilentClient(CURRENT))
    assert line.text.endswith("finalized features: none")


@pytest.mark.parametrize(
    ("key", "versions", "text"),
    [
        (METADATA, (0, 11), "Metadata 12 (it has 0 to 11)"),
        (FETCH, (4, 12), "Fetch 13 (it has 4 to 12)"),
        (0, (14, 20), "Produce 3 (it has 14 to 20)"),
    ],
)
def test_a_version_that_forebay_asks_must_be_there(
    key: int, versions: tuple[int, int], text: str
) -> None:
    (line,) = check_versions("b", SilentClient(CURRENT | {key: versions}))
    assert line.status == "fail" and text in line.text and line.remedy
    assert all(low <= ASKED_VERSIONS[one] for one, (low, _) in CAPS.items())


def told(*ports: int) -> Metadata:
    nodes = [BrokerAddress(node, f"k-{node}", port, None) for node, port in enumerate(ports, 1)]
    return Metadata(0, "c", 1, nodes, [])


@pytest.mark.parametrize(
    ("listens", "ports", "node_id", "status"),
    [
        ((":9092",), (9092,), 1, "ok"),
        ((":9092", ":9093"), (9093,), 1, "ok"),
        ((":9092",), (19092,), 1, "fail"),
        ((":9092",), (19092, 9092), 1, "fail"),
        ((":9092",), (19092, 9092), None, "ok"),
        ((":9092",), (), None, "fail"),
        ((":0",), (9092,), 1, "skip"),
    ],
)
def test_clients_must_be_told_a_port_of_forebays(
    listens: tuple[str, ...], ports: tuple[int, ...], node_id: int | None, status: str
) -> None:
    (line,) = check_advertised("l", build_config(*listens), told(*ports), node_id)
    assert line.status == status
    if status == "fail" and ports:
        assert "clients are told k-1:19092" in line.text and "go past it" in line.text
        assert "CLIENT://k-1:9092" in line.remedy


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.2", "ok"), ("::1", "ok"), ("localhost", "ok"), ("10.0.0.1", "skip"), ("k", "skip")],
)
def test_one_machine_has_one_clock(host: str, status: str) -> None:
    assert check_clock("b", Address(host, 1)).status == status


async def test_names_that_clients_are_told_must_have_addresses() -> None:
    assert (await check_names("l", ["127.0.0.1", "localhost"])).status == "ok"
    line = await check_names("l", ["localhost", "no-such-host.invalid", ".."])
    assert line.status == "warn" and "no-such-host.invalid, .., which" in line.text and line.remedy


async def test_a_broker_that_is_not_there_is_one_failure() -> None:
    config = build_config(":1")
    found = await examine(config, config.listeners[0], 5.0)
    assert [line.status for line in found.lines] == ["fail", "warn", "ok"]
    assert "Connect call failed" in found.lines[0].text
    assert "start Forebay" in found.lines[1].remedy
    assert found.partitions is None


async def test_a_file_that_is_missing_is_told() -> None:
    config = build_config(upstreamTls={"enabled": True, "caFile": "/nowhere"})
    found = await examine(config, config.listeners[0], 5.0)
    assert found.lines[0].status == "fail" and "No such file" in found.lines[0].text


async def test_a_load_balancers_listener_is_not_asked() -> None:
    config = build_config(proxyProtocol="v2", trustedProxies="10.0.0.0/8")
    found = await examine(config, config.listeners[0], 5.0)
    assert found.lines[1].status == "skip" and "PROXY protocol" in found.lines[1].text


async def test_of_a_pass_through_listener_the_broker_is_only_connected_to() -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    config = build_config(passThrough=True, upstream=f"127.0.0.1:{port}")
    (line,) = (await examine(config, config.listeners[0], 60.0)).lines
    assert line.status == "ok" and "accepts" in line.text
    server.close()
    config = build_config(passThrough=True)
    (line,) = (await examine(config, config.listeners[0], 60.0)).lines
    assert line.status == "fail" and line.remedy

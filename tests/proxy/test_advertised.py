"""What the broker tells clients of its address, compared: ours, another port or host, and the line that mends it."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from protocol.metadata import BrokerAddress
from proxy.advertised import EVERY_S, AdvertisedCheck, build_line, is_elsewhere
from proxy.config.units import Address

if TYPE_CHECKING:
    from collections.abc import Callable

OURS = Address("127.0.0.1", 9092)
ELSEWHERE = "192.0.2.1"
"""An address of no machine (RFC 5737)."""
LISTENERS = "CLIENT://127.0.0.1:19092,INTERNAL://b.example:9094"


class Scene:
    """A listener at OURS, and the comparison for it. `clock_s` moves by hand."""

    def __init__(self, advertised: Address | None = None, node_id: int = 1) -> None:
        self.clock_s, self.node_id = 0.0, node_id
        self.check = AdvertisedCheck(lambda: self.node_id, lambda: self.clock_s)
        self.listener: Any = SimpleNamespace(
            name="clients",
            bound=OURS,
            upstream=Address("127.0.0.1", 19092),
            config=SimpleNamespace(advertised=advertised),
        )

    async def note(self, *addresses: tuple[int, str, int]) -> str:
        """What differs after an answer that names these brokers: node id, host, port."""
        self.check.note(self.listener, [BrokerAddress(*one, None) for one in addresses])
        if self.check._resolving is not None:
            await self.check._resolving
        return self.check.differs["clients"]


async def test_only_the_address_of_this_broker_counts() -> None:
    scene = Scene()
    assert await scene.note((1, "127.0.0.1", 9092), (2, ELSEWHERE, 9999)) == ""
    assert await scene.note((2, "127.0.0.1", 9092), (1, "127.0.0.1", 19092)) == "port"
    assert await scene.note((1, ELSEWHERE, 9092)) == "host"
    assert scene.check.mismatches == {("clients", "port"): 1, ("clients", "host"): 1}
    scene.node_id = -1
    assert await scene.note((2, "127.0.0.1", 9092), (1, "127.0.0.1", 19092)) == ""


async def test_an_expected_address_is_compared_as_it_is() -> None:
    scene = Scene(Address("Kafka.example", 443))
    assert await scene.note((1, "kafka.EXAMPLE", 443)) == ""
    assert await scene.note((1, "kafka.example", 9092)) == "port"
    assert await scene.note((1, "other.example", 443)) == "host"


async def test_a_warning_comes_once_and_again_with_the_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "forebay.advertised")
    scene = Scene()

    def said() -> list[str]:
        return [one.getMessage() for one in caplog.records]

    for _ in range(3):
        await scene.note((1, "127.0.0.1", 19092))
    (first,) = said()
    assert "127.0.0.1:19092, the broker itself" in first
    assert "advertised.listeners=LISTENER://127.0.0.1:9092" in first
    scene.check.learn_settings({"advertised.listeners": LISTENERS, "fetch.max.bytes": "1"})
    assert "advertised.listeners=CLIENT://127.0.0.1:9092,INTERNAL://b.example:9094" in said()[1]
    assert await scene.note((1, "127.0.0.1", 9092)) == ""
    assert said()[2:] == ["the broker tells clients an address of Forebay's now"]


async def test_answers_are_looked_at_once_in_a_while() -> None:
    scene = Scene()
    assert scene.check.is_due(scene.listener)
    await scene.note((1, "127.0.0.1", 9092))
    assert not scene.check.is_due(scene.listener)
    scene.clock_s = EVERY_S
    assert scene.check.is_due(scene.listener)
    scene.check.note(scene.listener, [])
    assert scene.check.is_due(scene.listener), "an answer without brokers says nothing"


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"advertised.listeners": LISTENERS}, "CLIENT://127.0.0.1:9092,INTERNAL://b.example:9094"),
        ({"advertised.listeners": None, "listeners": "CLIENT://:19092"}, "CLIENT://127.0.0.1:9092"),
        ({}, "LISTENER://127.0.0.1:9092, and the other listeners as they are"),
        (
            {"listeners": "garbage"},
            "LISTENER://127.0.0.1:9092, and the other listeners as they are",
        ),
    ],
)
def test_the_line_has_the_other_listeners_as_they_are(
    settings: dict[str, str | None], line: str
) -> None:
    seen = Address("127.0.0.1", 19092)
    assert build_line(seen, OURS, settings) == f"advertised.listeners={line}"


@pytest.mark.parametrize(("host", "found"), [("127.0.0.1", False), (ELSEWHERE, True), ("", False)])
def test_a_host_is_this_machines_if_it_can_be_bound(
    host: str, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve: Callable[..., object] = lambda *_a, **_k: (_ for _ in ()).throw(OSError)  # noqa: E731
    if not host:
        monkeypatch.setattr("socket.getaddrinfo", resolve)
    assert is_elsewhere(Address(host, 9092)) is found

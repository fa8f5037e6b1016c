"""The client matrix in short: what the tests' environment has, on the newer broker, a part of the steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kit.broker.jars import KAFKA_4
from tests.matrix.builds import build_python
from tests.matrix.clients import CLIENTS, Client
from tests.matrix.programme import TAIL, TAIL_COMMITTED
from tests.matrix.run import Outcome, run_broker

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

STEPS = ("codec-none", "transactions", TAIL, TAIL_COMMITTED)
IN_SESSIONS = ("Java 4.3", "kafka-python")
MODULES = {"aiokafka": "aio", "kafka-python": "kpython"}
SHORT = ("Java 4.3", "librdkafka", *MODULES)


def without_codecs(client: Client) -> Client:
    """Where a library takes its codecs from packages that it does not require, none is used here."""

    def build(_folder: Path) -> object:
        return build_python(MODULES[client.name])

    return client._replace(build=build) if client.name in MODULES else client  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    clients = [without_codecs(client) for client in CLIENTS if client.name in SHORT]
    assert len(clients) == len(SHORT)
    return {one.client: one for one in run_broker(KAFKA_4, clients, STEPS, print)}


@pytest.mark.parametrize("name", SHORT)
def test_a_client_sees_the_same_through_forebay(outcomes: dict[str, Outcome], name: str) -> None:
    outcome = outcomes[name]
    if outcome.left_out:
        pytest.skip(f"{name} is left out: {outcome.left_out}")
    assert outcome.failures() == []
    assert {cell.verdict for cell in outcome.cells.values()} == {"equal"}
    assert tuple(outcome.cells) == STEPS
    assert (outcome.sessions > 0) == (name in IN_SESSIONS)

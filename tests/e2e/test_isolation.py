"""One topic slow, or hanging: the others do not notice through Forebay, and do without it.

The slow broker is a forwarder with eight handlers (slow_broker.py). Clients are sockets, so that the ones past Forebay
reach the forwarder itself. Bounds are wide: what is told apart is milliseconds from the second that an append takes.
A client at the broker itself, past both, tells at the same time what the machine alone makes slow.
"""

from __future__ import annotations

import json
import statistics
import time
from typing import TYPE_CHECKING

import pytest

from isolation.classify import queue_of_topic
from isolation.refusals import MOST_IN_FLIGHT
from tests.e2e.asking import Asking, error_of
from tests.e2e.raw_frames import Raw, build_plain, build_produce, read_batch
from tests.e2e.slow_broker import SlowPair
from tests.kit.broker.topics import create_topic
from tests.protocol.batches import batch_v2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.kit.sidecar import ProxiedBroker

pytestmark = pytest.mark.e2e

CROWD = 16
DATA_QUEUES = 16  # the default
SICK_S, QUIET_FOR_S, SICK_FOR_S = 1.0, 2.0, 5.0
NOTICED_S = 0.4
PATIENCE_S = 60.0
HANG_AFTER_S = 1.0
NOT_ENOUGH_REPLICAS = 19
PROBES = 2
"""After one second and two more; the next request is no probe for four."""
PRODUCER_ID = 4711
API_VERSIONS, HEARTBEAT = 18, 12


@pytest.fixture(scope="module")
def pair(proxied: ProxiedBroker) -> Iterator[SlowPair]:
    with SlowPair(proxied, {"isolation": {"hangAfter": f"{HANG_AFTER_S}s"}}) as running:
        yield running


@pytest.fixture(scope="module")
def batch(pair: SlowPair) -> bytes:
    return read_batch(pair)


def heartbeat() -> bytes:
    group = (1).to_bytes(2, "big") + b"g"
    return build_plain(HEARTBEAT, 0, group + (1).to_bytes(4, "big") + group)


def worst(ones: list[float]) -> float:
    """The 98th percentile: a busy machine has its own hiccups."""
    return statistics.quantiles(ones, n=50, method="inclusive")[-1] if len(ones) > 1 else PATIENCE_S


def create_two(pair: SlowPair) -> tuple[str, str]:
    """Topics of different queues."""
    first = second = create_topic(pair.direct)
    while queue_of_topic(second, DATA_QUEUES) == queue_of_topic(first, DATA_QUEUES):
        second = create_topic(pair.direct)
    return first, second


def bearable(*others: float) -> float:
    """The longest latency in s that is not felt, where these were measured without a cause of ours."""
    return max(NOTICED_S, *(4 * one for one in others))


def is_unfelt(fine: Asking, beside: Asking) -> bool:
    """Whether what `fine` has asked in the last QUIET_FOR_S was answered as soon as what `beside` has."""
    end = time.monotonic()
    of_fine, of_beside = (worst(one.between(end - QUIET_FOR_S, end)) for one in (fine, beside))
    return of_fine < bearable(of_beside)


def measure(
    pair: SlowPair, address: str, batch: bytes, holds: Callable[[dict[str, float]], bool]
) -> dict[str, float]:
    """Healthy topic's produces and heartbeats before and while a crowd produces to a sick topic; "beside" are produces
    at the broker itself. The sick time is measured in windows until one `holds`, for PATIENCE_S.
    """
    sick, healthy = create_two(pair)
    asking = {
        "produce": Asking(address, lambda: build_produce(healthy, batch, -1), 0.02),
        "heartbeat": Asking(address, heartbeat, 0.02),
        "beside": Asking(pair.direct, lambda: build_produce(healthy, batch, -1), 0.02),
    }
    crowd = [Asking(address, lambda: build_produce(sick, batch, -1), 0.25) for _ in range(CROWD)]
    try:
        time.sleep(1)
        quiet_at = time.monotonic()
        time.sleep(QUIET_FOR_S)
        pair.slow.delay(sick, SICK_S)
        sick_at = time.monotonic()
        quiet = worst_of(asking, "quiet", quiet_at, sick_at)
        while True:
            begun_at = time.monotonic()
            time.sleep(SICK_FOR_S)
            felt = quiet | worst_of(asking, "sick", begun_at, time.monotonic())
            if holds(felt) or time.monotonic() > sick_at + PATIENCE_S:
                return felt
    finally:
        pair.slow.heal()
        for one in (*crowd, *asking.values()):
            one.end()


def worst_of(asking: dict[str, Asking], when: str, start: float, end: float) -> dict[str, float]:
    return {f"{name} {when}": worst(one.between(start, end)) for name, one in asking.items()}


@pytest.mark.alone
def test_a_slow_topic_hangs_the_others_without_forebay_and_not_with_it(
    pair: SlowPair, batch: bytes
) -> None:
    asked = ("produce", "heartbeat")
    plain = measure(pair, pair.slow.address, batch, lambda _: True)
    assert all(plain[f"{name} sick"] > NOTICED_S for name in asked), plain

    def holds(felt: dict[str, float]) -> bool:
        return all(felt[f"{name} sick"] < most_s(name, felt) for name in asked)

    def most_s(name: str, felt: dict[str, float]) -> float:
        beside_s = felt["beside sick"]
        than_plain_s = max(plain[f"{name} sick"] / 3, 4 * beside_s)
        return min(bearable(felt[f"{name} quiet"], beside_s), than_plain_s)

    through = measure(pair, pair.through, batch, holds)
    assert holds(through), (plain, through)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def metric(pair: SlowPair, name: str) -> float:
    return pair.sidecar.metrics()[(f"forebay_isolation_{name}",)]


def hangs(pair: SlowPair, topic: str) -> bool:
    """Whether Forebay says that `topic` hangs, whatever other topics do."""
    return topic in json.loads(pair.sidecar.admin("/isolation"))["topics"]["names"]


def test_a_topic_that_hangs_is_refused_at_once_and_comes_back(pair: SlowPair, batch: bytes) -> None:
    sick, healthy = create_two(pair)
    recoveries = metric(pair, "recoveries_total")
    pair.slow.hang(sick)
    fine, beside = (
        Asking(address, lambda: build_produce(healthy, batch, -1), 0.02)
        for address in (pair.through, pair.direct)
    )
    stuck = [
        Asking(pair.through, lambda: build_produce(sick, batch, -1), 0.1) for _ in range(CROWD)
    ]
    late: list[Asking] = []
    try:
        begun = time.monotonic()
        wait_for(lambda: hangs(pair, sick))
        assert metric(pair, "topics_hanging") == 1
        late.append(Asking(pair.through, lambda: build_produce(sick, batch, -1), 0.05))
        wait_for(lambda: len(late[0].rows) > 5)
        codes = [code for _, _, code in late[0].rows[:5]]
        assert codes.count(NOT_ENOUGH_REPLICAS) >= 4, codes
        beside_s = worst(beside.between(begun, time.monotonic()))
        refused_s = statistics.median(latency_s for _, latency_s, _ in late[0].rows[:5])
        assert refused_s < bearable(beside_s)
        assert worst(fine.between(begun, time.monotonic())) < max(HANG_AFTER_S, bearable(beside_s))
        wait_for(lambda: is_unfelt(fine, beside))
        healed_at = time.monotonic()
        pair.slow.heal()
        wait_for(lambda: metric(pair, "topics_hanging") == 0)
        wait_for(
            lambda: any(at > healed_at and code == 0 for one in late for at, _, code in one.rows)
        )
        assert metric(pair, "recoveries_total") == recoveries + 1
        assert metric(pair, "probes_total") > 0
    finally:
        pair.slow.heal()
        for one in (fine, beside, *stuck, *late):
            one.end()
    wait_for(lambda: held(pair) == 0)


def test_a_producer_whose_refused_batch_was_acknowledged_elsewhere_goes_on(
    pair: SlowPair, batch: bytes
) -> None:
    """Its connection here stayed, another leader took the batch, and it came back: for the broker behind Forebay that
    is a batch that came past it.
    """
    topic = create_topic(pair.direct)

    def send(connection: Raw, sequence: int) -> int:
        frame = build_produce(topic, batch_v2(1, producer=(PRODUCER_ID, 0, sequence)), -1)
        return error_of(frame, connection.call(frame))

    with Raw(pair.through) as here, Raw(pair.direct) as elsewhere:
        assert send(here, 0) == 0
        pair.slow.hang(topic)
        stuck = [Asking(pair.through, lambda: build_produce(topic, batch, -1), 0.1)]
        try:
            wait_for(lambda: hangs(pair, topic))
            probes = metric(pair, "probes_total") + PROBES
            stuck += [
                Asking(pair.through, lambda: build_produce(topic, batch, -1), 0.1)
                for _ in range(PROBES)
            ]
            wait_for(lambda: metric(pair, "probes_total") >= probes)
            assert send(here, 1) == NOT_ENOUGH_REPLICAS
            pair.slow.heal()
            wait_for(lambda: not hangs(pair, topic))
        finally:
            pair.slow.heal()
            for one in stuck:
                one.end()
        assert [send(elsewhere, sequence) for sequence in (1, 2, 3)] == [0, 0, 0]
        codes = [send(here, 4) for _ in range(MOST_IN_FLIGHT)]
        assert codes == [NOT_ENOUGH_REPLICAS] * (MOST_IN_FLIGHT - 1) + [0]
        assert [send(here, sequence) for sequence in (5, 6)] == [0, 0]


def held(pair: SlowPair) -> float:
    """What requests hold or wait for in all queues: nothing, once everybody is gone."""
    names = ("in_use", "waiting", "waiting_bytes", "lingering_polls", "lingering_acks")
    metrics = pair.sidecar.metrics().items()
    return sum(
        value for key, value in metrics if key[0] in {f"forebay_isolation_{name}" for name in names}
    )

"""Several workers before one broker: they share what one keeper knows and stores, and none depends on another's life.

Responses from memory are read again from the broker and compared (`cache.verifyRatio` 1).
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.chaos.leaks import ZERO
from tests.e2e.raw_frames import build_metadata
from tests.e2e.test_supervisor import VERIFIED, mismatches
from tests.e2e.test_warm_restart import count, wait_until
from tests.kit.broker.topics import create_topic
from tests.kit.processes import find_keeper, list_inodes, list_workers, read_connections
from tests.kit.raw_fetch import RawClient, RawReader, end_of, explain, read_all
from tests.kit.sidecar import PATIENT_SUPERVISOR, Pair, ProxiedBroker
from tests.protocol.batches import batch_v2

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

WORKERS = 3
KILLS = int(os.environ.get("KILLS", "4"))
VALUE = b"v" * 500


@pytest.fixture
def pair(proxied: ProxiedBroker) -> Iterator[Pair]:
    settings = {**VERIFIED, "supervisor": PATIENT_SUPERVISOR, "workers": WORKERS}
    with Pair(shared=proxied, settings=settings) as running:
        wait_until("all are attached", lambda: attached(running) == WORKERS)
        yield running


def attached(pair: Pair) -> float:
    """How many workers the keeper has."""
    with suppress(OSError):
        return count(pair, "forebay_workers_attached")
    return 0


def owner_of(client: RawClient, pids: list[int]) -> int:
    """Which of these processes has the other end of a client's connection."""
    ports = client.ports
    wanted = f":{ports[1]:04X}", f":{ports[0]:04X}"
    inode = next(
        row[9]
        for row in read_connections()
        if row[1].endswith(wanted[0]) and row[2].endswith(wanted[1])
    )
    for pid in pids:
        if inode in list_inodes(pid):
            return pid
    raise LookupError(f"none of {pids} has the connection from {ports[0]}")


def hit_bytes(pair: Pair) -> float:
    return pair.sidecar.fetch_counts().get(("hit", ""), 0)


def spread(
    stack: ExitStack, pair: Pair, many: int = 8, client_id: str = "raw"
) -> dict[int, list[RawClient]]:
    """Clients of several workers, by the worker's process id."""
    pids = list_workers(pair.sidecar)
    found: dict[int, list[RawClient]] = {}
    deadline = time.monotonic() + 60
    while len(found) < len(pids) or sum(map(len, found.values())) < many:
        client = stack.enter_context(RawClient(pair.through, client_id))
        client.call(build_metadata())
        found.setdefault(owner_of(client, pids), []).append(client)
        assert time.monotonic() < deadline, {pid: len(one) for pid, one in found.items()}
    return found


def test_clients_are_shared_out(pair: Pair) -> None:
    """By their number: a connection stays where it was accepted. A burst of sixteen had one worker take fourteen."""
    pids = list_workers(pair.sidecar)
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(pair.through)) for _ in range(8 * len(pids))]
        for client in clients:
            client.call(build_metadata())
        found = Counter(owner_of(client, pids) for client in clients)
        assert min(found[pid] for pid in pids) >= 4, found
        shown = pair.sidecar.metrics()
        numbers = [value for key, value in shown.items() if key[0] == "forebay_worker_connections"]
        assert len(numbers) == len(pids)


def test_what_one_worker_takes_in_all_give_from_memory(pair: Pair) -> None:
    topic = create_topic(pair.direct)
    with ExitStack() as stack:
        clients = spread(stack, pair)
        readers = [RawReader(each[0], topic).settle() for each in clients.values()]
        writers = [each[-1] for each in clients.values()]
        for turn in range(
            30
        ):  # until the keeper knows that the broker stores batches as they are sent
            end = writers[turn % len(writers)].produce(topic, batch_v2(1, value=VALUE)) + 1
            for reader in readers:
                reader.read_to(end)
        before, upstream = (
            hit_bytes(pair),
            count(pair, "forebay_upstream_fetch_bytes_total", "watch"),
        )
        clients_before = count(pair, "forebay_upstream_fetch_bytes_total", "client")
        begun = [reader.received_bytes for reader in readers]
        for turn in range(60):
            end = writers[turn % len(writers)].produce(topic, batch_v2(1, value=VALUE)) + 1
            for reader in readers:
                reader.read_to(end)
        delivered = sum(one.received_bytes for one in readers) - sum(begun)
        assert hit_bytes(pair) - before >= 0.9 * delivered
        asked = count(pair, "forebay_upstream_fetch_bytes_total", "watch") - upstream
        asked += count(pair, "forebay_upstream_fetch_bytes_total", "client") - clients_before
        assert asked <= 1.1 / len(readers) * delivered
        direct = read_all(pair.direct, topic)
        for reader in readers:
            assert bytes(reader.raw) == direct, explain(bytes(reader.raw), direct)
    assert count(pair, "forebay_produce_batches_total", "store") > 0
    wait_until("all is verified", lambda: count(pair, "forebay_verify_samples_total", "equal") > 0)
    assert mismatches(pair.sidecar) == 0


class Life(threading.Thread):
    """A client that produces to its topic and reads it back, on one connection, until `stop`. `longest_s`: between
    two of its turns. `ended`: how its connection ended, None while it lives.
    """

    def __init__(self, client: RawClient, topic: str) -> None:
        super().__init__(daemon=True)
        self.client, self.topic = client, topic
        self.reader = RawReader(client, topic)
        self.turns, self.longest_s = 0, 0.0
        self.ended: Exception | None = None
        self._over = threading.Event()

    def run(self) -> None:
        last = time.monotonic()
        try:
            while not self._over.is_set():
                end = self.client.produce(self.topic, batch_v2(1, value=VALUE)) + 1
                self.reader.read_to(end)
                self.turns += 1
                last, before = time.monotonic(), last
                self.longest_s = max(self.longest_s, last - before)
                time.sleep(0.005)
        except Exception as error:
            self.ended = error

    def stop(self) -> None:
        self._over.set()
        self.join(60)
        assert not self.is_alive()


def begin_lives(stack: ExitStack, pair: Pair) -> dict[int, list[Life]]:
    """Clients at work on all workers."""
    found = {
        pid: [Life(client, create_topic(pair.direct)) for client in clients]
        for pid, clients in spread(stack, pair, many=6).items()
    }
    for life in (one for lives in found.values() for one in lives):
        life.start()
    wait_for_turns([one for lives in found.values() for one in lives], 10)
    return found


def wait_for_turns(lives: list[Life], turns: int) -> None:
    aims = {life: life.turns + turns for life in lives}
    wait_until(
        "all clients go on",
        lambda: all(life.turns >= aim or life.ended for life, aim in aims.items()),
    )
    assert not any(life.ended for life in lives), [life.ended for life in lives]


def have_ended(lives: list[Life]) -> bool:
    return all(one.ended for one in lives)


def check_nothing_stays(pair: Pair) -> None:
    def list_held() -> dict[object, float]:
        return {
            key: value for key, value in pair.sidecar.metrics().items() if key[0] in ZERO and value
        }

    wait_until("nothing is held", lambda: not list_held())


def check_bytes(pair: Pair, lives: list[Life]) -> None:
    for life in lives:
        direct = read_all(pair.direct, life.topic)
        read = bytes(life.reader.raw)
        assert direct.startswith(read), explain(read, direct[: len(read)])
        assert read_all(pair.through, life.topic, end=end_of(direct)) == direct
    assert mismatches(pair.sidecar) == 0


def test_a_killed_worker_takes_its_own_clients_with_it_and_no_other(pair: Pair) -> None:
    all_lives: list[Life] = []
    for _ in range(KILLS):
        with ExitStack() as stack:
            lives = begin_lives(stack, pair)
            all_lives += [one for each in lives.values() for one in each]
            victim = next(iter(lives))
            others = [one for pid, each in lives.items() if pid != victim for one in each]
            os.kill(victim, signal.SIGKILL)
            wait_until("its clients see it", partial(have_ended, lives[victim]))
            assert all(isinstance(one.ended, ConnectionError) for one in lives[victim])
            wait_for_turns(others, 20)
            wait_until("the next one is there", lambda: attached(pair) == WORKERS)
            for life in others:
                life.stop()
                assert life.ended is None
    check_nothing_stays(pair)
    check_bytes(pair, all_lives[-6:])


def is_replaced(pair: Pair, keeper: int) -> bool:
    return find_keeper(pair.sidecar) not in (keeper, None)


def has_more_hits(pair: Pair, before: float) -> bool:
    return hit_bytes(pair) > before


def test_a_killed_keeper_is_noticed_by_no_client(pair: Pair) -> None:
    with ExitStack() as stack:
        lives = [one for each in begin_lives(stack, pair).values() for one in each]
        for _ in range(KILLS):
            keeper = find_keeper(pair.sidecar)
            assert keeper is not None
            os.kill(keeper, signal.SIGKILL)
            wait_for_turns(lives, 20)
            wait_until("there is another", partial(is_replaced, pair, keeper))
            wait_until("it has all workers", lambda: attached(pair) == WORKERS)
            wait_until("memory answers again", partial(has_more_hits, pair, hit_bytes(pair)))
            wait_for_turns(lives, 5)
        for life in lives:
            life.stop()
            assert life.ended is None
        check_bytes(pair, lives)
    check_nothing_stays(pair)

"""What goes wrong, at random from a seed: one fault after another in each of three lanes, side by side.

Owns the lanes, how long each fault lasts, and that at `heal` everything runs again. Must not know what clients do.
Invariants: what goes wrong in a lane depends on its seed alone; of the brokers at most one is away at a time, so that
acknowledged records are never the victims; processes are started by the lanes' threads, which live until `close`.
"""

from __future__ import annotations

import random
import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from tests.chaos import orders

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from tests.chaos.cluster import Sidecars
    from tests.chaos.history import Place
    from tests.chaos.readers import Member
    from tests.chaos.topic_faults import TopicFaults

SHORTEST_PAUSE_SHARE = 0.125
LONGEST_CUT_BYTES = 20_000
FIRST_S = 5.0


class Pace(NamedTuple):
    """How close faults lie together: the longest pause between two of a lane, and how long somebody stands still or is
    away at most. How much is written meanwhile: records of a writer, large records of the bulk's, and the pause of a
    raw writer between two requests. `cache_size`: of each Forebay; it holds the bulk of some fifty seconds, so that
    blocks are evicted, but not what was written just before a pause.
    """

    longest_pause_s: float
    longest_stall_s: float
    records_per_s: float
    bulk_per_s: float
    batch_pause_s: float
    cache_size: str


USUAL, BRISK = Pace(4.0, 8.0, 30.0, 30.0, 0.15, "32MiB"), Pace(1.0, 2.0, 8.0, 15.0, 0.4, "16MiB")
"""At the brisk pace a broker that stands still is still missed: an unclean election waits for that. Each record wakes
all who read its topic, followers among them: most of a run's CPU is spent on that.
"""


class Faults:
    """`say` is told each fault when it is over; `done` counts them by name; `failed`: those that the cluster did not
    come to the end of in time.
    """

    def __init__(
        self,
        seed: int,
        sidecars: Sidecars,
        places: Sequence[Place],
        members: Sequence[Member],
        topics: TopicFaults,
        over: threading.Event,
        say: Callable[[str], None],
        pace: Pace = USUAL,
    ) -> None:
        """`over` is set when no more shall go wrong: who waits for a fault's sake waits on it."""
        self._sidecars, self._places, self._members = sidecars, list(places), list(members)
        self._say = say
        self._topics = topics
        self._over = over
        self._pace = pace
        self.done: dict[str, int] = {}
        self.failed: list[str] = []
        self._brokers = random.Random(f"{seed}/brokers")
        self._links = random.Random(f"{seed}/links")
        self._changes = random.Random(f"{seed}/topics")
        self._pool = ThreadPoolExecutor(3)
        self._kinds: set[str] = set()
        self._lanes: list[Future[None]] = []

    def start(self) -> None:
        broker_faults = (
            self.kill_broker,
            self.stall_broker,
            self.move_leaders,
            self.move_replicas,
            self._topics.elect_uncleanly,
        )
        link_faults = (
            self.kill_forebay,
            self.kill_worker,
            self.hang_worker,
            *((self.kill_keeper, self.hang_keeper) if self._sidecars.workers > 1 else ()),
            self.cut_front,
            self.cut_back,
            self.stall_wire,
            self.vanish,
            self.bounce_member,
        )
        lanes = (
            (self._brokers, broker_faults),
            (self._links, link_faults),
            (self._changes, self._topics.faults),
        )
        self._kinds = {fault.__name__ for _, faults in lanes for fault in faults}
        self._lanes = [self._pool.submit(self._run, *lane) for lane in lanes]

    @property
    def missing(self) -> set[str]:
        """The kinds of faults that have not happened yet."""
        return self._kinds - self.done.keys()

    @property
    def goes_on(self) -> bool:
        """Whether every lane still runs: one that has ended raised something."""
        return not any(lane.done() for lane in self._lanes)

    def heal(self) -> None:
        """No more of it: what was begun ends, and everything runs. Raises what a lane raised."""
        self._over.set()
        for lane in self._lanes:
            lane.result()

    def close(self) -> None:
        """The processes that the lanes started end with them."""
        self._over.set()
        self._pool.shutdown()

    def _run(self, rng: random.Random, faults: Sequence[Callable[[random.Random], str]]) -> None:
        """Each fault once in a random order, then again."""
        self._over.wait(FIRST_S)
        order: list[Callable[[random.Random], str]] = []
        while not self._over.is_set():
            order = order or rng.sample(faults, len(faults))
            fault = order.pop()
            began = time.monotonic()
            try:
                what = fault(rng)
            except TimeoutError as failed:
                self.failed.append(f"{fault.__name__}: {failed}")
                continue
            self.done[fault.__name__] = self.done.get(fault.__name__, 0) + 1
            self._say(f"{fault.__name__}: {what} ({time.monotonic() - began:.1f} s)")
            self._over.wait(self._pace.longest_pause_s * rng.uniform(SHORTEST_PAUSE_SHARE, 1))

    def kill_broker(self, rng: random.Random) -> str:
        node, away_s = rng.choice(self._sidecars.nodes), rng.uniform(0, self._pace.longest_stall_s)
        self._sidecars.cluster.stop(node)
        self._over.wait(away_s)
        self._sidecars.cluster.start(node)
        return f"broker {node}, away for {away_s:.1f} s"

    def stall_broker(self, rng: random.Random) -> str:
        node, away_s = rng.choice(self._sidecars.nodes), rng.uniform(1, self._pace.longest_stall_s)
        self._sidecars.cluster.stall(node)
        self._over.wait(away_s)
        self._sidecars.cluster.wake(node)
        return f"broker {node}"

    def move_leaders(self, rng: random.Random) -> str:
        """To the preferred replicas, from wherever kills have left them."""
        places = rng.sample(self._places, rng.randint(1, len(self._places)))
        return f"{len(places)} partitions {self._order(rng, orders.elect, places)}"

    def move_replicas(self, rng: random.Random) -> str:
        """Away from one broker and back, in another order: its copy is made anew, and another one leads."""
        place = rng.choice(self._places)
        replicas = rng.sample(self._sidecars.nodes, len(self._sidecars.nodes))
        said = []
        for wanted in (replicas[:2], [replicas[1], replicas[2], replicas[0]]):
            said.append(self._order(rng, orders.reassign, place, wanted))
            self._over.wait(rng.uniform(1, 3))
        return f"{place} to {replicas} {said} {self._order(rng, orders.elect, [place])}"

    def _order(self, rng: random.Random, order: Callable[..., str], *what: object) -> str:
        """What any broker says to it; one that does not answer is asked in vain."""
        host, port = self._sidecars.cluster.address(node_id=rng.choice(self._sidecars.nodes))
        try:
            return order(f"{host}:{port}", *what)
        except OSError as failed:
            return f"{failed}"

    def kill_forebay(self, rng: random.Random) -> str:
        node = rng.choice(self._sidecars.nodes)
        self._sidecars.restart_forebay(node)
        return f"Forebay {node}"

    def kill_worker(self, rng: random.Random) -> str:
        """Its supervisor starts another one on the same sockets."""
        node = rng.choice(self._sidecars.nodes)
        return self._sidecars.signal_worker(node, rng, signal.SIGKILL)

    def hang_worker(self, rng: random.Random) -> str:
        """Until its supervisor kills it for its silence."""
        node = rng.choice(self._sidecars.nodes)
        return self._sidecars.signal_worker(node, rng, signal.SIGSTOP)

    def kill_keeper(self, rng: random.Random) -> str:
        """Workers pass everything on until there is another one."""
        return self._sidecars.signal_keeper(rng.choice(self._sidecars.nodes), signal.SIGKILL)

    def hang_keeper(self, rng: random.Random) -> str:
        """As `hang_worker`."""
        return self._sidecars.signal_keeper(rng.choice(self._sidecars.nodes), signal.SIGSTOP)

    def cut_front(self, rng: random.Random) -> str:
        """Clients from Forebay."""
        node, after = rng.choice(self._sidecars.nodes), rng.randrange(LONGEST_CUT_BYTES)
        return f"{self._sidecars.front[node].cut(after)} connections to Forebay {node} after {after} bytes"

    def cut_back(self, rng: random.Random) -> str:
        """Forebay from its broker."""
        node, after = rng.choice(self._sidecars.nodes), rng.randrange(LONGEST_CUT_BYTES)
        return f"{self._sidecars.back[node].cut(after)} connections to broker {node} after {after} bytes"

    def stall_wire(self, rng: random.Random) -> str:
        node = rng.choice(self._sidecars.nodes)
        wires = rng.choice((self._sidecars.front, self._sidecars.back))
        wires[node].stall()
        self._over.wait(rng.uniform(1, self._pace.longest_stall_s))
        wires[node].flow()
        return f"{'front' if wires is self._sidecars.front else 'back'} of Forebay {node}"

    def vanish(self, rng: random.Random) -> str:
        """A machine is gone without FIN or RST; new connections reach the one in its place."""
        node = rng.choice(self._sidecars.nodes)
        wires = rng.choice((self._sidecars.front, self._sidecars.back))
        count = wires[node].vanish()
        self._over.wait(rng.uniform(1, self._pace.longest_stall_s))
        wires[node].find_vanished()
        return f"{count} connections {'before' if wires is self._sidecars.front else 'behind'} Forebay {node}"

    def bounce_member(self, rng: random.Random) -> str:
        member = rng.choice(self._members)
        member.bounce()
        return member.name

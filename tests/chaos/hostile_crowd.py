"""Clients that mean harm, all kinds at once.

usage: python -m tests.chaos.hostile_crowd ADDRESS TLS_ADDRESS ADMIN TOPIC SEED. Owns what each kind does to a Forebay,
again and again until its standard input ends, and how often each did. Must not know how they are held off. Invariants:
a kind is at work all the while; between two of its deeds it rests, so that what good clients feel is Forebay's trouble,
not a machine without cores.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import struct
import sys
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from protocol import fetch
from protocol.fetch_build import build_request
from tests.e2e.raw_frames import FETCH_VERSION, Raw, build_fetch, build_metadata, build_plain

if TYPE_CHECKING:
    from collections.abc import Callable

REST_S = 1.0
STAY_S = 5.0
NAMES = 10_000
MANY_PARTITIONS = 150_000
"""About 5 MiB of a Fetch."""
ABSENT = 3_000
UNREAD_BYTES = 50 << 20
BEGUN_BYTES = 60 << 20
STEP_BYTES = 1 << 20
LONG_ID = 32_000
ADMIN_CONNECTIONS = 32
HANDSHAKES = 200
BAD_FRAMES = 50
IDLE = 100
PRODUCE_VERSION = 7


class Target(NamedTuple):
    """Where a Forebay is met: its listeners, its admin server, and a topic with much in it."""

    address: str
    tls_address: str
    admin: str
    topic: str


def build_many(names: list[str], indexes: range, client_id: str = "hostile") -> bytes:
    return build_request(
        FETCH_VERSION,
        1,
        client_id,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1000,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        partitions=[
            fetch.FetchPartition(name, i, -1, 0, -1, -1, 1000) for name in names for i in indexes
        ],
    )


def name_bogus_topics(target: Target, _rng: random.Random) -> None:
    with Raw(target.address) as client:
        client.call(BOGUS)


def send_garbage(target: Target, rng: random.Random) -> None:
    for _ in range(BAD_FRAMES):
        with Raw(target.address) as client:
            client.send(
                rng.choice((b"\xff\xff\xff\xff", rng.randbytes(70), struct.pack(">i", 1 << 30)))
            )
            client.ends()


def begin_large_frames(target: Target, _rng: random.Random) -> None:
    """All but the last byte of each."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Raw(target.address)) for _ in range(12)]
        for client in clients:
            client.socket.settimeout(0.2)
            with contextlib.suppress(OSError):
                client.send(struct.pack(">i", BEGUN_BYTES))
                for _ in range(BEGUN_BYTES // STEP_BYTES - 1):
                    client.send(bytes(STEP_BYTES))
        time.sleep(STAY_S)


def read_nothing(target: Target, _rng: random.Random) -> None:
    """Asks for much, and takes none of it."""
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            client = stack.enter_context(Raw(target.address))
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.send(*(build_fetch(target.topic, 0, 100, UNREAD_BYTES) for _ in range(10)))
        time.sleep(STAY_S)


def say_nothing(target: Target, _rng: random.Random) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(IDLE):
            stack.enter_context(Raw(target.address))
        time.sleep(STAY_S)


def ask_of_many_partitions(target: Target, _rng: random.Random) -> None:
    with Raw(target.address) as client:
        client.call(MANY)


def produce_to_absent_partitions(target: Target, _rng: random.Random) -> None:
    """Without waiting for what the broker says of them."""
    partitions = b"".join(
        struct.pack(">ii", index, 0) for index in range(100_000, 100_000 + ABSENT)
    )
    name = target.topic.encode()
    topic = struct.pack(">h", len(name)) + name + struct.pack(">i", ABSENT) + partitions
    body = struct.pack(">hhii", -1, 1, 1000, 1) + topic
    with Raw(target.address) as client:
        client.send(build_plain(0, PRODUCE_VERSION, body))
        time.sleep(REST_S)


def keep_the_admin_server(target: Target, _rng: random.Random) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(ADMIN_CONNECTIONS):
            client = stack.enter_context(Raw(target.admin))
            client.send(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\nGET /metrics HTTP/1.1\r\nX: ")
        time.sleep(STAY_S)


def begin_handshakes(target: Target, _rng: random.Random) -> None:
    """Of TLS, and never say the first word."""
    with contextlib.ExitStack() as stack:
        for _ in range(HANDSHAKES):
            stack.enter_context(Raw(target.tls_address))
        time.sleep(STAY_S)


def invent_apis(target: Target, rng: random.Random) -> None:
    for _ in range(50):
        with Raw(target.address) as client:
            client.send(build_plain(rng.randrange(200, 32_000), 0))
            client.ends()


def have_long_names(target: Target, rng: random.Random) -> None:
    client_id = f"{rng.random()}" + "x" * LONG_ID
    with Raw(target.address) as client:
        client.call(build_many([target.topic], range(1), client_id))


def stop_half_way(target: Target, _rng: random.Random) -> None:
    with Raw(target.address) as client:
        client.send(build_metadata() + build_metadata()[:9])
        client.socket.shutdown(socket.SHUT_WR)
        time.sleep(REST_S)


BOGUS = build_many([f"bogus-{number}" for number in range(NAMES)], range(1))
MANY = build_many(["bogus"], range(MANY_PARTITIONS))
KINDS: tuple[Callable[[Target, random.Random], None], ...] = (
    name_bogus_topics,
    send_garbage,
    begin_large_frames,
    read_nothing,
    say_nothing,
    ask_of_many_partitions,
    produce_to_absent_partitions,
    keep_the_admin_server,
    begin_handshakes,
    invent_apis,
    have_long_names,
    stop_half_way,
)
LONGER_REST_S = {"ask_of_many_partitions": 30.0, "name_bogus_topics": 5.0}
"""After what keeps one of the broker's network threads by itself (250 and 30 ms), whoever brings it: fewer than one
in a hundred of the good clients' deeds may meet that.
"""


class Crowd:
    """A thread for each kind, until `over`."""

    def __init__(self, target: Target, seed: str) -> None:
        self._target, self._seed = target, seed
        self._over = threading.Event()
        self.times = dict.fromkeys((kind.__name__ for kind in KINDS), 0)

    def _act(self, kind: Callable[[Target, random.Random], None]) -> None:
        rng = random.Random(f"{self._seed}/{kind.__name__}")
        rest_s = LONGER_REST_S.get(kind.__name__, REST_S)
        self._over.wait(rng.uniform(0, rest_s))  # not all at the same moment
        while not self._over.is_set():
            with contextlib.suppress(OSError):  # what Forebay does to it is its own affair
                kind(self._target, rng)
            self.times[kind.__name__] += 1
            self._over.wait(rest_s)

    def run(self) -> dict[str, int]:
        """How often each kind was at work, when standard input has ended."""
        threads = [threading.Thread(target=self._act, args=(kind,), daemon=True) for kind in KINDS]
        for thread in threads:
            thread.start()
        sys.stdin.read()
        self._over.set()
        for thread in threads:
            thread.join(4 * STAY_S)
        return self.times


if __name__ == "__main__":
    *words, chosen = sys.argv[1:]
    print("ready", flush=True)
    print(json.dumps(Crowd(Target(*words), chosen).run()), flush=True)

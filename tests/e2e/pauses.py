"""Clients at work without rest, and how long each stood still.

Owns the clients' threads and the times of their turns. Must not know what happens to a Forebay meanwhile.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from statistics import quantiles
from typing import TYPE_CHECKING

from tests.kit.raw_fetch import RawReader
from tests.protocol.batches import batch_v2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.kit.raw_fetch import RawClient

VALUE = b"v" * 500
REST_S = 0.005
BATCH = batch_v2(1, value=VALUE)


class Steady(threading.Thread):
    """Produces to its topic and reads it back, on one connection, until `stop`. `times`: when each turn ended, and
    `produced`: when its record was acknowledged, by time.monotonic. `ended`: how its connection ended; None: it lives.
    """

    def __init__(self, client: RawClient, topic: str, former: Steady | None = None) -> None:
        """`former`: a client whose connection broke, of the same topic: this one reads on where it stopped."""
        super().__init__(daemon=True)
        self.client, self.topic = client, topic
        self.reader = RawReader(client, topic)
        if former is not None:
            self.reader.offset, self.reader.raw = former.reader.offset, former.reader.raw
        self.times = [time.monotonic()]
        self.produced = [self.times[0]]
        self.ended: Exception | None = None
        self._over = threading.Event()

    def run(self) -> None:
        try:
            while not self._over.wait(REST_S):
                end = self.client.produce(self.topic, BATCH) + 1
                self.produced.append(time.monotonic())
                self.reader.read_to(end)
                self.times.append(time.monotonic())
        except Exception as error:
            self.ended = error

    @property
    def turns(self) -> int:
        """So far."""
        return len(self.times)

    def stop(self) -> None:
        """Return once it has stopped. It must live, or have been stopped before."""
        self._over.set()
        self.join(60)
        assert not self.is_alive()

    def find_longest(self, begin: float, end: float) -> tuple[float, float]:
        """The longest turn of those that overlap these moments, and what of it passed before the acknowledgement; in
        seconds, 0 where there is none.
        """
        times, produced = self.times, self.produced
        first = max(bisect_left(times, begin), 1)
        last = min(bisect_left(times, end), len(times) - 1)
        return max(
            (
                (times[at] - times[at - 1], produced[at] - times[at - 1])
                for at in range(first, last + 1)
            ),
            default=(0.0, 0.0),
        )


def describe(seconds: Sequence[float], limit_s: float) -> str:
    """Their distribution, and how many are above `limit_s`."""
    if len(seconds) < 2:
        return f"{len(seconds)} looks"
    cuts = quantiles(seconds, n=1000, method="inclusive")
    named = {"median": cuts[499], "p90": cuts[899], "p99": cuts[989], "most": max(seconds)}
    told = ", ".join(f"{name} {1000 * value:.0f} ms" for name, value in named.items())
    above = sum(one > limit_s for one in seconds)
    return f"{told}; {above} of {len(seconds)} above {1000 * limit_s:.0f} ms"

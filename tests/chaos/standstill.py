"""A run whose interpreter stands still ends, and says where it stood.

Owns the time that this may take. Must not know what a run does. confluent-kafka calls librdkafka with the interpreter
held where that waits for its own main thread without a time-out (assign after a rebalance, consumer_group_metadata,
begin_transaction). Where that never answers, every thread of the process stands, the wires between clients, Forebay and
brokers among them, and no time-out of Python's ends it. Nothing of Forebay's can: none of these waits for an answer.
"""

from __future__ import annotations

import faulthandler
import threading
import time

STILL_S = 90.0
"""Far longer than any pause of a machine that only has much to do."""
BEATS = 10
SAID = "Timeout ("
"""What faulthandler's report begins with."""


def guard(still_s: float = STILL_S) -> None:
    """From now on: exit code 1, and on stderr where each thread stood, once none of them has run for `still_s`."""

    def beat() -> None:
        while True:
            faulthandler.dump_traceback_later(still_s, exit=True)
            time.sleep(still_s / BEATS)

    threading.Thread(target=beat, name="beat", daemon=True).start()

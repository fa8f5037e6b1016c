"""`python -m bench.pollution.lagging`: consumers far behind, each in a stretch of the backlog of its own.

Owns raw connections (one thread each, Fetch 12, no session, as librdkafka asks) that read and throw away. Must
not know Forebay. Invariants: stretches do not overlap, so that no laggard is served from what another has
read; a throttle time is kept, as clients do; without `--rate` the next Fetch leaves when the last is answered
(closed loop), with it each leaves at its time or as soon after as it can (open loop, the sweep). Rows are
(laggard, sent, waited, record bytes); an unanswered Fetch at the end is a row of 0 bytes.
"""

from __future__ import annotations

import argparse
import os
import socket
import threading
import time
from array import array
from pathlib import Path
from typing import NamedTuple

from bench.pollution.series import write_rows
from protocol import batch, fetch
from protocol.fetch_build import build_request

VERSION = 12
FETCH_BYTES = 1 << 20
MAX_WAIT_MS = 500
TIMEOUT_S = 600.0
ANSWERED_WITHIN_S = (
    5.0  # what was asked before the end is waited for, so that all bytes are accounted for
)


class Stretch(NamedTuple):
    """Where one laggard reads, again and again: offsets first <= o < last of a partition."""

    partition: int
    first: int
    last: int


def plan_stretches(ends: list[int], laggards: int) -> list[Stretch]:
    """Cut partitions, each with its end of the backlog, into `laggards` equal stretches that do not overlap."""
    total = sum(ends)
    stretches = []
    per_partition = [laggards // len(ends) + (i < laggards % len(ends)) for i in range(len(ends))]
    assert total > 0
    for partition, (end, count) in enumerate(zip(ends, per_partition, strict=True)):
        size = end // max(count, 1)
        stretches += [
            Stretch(partition, number * size, (number + 1) * size) for number in range(count)
        ]
    return stretches


class Laggard:
    """One lagging consumer."""

    def __init__(self, options: argparse.Namespace, number: int, stretch: Stretch) -> None:
        self.rows = array("q")
        self._options = options
        self._number = number
        self._stretch = stretch
        self._sent_ns = 0

    def run(self) -> None:
        """From the start to the end; ends with the process where an answer does not come."""
        options, stretch = self._options, self._stretch
        host, port = options.bootstrap.split(":")
        sock = socket.create_connection((host, int(port)), TIMEOUT_S)
        offset = stretch.first + int((stretch.last - stretch.first) * options.skip)
        count, is_delayed = 0, False
        interval_ns = (
            int(FETCH_BYTES * options.laggards / options.rate * 1e9) if options.rate else 0
        )
        first_ns = options.start_ns + interval_ns * self._number // options.laggards
        while True:
            due_ns = first_ns + count * interval_ns
            time.sleep(max(0.0, (due_ns - time.monotonic_ns()) / 1e9))
            if time.monotonic_ns() >= options.end_ns and not is_delayed:
                return
            self._sent_ns = time.monotonic_ns()
            count += 1
            frame = self._ask(sock, offset, count)
            answer = fetch.scan_response(frame, VERSION)
            one = answer.partitions[0]
            if answer.error_code or one.error_code:
                raise OSError(
                    f"Fetch was answered with error {answer.error_code or one.error_code}"
                )
            size = max(one.end - one.start, 0)
            self.rows.extend(
                (self._number, self._sent_ns, time.monotonic_ns() - self._sent_ns, size)
            )
            self._sent_ns = 0
            is_delayed = size == 0  # what was read for it meanwhile is collected before it ends
            batches = batch.scan_batches(frame, max(one.start, 0), max(one.end, 0))
            if batches:
                offset = batches[-1].last_offset + 1
            if offset >= stretch.last:
                offset = stretch.first
            if answer.throttle_time_ms:
                time.sleep(answer.throttle_time_ms / 1000)

    def _ask(self, sock: socket.socket, offset: int, number: int) -> bytearray:
        options = self._options
        partition = fetch.FetchPartition(
            options.topic, self._stretch.partition, -1, offset, -1, -1, FETCH_BYTES
        )
        request = build_request(
            VERSION,
            number,
            f"laggard-{self._number}",
            max_wait_ms=MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=50 << 20,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            partitions=[partition],
        )
        sock.sendall(request)
        frame = bytearray(4)
        _fill(sock, memoryview(frame))
        frame += bytes(int.from_bytes(frame, "big"))
        _fill(sock, memoryview(frame)[4:])
        return frame

    def finish(self, now_ns: int) -> None:
        """Write down what is still unanswered."""
        if self._sent_ns:
            self.rows.extend((self._number, self._sent_ns, now_ns - self._sent_ns, 0))


def _fill(sock: socket.socket, view: memoryview) -> None:
    at = 0
    while at < len(view):
        got = sock.recv_into(view[at:])
        if not got:
            raise ConnectionError("closed before the answer")
        at += got


def main() -> None:
    """The arguments come from lab.py."""
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "topic", "ends"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("laggards", "start-ns", "end-ns"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument(
        "--rate", type=float, default=0.0, help="bytes/s of all together; 0: closed loop"
    )
    parser.add_argument("--skip", type=float, default=0.0, help="share of the stretch to begin at")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    stretches = plan_stretches([int(end) for end in options.ends.split(",")], options.laggards)
    laggards = [Laggard(options, number, stretch) for number, stretch in enumerate(stretches)]
    threads = [threading.Thread(target=one.run, daemon=True) for one in laggards]
    for thread in threads:
        thread.start()
    stop_ns = options.end_ns + int(ANSWERED_WITHIN_S * 1e9)
    for thread in threads:
        thread.join(max(0.0, (stop_ns - time.monotonic_ns()) / 1e9))
    rows = array("q")
    now_ns = time.monotonic_ns()
    for one in laggards:
        one.finish(now_ns)
        rows += one.rows
    write_rows(options.out, rows)
    os._exit(0)


if __name__ == "__main__":
    main()

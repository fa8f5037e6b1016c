"""What a large answer that passes costs in Forebay's own code: `python -m bench.micro.relayed`.

Owns a Forebay whose cache is off, in this process, between a client and a broker that are threads with real sockets:
what is moved by splice(2) needs them. Must not know how an answer passes. Invariants: only the event loop's thread is
counted, and in it runs nothing but Forebay; calls are counted, which no other work on the machine changes, but for how
often the broker's socket has something: what is called within a turn of moving is told apart.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from bench.ladder.frames import FETCH_VERSION
from bench.ladder.raw import Line
from protocol import fetch
from protocol.fetch_build import FetchAnswer, build_request, build_response
from proxy import app
from proxy.config.load import load
from proxy.sockets import bind
from tests.kit.played import ISOLATED, OFF, TOPIC_ID

if TYPE_CHECKING:
    from types import CodeType, FrameType

HOST = "127.0.0.1"
RECORDS_BYTES = 1 << 20
TURN = "get_buffer"
"""The one function in which bytes are moved: what asks for memory where a socket can be read."""


class PlayedBroker(threading.Thread):
    """Answers every request on its connections with the same bytes."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(daemon=True)
        self._answer = answer
        self._server = socket.create_server((HOST, 0))
        self.port: int = self._server.getsockname()[1]

    def run(self) -> None:
        """One connection after the other."""
        while True:
            connection, _ = self._server.accept()
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while prefix := connection.recv(4, socket.MSG_WAITALL):
                    connection.recv(int.from_bytes(prefix, "big"), socket.MSG_WAITALL)
                    connection.sendall(self._answer)


class Counted:
    """What one thread has called: all, and within the turns of moving."""

    def __init__(self) -> None:
        self.calls = self.moving = self.turns = 0
        self.codes: Counter[CodeType] = Counter()
        self._inside: FrameType | None = None

    def note(self, frame: FrameType, event: str, _arg: object) -> None:
        """For `sys.setprofile`."""
        if event == "call":
            self.codes[frame.f_code] += 1
            if self._inside is None and frame.f_code.co_name == TURN:
                self._inside = frame
                self.turns += 1
        if event in ("call", "c_call"):
            self.calls += 1
            self.moving += self._inside is not None
        elif event == "return" and frame is self._inside:
            self._inside = None

    def tell(self, name: str, times: int) -> None:
        """A Fetch's share."""
        code_bytes = sum(len(code.co_code) for code in self.codes)
        print(
            f"{name}: {(self.calls - self.moving) / times:.0f} calls around {self.turns / times:.1f} turns with "
            f"{self.moving / times:.0f}; {len(self.codes)} functions, {code_bytes} bytes of code"
        )


def build_frames(answer_bytes: int) -> tuple[bytes, bytes]:
    """A Fetch of one partition, and an answer with so many bytes of records."""
    request = build_request(
        FETCH_VERSION,
        1,
        "micro",
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=answer_bytes,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        partitions=[fetch.FetchPartition(TOPIC_ID, 0, -1, 0, -1, -1, answer_bytes)],
    )
    said = FetchAnswer(TOPIC_ID, 0, 0, 9, 9, 0, None, (bytes(answer_bytes),), answer_bytes)
    parts = build_response(
        FETCH_VERSION, 1, throttle_time_ms=0, error_code=0, session_id=0, partitions=[said]
    )
    return request, b"".join(parts)


async def measure(name: str, settings: dict[str, Any], options: argparse.Namespace) -> None:
    """Print the calls of a Fetch, and with `profile` of which functions."""
    request, answer = build_frames(options.size)
    broker = PlayedBroker(answer)
    broker.start()
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "forebay.json"
        listener = {"listen": f"{HOST}:0", "upstream": f"{HOST}:{broker.port}"}
        path.write_text(
            json.dumps({"listeners": [listener], "admin": {"listen": f"{HOST}:0"}, **settings})
        )
        forebay = app.Forebay(load(path, {}).config)
        listener_config = forebay.config.listeners[0]
        await forebay.listeners[0].start(bind(listener_config.listen))
        bound = forebay.listeners[0].bound
        assert bound is not None
        line = await asyncio.to_thread(Line, f"{bound.host}:{bound.port}")
        await asyncio.to_thread(line.time_calls, request, 20)
        counted = Counted()
        waiting = asyncio.ensure_future(asyncio.to_thread(line.time_calls, request, options.times))
        await asyncio.sleep(0)
        sys.setprofile(counted.note)
        await waiting
        sys.setprofile(None)
        counted.tell(name, options.times)
        if options.profile:
            for code, calls in counted.codes.most_common(60):
                print(
                    f"  {calls / options.times:6.1f} {code.co_filename}:{code.co_firstlineno} {code.co_name}"
                )
        line.close()
        forebay.listeners[0].abort()


def main() -> None:
    """Passing through, and with isolation."""
    parser = argparse.ArgumentParser(prog="python -m bench.micro.relayed")
    parser.add_argument("--times", type=int, default=400, help="Fetches")
    parser.add_argument(
        "--size", type=int, default=RECORDS_BYTES, help="bytes of records in an answer"
    )
    parser.add_argument("--profile", action="store_true", help="which functions")
    options = parser.parse_args()
    for name, settings in (("pass", OFF), ("isolation", ISOLATED)):
        uvloop.run(measure(name, settings, options))


if __name__ == "__main__":
    main()

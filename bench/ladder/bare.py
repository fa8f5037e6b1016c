"""The floors: C programs that hand answers from memory to a socket (bare_send.c), or relay Produces and keep them
(bare_store.c), and nothing else.

Owns the answers that a cache gives to the ring's Fetches, and the programs' processes. Must not know
what is measured. Invariants: `bare_send` needs no broker; each listens a moment after it was started; its memory is of
the kind and the size of the arena beside it, and as much of it is walked through.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from bench.ladder.frames import FETCH_VERSION
from bench.ladder.loads import FETCH_BATCHES, RING_BATCH_BYTES, RING_BATCHES, ring_starts
from blockcache._build import HARDENED, LINKING
from protocol import batch
from protocol.fetch_build import FetchAnswer, build_response
from tests.kit.broker.process import die_with_parent
from tests.kit.frames import build_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SEND, STORE = (Path(__file__).with_name(name) for name in ("bare_send.c", "bare_store.c"))
FLAGS = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", *HARDENED, *LINKING)
TOPIC_ID = bytes(16)


def build_answers() -> Iterator[bytes]:
    """The answer to each Fetch of the ring, in their order: whole frames with whole batches."""
    one = build_batch(RING_BATCH_BYTES)
    step = batch.scan_batches(one, 0, len(one))[0].last_offset + 1
    high_watermark = RING_BATCHES * step
    for start in ring_starts(0):
        records = memoryview(bytearray(one * FETCH_BATCHES))
        for number in range(FETCH_BATCHES):
            batch.stamp_base_offset(records, number * len(one), start + number * step)
        answer = FetchAnswer(
            TOPIC_ID, 0, 0, high_watermark, high_watermark, 0, None, [records], len(records)
        )
        yield b"".join(
            build_response(
                FETCH_VERSION,
                0,
                throttle_time_ms=0,
                error_code=0,
                session_id=0,
                partitions=[answer],
            )
        )


def build_program(directory: Path, source: Path) -> Path:
    """Compile it there. FileNotFoundError where there is no compiler, subprocess.CalledProcessError."""
    program = directory / source.stem
    subprocess.run(["cc", *FLAGS, "-o", str(program), str(source)], check=True)
    return program


def start_bare_send(
    directory: Path, port: int, memory_bytes: int, answers: Iterable[bytes]
) -> subprocess.Popen[bytes]:
    """Its process with `answers`, which listens a moment later. Raises as `build_program` does."""
    program, held = build_program(directory, SEND), directory / "answers"
    with held.open("wb") as file:
        file.writelines(answers)
    words = [str(program), str(port), str(held), str(memory_bytes)]
    return subprocess.Popen(words, preexec_fn=die_with_parent)


def start_bare_store(
    directory: Path, port: int, upstream: str, memory_bytes: int
) -> subprocess.Popen[bytes]:
    """Its process, before `upstream`, "host:port" of a loopback address. Raises as `build_program` does."""
    program = build_program(directory, STORE)
    words = [str(program), str(port), upstream.rpartition(":")[2], str(memory_bytes)]
    return subprocess.Popen(words, preexec_fn=die_with_parent)

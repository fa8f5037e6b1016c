"""A real `forebay serve` with a full pipe as standard error, which nobody reads.

Owns the pipe. Must not know how lines are kept. Needs no broker: clients that send what is no frame are closed
before one is asked.
"""

import contextlib
import os
from collections.abc import Iterator

import pytest

from tests.proxy.forebay_process import PATIENCE_S, Alone

BAD_FRAMES = 1000


def fill(pipe: int) -> None:
    os.set_blocking(pipe, False)
    for piece in (b"x" * 4096, b"x"):
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(pipe, piece)
    os.set_blocking(pipe, True)  # the process shares this end


@pytest.fixture
def full_pipe() -> Iterator[int]:
    reader, writer = os.pipe()
    fill(writer)
    yield writer
    os.close(writer)
    os.close(reader)


def test_a_log_that_nobody_reads_holds_nobody(full_pipe: int) -> None:
    """Its lines are counted, and the end of the process does not wait for it."""
    with Alone(full_pipe) as forebay:
        for _ in range(BAD_FRAMES):
            forebay.send_no_frame()
        assert forebay.is_alive()
        assert forebay.metric("forebay_bad_frames_total") == BAD_FRAMES
        assert forebay.metric("forebay_log_suppressed_lines_total") > 0
        forebay.process.terminate()
        assert forebay.process.wait(PATIENCE_S) == 0, "with the pipe still full"

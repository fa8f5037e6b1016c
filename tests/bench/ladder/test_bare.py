"""The floor's answers are what a cache answers the ring's Fetches with, and the raw client takes them as such."""

import shutil
import time
from contextlib import ExitStack

import pytest

from bench.ladder.bare import build_answers, start_bare_send
from bench.ladder.frames import FETCH_VERSION, build_fetch
from bench.ladder.loads import FETCH_BATCHES, FETCH_BYTES, RING_BATCH_BYTES, ring_starts
from bench.ladder.raw import Line
from protocol import batch, fetch
from tests.kit.broker.ports import lease_port
from tests.kit.raw_fetch import TopicWords

WORDS = TopicWords("ring", bytes(16), {0: 0})


@pytest.fixture(scope="module")
def answers():
    return list(build_answers())


def test_each_fetch_of_the_ring_has_its_answer(answers):
    offsets = []
    for answer in answers:
        said = fetch.scan_response(answer, FETCH_VERSION)
        (one,) = said.partitions
        assert said.error_code == one.error_code == 0
        batches = batch.scan_batches(answer, one.start, one.end)
        assert len(batches) == FETCH_BATCHES
        assert FETCH_BATCHES * RING_BATCH_BYTES < len(answer) < FETCH_BYTES
        offsets.append(batches[0].base_offset)
        assert batches[-1].last_offset + 1 - batches[0].base_offset == ring_starts(0).step

    assert offsets == list(ring_starts(0))


def connect(address):
    deadline = time.monotonic() + 10
    while True:
        try:
            return Line(address)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_the_program_sends_them_in_order_on_each_connection_under_the_requests_number(
    tmp_path, answers
):
    sizes = [len(answer) for answer in answers]
    frames = [build_fetch(WORDS, [start], FETCH_BYTES) for start in ring_starts(0)]
    lease = lease_port()
    with ExitStack() as stack:
        stack.enter_context(lease)
        child = start_bare_send(tmp_path, lease.port, 64 << 20, answers)
        stack.callback(child.wait, 10)
        stack.callback(child.kill)
        sent = (tmp_path / "answers").read_bytes()
        for _ in range(2):
            with connect(f"127.0.0.1:{lease.port}") as line:
                at = 0
                for frame, answer_bytes in zip(
                    [*frames, frames[0]], [*sizes, sizes[0]], strict=True
                ):
                    answer = sent[at : at + answer_bytes]
                    assert line.call(frame) == answer_bytes
                    assert line.buffer[4:8] == frame[8:12]
                    assert line.buffer[8:answer_bytes] == answer[8:]
                    at = (at + answer_bytes) % len(sent)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_answers_that_its_memory_cannot_hold_are_refused(tmp_path, answers):
    child = start_bare_send(tmp_path, 1, 1 << 20, answers)

    assert child.wait(10) == 1

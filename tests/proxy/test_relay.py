"""Opaque requests are passed on unread."""

import pytest

from proxy.relay import pipe
from tests.proxy.net.test_framed_transport import Listening

CHUNKS = [b"one", b"two", b"three"]


@pytest.mark.parametrize("is_full", [False, True])
def test_opaque_relay_holds_one_chunk(is_full):
    """A peer that takes nothing holds up whoever writes to it, and no more than was read at once is kept."""
    source, sink = Listening(), Listening()
    source.framed.go_blind(lambda chunk: pipe(chunk, sink.framed, source.framed))
    sink.transport.full = is_full
    for number, chunk in enumerate(CHUNKS, 1):
        source.receive(chunk)
        assert source.framed.reading_held is is_full
        assert sink.transport.pieces == CHUNKS[:number]
        assert sink.framed.unsent_bytes == (len(chunk) if is_full else 0)
        if is_full:
            sink.transport.drain()
        assert not source.framed.reading_held
    assert source.transport.calls == (
        ["pause", "resume"] * len(CHUNKS) if is_full else source.transport.calls
    )

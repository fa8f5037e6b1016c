"""What waits to be sent on one socket, in pieces.

Owns one reply's or request's unsent buffers. Must not know: the socket, what the bytes are. Invariants: `on_sent` runs
once; a view of foreign memory is held only until its bytes have left or were copied out.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Sendable = bytes | bytearray | memoryview

PIECE_BYTES = (1 << 20) + (1 << 16)
"""The answer to a Fetch of 1 MiB leaves in one piece."""


def cut_buffers(buffers: Sequence[Sendable], sent_bytes: int) -> list[Sendable]:
    """What is left of them once so many bytes have left."""
    left: list[Sendable] = []
    for buffer in buffers:
        size_bytes = len(buffer)
        if sent_bytes < size_bytes:
            left.append(memoryview(buffer)[sent_bytes:] if sent_bytes else buffer)
        sent_bytes = max(0, sent_bytes - size_bytes)
    return left


class SendBuffer:
    """One reply or request on its way out: its unsent buffers, and who wants to know when they have left."""

    __slots__ = ("buffers", "in_transport", "on_sent", "size_bytes")

    def __init__(self, buffers: Sequence[Sendable], on_sent: Callable[[bool], None] | None) -> None:
        self.buffers: deque[Sendable] = deque(buffers)
        self.size_bytes = sum(map(len, buffers))
        self.on_sent = on_sent
        self.in_transport = False

    def end(self, delivered: bool) -> None:
        """It has left, or never will. Whoever waits for that holds this, and is let go of."""
        on_sent, self.on_sent = self.on_sent, None
        self.buffers.clear()
        if on_sent:
            on_sent(delivered)

    def copy_out(self) -> bool:
        """Give up every view of foreign memory: True if nothing of this reply needs it any more."""
        if self.in_transport:
            return False
        self.buffers = deque(bytes(b) for b in self.buffers)
        return True

    def next_piece(self) -> list[Sendable]:
        """Take up to PIECE_BYTES off the front."""
        piece: list[Sendable] = []
        room = PIECE_BYTES
        while self.buffers and room > 0:
            head = self.buffers.popleft()
            if len(head) > room:
                view = memoryview(head)
                self.buffers.appendleft(view[room:])
                head = view[:room]
            piece.append(head)
            room -= len(head)
        return piece

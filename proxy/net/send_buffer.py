"""Send buffer: the unsent bytes of one response or request, cut into pieces.

Owns the unsent buffers and the callback that reports delivery. Must not know the socket, nor what
the bytes are. Invariants: `on_sent` runs once; a view of foreign memory (the arena) is held only
until its bytes have left or were copied out.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Sendable = bytes | bytearray | memoryview

PIECE_BYTES = (1 << 20) + (1 << 16)
"""Largest piece that is handed to the transport at once: the response to a Fetch of 1 MiB fits in
one.
"""


def cut_buffers(buffers: Sequence[Sendable], sent_bytes: int) -> list[Sendable]:
    """The rest of `buffers` after `sent_bytes` of them have left; an empty list if nothing is left.
    Copies nothing.
    """
    left: list[Sendable] = []
    for buffer in buffers:
        size_bytes = len(buffer)
        if sent_bytes < size_bytes:
            left.append(memoryview(buffer)[sent_bytes:] if sent_bytes else buffer)
        sent_bytes = max(0, sent_bytes - size_bytes)
    return left


class SendBuffer:
    """A response or request that waits to be sent. `on_sent(True)` runs once its last byte has left
    this process, `on_sent(False)` if it never will. `in_transport`: the transport holds a piece of
    it.
    """

    __slots__ = ("buffers", "in_transport", "on_sent", "size_bytes")

    def __init__(self, buffers: Sequence[Sendable], on_sent: Callable[[bool], None] | None) -> None:
        self.buffers: deque[Sendable] = deque(buffers)
        self.size_bytes = sum(map(len, buffers))
        self.on_sent = on_sent
        self.in_transport = False

    def end(self, delivered: bool) -> None:
        """Run `on_sent` once (True: delivered). Drops the reference to break the cycle with its
        owner.
        """
        on_sent, self.on_sent = self.on_sent, None
        self.buffers.clear()
        if on_sent:
            on_sent(delivered)

    def copy_out(self) -> bool:
        """Replace views of foreign memory by copies. False, and no copy, while the transport holds
        a piece, whose memory it still reads.
        """
        if self.in_transport:
            return False
        self.buffers = deque(bytes(b) for b in self.buffers)
        return True

    def next_piece(self) -> list[Sendable]:
        """Remove up to PIECE_BYTES from the front and return them; an empty list if nothing is
        left.
        """
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

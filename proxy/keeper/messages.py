"""Messages between the keeper and its workers, over a stream socket.

Owns their kinds, and how they are cut from the stream. Must not know what follows from one. Invariants:
* both ends are processes of one Forebay: what cannot be read ends the connection.
* messages of a turn of the event loop leave together, in order.
* what is unsent is bounded: beyond it `send` refuses, and says so.
"""

from __future__ import annotations

import asyncio
import marshal
from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from collections.abc import Callable

# from a worker
WANT: Final = 1
"""(topic name or id): learn of it, and tell."""
FOLLOW: Final = 2
"""(topic id, index)"""
COVER: Final = 3
"""(slot): Fetches wait on it."""
UNCOVER: Final = 4
"""(slot): none has waited for a while."""
ASK: Final = 5
"""(slot, question of a client as a tuple, or None): have the broker confirm it."""
USED: Final = 6
"""(slots): clients have read or waited on them."""
DOUBT: Final = 7
"""(slot): the broker contradicts what is known of it."""
PRODUCED: Final = 8
"""(slot): records were sent that nobody acknowledges."""
MISMATCH: Final = 9
"""(slots, slot): bytes of the last one are not the broker's."""
SAMPLES: Final = 10
"""(number of the question, what it adds to the path)"""
DELAY: Final = 11
"""(ticket, connection, client id, slot, offset, bytes): a miss of history that may wait for its disk."""
DONE: Final = 12
"""(ticket, bytes): it is answered."""
DROP: Final = 13
"""(ticket): nobody needs it."""
USAGE: Final = 14
"""(of topics, of clients): what was used of the quotas. From the keeper with the worker's number before."""
# from the keeper
TOPIC: Final = 21
"""(name, id, indexes)"""
TOPIC_FORGOTTEN: Final = 22
"""(id)"""
FOLLOWED: Final = 23
"""(topic id, index, slot): slot -1: it is not followed."""
FORGOTTEN: Final = 24
"""(slot)"""
NEWS: Final = 25
"""(slots that have changed)"""
UNCOVERED: Final = 26
"""(slot): nobody can ask about it."""
SCRAPE: Final = 27
"""(number of the question, path of the admin port)"""
GRANTED: Final = 28
"""(ticket, whether it had waited too long)"""
THROTTLED: Final = 29
"""(whether misses may have to wait)"""
WORKER_ENDED: Final = 30
"""(number of another worker)"""

LENGTH = Struct("=I")
LARGEST_BYTES: Final = 256 << 20
UNSENT_BYTES: Final = 64 << 20
"""Bytes that may be unsent."""
HELLO: Final = b"forebay"
"""The keeper's first bytes to a worker, before all messages; its boot id follows."""


class Messages(asyncio.Protocol):
    """One end of a connection. `on_message` gets each message as a tuple of its kind and its fields;
    `on_end` is called once, when the connection is lost or what came cannot be read.
    """

    def __init__(
        self, on_message: Callable[[tuple[Any, ...]], object], on_end: Callable[[], object]
    ) -> None:
        self._on_message, self._on_end = on_message, on_end
        self._transport: asyncio.WriteTransport | None = None
        self._unread = bytearray()
        self._unsent: deque[bytes] = deque()
        self._queued_bytes = 0
        self._is_flushing = False
        self.is_over = False

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the other end has not taken."""
        waiting = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return self._queued_bytes + waiting

    def send(self, *message: Any) -> bool:
        """Send a message: its kind and fields. Return False where it is refused: too much is unsent, or
        the connection is over.
        """
        if self.is_over or self.unsent_bytes > UNSENT_BYTES:
            return False
        packed = marshal.dumps(message)
        self._unsent.append(LENGTH.pack(len(packed)))
        self._unsent.append(packed)
        self._queued_bytes += len(packed) + LENGTH.size
        if not self._is_flushing:
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self.flush)
        return True

    def flush(self) -> None:
        """Give what is queued to the socket."""
        self._is_flushing = False
        if self._transport is not None and self._unsent:
            self._transport.write(b"".join(self._unsent))
            self._unsent.clear()
            self._queued_bytes = 0

    def close(self) -> None:
        """End the connection, without what is unsent."""
        if self._transport is not None:
            self._transport.abort()
        self._finish()

    def _finish(self) -> None:
        if not self.is_over:
            self.is_over = True
            self._unsent.clear()
            self._queued_bytes = 0
            self._on_end()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Of asyncio."""
        self._transport = cast("asyncio.WriteTransport", transport)
        self.flush()

    def data_received(self, data: bytes) -> None:
        """Of asyncio."""
        unread = self._unread
        unread += data
        at = 0
        while len(unread) - at >= LENGTH.size and not self.is_over:
            (size_bytes,) = LENGTH.unpack_from(unread, at)
            if size_bytes > LARGEST_BYTES:
                self.close()
                return
            end = at + LENGTH.size + size_bytes
            if len(unread) < end:
                break
            with memoryview(unread) as view, view[at + LENGTH.size : end] as packed:
                message = marshal.loads(packed)
            at = end
            self._on_message(message)
        if at:
            del unread[:at]

    def connection_lost(self, _error: Exception | None) -> None:
        """Of asyncio."""
        self._finish()

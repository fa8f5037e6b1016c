"""The replies of one connection leave in the order of its requests.

Owns the places reserved for answers. It must not know what an answer means or where it goes: `deliver` sends
it. Invariants: a place is reserved when its request has been peeked; it is completed at most once; a
completed reply leaves when all places before it have. A request that expects no reply (acks=0) reserves no
place. What stands in the line and is no `Reply` is a request itself: its answer leaves when it comes, if it is its
turn, and else a reply stands in for it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from proxy.net.send_buffer import Sendable, SendBuffer

    Sent = Callable[[bool], None]
    Deliver = Callable[[Sequence[Sendable], Sent | None], SendBuffer | None]


class Place(Protocol):
    """What may stand in the line."""

    @property
    def is_control(self) -> bool:
        """Whether it is a control request's."""
        ...


class Reply:
    """One reserved place. `outgoing` is set once its buffers were handed to the wire. `held_bytes` of heap memory
    are charged for it until it has left (`ClientConnection.hold`).
    """

    __slots__ = ("_replies", "buffers", "held_bytes", "is_control", "on_sent", "outgoing")

    def __init__(self, replies: ResponseOrder, is_control: bool) -> None:
        self._replies = replies
        self.is_control = is_control
        self.held_bytes = 0
        self.buffers: Sequence[Sendable] | None = None
        self.on_sent: Sent | None = None
        self.outgoing: SendBuffer | None = None

    def complete(self, buffers: Sequence[Sendable], on_sent: Sent | None = None) -> None:
        """Fill the place with one whole response frame; on_sent(True) once its last byte left, on_sent(False)
        if it never will.
        """
        if self.buffers is not None:
            raise AssertionError("a reply is completed once")
        self.buffers = buffers
        self.on_sent = on_sent
        self._replies.release()

    def hand_over(self) -> tuple[Sequence[Sendable], Sent | None]:
        """What is to be sent, and no more of it here: who made it holds this place, and would be held by it."""
        buffers, on_sent = self.buffers or (), self.on_sent
        self.buffers, self.on_sent = (), None
        return buffers, on_sent

    @property
    def unsent_bytes(self) -> int:
        """What has not been given to the kernel's writer yet."""
        buffers = self.outgoing.buffers if self.outgoing is not None else self.buffers or ()
        return sum(map(len, buffers))

    def copy_out(self) -> bool:
        """Replace views of foreign memory by copies. False if a piece is with the kernel's writer at this
        moment.
        """
        if self.outgoing is not None:
            return self.outgoing.copy_out()
        if self.buffers is not None:
            self.buffers = [bytes(b) for b in self.buffers]
        return True


class ResponseOrder:
    """The line of one connection's replies."""

    __slots__ = ("_deliver", "_on_progress", "control", "line")

    def __init__(self, deliver: Deliver, on_progress: Callable[[], None]) -> None:
        self._deliver = deliver
        self._on_progress = on_progress
        self.line: deque[Place] = deque()
        self.control = 0
        """Places of control requests in the line."""

    def __len__(self) -> int:
        return len(self.line)

    @property
    def oldest(self) -> Place | None:
        """What all others wait for."""
        return self.line[0] if self.line else None

    def reserve(self, is_control: bool = False) -> Reply:
        """A place at the end of the line."""
        reply = Reply(self, is_control)
        self.line.append(reply)
        self.control += is_control
        return reply

    def stand_in(self, place: Place) -> Reply:
        """The reply of a place whose answer cannot leave at once: a new one, where a request stands there itself."""
        if isinstance(place, Reply):
            return place
        reply = Reply(self, False)
        if place in self.line:  # else the connection is gone, and it goes nowhere
            self.line[self.line.index(place)] = reply
        return reply

    def release(self) -> None:
        """Let everything leave that nothing holds back."""
        moved = False
        while self.line:
            reply = self.line[0]
            if not isinstance(reply, Reply) or reply.buffers is None:
                break
            self.line.popleft()
            self.control -= reply.is_control
            buffers, on_sent = reply.hand_over()
            reply.outgoing = self._deliver(buffers, on_sent)
            moved = True
        if moved:
            self._on_progress()

    def abandon(self) -> None:
        """The connection is gone: completed replies learn that they were not sent, later completions go
        nowhere.
        """
        line, self.line = self.line, deque()
        for reply in line:
            if isinstance(reply, Reply) and reply.buffers is not None:
                _, on_sent = reply.hand_over()
                if on_sent:
                    on_sent(False)

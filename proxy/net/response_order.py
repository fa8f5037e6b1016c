"""Response order: the responses of one connection leave in the order of its requests.

Owns the queue of places that are reserved for responses. Must not know what a response means or
where it goes: `deliver` sends it. Invariants:
* a place is reserved when the header of its request has been read, and completed at most once.
* a completed response leaves when all places before it have left.
* a request without a response (acks=0) reserves no place.
* the queue holds `Reply` objects, or requests that act as their own place. Such a request is
  replaced by a `Reply` if its response cannot be sent at once.
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
    """An entry of the queue: a `Reply`, or a request that acts as its own place."""

    @property
    def is_control(self) -> bool:
        """Whether the place belongs to a control request."""
        ...


class Reply:
    """A reserved place. `buffers` is None until the response is complete. `outgoing` is what of
    them waits in the framed transport; None before they were sent, and if all left at once.
    `held_bytes` of heap memory are charged for the response until it has left
    (`ClientConnection.hold`).
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
        """Fill the place with one whole response frame. Runs on_sent(True) once its last byte left,
        on_sent(False) if it never will. AssertionError if the place was completed before.
        """
        if self.buffers is not None:
            raise AssertionError("a reply is completed once")
        self.buffers = buffers
        self.on_sent = on_sent
        self._replies.release()

    def hand_over(self) -> tuple[Sequence[Sendable], Sent | None]:
        """The buffers and their callback, which this place drops: the maker of the response holds
        the place, so that keeping them would make a cycle.
        """
        buffers, on_sent = self.buffers or (), self.on_sent
        self.buffers, self.on_sent = (), None
        return buffers, on_sent

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the transport has not been given yet."""
        buffers = self.outgoing.buffers if self.outgoing is not None else self.buffers or ()
        return sum(map(len, buffers))

    def copy_out(self) -> bool:
        """Replace views of foreign memory by copies. False, and no copy, while the transport holds
        a piece of the response.
        """
        if self.outgoing is not None:
            return self.outgoing.copy_out()
        if self.buffers is not None:
            self.buffers = [bytes(b) for b in self.buffers]
        return True


class ResponseOrder:
    """The queue of one connection's responses. `deliver` sends buffers and returns the rest that
    waits, or None; `on_progress` runs after responses were delivered.
    """

    __slots__ = ("_deliver", "_on_progress", "control", "places")

    def __init__(self, deliver: Deliver, on_progress: Callable[[], None]) -> None:
        self._deliver = deliver
        self._on_progress = on_progress
        self.places: deque[Place] = deque()
        self.control = 0
        """Number of places in the queue that belong to control requests."""

    def __len__(self) -> int:
        return len(self.places)

    @property
    def oldest(self) -> Place | None:
        """The place that all others wait for; None if the queue is empty."""
        return self.places[0] if self.places else None

    def reserve(self, is_control: bool = False) -> Reply:
        """Add a place to the end of the queue. `Reply.complete` fills in its response."""
        reply = Reply(self, is_control)
        self.places.append(reply)
        self.control += is_control
        return reply

    def stand_in(self, place: Place) -> Reply:
        """The `Reply` for a place whose response cannot leave at once. A request that acts as its
        own place is replaced by a new `Reply`.
        """
        if isinstance(place, Reply):
            return place
        reply = Reply(self, False)
        if place in self.places:  # else `abandon` has run, and nothing will be sent
            self.places[self.places.index(place)] = reply
        return reply

    def release(self) -> None:
        """Deliver completed responses from the front of the queue, up to the first place that is
        not complete.
        """
        moved = False
        while self.places:
            reply = self.places[0]
            if not isinstance(reply, Reply) or reply.buffers is None:
                break
            self.places.popleft()
            self.control -= reply.is_control
            buffers, on_sent = reply.hand_over()
            reply.outgoing = self._deliver(buffers, on_sent)
            moved = True
        if moved:
            self._on_progress()

    def abandon(self) -> None:
        """Empty the queue of a connection that is gone. Completed responses get on_sent(False);
        responses that are completed later are never delivered.
        """
        places, self.places = self.places, deque()
        for reply in places:
            if isinstance(reply, Reply) and reply.buffers is not None:
                _, on_sent = reply.hand_over()
                if on_sent:
                    on_sent(False)

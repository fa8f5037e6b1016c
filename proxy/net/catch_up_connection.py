"""A client's second link to the broker, at another of its listeners: for reads that would hold up the first.
[socket]

Owns that link, when there may be one, and the repeating of the client's authentication on it. It must not
know why a request goes this way. Invariants (design, "A connection", "Throttle"):
* only what a client has shown and can be shown again is repeated: nothing, PLAIN, OAUTHBEARER; with SCRAM or
  GSSAPI there is no second link.
* nothing is sent on it before the authentication, and a renewed one is repeated on it before the client hears
  that its own has succeeded.
* losing it harms nobody: what was asked on it is answered None, and asked again on the client's first link;
  for PAUSE_S, twice as long each time that it brought nothing, there is none. One that says nothing for
  SILENCE_S is lost too. One that nothing was asked on (a broker closes idle links) is opened again in
  silence.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from protocol import control
from proxy.net.broker_connection import BrokerConnection

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocol.wire import Frame
    from proxy.net.broker_connection import Answer, Dial
    from proxy.net.framed_transport import FramedTransport
    from proxy.net.services import NetServices

log = logging.getLogger("forebay.lane")

REPEATABLE = frozenset({"PLAIN", "OAUTHBEARER"})
PAUSE_S, LONGEST_PAUSE_S = 5.0, 80.0
SILENCE_S = 15.0
"""Half of what clients give a request (request.timeout.ms)."""


class CatchUpConnection:
    """The second link of one client; opened at the first `send`. `dial` None: there never is one."""

    __slots__ = (
        "_broker",
        "_dial",
        "_handshake",
        "_link",
        "_pause_s",
        "_paused_until",
        "_pending_bytes",
        "_progress_at",
        "_shown",
        "_unanswered",
        "_unrepeatable",
    )

    def __init__(self, broker: NetServices, dial: Dial | None) -> None:
        self._broker = broker
        self._dial = dial
        self._link: BrokerConnection | None = None
        self._handshake: Frame | None = None
        self._shown: tuple[Frame, Frame, int] | None = None
        self._unanswered = 0
        self._unrepeatable = False
        self._pause_s = PAUSE_S
        self._paused_until = float("-inf")
        self._pending_bytes = 0
        self._progress_at = 0.0

    @property
    def usable(self) -> bool:
        """Whether a request may be sent this way now."""
        return self._dial is not None and not self._unrepeatable and self._broker.now() >= self._paused_until

    @property
    def is_connected(self) -> bool:
        """Whether there is a socket."""
        return self._link is not None and self._link.is_connected

    @property
    def unanswered(self) -> int:
        """Requests that the broker has not answered."""
        return 0 if self._link is None else self._link.unanswered

    @property
    def wire(self) -> FramedTransport:
        """The socket that an answer has just come from."""
        assert self._link is not None
        return self._link.wire

    def hold_reading(self, why: object) -> None:
        """Take no answers for now: the client does not drain."""
        if self._link is not None:
            self._link.hold_reading(why)

    def release_reading(self, why: object) -> None:
        """`why` no longer stands against reading."""
        if self._link is not None:
            self._link.release_reading(why)

    def send(self, frame: Frame, correlation_id: int, on_answer: Answer) -> None:
        """Ask; only while `usable`. `on_answer(None)` where the link was lost."""
        if self._link is None:
            self._link = self._open()
        self._broker.counters.lane_requests += 1
        self._unanswered += 1

        def answered(answer: Frame | None) -> None:
            if answer is not None:
                self._unanswered -= 1
                self._pause_s = PAUSE_S
            on_answer(answer)

        self._ask(self._link, frame, correlation_id, answered)

    def _ask(self, link: BrokerConnection, frame: Frame, correlation_id: int, on_answer: Answer) -> None:
        if not link.unanswered:
            self._progress_at = self._broker.now()

        def progressed(answer: Frame | None) -> None:
            self._progress_at = self._broker.now()
            on_answer(answer)

        link.send(frame, correlation_id, progressed)

    def _open(self) -> BrokerConnection:
        assert self._dial is not None
        broker = self._broker
        link = BrokerConnection(self._dial, broker.responses, broker.counters, self._lost, is_clients=True)
        if self._shown is not None:
            self._show(link, lambda: None)
        return link

    # -- the client's authentication -----------------------------------------------------------------------

    def saw_handshake(self, frame: Frame, mechanism: str) -> None:
        """The client has begun to authenticate on its first link."""
        self._handshake = bytes(frame)
        self._unrepeatable = mechanism not in REPEATABLE

    def saw_accepted(self, frame: Frame, version: int, done: Callable[[], None]) -> None:
        """The broker has accepted `frame`, the client's SaslAuthenticate. `done` runs when the lane has shown
        it too, or has none to show it on.
        """
        if self._dial is None or self._unrepeatable or self._handshake is None:
            done()
            return
        self._shown = (self._handshake, bytes(frame), version)
        if self._link is None:
            done()
        else:
            self._show(self._link, done)

    def _show(self, link: BrokerConnection, done: Callable[[], None]) -> None:
        """Repeat what the client has shown; `done` runs whatever comes of it. A refusal ends the lane, and
        nothing else.
        """
        assert self._shown is not None
        handshake, token, version = self._shown
        link.authenticated = True
        self._ask(link, handshake, _correlation_id(handshake), lambda _answer: None)

        def on_answer(answer: Frame | None) -> None:
            accepted = answer is not None and control.is_authenticated(answer, version)
            if answer is not None and not accepted:
                self._end("the broker does not accept on the second listener what it accepted on the first")
            done()

        self._ask(link, token, _correlation_id(token), on_answer)

    # -- the end -------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Timed: a broker that says nothing has lost the lane."""
        link = self._link
        if link is None or not link.unanswered:
            return
        pending_bytes = link.wire.pending_frame_bytes
        if pending_bytes != self._pending_bytes or link.wire.reading_held:
            self._pending_bytes, self._progress_at = pending_bytes, now
        elif now - self._progress_at >= SILENCE_S:
            self._end(f"the broker has not answered on it for {SILENCE_S:g} s")

    def _lost(self, reason: str) -> None:
        if self._unanswered:
            self._end(reason)
        else:
            self._link = None

    def _end(self, reason: str) -> None:
        link, self._link = self._link, None
        if link is None:
            return
        self._unanswered = 0
        self._paused_until = self._broker.now() + self._pause_s
        self._broker.counters.lanes_lost += 1
        log.log(
            logging.WARNING if self._pause_s == PAUSE_S else logging.INFO,
            "a client's second link is gone, its first one carries on, and this one again after a pause",
            extra={"pauseS": self._pause_s, "reason": reason},
        )  # a warning once: what is refused may be refused until the client shows something else
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        link.close()

    def close(self) -> None:
        """The client is gone."""
        link, self._link = self._link, None
        self._dial = None
        self._shown = self._handshake = None
        if link is not None:
            link.close()


def _correlation_id(frame: Frame) -> int:
    return int.from_bytes(frame[8:12], "big", signed=True)

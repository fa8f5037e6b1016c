"""Catch-up connection: a client's second connection, to another listener of the broker, for reads
of history. [socket]

Owns that connection, the times when it may exist, and the repeated authentication of the client.
Must not know why a request goes this way. Invariants (design, "A connection", "Throttle"):
* only repeatable authentication is repeated: none, PLAIN, OAUTHBEARER. A client with SCRAM, whom the
  broker has accepted, is signed in by a delegation token where the listener uses them; with GSSAPI,
  or a token of the client's own, there is no second connection.
* nothing is sent before the authentication. A renewed authentication is repeated here before the
  client sees that its own has succeeded.
* a loss harms nobody: unanswered requests are answered None, and sent again on the client's first
  connection. No catch-up connection exists for PAUSE_S then, twice as long after each loss without
  a response between. Silence for SILENCE_S is a loss, too.
* a connection without unanswered requests that the broker closes (as idle) is opened again
  silently.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from protocol import control, header
from proxy.net.broker_connection import BrokerConnection
from proxy.net.delegation_token import HASHES
from proxy.net.sasl_client import find_scram_user

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocol.primitives import Frame
    from proxy.net.broker_connection import Answer, Dial
    from proxy.net.framed_transport import FramedTransport
    from proxy.net.services import ConnectionServices

log = logging.getLogger("forebay.catch_up")

REPEATABLE = frozenset({"PLAIN", "OAUTHBEARER"})
PAUSE_S, LONGEST_PAUSE_S = 5.0, 80.0
SILENCE_S = 15.0
"""Half of the time that clients give a request (request.timeout.ms: 30 s)."""


class _Authentication:
    """What a client has sent to authenticate, to be repeated on its catch-up connection.

    `frames`: SaslHandshake, SaslAuthenticate and the latter's version; None before the broker has
    accepted them. `is_repeatable`: False after a mechanism whose exchange is of one connection.
    `user`: whom the broker has accepted by SCRAM; None: nobody, or a token's owner.
    """

    __slots__ = ("_first", "_handshake", "_is_scram", "frames", "is_repeatable", "user")

    def __init__(self) -> None:
        self._is_scram = False
        self._first: Frame | None = None
        self.user: str | None = None
        self._handshake: Frame | None = None
        self.frames: tuple[Frame, Frame, int] | None = None
        self.is_repeatable = True

    def begin(self, frame: Frame, mechanism: str) -> None:
        """Note the client's SaslHandshake `frame`."""
        self._handshake = bytes(frame)
        self.is_repeatable = mechanism in REPEATABLE
        self._is_scram, self._first = mechanism in HASHES, None

    def accept(self, frame: Frame, version: int) -> bool:
        """Note a SaslAuthenticate of `version` that the broker has accepted. Return False if it
        cannot be repeated.
        """
        if self._is_scram:
            self._accept_scram(bytes(frame))
        if not self.is_repeatable or self._handshake is None:
            return False
        self.frames = (self._handshake, bytes(frame), version)
        return True

    def _accept_scram(self, frame: Frame) -> None:
        """The broker accepts the first message of an exchange, which names the user, then the second,
        which proves the password (RFC 5802).
        """
        if self._first is None:
            self._first = frame
            return
        first, self._is_scram = self._first, False
        head = header.peek_request(first)
        said = control.scan_sasl_token(first, head.body_start, head.api_version)
        self.user = find_scram_user(said)

    def forget(self) -> None:
        """Drop the frames: the client is gone."""
        self._handshake = self._first = self.frames = None


class CatchUpConnection:
    """The second connection of a client, opened at the first `send`. `dial` None: there never is
    one.
    """

    __slots__ = (
        "_authentication",
        "_broker",
        "_dial",
        "_link",
        "_pause_s",
        "_paused_until",
        "_pending_bytes",
        "_principal",
        "_progress_at",
        "_unanswered",
        "_uses_tokens",
    )

    def __init__(
        self, broker: ConnectionServices, dial: Dial | None, uses_tokens: bool = False
    ) -> None:
        """`uses_tokens`: a client that the broker has accepted by SCRAM is signed in by a token."""
        self._broker = broker
        self._dial = dial
        self._uses_tokens = uses_tokens
        self._principal: str | None = None
        self._link: BrokerConnection | None = None
        self._authentication = _Authentication()
        self._unanswered = 0
        self._pause_s = PAUSE_S
        self._paused_until = float("-inf")
        self._pending_bytes = 0
        self._progress_at = 0.0

    @property
    def usable(self) -> bool:
        """Whether a request may be sent here now: configured, authentication repeatable, not in a
        pause.
        """
        return (
            self._dial is not None
            and (self._authentication.is_repeatable or self._principal is not None)
            and self._broker.now() >= self._paused_until
        )

    @property
    def is_connected(self) -> bool:
        """Whether there is a socket, or it is being opened."""
        return self._link is not None and self._link.is_connected

    @property
    def unanswered(self) -> int:
        """Number of requests that the broker has not answered, repeated authentication included."""
        return 0 if self._link is None else self._link.unanswered

    @property
    def reading_held(self) -> bool:
        """Whether responses are not read now: the client does not take its own, or memory has no room."""
        return self._link is not None and self._link.reading_held

    @property
    def framed(self) -> FramedTransport:
        """The framed transport that a response has just come from. There must be a connection:
        AssertionError.
        """
        assert self._link is not None
        return self._link.framed

    def hold_reading(self, why: object) -> None:
        """Read no more responses until `why` is released, since the client does not read its own.
        No effect without a connection.
        """
        if self._link is not None:
            self._link.hold_reading(why)

    def release_reading(self, why: object) -> None:
        """Withdraw `why` as a reason not to read."""
        if self._link is not None:
            self._link.release_reading(why)

    def send(self, frame: Frame, correlation_id: int, on_answer: Answer) -> None:
        """Send a request; only while `usable`. `on_answer` gets the response frame, or None if the
        connection is lost.
        """
        if self._link is None:
            self._link = self._open()
        self._broker.counters.upstream.catch_up()
        self._unanswered += 1

        def answered(answer: Frame | None) -> None:
            if answer is not None:
                self._unanswered -= 1
                self._pause_s = PAUSE_S
            on_answer(answer)

        self._send_timed(self._link, frame, correlation_id, answered)

    def _send_timed(
        self, link: BrokerConnection, frame: Frame, correlation_id: int, on_answer: Answer
    ) -> None:
        if not link.unanswered:
            self._progress_at = self._broker.now()

        def progressed(answer: Frame | None) -> None:
            self._progress_at = self._broker.now()
            on_answer(answer)

        link.send(frame, correlation_id, progressed)

    def _open(self) -> BrokerConnection:
        assert self._dial is not None
        broker = self._broker
        principal = self._principal
        link = BrokerConnection(
            self._dial,
            broker.responses,
            broker.counters,
            self._lost,
            is_clients=True,
            signer=broker.sign_ins.open(principal) if principal is not None else None,
        )
        if principal is None and self._authentication.frames is not None:
            self._repeat_authentication(link, lambda: None)
        return link

    # -- the client's authentication -----------------------------------------------------------------------

    def sign_in_as(self, principal: str) -> None:
        """Use a delegation token of this user on the connections that are opened from now on."""
        self._principal = principal

    def saw_handshake(self, frame: Frame, mechanism: str) -> None:
        """Note the SaslHandshake `frame` that the client has sent on its first connection."""
        self._authentication.begin(frame, mechanism)

    def saw_accepted(self, frame: Frame, version: int, done: Callable[[], None]) -> None:
        """Note `frame`, a SaslAuthenticate of `version` that the broker has accepted. `done` runs
        once the broker has answered the repetition here, or at once if nothing is to be repeated.
        """
        can_repeat = self._dial is not None and self._authentication.accept(frame, version)
        if self._uses_tokens and self._authentication.user is not None:
            self.sign_in_as(self._authentication.user)
        if can_repeat and self._link is not None:
            self._repeat_authentication(self._link, done)
        else:
            done()

    def _repeat_authentication(self, link: BrokerConnection, done: Callable[[], None]) -> None:
        """Repeat the client's authentication on `link`. `done` runs in any case. A refusal ends the
        catch-up connection and nothing else.
        """
        assert self._authentication.frames is not None
        handshake, token, version = self._authentication.frames
        link.authenticate()
        self._send_timed(link, handshake, _correlation_id(handshake), lambda _answer: None)

        def on_answer(answer: Frame | None) -> None:
            accepted = answer is not None and control.is_authenticated(answer, version)
            if answer is not None and not accepted:
                self._end(
                    "the broker does not accept on the second listener what it accepted on the first"
                )
            done()

        self._send_timed(link, token, _correlation_id(token), on_answer)

    # -- the end -------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Timed: end the connection if the broker owes a response and has made no progress for
        SILENCE_S. Time in which responses are not read does not count.
        """
        link = self._link
        if link is None or not link.unanswered:
            return
        pending_bytes = link.framed.pending_frame_bytes
        if pending_bytes != self._pending_bytes or link.reading_held:
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
        self._broker.counters.upstream.lose_catch_up()
        log.log(
            logging.WARNING if self._pause_s == PAUSE_S else logging.INFO,
            "a client's second link is gone, its first one carries on, and this one again after a pause",
            extra={"pauseS": self._pause_s, "reason": reason},
        )  # warn once: a refusal may last until the client authenticates anew
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        link.close()

    def close(self) -> None:
        """End the connection for good; its client is gone."""
        link, self._link = self._link, None
        self._dial = None
        self._authentication.forget()
        if link is not None:
            link.close()


def _correlation_id(frame: Frame) -> int:
    # after the length (4 bytes), the API key (2) and the API version (2)
    return int.from_bytes(frame[8:12], "big", signed=True)

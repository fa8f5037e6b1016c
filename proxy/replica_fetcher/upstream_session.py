"""Fetch session of one of Forebay's polls at the broker (KIP-227): its id and epoch.

Owns what `FetchSessionHandler` keeps of a session as a whole. Must not know partitions, connections
or when a request is sent. Invariants:
* a request with epoch 0 is full: it names every partition, ends the session of its id if there is
  one, and asks for a new one (FetchManager.newContext). Any other is incremental.
* the epoch grows by one for each request that the broker took, throttled ones included, and wraps
  to 1 (FetchMetadata.nextEpoch).
* a session does not depend on its connection: after a loss the next request ends it by its id.
"""

from __future__ import annotations

from protocol.errors import ErrorCode

NO_SESSION = (0, -1)
"""Id and epoch of a request that wants no session (FetchMetadata.LEGACY)."""
LAST_EPOCH = (1 << 31) - 1
SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)


class UpstreamSession:
    """Id and epoch of the next request. Id 0: the broker has granted no session, or has lost it.
    `is_open`: the next request is incremental.
    """

    __slots__ = ("epoch", "id", "is_open")

    def __init__(self) -> None:
        self.id = 0
        self.epoch = 0
        self.is_open = False

    def accepts(self, session_id: int) -> bool:
        """True if a response with this session id answers the request: an incremental response has
        the session's own (FetchSessionHandler.handleResponse).
        """
        return not self.is_open or session_id == self.id

    def advance(self, session_id: int) -> None:
        """Note a response without a top-level error. Id 0: the broker grants no session."""
        if self.is_open:
            self.epoch = 1 if self.epoch == LAST_EPOCH else self.epoch + 1
        else:
            self.id = session_id
            self.epoch = 1 if session_id else 0
            self.is_open = self.epoch > 0

    def end(self, error_code: int = ErrorCode.NONE) -> None:
        """Make the next request full: the session was refused with `error_code`, or a response to
        it is lost. The broker is told to end it, except where it does not know it.
        """
        self.epoch = 0
        self.is_open = False
        if error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self.id = 0

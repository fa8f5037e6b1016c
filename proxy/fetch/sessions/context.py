"""Fetch sessions toward clients: partitions that a Fetch asks for, and those its response names
(KIP-227). Pure.

Owns the rules of FetchManager.newContext and of its contexts. Must not know sockets, clocks, or how
partitions are read. Invariants:
* Epochs 0 and -1 are full requests, and close the session that they name; 0 asks for a new session.
* An incremental response omits a partition without records, error, preferred replica or diverging
  epoch whose HW and log start are those last shown. The LSO does not count
  (CachedPartition.maybeUpdateResponseData).
* An error clears the remembered HW, so that the partition is named again once the error is gone.
* A partition that gave records goes to the end of the session's order.
* The epoch is checked again when the response is planned: a duplicate of the request may have come
  between.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from protocol.errors import ErrorCode
from protocol.fetch import TOPIC_IDS_FROM, FetchPartition
from proxy.fetch.sessions.cache import Kept, next_epoch

if TYPE_CHECKING:
    from collections.abc import Container, Hashable, Iterable, Sequence

    from protocol.fetch import FetchRequest
    from protocol.wire import Topic
    from proxy.fetch.sessions.cache import PartitionKey, Session, SessionCache

NO_SESSION = 0
"""Session id of a response without a session."""
INITIAL_EPOCH = 0
"""Epoch of a full request that asks for a new session."""
FINAL_EPOCH = -1
"""Epoch of a full request without a session."""


class Kind(Enum):
    """Kind of a Fetch with respect to its session; each is one of Kafka's contexts."""

    SESSIONLESS = "sessionless"
    """SessionlessFetchContext: request and response name all partitions."""
    FULL = "full"
    """FullFetchContext: request and response name all partitions; a session is granted if there is
    room.
    """
    INCREMENTAL = "incremental"
    """IncrementalFetchContext: request and response name changed partitions."""
    ERROR = "error"
    """SessionErrorContext: nothing is read, the response is the error."""


class Answer(Protocol):
    """Fields of a partition's answer that a session compares; `FetchAnswer` has them."""

    @property
    def topic(self) -> Topic: ...
    @property
    def partition(self) -> int: ...
    @property
    def error_code(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def records_bytes(self) -> int: ...


A = TypeVar("A", bound=Answer)


class PlannedResponse(NamedTuple, Generic[A]):
    """Fields of a Fetch response outside its partitions, and the partitions that it names."""

    error_code: int
    session_id: int
    answers: list[A]


class FetchContext:
    """A Fetch as its session completes it.

    `changed` are the partitions that the request itself names. `session` is None for SESSIONLESS
    and ERROR, and for FULL until a session is granted with the response.
    """

    __slots__ = (
        "_epoch_after",
        "_owner",
        "_table",
        "_uses_topic_ids",
        "changed",
        "error_code",
        "kind",
        "session",
    )

    def __init__(
        self,
        kind: Kind,
        table: SessionCache,
        owner: Hashable,
        uses_topic_ids: bool,
        changed: list[FetchPartition],
        error_code: int = ErrorCode.NONE,
        session: Session | None = None,
    ) -> None:
        self.kind = kind
        self.error_code = error_code
        self.changed = changed
        self.session = session
        self._epoch_after = INITIAL_EPOCH if session is None else session.epoch
        self._table = table
        self._owner = owner
        self._uses_topic_ids = uses_topic_ids

    @property
    def partitions(self) -> list[FetchPartition]:
        """All partitions that the Fetch asks for, in order. Callers must not change the list.

        For INCREMENTAL the list is the same object as for the last Fetch if nothing has changed.
        Only this property walks over the session.
        """
        if self.kind is Kind.INCREMENTAL and self.session is not None:
            return self.session.in_order()
        return self.changed

    @property
    def topics(self) -> Iterable[Topic]:
        """All topics that the Fetch asks for, each once; without a walk over an INCREMENTAL
        session's partitions.
        """
        if self.kind is Kind.INCREMENTAL and self.session is not None:
            return self.session.topics
        return dict.fromkeys(one.topic for one in self.changed)

    def plan_response(
        self, answers: Sequence[A], now_s: float, must_name: Container[PartitionKey] = ()
    ) -> PlannedResponse[A]:
        """Return the response to send. Call once per context.

        `answers` are complete answers, in the order of the response. FULL and SESSIONLESS need all
        partitions. INCREMENTAL needs at least those with records, an error, or another HW or log
        start than before. Partitions in `must_name` have a preferred replica or a diverging epoch;
        INCREMENTAL needs and names them, too.
        """
        if self.kind is Kind.ERROR:
            return PlannedResponse(self.error_code, NO_SESSION, [])
        if self.kind is Kind.INCREMENTAL:
            return self._plan_incremental(answers, must_name)
        assert len(answers) == len(self.changed), "a full answer names every partition"
        if self.kind is Kind.FULL:
            self._grant(answers, now_s)
        session_id = NO_SESSION if self.session is None else self.session.id
        return PlannedResponse(ErrorCode.NONE, session_id, list(answers))

    def plan_throttled(self) -> PlannedResponse[Any]:
        """Return a response without partitions, for a client that must pause
        (FetchContext.getThrottledResponse).

        This grants no session and changes none.
        """
        if self.kind is not Kind.INCREMENTAL:
            return PlannedResponse(ErrorCode.NONE, NO_SESSION, [])
        assert self.session is not None
        error = ErrorCode.NONE if self._is_current() else ErrorCode.INVALID_FETCH_SESSION_EPOCH
        return PlannedResponse(error, self.session.id, [])

    def _is_current(self) -> bool:
        return self.session is not None and self.session.epoch == self._epoch_after

    def _grant(self, answers: Sequence[A], now_s: float) -> None:
        """Create a session with the requested partitions, in the order of the answers
        (FullFetchContext).
        """
        asked = {(one.topic, one.partition): one for one in self.partitions}
        kept = {}
        for answer in answers:
            key = answer.topic, answer.partition
            high_watermark = -1 if answer.error_code else answer.high_watermark
            kept[key] = Kept(asked[key], high_watermark, answer.log_start_offset)
        self.session = self._table.create(self._owner, self._uses_topic_ids, kept, now_s)

    def _plan_incremental(
        self, answers: Sequence[A], must_name: Container[PartitionKey]
    ) -> PlannedResponse[A]:
        session = self.session
        assert session is not None
        if not self._is_current():
            return PlannedResponse(ErrorCode.INVALID_FETCH_SESSION_EPOCH, session.id, [])
        named = []
        for answer in answers:
            key = answer.topic, answer.partition
            if _update(session.partitions[key], answer) or key in must_name:
                named.append(answer)
                if answer.records_bytes > 0:
                    session.move_to_end(key)
        return PlannedResponse(ErrorCode.NONE, session.id, named)


def _update(kept: Kept, answer: Answer) -> bool:
    """Remember what is shown; return True if the response must name it
    (CachedPartition.maybeUpdateResponseData).
    """
    must = (
        answer.records_bytes > 0
        or answer.error_code != ErrorCode.NONE
        or kept.high_watermark != answer.high_watermark
        or kept.log_start_offset != answer.log_start_offset
    )
    kept.high_watermark = -1 if answer.error_code else answer.high_watermark
    kept.log_start_offset = answer.log_start_offset
    return must


def open_fetch(
    table: SessionCache, request: FetchRequest, version: int, owner: Hashable, now_s: float
) -> FetchContext:
    """Return the context of a consumer's Fetch (FetchManager.newContext), and update its session.

    `owner` says which sessions the client may use (`SessionCache`). `now_s` is in seconds.
    """
    session = table.find(request.session_id, owner)
    if request.session_epoch not in (INITIAL_EPOCH, FINAL_EPOCH):
        return _open_incremental(table, session, request, version, owner, now_s)
    if session is not None:
        table.remove(session)
    kind = Kind.FULL if request.session_epoch == INITIAL_EPOCH else Kind.SESSIONLESS
    return _open_whole(kind, table, request, version, owner)


def find_single(
    table: SessionCache,
    session_id: int,
    session_epoch: int,
    owner: Hashable,
    asked: FetchPartition,
    version: int,
) -> Session | None:
    """Return the session that an incremental Fetch continues, if `asked` is its only partition;
    None otherwise.

    Nothing changes.
    """
    session = table.find(session_id, owner)
    if session is None or session.epoch != session_epoch:
        return None
    is_single = len(session.partitions) == session.counted == 1
    is_it = is_single and (asked.topic, asked.partition) in session.partitions
    return session if is_it and session.uses_topic_ids is (version >= TOPIC_IDS_FROM) else None


def note_records(
    table: SessionCache,
    session: Session,
    asked: FetchPartition,
    high_watermark: int,
    log_start_offset: int,
    now_s: float,
) -> None:
    """Update a session that `find_single` returned, whose partition is answered with records.

    The result equals that of `open_fetch` and `plan_response`. The order does not change, since
    there is one partition.
    """
    session.put(asked)
    table.touch(session, now_s)
    session.epoch = next_epoch(session.epoch)
    kept = session.partitions[asked.topic, asked.partition]
    kept.high_watermark = high_watermark
    kept.log_start_offset = log_start_offset


def _open_whole(
    kind: Kind, table: SessionCache, request: FetchRequest, version: int, owner: Hashable
) -> FetchContext:
    """Return a context of the partitions that the request names.

    Of a partition named twice, the last counts, in the place of the first, as in
    FetchRequest.fetchData.
    """
    partitions = request.partitions
    if len(partitions) > 1:
        asked = {(one.topic, one.partition): one for one in partitions}
        partitions = partitions if len(asked) == len(partitions) else list(asked.values())
    return FetchContext(kind, table, owner, version >= TOPIC_IDS_FROM, partitions)


def _open_incremental(
    table: SessionCache,
    session: Session | None,
    request: FetchRequest,
    version: int,
    owner: Hashable,
    now_s: float,
) -> FetchContext:
    uses_topic_ids = version >= TOPIC_IDS_FROM
    error = _session_error(session, request, uses_topic_ids)
    if session is None or error:
        return FetchContext(Kind.ERROR, table, owner, uses_topic_ids, [], error)
    for asked in request.partitions:
        session.put(asked)
    for key in request.forgotten:
        session.forget(key)
    if not session.partitions:
        table.remove(session)
        return _open_whole(Kind.SESSIONLESS, table, request, version, owner)
    if not table.touch(session, now_s):
        error = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        return FetchContext(Kind.ERROR, table, owner, uses_topic_ids, [], error)
    session.epoch = next_epoch(session.epoch)
    changed = [
        one for one in request.partitions if (one.topic, one.partition) in session.partitions
    ]
    return FetchContext(Kind.INCREMENTAL, table, owner, uses_topic_ids, changed, session=session)


def _session_error(
    session: Session | None, request: FetchRequest, uses_topic_ids: bool
) -> ErrorCode:
    """Return the error of an incremental request, in the order of FetchManager.newContext; NONE if
    it is valid.
    """
    if session is None:
        return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    if session.epoch != request.session_epoch:
        return ErrorCode.INVALID_FETCH_SESSION_EPOCH
    if session.uses_topic_ids != uses_topic_ids:
        return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    return ErrorCode.NONE

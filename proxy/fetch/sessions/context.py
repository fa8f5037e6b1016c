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

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from protocol.errors import ErrorCode
from protocol.fetch import TOPIC_IDS_FROM, FetchPartition
from protocol.fetch_build import KEY
from proxy.fetch.sessions.cache import CachedPartition

if TYPE_CHECKING:
    from collections.abc import Container, Hashable, Iterable, Sequence

    from protocol.fetch import FetchRequest
    from protocol.primitives import TopicNameOrId
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
    def topic(self) -> TopicNameOrId: ...
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


@dataclass(slots=True, eq=False)
class FetchContext:
    """A Fetch as its session completes it.

    `changed` are the partitions that the request itself names. `session` is None for SESSIONLESS
    and ERROR, and for FULL until a session is granted with the response; `epoch_after` is the epoch
    that the request has given it.
    """

    kind: Kind
    table: SessionCache
    owner: Hashable
    uses_topic_ids: bool
    changed: list[FetchPartition]
    error_code: int = ErrorCode.NONE
    session: Session | None = None
    epoch_after: int = INITIAL_EPOCH

    @property
    def partitions(self) -> list[FetchPartition]:
        """All partitions that the Fetch asks for, in order. Callers must not change the list.

        For INCREMENTAL the list is the same object as for the last Fetch if nothing has changed.
        Only this property walks over the session.
        """
        if self.kind is Kind.INCREMENTAL and self.session is not None:
            return self.session.partitions.in_order()
        return self.changed

    @property
    def topics(self) -> Iterable[TopicNameOrId]:
        """All topics that the Fetch asks for, each once; without a walk over an INCREMENTAL
        session's partitions.
        """
        if self.kind is Kind.INCREMENTAL and self.session is not None:
            return self.session.partitions.topics
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
        if self.kind is not Kind.INCREMENTAL:
            return self._plan_whole(answers, now_s)
        session = self.session
        assert session is not None
        if session.epoch != self.epoch_after:
            return PlannedResponse(ErrorCode.INVALID_FETCH_SESSION_EPOCH, session.id, [])
        named, moved, by_key = [], [], session.partitions.by_key
        for answer in answers:
            key = answer.topic, answer.partition
            kept, error_code = by_key[key], answer.error_code
            high_watermark, log_start_offset = answer.high_watermark, answer.log_start_offset
            has_records = answer.records_bytes > 0
            if (  # CachedPartition.maybeUpdateResponseData
                has_records
                or error_code != ErrorCode.NONE
                or kept.high_watermark != high_watermark
                or kept.log_start_offset != log_start_offset
                or key in must_name
            ):
                named.append(answer)
                if has_records:
                    moved.append(key)
            kept.high_watermark = -1 if error_code else high_watermark
            kept.log_start_offset = log_start_offset
        if len(by_key) > 1:
            session.partitions.move_to_end(moved)
        return PlannedResponse(ErrorCode.NONE, session.id, named)

    def _plan_whole(self, answers: Sequence[A], now_s: float) -> PlannedResponse[A]:
        if self.kind is Kind.ERROR:
            return PlannedResponse(self.error_code, NO_SESSION, [])
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
        return self.session is not None and self.session.epoch == self.epoch_after

    def _grant(self, answers: Sequence[A], now_s: float) -> None:
        """Create a session with the requested partitions, in the order of the answers
        (FullFetchContext).
        """
        asked = {(one.topic, one.partition): one for one in self.partitions}
        kept = {}
        for answer in answers:
            key = answer.topic, answer.partition
            high_watermark = -1 if answer.error_code else answer.high_watermark
            kept[key] = CachedPartition(asked[key], high_watermark, answer.log_start_offset)
        self.session = self.table.create(self.owner, self.uses_topic_ids, kept, now_s)


def open_fetch(
    table: SessionCache, request: FetchRequest, version: int, owner: Hashable, now_s: float
) -> FetchContext:
    """Return the context of a consumer's Fetch (FetchManager.newContext), and update its session.

    `owner` says which sessions the client may use (`SessionCache`). `now_s` is in seconds.
    """
    session = table.find(request.session_id, owner)
    if request.session_epoch > INITIAL_EPOCH or request.session_epoch < FINAL_EPOCH:
        return _open_incremental(table, session, request, version, owner, now_s)
    if session is not None:
        table.remove(session)
    kind = Kind.FULL if request.session_epoch == INITIAL_EPOCH else Kind.SESSIONLESS
    return _open_whole(kind, table, request, version, owner)


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
    if (
        session is None
        or session.epoch != request.session_epoch
        or session.uses_topic_ids != uses_topic_ids
    ):
        error = _explain_error(session, request)
        return FetchContext(Kind.ERROR, table, owner, uses_topic_ids, [], error)
    partitions = session.partitions
    partitions.put(request.partitions)
    for key in request.forgotten:
        partitions.forget(key)
    if not partitions.by_key:
        table.remove(session)
        return _open_whole(Kind.SESSIONLESS, table, request, version, owner)
    if not table.touch(session, now_s):
        error = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        return FetchContext(Kind.ERROR, table, owner, uses_topic_ids, [], error)
    session.advance()
    changed = request.partitions
    if request.forgotten:
        changed = [one for one in changed if KEY(one) in partitions.by_key]
    epoch, code = session.epoch, ErrorCode.NONE
    return FetchContext(
        Kind.INCREMENTAL, table, owner, uses_topic_ids, changed, code, session, epoch
    )


def _explain_error(session: Session | None, request: FetchRequest) -> ErrorCode:
    """Return the error of an incremental request that is not valid, in the order of
    FetchManager.newContext.
    """
    if session is None:
        return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    if session.epoch != request.session_epoch:
        return ErrorCode.INVALID_FETCH_SESSION_EPOCH
    return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR

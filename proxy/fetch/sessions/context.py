"""Fetch sessions toward clients: which partitions a Fetch asks for, and which its answer names (KIP-227).
Pure.

Owns the rules of FetchManager.newContext and of the contexts it makes. Must not know how partitions are read,
sockets, clocks. Invariants:
* epochs 0 and -1 are full requests and close the session that they name; 0 asks for a new one.
* an incremental answer leaves out what has neither records, an error, a preferred replica nor a diverging
  epoch, and the HW and log start last shown; not the LSO (CachedPartition.maybeUpdateResponseData). An error
  forgets the HW, so that the partition is named again when it has gone.
* a partition that gave records goes to the end of the session's order.
* the epoch is looked at again when the answer is planned: a duplicate of the request may have come between.
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
INITIAL_EPOCH = 0
FINAL_EPOCH = -1


class Kind(Enum):
    """What a Fetch is to its session; each is one of Kafka's contexts."""

    SESSIONLESS = "sessionless"
    """SessionlessFetchContext: names all, gets all."""
    FULL = "full"
    """FullFetchContext: names all, gets all, and a session if there is room."""
    INCREMENTAL = "incremental"
    """IncrementalFetchContext: names what changed, gets what changed."""
    ERROR = "error"
    """SessionErrorContext: nothing is read, the answer is the error."""


class Answer(Protocol):
    """What is looked at of one partition's answer; `FetchAnswer` has it."""

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
    """What a Fetch response says outside its partitions, and the partitions it names."""

    error_code: int
    session_id: int
    answers: list[A]


class FetchContext:
    """One Fetch as its session makes it. `changed` are those partitions that the request itself named and
    that it asks for. `session` is None for SESSIONLESS and ERROR, and for FULL until one was granted with the
    answer.
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
        """All that it asks for, in order, not to be changed; for an INCREMENTAL one the same list as last
        time where nothing has changed. Walks the session only when asked.
        """
        if self.kind is Kind.INCREMENTAL and self.session is not None:
            return self.session.in_order()
        return self.changed

    @property
    def topics(self) -> Iterable[Topic]:
        """All that it asks for, each once; of an INCREMENTAL one without a walk over its partitions."""
        if self.kind is Kind.INCREMENTAL and self.session is not None:
            return self.session.topics
        return dict.fromkeys(one.topic for one in self.changed)

    def plan_response(
        self, answers: Sequence[A], now_s: float, must_name: Container[PartitionKey] = ()
    ) -> PlannedResponse[A]:
        """What to answer, once per context. `answers` are whole answers, in the order in which they shall
        stand: for FULL and SESSIONLESS of all partitions; for INCREMENTAL at least of those that have
        records, an error, or another HW or log start than before, and those in `must_name`, which name a
        preferred replica or a diverging epoch.
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
        """What to answer, with a throttle time and no partitions, to a client that shall wait
        (FetchContext.getThrottledResponse): it grants no session and teaches none.
        """
        if self.kind is not Kind.INCREMENTAL:
            return PlannedResponse(ErrorCode.NONE, NO_SESSION, [])
        assert self.session is not None
        error = ErrorCode.NONE if self._is_current() else ErrorCode.INVALID_FETCH_SESSION_EPOCH
        return PlannedResponse(error, self.session.id, [])

    def _is_current(self) -> bool:
        return self.session is not None and self.session.epoch == self._epoch_after

    def _grant(self, answers: Sequence[A], now_s: float) -> None:
        """A session of what was asked, in the order of the answers (FullFetchContext)."""
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
    """Remember what is shown; whether it must be (CachedPartition.maybeUpdateResponseData)."""
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
    """The context of a consumer's Fetch of that version (FetchManager.newContext), its session updated.
    `owner` says whose sessions it may use: `SessionCache`.
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
    """The session that an incremental Fetch which names `asked` goes on with, where that is all there is of it; else
    None. Nothing changes.
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
    """A session as `find_single` finds it goes on, and its partition is answered with records: what `open_fetch` and
    `plan_response` do. Its turn is its own.
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
    """All that the request names; of a partition named twice the last, in the place of the first, as in
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
    changed = [one for one in request.partitions if (one.topic, one.partition) in session.partitions]
    return FetchContext(Kind.INCREMENTAL, table, owner, uses_topic_ids, changed, session=session)


def _session_error(session: Session | None, request: FetchRequest, uses_topic_ids: bool) -> ErrorCode:
    """What an incremental request is refused with, in the order of FetchManager.newContext."""
    if session is None:
        return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    if session.epoch != request.session_epoch:
        return ErrorCode.INVALID_FETCH_SESSION_EPOCH
    if session.uses_topic_ids != uses_topic_ids:
        return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    return ErrorCode.NONE

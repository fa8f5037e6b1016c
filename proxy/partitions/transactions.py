"""Transactions of one partition, from its batches: last stable offset (LSO), aborted lists. Pure.

Owns the knowledge of UnifiedLog, ProducerStateManager and TransactionIndex, over one contiguous run
of offsets. Must not know the cache, connections or clocks. Invariants:
* the run begins where the broker showed its LSO: no transaction is open below. Older ones that
  ended between that LSO and the HW are in the broker's lists; ours begin behind the last such
  abort.
* LSO = min(HW, first open transaction, first one whose marker is not below the HW), at least the
  log start and the LSO shown; beyond the run only that (ProducerStateManager.firstUnstableOffset).
* producers match by id alone: markers of KIP-890, and of fencing coordinators, carry a later epoch.
* an aborted list is exact or unknown, never too long: consumers drop committed data of a producer
  whose abort marker lies before the read range (CompletedFetch.abortedProducerIds).
* everything is bounded: the oldest is dropped, and the history before it is then unknown.
* pieces are C's (`pt_row.ahead`) while no event lies in them and they are few, else ours, and `has_gap` is true: C then
  leaves each batch to `observed`.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any, NamedTuple

from proxy.partitions._rows import lib
from proxy.partitions.partition_row import open_row, word
from proxy.partitions.transaction_events import Event, Piece, merge, scan_events

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from protocol.batch import Batch
    from protocol.primitives import Frame
    from proxy.partitions.transaction_events import TransactionEvent

NO_OFFSET = -1
PIECES_LIMIT = 64
GIVEN_PIECES = lib.PT_AHEAD // 2
"""Most pieces that are given to C, which has room for some more."""


class Aborted(NamedTuple):
    """An aborted transaction; all later ones begin at or after `stable`
    (AbortedTxn.lastStableOffset).
    """

    marker: int
    first: int
    producer_id: int
    stable: int


class Decided(NamedTuple):
    """A transaction with its marker, wherever the HW is; or several merged, with their last marker
    and first offset.
    """

    marker: int
    first: int


class TransactionStatistics(NamedTuple):
    """Numbers of items held for one partition."""

    open: int
    aborted: int
    undelivered: int
    pieces: int
    piece_events: int


class Transactions:
    """The transactions of one partition.

    `limit` bounds each list, in transactions or events. `patience_s`: how long a hole in the
    observed offsets may last, below an LSO that was shown, before the run begins again behind the
    hole.
    """

    __slots__ = (
        "_aborted",
        "_decided",
        "_doubted_end",
        "_hole_end",
        "_hole_since",
        "_limit",
        "_log_start",
        "_open",
        "_patience_s",
        "_pieces",
        "_shown",
        "row",
    )

    _known_from = word("known_from", int)
    _end = word("observed_end", int)  # of the run

    def __init__(self, limit: int, patience_s: float, row: Any = None) -> None:
        """`row`: that of its partition, in which C extends the run; None: one of its own."""
        self._limit = limit
        self._patience_s = patience_s
        self.row = open_row() if row is None else row
        self._doubted_end = NO_OFFSET  # aborts below may belong to transactions from before the run
        # producer id -> first offset, in the order of first offsets
        self._open: dict[int, int] = {}
        self._decided: list[Decided] = []  # in the order of markers; a marker may be above the HW
        self._aborted: list[Aborted] = []  # in the order of markers
        self._shown = self._log_start = NO_OFFSET
        self._hole_end, self._hole_since = NO_OFFSET, 0.0
        self._pieces: list[Piece] = []

    @property
    def known_from(self) -> int:
        """Return the offset from which aborted lists are known; -1 while there is no run."""
        return self._known_from

    @property
    def end(self) -> int:
        """Return the end of the contiguous run, which is the next offset to observe; -1 while there
        is no run.
        """
        return self._end

    @property
    def holds_any(self) -> bool:
        """True if a transaction is open, or an aborted one is kept."""
        return bool(self._open or self._aborted)

    @property
    def has_hole(self) -> bool:
        """True if the broker has shown an LSO beyond a hole in the observed offsets: the run still ends at it."""
        return self._hole_end == self._end != NO_OFFSET

    def is_overdue(self, now_s: float) -> bool:
        """True if such a hole has lasted for `patience_s`: once the broker shows its LSO again, the
        run begins behind the hole.
        """
        return self.has_hole and now_s - self._hole_since >= self._patience_s

    def statistics(self) -> TransactionStatistics:
        """Return the sizes of all lists, each within its bound."""
        events = sum(len(piece.events) for piece in self._pieces)
        pieces = self.row.ahead_count + len(self._pieces)
        return TransactionStatistics(
            len(self._open), len(self._aborted), len(self._decided), pieces, events
        )

    def shown(
        self, high_watermark: int, last_stable_offset: int, log_start_offset: int, now_s: float
    ) -> None:
        """Learn the offsets of one successful Fetch response that is not older than the last
        truncation.

        If there is no run, or none of use, it begins at the LSO. An LSO equal to the log start
        offset proves nothing: an open transaction may begin below it
        (UnifiedLog.maybeIncrementFirstUnstableOffset). Of an LSO above the HW only the HW counts
        (`LeaderState.learn`), and no run begins there: the HW had moved on when the broker checked
        for open transactions.
        """
        self.advance_start(log_start_offset)
        self._deliver(high_watermark)
        self._shown = max(self._shown, min(last_stable_offset, high_watermark))
        proves_nothing = (
            0 < last_stable_offset <= log_start_offset or last_stable_offset > high_watermark
        )
        if proves_nothing or last_stable_offset <= self._end:
            return
        if self._known_from == NO_OFFSET or self._is_blank():
            self._begin(last_stable_offset, high_watermark)
        elif not self.has_hole:
            self._hole_end, self._hole_since = self._end, now_s
        elif self.is_overdue(now_s):
            self._begin(last_stable_offset, high_watermark)

    def observed(self, buf: Frame, batches: Sequence[Batch], start: int, end: int) -> None:
        """Learn that the log holds exactly these batches of `buf`, in offset order, in the range
        [start, end). Other offsets of the range are empty. Ranges may arrive in any order, and
        repeatedly.
        """
        if self.row.ahead_count:
            self._take_pieces()
        if self._known_from == NO_OFFSET or start > self._end:
            piece = Piece(start)
            piece.extend(scan_events(buf, batches, start), end)
            self._keep(piece)
        elif end > self._end:
            self._extend(scan_events(buf, batches, self._end), end)
            self._join()
        if self.row.has_gap:
            self._give_pieces()

    def recall(self, start: int, high_watermark: int) -> None:
        """Learn that the log has no abort marker in [start, `high_watermark`), offsets that were observed
        before the run began, or by another process.

        The broker must have shown an LSO at or above `known_from`, and that HW in response to a later
        request. Each transaction from below that LSO has its marker below that HW, so that no aborted
        one of them has offsets from `start` on. The run has seen all others begin.
        """
        if start < self._known_from <= high_watermark:
            self.row.known_from = start

    def truncate(self, offset: int) -> None:
        """Forget the offsets from `offset` on: the log now ends there.

        Nothing is known until the broker shows its LSO again. A marker that was cut off may have
        ended a transaction from before the run. After an unclean election, offsets that were stable
        may not be stable any more.
        """
        self._forget()
        self._shown = self._log_start = NO_OFFSET
        if self.row.ahead_count:
            self._take_pieces()
        self._pieces = [
            piece if piece.end <= offset else piece.cut(offset)
            for piece in self._pieces
            if piece.start < offset
        ]
        if self.row.has_gap:
            self._give_pieces()

    def advance_start(self, log_start_offset: int) -> None:
        """Note that the log now begins at `log_start_offset`, by retention or DeleteRecords."""
        if log_start_offset <= self._log_start:
            return
        self._log_start = log_start_offset
        self._deliver(log_start_offset)
        self.forget_before(log_start_offset)
        if self._end < log_start_offset:
            self._forget()

    def forget_before(self, offset: int) -> None:
        """Drop the aborted lists for fetch offsets below `offset`: no caller will ask for them."""
        if NO_OFFSET < self._known_from < offset <= self._end:
            self.row.known_from = offset
            del self._aborted[: bisect_left(self._aborted, (offset,))]

    def last_stable_offset(self, high_watermark: int) -> int | None:
        """Return the LSO for that HW; None if nothing is known. The value is exact if everything
        below the HW was observed, else a lower bound.
        """
        known = self._shown if self._shown > self._log_start else self._log_start
        if self._decided:
            self._deliver(high_watermark)
        if self._known_from != NO_OFFSET:
            unstable = min([one.first for one in self._decided]) if self._decided else self._end
            if self._open:
                unstable = min(unstable, next(iter(self._open.values())))
            known = unstable if unstable > known else known
        if known == NO_OFFSET:
            return None
        return known if known < high_watermark else high_watermark

    def listed_end(self, fetch_offset: int) -> int:
        """Return the greatest end offset for which `aborted` has an answer from `fetch_offset` on;
        `fetch_offset` itself if there is none.
        """
        if self._known_from == NO_OFFSET or fetch_offset < self._known_from:
            return fetch_offset
        return max(fetch_offset, min(self._end, next(iter(self._open.values()), self._end)))

    def aborted(self, fetch_offset: int, end_offset: int) -> list[tuple[int, int]] | None:
        """Return (producer id, first offset) of each aborted transaction to which batches in
        [fetch_offset, end_offset) may belong. The order is that of the markers
        (TransactionIndex.collectAbortedTxns). Return None if the list is not known.
        """
        if end_offset <= fetch_offset:
            return []
        if end_offset > self.listed_end(fetch_offset):
            return None
        found = []
        for at in range(bisect_left(self._aborted, (fetch_offset,)), len(self._aborted)):
            one = self._aborted[at]
            if one.first < end_offset:
                found.append((one.producer_id, one.first))
            if one.stable >= end_offset:
                break
        return found

    def list_aborted(self) -> list[tuple[int, int, int, int]]:
        """Return all aborted transactions that are known, in the order of their markers: marker, first offset,
        producer id, and the offset from which all later ones begin.
        """
        return list(self._aborted)

    def _is_blank(self) -> bool:
        return self._known_from == self._end and not self._open

    def _begin(self, offset: int, high_watermark: int) -> None:
        """Begin a new run, known from `offset` on, and take over the pieces that belong to it. For
        a transaction that ended below the HW, the begin is not known.
        """
        self._forget()
        if self.row.ahead_count:
            self._take_pieces()
        pieces = [piece for piece in self._pieces if piece.end >= offset]
        self.row.known_from = self.row.observed_end = offset
        self._doubted_end = high_watermark
        self._pieces = pieces
        if pieces and pieces[0].start < offset:
            first = pieces.pop(0)
            self._extend(first.events, first.end)
        self._join()
        if self.row.has_gap:
            self._give_pieces()

    def _forget(self) -> None:
        """End the run; the pieces stay."""
        self.row.known_from = self.row.observed_end = NO_OFFSET  # there is no run
        self._hole_end = NO_OFFSET
        self._open = {}
        self.row.first_open = NO_OFFSET
        self._decided = []
        self._aborted = []

    def _extend(self, events: Iterable[TransactionEvent], end: int) -> None:
        """Extend the run to `end` (ProducerAppendInfo, ProducerStateManager.completeTxn)."""
        self.row.observed_end = end
        for offset, producer_id, event in events:
            if event is Event.BEGUN:
                self._open.setdefault(producer_id, offset)
                continue
            first = self._open.pop(producer_id, None)
            if event is Event.ABORTED and offset < self._doubted_end:
                self.forget_before(offset + 1)
            if first is None:
                continue  # an empty transaction, or one from before the run
            if event is Event.UNREADABLE:
                self._forget()
                return
            self._decided.append(Decided(offset, first))
            if event is Event.ABORTED and offset >= self._known_from:
                stable = next(iter(self._open.values()), offset + 1)
                self._aborted.append(Aborted(offset, first, producer_id, stable))
        self.row.first_open = next(iter(self._open.values()), NO_OFFSET)
        self._keep_bounds()

    def _keep_bounds(self) -> None:
        if len(self._open) > self._limit:
            self._forget()
            return
        if len(self._aborted) > self._limit:
            dropped = self._aborted[: len(self._aborted) - self._limit // 2]
            del self._aborted[: len(dropped)]
            self.row.known_from = max(self._known_from, dropped[-1].marker + 1)
        while len(self._decided) > self._limit:
            # merge the two oldest, from the lower first offset: the LSO stays a lower bound
            one, other = self._decided[:2]
            self._decided[:2] = [Decided(other.marker, min(one.first, other.first))]

    def _take_pieces(self) -> None:
        """Own the ranges that C has noted ahead of the run, where it has any, until `_give_pieces`."""
        row = self.row
        self._pieces = [Piece(one.first, one.end) for one in row.ahead[0 : row.ahead_count]]
        row.ahead_count = 0
        row.has_gap = True

    def _give_pieces(self) -> None:
        """Let C note what is ahead of the run, if that is few plain batches. It leaves them to `observed` otherwise."""
        row, pieces = self.row, self._pieces
        is_plain = len(pieces) <= GIVEN_PIECES and not any(piece.events for piece in pieces)
        row.has_gap = not is_plain or not all(
            lib.pt_note_ahead(row, piece.start, piece.end) for piece in pieces
        )
        if row.has_gap:
            row.ahead_count = 0
        else:
            self._pieces = []

    def _join(self) -> None:
        """Merge the pieces that the run has reached."""
        while self._known_from != NO_OFFSET and self._pieces and self._pieces[0].start <= self._end:
            piece = self._pieces.pop(0)
            if piece.end > self._end:
                end = self._end
                self._extend([event for event in piece.events if event.offset >= end], piece.end)

    def _keep(self, piece: Piece) -> None:
        self._pieces = merge(self._pieces, piece)
        self.row.has_gap = True
        while len(self._pieces) > PIECES_LIMIT:
            self._pieces.pop(0)
        while sum(len(piece.events) for piece in self._pieces) > self._limit:
            self._pieces.pop(0)

    def _deliver(self, high_watermark: int) -> None:
        """Drop the decided transactions whose marker is below the HW: such markers are replicated
        (ProducerStateManager.onHighWatermarkUpdated).
        """
        del self._decided[: bisect_left(self._decided, (high_watermark,))]

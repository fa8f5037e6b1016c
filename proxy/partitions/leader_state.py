"""The broker's last word on one partition, and how long the cache may rely on it. Pure: `now` is an
argument.

Owns leader epoch, high watermark (HW), last stable offset (LSO), log start offset and lease. Must
not know the cache, connections or tasks. Invariants:
* a lease ends at `lease.until`. The members of a fetch session share one `Lease`, which its poll
  renews. What ends a partition's lease, or belongs to this partition alone, gives it another one.
* only responses to Forebay's own Fetches by topic id are learned here (`proxy.partitions.update`):
  there is one source.
* HW, LSO and log start offset belong to the epoch that the Fetch carried. Within an epoch they only
  grow: the greatest value shown counts, since responses of several connections cross (design,
  "Lease").
* only a successful Fetch that carried an epoch proves that epoch: Metadata runs ahead of the log
  (BrokerMetadataPublisher). There is one suggested epoch; the broker's refusal clears it.
* a new epoch freezes the stored batches until a Fetch at their end has shown no divergence
  (KIP-595, Partition.readRecords).
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from proxy.partitions._rows import ffi
from proxy.partitions.partition_row import open_row, word

NO_EPOCH = -1
NO_OFFSET = -1
REFRESH_EPOCH_S = 30.0
"""How often the epoch of a partition that only Produce feeds is proven again, in seconds."""


class Learned(Enum):
    """Outcome of learning from one successful Fetch response."""

    NOTHING = "nothing"
    """The request carried no epoch, or an older epoch than the proven one (responses crossed)."""
    CONFIRMED = "confirmed"
    """The epoch is the proven one: the lease is renewed, and the offsets may have grown."""
    FIRST = "first"
    """The first epoch proven for this partition."""
    NEW_EPOCH = "new-epoch"
    """A newer epoch: the stored batches are frozen until the divergence check."""


class Lease:
    """Until when the cache may answer, in seconds. `is_shared`: a session's poll renews it for all
    of its members. `number`: its place among those that other processes see; -1: it has none.
    """

    __slots__ = ("__weakref__", "is_shared", "number", "row")

    until = word("until", float)

    def __init__(
        self, until: float, is_shared: bool = False, place: tuple[int, Any] | None = None
    ) -> None:
        """`place`: its number, and its memory there (`pt_lease *`)."""
        self.number, self.row = place or (-1, ffi.new("pt_lease *"))
        self.row.until = until
        self.is_shared = is_shared


class LeaderState:
    """State of one partition as the broker last described it. Offsets and epochs are -1 while
    unknown; times are seconds of a monotonic clock. All but the lease lies in `row`.
    """

    __slots__ = ("lease", "row")

    epoch = word("epoch", int)
    suggested_epoch = word("suggested_epoch", int)
    high_watermark = word("high_watermark", int)
    last_stable_offset = word("last_stable_offset", int)
    log_start_offset = word("log_start_offset", int)
    proven_at = word("proven_at", float)
    led_epoch = word("led_epoch", int)
    frozen = word("frozen", bool)

    def __init__(self, row: Any = None) -> None:
        """`row`: that of its partition; None: one of its own."""
        self.row = open_row() if row is None else row
        self.hold(Lease(float("-inf")))

    @property
    def known(self) -> bool:
        """True if an epoch, with its offsets, has been proven."""
        return self.epoch != NO_EPOCH

    @property
    def is_led(self) -> bool:
        """True if this broker leads the proven epoch: Metadata named it as leader, or it
        acknowledged a Produce in that epoch.
        """
        return self.led_epoch == self.epoch != NO_EPOCH

    @property
    def is_replica(self) -> bool:
        """True if another broker may lead the proven epoch. Followers answer consumers, too
        (KIP-392), and may truncate within an epoch.
        """
        return self.led_epoch != self.epoch != NO_EPOCH

    def has_lease(self, now: float) -> bool:
        """True if the cache may answer at `now` (seconds, monotonic)."""
        return now < self.lease.until

    def learn(
        self,
        carried_epoch: int,
        high_watermark: int,
        last_stable_offset: int,
        log_start_offset: int,
        lease_until: float,
    ) -> Learned:
        """Learn from a successful response to a Fetch that carried `carried_epoch`; return its
        outcome.

        `lease_until` counts from the time when the request was sent. Of an LSO above its HW only
        the HW counts. The broker reads the HW first, and returns a newer HW as LSO if no
        transaction is open. By then a transaction may be open (Partition.readRecords,
        UnifiedLog.lastStableOffset).
        """
        row = self.row
        known_epoch = row.epoch
        if carried_epoch < 0 or carried_epoch < known_epoch:
            return Learned.NOTHING
        learned = Learned.CONFIRMED
        if carried_epoch > known_epoch:
            learned = Learned.FIRST if known_epoch == NO_EPOCH else Learned.NEW_EPOCH
            self._adopt(carried_epoch)
        # within an epoch the offsets only grow: a smaller value is from a response that was overtaken
        stable_offset = min(last_stable_offset, high_watermark)
        row.high_watermark = max(row.high_watermark, high_watermark)
        row.last_stable_offset = max(row.last_stable_offset, stable_offset)
        row.log_start_offset = max(row.log_start_offset, log_start_offset)
        self.renew(lease_until)
        row.proven_at = max(row.proven_at, lease_until)
        return learned

    def renew(self, lease_until: float) -> None:
        """Extend the lease to `lease_until`, never shorten it: the broker has confirmed the known
        offsets. A shared lease is left: this confirmation is of one partition.
        """
        if lease_until <= self.lease.until:
            return
        if self.lease.is_shared:
            self.detach()
        self.lease.row.until = lease_until

    def hold(self, lease: Lease) -> None:
        """Be answered for as long as `lease` lasts. Nothing else sets either: C reads the memory of the
        lease that is held here.
        """
        self.lease = lease
        self.row.lease = lease.row

    def await_check(self, is_needed: bool) -> None:
        """Freeze the stored batches until their end has been checked, or end that."""
        self.row.frozen = is_needed

    def detach(self) -> None:
        """Keep the lease for as long as it lasts, as a new object that no session's poll renews."""
        self.hold(Lease(self.lease.until))

    def _adopt(self, epoch: int) -> None:
        self.row.epoch = epoch
        self.forget_offsets()
        self.row.frozen = True

    @property
    def asked_epoch(self) -> int:
        """Return the epoch that Forebay's next Fetch carries; -1 if no epoch is known or suggested."""
        asked: int = max(self.row.epoch, self.row.suggested_epoch)
        return asked

    def suggest(self, epoch: int, is_led: bool) -> bool:
        """Note an epoch named by Metadata, or by the current_leader field of a response. Return
        True if it is newer than `asked_epoch` was.

        The next Fetch carries this epoch; nothing else follows from it. `is_led`: this broker is
        known to lead it.
        """
        if is_led:
            self.row.led_epoch = max(self.row.led_epoch, epoch)
        is_news = epoch > self.asked_epoch
        if is_news:
            self.row.suggested_epoch = epoch
        return is_news

    def drop_suggestion(self, epoch: int) -> None:
        """Forget the suggested epoch if it is `epoch`: the broker refused it with
        FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH.
        """
        if self.suggested_epoch == epoch:
            self.row.suggested_epoch = NO_EPOCH

    def forget_offsets(self) -> None:
        """Set the offsets to -1 and end the lease: the log was truncated or replaced. The cache
        answers nothing until the broker shows its offsets again.
        """
        row = self.row
        row.high_watermark = row.last_stable_offset = row.log_start_offset = NO_OFFSET
        self.revoke()

    def revoke(self) -> None:
        """End the lease: the broker answered with an error. The cache answers nothing until the
        broker confirms again. The lease is a new object, so that a response to a Fetch sent before
        cannot be taken for that confirmation (`SessionPoll`).
        """
        self.hold(Lease(float("-inf")))

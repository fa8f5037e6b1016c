"""What the broker has said of one partition, and how long memory may rely on it. Pure: `now` is an argument.

Owns leader epoch, high watermark (HW), last stable offset (LSO), log start and the lease. It must not know
the cache, links or tasks. Invariants:
* only answers to Forebay's own Fetches by topic id are learned here (`proxy.partitions.update`): one witness.
* HW, LSO and log start belong to the epoch that the asking Fetch carried, and within it only grow: the
  greatest shown counts, since answers of several links cross (design, "Lease").
* an epoch is proven only by a successful Fetch that carried it (Metadata runs ahead of the log:
  BrokerMetadataPublisher). A suggested epoch is one slot, which the broker's "no" empties.
* a new epoch freezes what is stored, until a Fetch at its end has not diverged (KIP-595, Partition.readRecords).
"""

from __future__ import annotations

from enum import Enum

NO_EPOCH = -1
NO_OFFSET = -1


class Learned(Enum):
    """What one successful answer meant."""

    NOTHING = "nothing"
    """It carried no epoch, or an older one than is proven (a crossing answer)."""
    CONFIRMED = "confirmed"
    """The same epoch: the lease is renewed and the offsets may have grown."""
    FIRST = "first"
    """The first epoch ever proven for this partition."""
    NEW_EPOCH = "new-epoch"
    """A newer epoch: what is stored is frozen until the divergence check."""


class LeaderState:
    """One partition as the broker last described it. Offsets are -1 while unknown; times are seconds of a
    monotonic clock.
    """

    __slots__ = (
        "epoch",
        "frozen",
        "high_watermark",
        "last_stable_offset",
        "lease_until",
        "led_epoch",
        "log_start_offset",
        "proven_at",
        "suggested_epoch",
    )

    def __init__(self) -> None:
        self.epoch = NO_EPOCH
        self.suggested_epoch = NO_EPOCH
        self.high_watermark = NO_OFFSET
        self.last_stable_offset = NO_OFFSET
        self.log_start_offset = NO_OFFSET
        self.lease_until = float("-inf")
        self.proven_at = float("-inf")
        self.led_epoch = NO_EPOCH
        self.frozen = False

    @property
    def known(self) -> bool:
        """Whether an epoch has been proven, with the offsets of it."""
        return self.epoch != NO_EPOCH

    @property
    def is_led(self) -> bool:
        """Whether Metadata has named this broker as the proven epoch's leader, or it acknowledged a Produce in it."""
        return self.led_epoch == self.epoch != NO_EPOCH

    @property
    def is_replica(self) -> bool:
        """Whether another broker may lead in the proven epoch: followers answer consumers, too (KIP-392), and may
        truncate within an epoch.
        """
        return self.known and not self.is_led

    @property
    def offsets(self) -> tuple[int, int, int]:
        """HW, LSO and log start, to see whether any has moved."""
        return self.high_watermark, self.last_stable_offset, self.log_start_offset

    def has_lease(self, now: float) -> bool:
        """Whether memory may serve at `now`."""
        return now < self.lease_until

    def learn(
        self,
        carried_epoch: int,
        high_watermark: int,
        last_stable_offset: int,
        log_start_offset: int,
        lease_until: float,
    ) -> Learned:
        """A successful Fetch answer to a request that carried `carried_epoch`; the lease counts from the
        request's sending. Of an LSO above its HW only the HW counts: the broker reads the HW first, and says
        a newer HW for "nothing is open", which by then need not be so (Partition.readRecords,
        UnifiedLog.lastStableOffset).
        """
        if carried_epoch < 0 or carried_epoch < self.epoch:
            return Learned.NOTHING
        if carried_epoch > self.epoch:
            learned = Learned.NEW_EPOCH if self.known else Learned.FIRST
            self._adopt(carried_epoch)
        else:
            learned = Learned.CONFIRMED
        self.high_watermark = max(self.high_watermark, high_watermark)
        self.last_stable_offset = max(self.last_stable_offset, min(last_stable_offset, high_watermark))
        self.log_start_offset = max(self.log_start_offset, log_start_offset)
        self.renew(lease_until)
        self.proven_at = max(self.proven_at, lease_until)
        return learned

    def renew(self, lease_until: float) -> None:
        """The broker has confirmed what is known here."""
        self.lease_until = max(self.lease_until, lease_until)

    def _adopt(self, epoch: int) -> None:
        self.epoch = epoch
        self.forget_offsets()
        self.frozen = True

    @property
    def asked_epoch(self) -> int:
        """The epoch that Forebay's next Fetch carries; -1 while none is worth asking with."""
        return max(self.epoch, self.suggested_epoch)

    def suggest(self, epoch: int, is_led: bool) -> bool:
        """Metadata, or current_leader of an answer, names an epoch, which this broker is known to lead (`is_led`) or
        not: worth asking with, no more. True if it is newer than what was worth asking with before.
        """
        if is_led:
            self.led_epoch = max(self.led_epoch, epoch)
        is_news = epoch > self.asked_epoch
        if is_news:
            self.suggested_epoch = epoch
        return is_news

    def drop_suggestion(self, epoch: int) -> None:
        """The broker is not in this epoch, which was asked with: FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH."""
        if self.suggested_epoch == epoch:
            self.suggested_epoch = NO_EPOCH

    def forget_offsets(self) -> None:
        """The log is not where it was: nothing is served until the broker shows its offsets anew."""
        self.high_watermark = self.last_stable_offset = self.log_start_offset = NO_OFFSET
        self.lease_until = float("-inf")

    def revoke(self) -> None:
        """The broker answered with an error: nothing is served until it confirms again."""
        self.lease_until = float("-inf")

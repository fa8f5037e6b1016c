"""What the broker has said of one partition, and how long memory may rely on it. Pure: `now` is an argument.

Owns leader epoch, high watermark (HW), last stable offset (LSO), log start and the lease. It must not know
the cache, links or tasks. Invariants:
* HW, LSO and log start belong to the epoch that the asking Fetch carried, and within it only grow: the
  greatest shown counts, since answers of several links cross (design, "Lease").
* an epoch is proven only by a successful Fetch that carried it (Metadata runs ahead of the log:
  BrokerMetadataPublisher).
* an answer to a Fetch without an epoch (-1) is about no epoch and teaches nothing that memory may rely on.
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
    """A newer epoch: what was not below the old HW is void, the rest wants a divergence check."""


class Truth:
    """One partition as the broker last described it. Offsets are -1 while unknown; times are seconds of a
    monotonic clock.
    """

    __slots__ = (
        "end_before",
        "entered_at",
        "epoch",
        "high_watermark",
        "last_stable_offset",
        "lease_until",
        "led_epoch",
        "log_start_offset",
        "proven_at",
        "suggested_epoch",
        "unchecked",
    )

    def __init__(self) -> None:
        self.epoch = NO_EPOCH
        self.suggested_epoch = NO_EPOCH
        self.high_watermark = NO_OFFSET
        self.last_stable_offset = NO_OFFSET
        self.log_start_offset = NO_OFFSET
        self.end_before = NO_OFFSET
        self.lease_until = float("-inf")
        self.proven_at = float("-inf")
        self.entered_at = float("-inf")
        self.led_epoch = NO_EPOCH
        self.unchecked = False

    @property
    def known(self) -> bool:
        """Whether an epoch has been proven, with the offsets of it."""
        return self.epoch != NO_EPOCH

    @property
    def is_led(self) -> bool:
        """Whether the broker is known to lead in this epoch. Followers answer consumers, too (KIP-392)."""
        return self.led_epoch == self.epoch != NO_EPOCH

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

    def entered(self, now: float) -> None:
        """The newest epoch is known since `now`."""
        self.entered_at = now

    def shown_leading(self, carried_epoch: int, sent_at: float) -> None:
        """The broker has answered what only a leader answers, to a question sent at `sent_at`: it leads in the epoch
        that the question carried; where it carried none, in the one that was known by then, or in a newer one, which
        will come to be known.
        """
        if carried_epoch == self.epoch or (carried_epoch == NO_EPOCH and sent_at >= self.entered_at):
            self.led_epoch = self.epoch

    def renew(self, lease_until: float) -> None:
        """The broker has confirmed what is known here."""
        self.lease_until = max(self.lease_until, lease_until)

    def _adopt(self, epoch: int) -> None:
        self.end_before = self.high_watermark
        self.epoch = epoch
        self.suggested_epoch = max(self.suggested_epoch, epoch)
        self.high_watermark = NO_OFFSET
        self.last_stable_offset = NO_OFFSET
        self.log_start_offset = NO_OFFSET
        self.lease_until = float("-inf")
        self.unchecked = True

    def suggest(self, epoch: int) -> None:
        """Metadata or current_leader names an epoch: worth asking with, no more."""
        self.suggested_epoch = max(self.suggested_epoch, epoch)

    def revoke(self) -> None:
        """The broker answered with an error: nothing is served until it confirms again."""
        self.lease_until = float("-inf")

"""Disk throttle: reads the disks' counters, and lets misses go upstream now or later. [file]

Owns the sampler's reads, the throttle's timer and its rules from the configuration. Must not know
the purpose of a miss. Invariants:
* fails open: if nothing is known of a disk, nothing waits for it.
* sampling goes on at its pace, whatever happens to one sample.
* one clear log line if a file cannot be read, and one when it can be read again.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from proxy.scheduling.log_dirs import LogDirs
from throttle.budget import FairRule
from throttle.controller import ControllerRule
from throttle.disks import NO_LIMIT, BusyRule, scan_diskstats, scan_pressure
from throttle.throttle import Throttle, ThrottleRules
from throttle.tickets import DelayRefused, DelayRule, DelayTicket, TicketKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxy.config.throttle import ThrottleConfig
    from proxy.net.client_connection import AnyLink
    from proxy.partitions.readable import PartitionStatus
    from proxy.partitions.table import Partition
    from proxy.scheduling.services import SchedulingServices
    from throttle.disks import Pressure
    from throttle.throttle import ThrottleStatistics

log = logging.getLogger("forebay.disk_throttle")

ENTER_SHARE, LEAVE_SHARE = 5 / 6, 1 / 2
"""Shares of the target: above the first a disk counts as busy, below the second it no longer does.
"""

START_BYTES = 16 << 20
"""Bytes per second that a disk gets before anything is known of it."""
RECORD_BYTES = 1024
"""Assumed size of a record of a partition that has got none since the start."""
NOT_SOON = -1, 0
"""Value of `Partition.missed_from` if the first miss came later than soon after the start."""


def build_rules(config: ThrottleConfig) -> ThrottleRules:
    """Return the throttle's rules, built from its configuration."""
    busy = BusyRule(
        await_ms=config.busy_await_s * 1000,
        in_flight=float(config.busy_in_flight),
        pressure=config.busy_pressure,
        enter=config.target * ENTER_SHARE,
        leave=config.target * LEAVE_SHARE,
    )
    floor, ceiling = float(config.floor_bytes), float(config.ceiling_bytes)
    start = min(max(float(START_BYTES), floor), ceiling)
    fair = FairRule(weights=tuple((entry.client_id, entry.weight) for entry in config.weights))
    return ThrottleRules(
        busy=busy,
        controller=ControllerRule(config.target, floor, ceiling, start),
        queue=DelayRule(
            max_delay_s=config.max_delay_s,
            waiting_requests=config.waiting_requests,
            waiting_bytes=config.waiting_size_bytes,
            in_flight_s=config.in_flight_s,
            fair=fair,
        ),
        stale_s=max(10 * config.sample_every_s, 5.0),
    )


class DiskThrottle:
    """Grants misses, now or later."""

    def __init__(self, broker: SchedulingServices) -> None:
        self._broker = broker
        self._config = broker.config.throttle
        self.disks = LogDirs(broker, self._config)
        self._grace_until = broker.now() + self._config.start_grace_s
        self._throttle = Throttle(
            build_rules(self._config), self.disks.names, broker.now(), self.disks.limits
        )
        self._adopted = set(self.disks.names)
        self._on_granted: dict[DelayTicket, Callable[[], None]] = {}
        self._sampling: asyncio.TimerHandle | None = None
        self._granting: asyncio.TimerHandle | None = None
        self._due_at = float("inf")
        self._unreadable: set[str] = set()

    def start(self) -> None:
        """Begin to sample the disks, if the throttle is enabled and a disk is known, or may become known."""
        if not self._config.enabled or not (self.disks.names or self.disks.unknown):
            log.info("the throttle is off: %s", self._why_off())
            return
        if self.disks.names:
            self._tell_held()
        self._sample()

    def _tell_held(self) -> None:
        log.info(
            "the throttle holds %s at %g of their time",
            ", ".join(self.disks.names),
            self._config.target,
        )

    def _adopt_disks(self, now: float) -> None:
        """Take in the disks that have become known since the last sample."""
        new = [name for name in self.disks.names if name not in self._adopted]
        for name in new:
            self._adopted.add(name)
            self._throttle.add_disk(name, self.disks.limits.get(name, NO_LIMIT), now)
        if new:
            self._tell_held()

    def set_rules(self, config: ThrottleConfig) -> None:
        """Take other rules. What waits keeps its place, or goes at once where the throttle is off now. The disks
        themselves, and the files that tell of them, stay those of the start.
        """
        was_enabled, self._config = self._config.enabled, config
        self._throttle.set_rules(build_rules(config), self._broker.now())
        if config.enabled and not was_enabled:
            self.start()
        elif was_enabled and not config.enabled:
            self._stop_sampling()
            log.info("the throttle is off: %s", self._why_off())
        self._grant()

    def _stop_sampling(self) -> None:
        if self._sampling is not None:
            self._sampling.cancel()
            self._sampling = None
        self._throttle.forget_samples()

    def _why_off(self) -> str:
        return "throttle.disks names none" if self._config.enabled else "throttle.enabled is false"

    def stop(self) -> None:
        """Stop sampling. Waiting misses are dropped with their connections."""
        for timer in (self._sampling, self._granting):
            if timer is not None:
                timer.cancel()
        self.disks.close()

    # -- misses ------------------------------------------------------------------------------------

    @property
    def active(self) -> bool:
        """True if any miss can be delayed."""
        return self._sampling is not None and bool(self._adopted)

    def submit(
        self,
        connection: AnyLink,
        client_id: str | None,
        status: PartitionStatus,
        size_bytes: int,
        on_granted: Callable[[], None],
    ) -> DelayTicket | DelayRefused:
        """Submit a miss of about `size_bytes`. Return a ticket: granted already, or `on_granted` is
        called when it is granted. Return Refused at a limit.

        A miss that is not on history gets a free ticket and never reaches the throttle, which would
        count bytes that it cannot hold back.
        """
        now = self._broker.now()
        asked = status.asked
        key = TicketKey(connection, (asked.topic, asked.partition), asked.fetch_offset)
        if not self._may_wait(status):
            return DelayTicket.build_free(key, client_id or "", size_bytes, now)
        return self.delay(key, client_id or "", status.partition, size_bytes, on_granted)

    def delay(
        self,
        key: TicketKey,
        client_id: str,
        partition: Partition | None,
        size_bytes: int,
        on_granted: Callable[[], None],
    ) -> DelayTicket | DelayRefused:
        """Submit a miss of `partition` that may wait, as `submit` does."""
        now, disk = self._broker.now(), self._disk_of(partition)
        ticket = self._throttle.submit(key, client_id, disk, size_bytes, now)
        if isinstance(ticket, DelayTicket) and not ticket.granted:
            self._on_granted[ticket] = on_granted
            self._schedule(now)
        return ticket

    def _may_wait(self, status: PartitionStatus) -> bool:
        """True if the miss is on history that can be answered empty meanwhile."""
        partition = status.partition
        if not status.lagging or not status.offsets_known or partition is None:
            return False
        behind = partition.leader_state.high_watermark - status.asked.fetch_offset
        return behind >= self._config.lag_threshold and not self._would_be_held(partition, behind)

    def _would_be_held(self, partition: Partition, behind: int) -> bool:
        """True if a cache that had not begun at the start would hold the last `behind` records.

        The estimate assumes that before the start all partitions together had the same traffic per
        record of this one as since.
        """
        high_watermark, admitted_bytes = (
            partition.leader_state.high_watermark,
            self._broker.cache.peek_admitted_bytes(),
        )
        if partition.missed_from is None:
            is_soon = self._broker.now() < self._grace_until
            partition.note_miss((high_watermark, admitted_bytes) if is_soon else NOT_SOON)
        first, first_bytes = partition.missed_from or NOT_SOON
        if not high_watermark - behind < first:
            return False
        since, since_bytes = high_watermark - first, admitted_bytes - first_bytes
        record_bytes = since_bytes / since if since else since_bytes + RECORD_BYTES
        return behind * record_bytes <= self._broker.config.cache.size_bytes

    def _disk_of(self, partition: Partition | None) -> str | None:
        if partition is None or not partition.topic.name:
            return None
        return self.disks.disk_of(partition.topic.name, partition.index)

    def done(self, ticket: DelayTicket, size_bytes: int) -> None:
        """Note that a granted miss has been answered with `size_bytes` record bytes."""
        self._throttle.done(ticket, size_bytes)
        self._schedule(self._broker.now())

    def cancel(self, ticket: DelayTicket) -> None:
        """Cancel a miss that no request needs any more."""
        self._on_granted.pop(ticket, None)
        self._throttle.cancel(ticket)
        self._schedule(self._broker.now())

    # -- time --------------------------------------------------------------------------------------

    def _schedule(self, now: float) -> None:
        due_at = self._throttle.next_due_s(now)
        if due_at is None or due_at >= self._due_at:
            return
        if self._granting is not None:
            self._granting.cancel()
        self._due_at = due_at
        self._granting = asyncio.get_running_loop().call_later(
            max(due_at - now, 0.001), self._grant
        )

    def _grant(self) -> None:
        self._due_at = float("inf")
        now = self._broker.now()
        for ticket in self._throttle.advance(now):
            on_granted = self._on_granted.pop(ticket, None)
            if on_granted is not None:
                self._broker.attempt(on_granted, "letting a delayed miss go")
        self._schedule(now)

    def _sample(self) -> None:
        self._sampling = asyncio.get_running_loop().call_later(
            self._config.sample_every_s, self._sample
        )
        now = self._broker.now()
        self._adopt_disks(now)
        self._broker.attempt(lambda: self._observe_disks(now), "looking at the disks")
        self._broker.attempt(lambda: self.disks.tick(now), "looking where partitions lie")
        self._grant()

    def _observe_disks(self, now: float) -> None:
        text = self._read(self._config.diskstats_file)
        pressure = self._read_pressure() if self._config.busy_pressure else None
        stats = scan_diskstats(text or "")
        for name in self.disks.names:
            counters = stats.disks.get(name)
            self._throttle.observe(name, counters, pressure, now)
            if text is not None:
                self._report(
                    name,
                    counters is not None,
                    f"no line of {self._config.diskstats_file} is about {name}",
                )

    def _read_pressure(self) -> Pressure | None:
        path = self._config.pressure_file
        text = self._read(path)
        pressure = scan_pressure(text) if text is not None else None
        if text is not None:
            self._report(f"pressure in {path}", pressure is not None, f"{path} is no pressure file")
        return pressure

    def _read(self, path: str) -> str | None:
        try:
            text = Path(path).read_text()
        except (OSError, UnicodeDecodeError) as error:
            self._report(path, False, f"{path} cannot be read: {error}")
            return None
        self._report(path, True, "")
        return text

    def _report(self, what: str, is_readable: bool, problem: str) -> None:
        if is_readable and what in self._unreadable:
            self._unreadable.discard(what)
            log.info("the throttle sees %s again", what, extra={"disk": what})
        elif not is_readable and what not in self._unreadable:
            self._unreadable.add(what)
            log.warning(
                "the throttle is off for what it cannot see: %s", problem, extra={"disk": what}
            )

    def statistics(self) -> ThrottleStatistics:
        """Return the throttle's state and counts."""
        return self._throttle.statistics()

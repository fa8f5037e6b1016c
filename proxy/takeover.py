"""Warm restart: what an earlier process left in the arena is served by this one, or dropped with a reason.

Owns the decision, and the arena's identity: which broker and which kernel its bytes belong to. Must not know how
partitions are proven (`partitions/taken_over.py`). Invariants:
* until the decision the cache is pending: clients are served by the broker alone, and nothing is stored.
* nothing is looked at while the earlier process still writes there.
* the walk over what was left runs in a thread, the decision on the event loop.
* only an arena of the same cluster and node is taken over, and of the same kernel: after a crash of the machine,
  pages of a file on disk may be older than others.
* the identity is written as a whole or does not count: it has a checksum.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import zlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from blockcache.cache import IDENTITY_BYTES
from blockcache.errors import ArenaTorn

if TYPE_CHECKING:
    from collections.abc import Callable

    from blockcache.left import Left
    from proxy.broker import Broker

log = logging.getLogger("forebay.takeover")

KERNEL = Path("/proc/sys/kernel/random/boot_id")
LOCK_EVERY_S = 0.02
"""How often the earlier process is asked for the arena, in seconds, while it still has it."""
IDENTIFY_S = 15.0
"""How long the broker may answer and not say who it is, in seconds, before the arena is dropped."""
UNCLAIMED_S = 900.0
"""After so many seconds, partitions that nobody asked for are dropped, as idle ones are (`janitor.FORGET_AFTER_S`)."""
TOPICS_MAX = 5000
"""Topics whose partitions are proven before a client asks for them."""
CHECKSUM_BYTES = 4


class Identity(NamedTuple):
    """Whose bytes an arena holds. `kernel`: the boot id of the machine's kernel."""

    cluster: str
    node: int
    kernel: str

    def pack(self) -> bytes:
        """Return the bytes for the arena's header; b"" if they are too long."""
        text = json.dumps(self._asdict()).encode()
        packed = zlib.crc32(text).to_bytes(CHECKSUM_BYTES) + text
        return packed if len(packed) <= IDENTITY_BYTES else b""


def unpack(packed: bytes) -> Identity | None:
    """Return the identity of these bytes; None if there is none, or it was not written whole."""
    text = packed[CHECKSUM_BYTES:].rstrip(b"\0")
    if not text or zlib.crc32(text).to_bytes(CHECKSUM_BYTES) != packed[:CHECKSUM_BYTES]:
        return None
    return Identity(**json.loads(text))


def read_kernel() -> str:
    """Return the boot id of the kernel, which all containers of a machine share; "" if it cannot be read."""
    try:
        return KERNEL.read_text().strip()
    except OSError:
        return ""


class Takeover:
    """Decides once about what was left, then keeps the arena's identity up to date."""

    def __init__(self, broker: Broker, on_torn: Callable[[str, str], object]) -> None:
        """`on_torn` is called with reason and detail where what was left has to go, and other processes still read
        it.
        """
        self._broker = broker
        self._on_torn = on_torn
        self._kernel = read_kernel()
        self._left: Left | None = None
        self._walk: asyncio.Task[None] | None = None
        self._noted = b""
        self._reachable_since: float | None = None
        self._drop_at: float | None = None
        self._stopping = asyncio.Event()

    def start(self) -> None:
        """Begin to look at what was left, if anything was."""
        cache = self._broker.cache
        if cache.is_pending:
            log.info("looking at what an earlier process left", extra={"file": self._place})
            self._walk = asyncio.create_task(self._inspect(), name="takeover")
        elif cache.other_bytes:
            self._tell_dropped("size", f"{cache.other_bytes} bytes")

    async def stop(self) -> None:
        """Wait until no thread walks over the arena."""
        self._stopping.set()
        if self._walk is not None:
            await self._walk

    @property
    def _place(self) -> str:
        return str(self._broker.cache.path or "anonymous memory")

    async def _inspect(self) -> None:
        cache = self._broker.cache
        while not cache.try_lock():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOCK_EVERY_S):
                    await self._stopping.wait()
                    return
        left = await asyncio.to_thread(cache.inspect_left)
        if left.refusal:
            await self._drop(left.refusal, left.detail)
            return
        identity = unpack(left.identity)
        if identity is None:
            await self._drop("unidentified", "its process had not learned which broker it served")
        elif identity.kernel != self._kernel or not self._kernel:
            await self._drop("kernel", "the machine was started anew")
        else:
            self._left = left
            tick = partial(self.tick, self._broker.now())
            self._broker.attempt(tick, "deciding about the arena")  # clients wait for it

    async def _drop(self, reason: str, detail: str) -> None:
        """Begin with an empty arena."""
        try:
            await asyncio.to_thread(self._broker.cache.clear_left)
        except ArenaTorn:  # workers still send what is in it
            self._on_torn(reason, detail)
            return
        self._broker.cache.begin_anew()
        self._tell_dropped(reason, detail)

    def _tell_dropped(self, reason: str, detail: str) -> None:
        self._broker.counters.stored.takeovers[reason] += 1
        log.warning(
            "dropped what an earlier process left: the cache begins empty",
            extra={"file": self._place, "reason": reason, "detail": detail},
        )

    # -- timed work --------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Decide as soon as the broker is known; then note in the arena whose it is, and that this process lives."""
        node = self._broker.node
        known: Identity | None = None
        if node.node_id >= 0 and node.cluster_id:
            known = Identity(node.cluster_id, node.node_id, self._kernel)
        if self._left is not None:
            self._decide(self._left, known, now)
        if self._broker.cache.is_pending:
            return
        if known is not None and (packed := known.pack()) != self._noted:
            self._noted = packed
            self._broker.cache.note_identity(packed)
        self._broker.cache.note_alive(int(now * 1000))
        if self._drop_at is not None and now >= self._drop_at:
            self._drop_at = None
            dropped = self._broker.partitions.drop_unclaimed()
            log.info("dropped partitions that nobody asked for", extra={"partitions": dropped})

    def _decide(self, left: Left, known: Identity | None, now: float) -> None:
        if known is None:
            if not self._broker.own_connections.reachable:
                self._reachable_since = None
                return
            if self._reachable_since is None:
                self._reachable_since = now
            if now - self._reachable_since < IDENTIFY_S:
                return
            refusal = "unidentified", "the broker does not say which cluster and node it is"
        elif (identity := unpack(left.identity)) != known:
            refusal = "broker", f"it belongs to {identity}"
        else:
            self._left = None
            self._take_over(left, now)
            return
        self._left = None
        self._walk = asyncio.create_task(self._drop(*refusal), name="takeover")

    def _take_over(self, left: Left, now: float) -> None:
        broker = self._broker
        broker.cache.take_over(left)
        down_s = now - left.alive_at / 1000
        topics = broker.partitions.take_over(left.slots, down_s, now)
        broker.routes.clear()
        broker.counters.stored.takeovers["taken-over"] += 1
        self._drop_at = now + UNCLAIMED_S
        for topic_id in topics[:TOPICS_MAX]:
            broker.topic_lookup.ask(topic_id)
        log.info(
            "took over what an earlier process left: each partition is served once the broker has confirmed it",
            extra={
                "partitions": len(left.slots),
                "bytes": broker.cache.statistics().live_record_bytes,
                "downSeconds": round(down_s, 1),
            },
        )

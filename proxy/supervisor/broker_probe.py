"""Broker probe: whether the broker answers, while the supervisor pipes clients to it. [socket]

Owns one question, asked again and again, and its result. Must not know what the answer says: a broker that is frozen
still has its connections accepted by the kernel, so that only a byte from it shows that it lives. Invariants: one
question at a time; it takes at most `limits.upstreamTimeout`, and is asked HEARTBEATS times within it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from proxy.pipe import connect

if TYPE_CHECKING:
    from proxy.config.model import Config
    from proxy.config.units import Address

HEARTBEATS: Final = 5
QUESTION: Final = bytes.fromhex("00000011 0012 0000 00000000 0007") + b"forebay"
"""ApiVersions, version 0, which any listener answers before a client has signed in (ApiVersionsRequest.json)."""


class BrokerProbe:
    """Asks from `start` to `stop`. `problem`: why the broker counts as not reachable; "" if it answers, or before the
    first answer was due.
    """

    def __init__(self, config: Config) -> None:
        self._upstream: Address = config.listeners[0].upstream
        self._timeout_s = config.limits.upstream_timeout_s
        self._asking: asyncio.Task[None] | None = None
        self.problem = ""

    def start(self) -> None:
        """Ask from now on."""
        if self._asking is None:
            self.problem = ""
            self._asking = asyncio.get_running_loop().create_task(self._keep_asking())

    def stop(self) -> None:
        """Ask no more: the worker knows better."""
        asking, self._asking = self._asking, None
        self.problem = ""
        if asking is not None:
            asking.cancel()

    async def _keep_asking(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self._ask()
                self.problem = ""
            except OSError as error:  # TimeoutError included
                reason = f"{error}" or f"it has not answered for {self._timeout_s:g} s"
                self.problem = f"the broker at {self._upstream} is not reachable: {reason}"
            await asyncio.sleep(self._timeout_s / HEARTBEATS)

    async def _ask(self) -> None:
        """Return once the broker shows that it lives: by any byte, or by closing what it does not understand (TLS)."""
        loop = asyncio.get_running_loop()
        with contextlib.closing(await connect(self._upstream, self._timeout_s)) as broker:
            await loop.sock_sendall(broker, QUESTION)
            with contextlib.suppress(ConnectionResetError):
                await loop.sock_recv(broker, 1)

"""Forebay's own connections to the broker, for the watch: opened, authenticated, reopened. [socket]

Owns one link per name ("watch", "proof", "idle-N"), the question whether Forebay may have links of its own at all, and
whether the broker answers. It must not know what else is asked over them. Invariants: a link is handed out only when
the broker has answered a Metadata request on it, which a listener that wants credentials does not; a link that is lost
is opened again after a pause that doubles, up to UNREACHABLE_PAUSE_S while the broker is away, so that a restart
is noticed soon, and up to REFUSED_PAUSE_S while it answers and refuses us; a broker that owes an answer for
`limits.upstreamTimeout` is given up, with all links to it, and so are connections of which only this end is left.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from protocol import control
from protocol.errors import BadFrame, ErrorCode
from protocol.metadata import scan_metadata_response
from proxy.net import sasl_client
from proxy.net.broker_connection import BrokerConnection

if TYPE_CHECKING:
    from protocol.wire import Frame
    from proxy.net.listener import Listener
    from proxy.net.services import NetServices

log = logging.getLogger("forebay.own-link")

CLIENT_ID = "forebay"
API_VERSIONS_VERSION = 3
METADATA_VERSION = 12
FIRST_PAUSE_S = 0.2
UNREACHABLE_PAUSE_S = 0.5
REFUSED_PAUSE_S = 30.0
HEARTBEATS = 5
"""How often within `limits.upstreamTimeout` the broker is asked whether it answers."""


class OwnConnections:
    """Forebay's own links by name, all to the broker behind one listener."""

    def __init__(self, broker: NetServices, listener: Listener) -> None:
        self._broker = broker
        self._listener = listener
        self._links: dict[str, BrokerConnection] = {}
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._closed = False
        self.usable = False
        self.reachable = False
        self.refusal = ""
        self._silent_since: float | None = None
        self._is_beating = False
        self._beat_at = float("-inf")

    @property
    def connected(self) -> int:
        """Links that are open."""
        return sum(link.is_connected for link in self._links.values())

    def silent_s(self, now: float) -> float:
        """For how long the broker has owed an answer, or could not be reached; 0 while it owes none."""
        return 0.0 if self._silent_since is None else now - self._silent_since

    def tick(self, now: float) -> None:
        """Timed: ask whether the broker answers, and give it up once it has owed that for too long."""
        timeout_s = self._broker.config.limits.upstream_timeout_s
        link = self._links.get("proof")
        if link is None:
            return  # it is being opened, which asks, too
        if self.silent_s(now) >= timeout_s:
            self._give_up(f"it has not answered for {timeout_s:g} s")
        elif not self._is_beating and now - self._beat_at >= timeout_s / HEARTBEATS:
            self._is_beating, self._beat_at = True, now
            self._silent_since = now if self._silent_since is None else self._silent_since
            link.send(self._build_hello(), 0, self._beaten)

    def _beaten(self, answer: Frame | None) -> None:
        self._is_beating = False
        if answer is not None:
            self._heard()

    def _heard(self) -> None:
        """The broker answers."""
        silent_s, self._silent_since = self.silent_s(self._broker.now()), None
        if not self.reachable and self.refusal:
            log.info("the broker at %s answers again after %.1f s", self._listener.upstream, silent_s)
        self.reachable = True

    def _give_up(self, reason: str) -> None:
        log.warning("the broker at %s is given up: %s; it is tried again", self._listener.upstream, reason)
        self.reachable, self.refusal = False, reason
        links, self._links = self._links, {}
        for link in links.values():
            link.close()
        self._open("proof")

    def _build_hello(self) -> bytes:
        return control.build_api_versions_request(
            API_VERSIONS_VERSION, 0, CLIENT_ID, software_name="forebay", software_version=self._broker.version
        )

    def start(self) -> None:
        """Open the first link: it says whether there can be any."""
        self._open("proof")

    def link(self, name: str) -> BrokerConnection | None:
        """That link if it is open; else it is being opened, and the watch is pumped when it is."""
        link = self._links.get(name)
        if link is None or link.closed:
            self._open(name)
            return None
        return link

    def _open(self, name: str) -> None:
        if name not in self._opening and not self._closed:
            self._opening[name] = asyncio.get_running_loop().create_task(self._keep_opening(name))

    async def _keep_opening(self, name: str) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._closed:
            link = BrokerConnection(
                self._listener.dial,
                self._broker.responses,
                self._broker.counters,
                lambda why: self._lost(name, why),
            )
            if self._silent_since is None:
                self._silent_since = self._broker.now()
            try:
                async with asyncio.timeout(self._broker.config.limits.connect_timeout_s):
                    await self._greet(link)
            except (ConnectionError, OSError, TimeoutError, BadFrame, sasl_client.Refused) as error:
                link.close()
                self._refused(name, error)
                longest_s = UNREACHABLE_PAUSE_S if isinstance(error, OSError) else REFUSED_PAUSE_S
                pause_s = min(pause_s, longest_s)
                await asyncio.sleep(pause_s)
                pause_s *= 2
                continue
            self._links[name] = link
            break
        self._opening.pop(name, None)
        if not self.usable and not self._closed:
            log.info("the watch has its own link to %s", self._listener.upstream)
        self.usable, self.refusal = True, ""
        self._broker.watch.pump()

    async def _greet(self, link: BrokerConnection) -> None:
        """ApiVersions, which every listener answers, then `_sign_in`. Refused where the broker ends that."""
        hello = self._build_hello()
        control.scan_api_versions_response(await link.call(hello, 0), API_VERSIONS_VERSION)
        self._heard()
        try:
            await self._sign_in(link)
        except ConnectionError as error:  # it answers, but not us: that makes no broker unreachable
            raise sasl_client.Refused(f"{error}") from error

    async def _sign_in(self, link: BrokerConnection) -> None:
        """Our own credentials if there are any, and one Metadata request to see that we may ask at all."""
        credentials = self._listener.config.upstream_credentials
        if credentials is not None:
            await sasl_client.authenticate(link, credentials)
            self._listener.wants_sasl = True
        ask = control.build_metadata_request(METADATA_VERSION, 0, CLIENT_ID, topics=[])
        metadata = scan_metadata_response(await link.call(ask, 0), METADATA_VERSION)
        if metadata.error_code != ErrorCode.NONE:
            raise ConnectionError(f"the broker refuses Metadata with error {metadata.error_code}")

    def _refused(self, name: str, error: Exception) -> None:
        is_away = isinstance(error, OSError)
        timeout_s = self._broker.config.limits.connect_timeout_s
        reason = f"{error}" or f"it has not answered for {timeout_s:g} s"
        if reason != self.refusal and is_away:
            log.warning("the broker at %s does not answer: %s", self._listener.upstream, reason)
        elif reason != self.refusal:
            log.warning(
                "the watch has no link of its own to %s (%s): partitions are watched on links of clients "
                "that wait; where the broker asks for credentials, set upstreamCredentials",
                self._listener.upstream,
                reason,
            )
        self.refusal = reason
        if name == "proof":
            self.usable = False
            self.reachable = self.reachable and not is_away

    def _lost(self, name: str, why: str) -> None:
        if self._links.pop(name, None) is not None and not self._closed:
            log.info("a link of the watch was lost", extra={"link": name, "reason": why})
            if name == "proof":
                self._open(name)

    async def close(self) -> None:
        """End all links."""
        self._closed = True
        for task in list(self._opening.values()):
            task.cancel()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        for link in self._links.values():
            link.close()
        self._links = {}

"""Forebay's own connections to the broker, for the replica fetcher: opened, authenticated,
reopened. [socket]

Owns a connection per name ("watch", "proof", "idle-N"), whether Forebay may have its own
connections at all, and whether the broker answers. Must not know the other requests on them.
Invariants:
* a connection is handed out only after the broker has answered a Metadata request on it. A listener
  that wants credentials does not answer without.
* a lost connection is opened again after a pause that doubles: up to UNREACHABLE_PAUSE_S while the
  broker is away, so that a restart is noticed soon, and up to REFUSED_PAUSE_S while it answers and
  refuses Forebay. One that was lost within LASTING_S of its opening is opened again after such a
  pause, too, up to UNREACHABLE_PAUSE_S; after a longer life at once.
* a broker that owes a response for `limits.upstreamTimeout` is given up with all connections to it,
  those included whose other end is gone.
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
    from protocol.primitives import Frame
    from proxy.net.listener import AnyListener
    from proxy.net.services import NetServices

log = logging.getLogger("forebay.own_connections")

CLIENT_ID = "forebay"
API_VERSIONS_VERSION = 3
METADATA_VERSION = 12
FIRST_PAUSE_S = 0.2
UNREACHABLE_PAUSE_S = 0.5
REFUSED_PAUSE_S = 30.0
LASTING_S = 10.0
"""Life of a connection, in seconds, below which the next one waits."""
AWAITED_S = 60.0
"""Time after the start within which it is no warning that the broker is not there yet: a sidecar starts first."""
HEARTBEATS = 5
"""Number of heartbeats (ApiVersions requests) within `limits.upstreamTimeout`."""


class _Heartbeat:
    """How long the broker has owed a response to Forebay's own requests, and the heartbeat that asks
    for one.
    """

    __slots__ = ("_is_pending", "_sent_at", "_silent_since")

    def __init__(self) -> None:
        self._silent_since: float | None = None
        self._is_pending = False
        self._sent_at = float("-inf")

    def silent_s(self, now: float) -> float:
        """Seconds for which the broker has owed a response; 0 while it owes none."""
        return 0.0 if self._silent_since is None else now - self._silent_since

    def expect(self, now: float) -> None:
        """Note that the broker owes a response from `now` on (seconds), if it did not before."""
        if self._silent_since is None:
            self._silent_since = now

    def is_due(self, now: float, period_s: float) -> bool:
        """True if no heartbeat is unanswered, and the last was sent `period_s` ago."""
        return not self._is_pending and now - self._sent_at >= period_s

    def send(self, now: float) -> None:
        """Note that a heartbeat is sent."""
        self._is_pending, self._sent_at = True, now
        self.expect(now)

    def end(self) -> None:
        """Note that the heartbeat is answered, or its connection is lost."""
        self._is_pending = False

    def answered(self, now: float) -> float:
        """Note that the broker answers. Return the seconds for which it had not."""
        silent_s, self._silent_since = self.silent_s(now), None
        return silent_s


class _Lives:
    """The lives of the connections of one name. `pause_s`: before the next one is opened."""

    __slots__ = ("_opened_at", "pause_s")

    def __init__(self) -> None:
        self._opened_at = float("-inf")
        self.pause_s = 0.0

    def begin(self, now: float) -> None:
        """Note that a connection is open from `now` on (seconds)."""
        self._opened_at = now

    def end(self, now: float) -> None:
        """Note that it is lost: the pause doubles after a short life, and ends after a long one."""
        is_short = now - self._opened_at < LASTING_S
        longer_s = min(max(2 * self.pause_s, FIRST_PAUSE_S), UNREACHABLE_PAUSE_S)
        self.pause_s = longer_s if is_short else 0.0


class OwnConnections:
    """Forebay's own connections by name, all to the broker behind one listener.

    `usable`: the broker accepts Forebay's own connections. `reachable`: the broker answers.
    `refusal`: why the last attempt failed; "" after a success.
    """

    def __init__(self, broker: NetServices, listener: AnyListener) -> None:
        self._broker = broker
        self._listener = listener
        self._connections: dict[str, BrokerConnection] = {}
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._lives: dict[str, _Lives] = {}
        self._closed = False
        self.usable = False
        self.reachable = False
        self.refusal = ""
        self._heartbeat = _Heartbeat()
        self._is_awaited = True
        self._told: tuple[str, int] | None = None

    @property
    def listener(self) -> AnyListener:
        """The listener whose broker address they use."""
        return self._listener

    @property
    def connected(self) -> int:
        """Number of connections that are open."""
        return sum(connection.is_connected for connection in self._connections.values())

    def silent_s(self, now: float) -> float:
        """Seconds for which the broker has owed a response, or could not be reached; 0 while it
        owes none.
        """
        return self._heartbeat.silent_s(now)

    def tick(self, now: float) -> None:
        """Timed: send a heartbeat, and give the broker up if it has owed a response for
        `limits.upstreamTimeout`.
        """
        timeout_s = self._broker.config.limits.upstream_timeout_s
        connection = self._connections.get("proof")
        if connection is None:
            return  # being opened, which asks the broker, too
        if self.silent_s(now) >= timeout_s:
            self._give_up(f"it has not answered for {timeout_s:g} s")
        elif self._heartbeat.is_due(now, timeout_s / HEARTBEATS):
            self._heartbeat.send(now)
            connection.send(self._build_hello(), 0, self._on_heartbeat)

    def _on_heartbeat(self, answer: Frame | None) -> None:
        self._heartbeat.end()
        if answer is not None:
            self._note_answer()

    def _note_answer(self) -> None:
        """Note that the broker answers."""
        silent_s = self._heartbeat.answered(self._broker.now())
        if not self.reachable and self.refusal:
            log.info(
                "the broker at %s answers again after %.1f s", self._listener.upstream, silent_s
            )
        self.reachable, self._is_awaited = True, False

    def _give_up(self, reason: str) -> None:
        log.warning(
            "the broker at %s is given up: %s; it is tried again", self._listener.upstream, reason
        )
        self.reachable, self.refusal = False, reason
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close()
        self._open("proof")

    def _build_hello(self) -> bytes:
        return control.build_api_versions_request(
            API_VERSIONS_VERSION,
            0,
            CLIENT_ID,
            software_name="forebay",
            software_version=self._broker.version,
        )

    def start(self) -> None:
        """Open the first connection, which shows whether Forebay may have its own."""
        self._open("proof")

    def link(self, name: str) -> BrokerConnection | None:
        """The connection of that name if it is open; else None. The connection is then being
        opened, and the replica fetcher runs again when it is open.
        """
        connection = self._connections.get(name)
        if connection is None or connection.closed:
            self._open(name)
            return None
        return connection

    def _open(self, name: str) -> None:
        if name not in self._opening and not self._closed:
            self._opening[name] = asyncio.get_running_loop().create_task(self._keep_opening(name))

    async def _keep_opening(self, name: str) -> None:
        lives = self._lives.setdefault(name, _Lives())
        if lives.pause_s:
            await asyncio.sleep(lives.pause_s)
        pause_s = FIRST_PAUSE_S
        while not self._closed:
            connection = BrokerConnection(
                self._listener.dial,
                self._broker.responses,
                self._broker.counters,
                lambda why: self._lost(name, why),
            )
            self._heartbeat.expect(self._broker.now())
            try:
                async with asyncio.timeout(self._broker.config.limits.connect_timeout_s):
                    await self._prepare(connection)
            except (
                ConnectionError,
                OSError,
                TimeoutError,
                BadFrame,
                sasl_client.AuthenticationRefused,
            ) as error:
                connection.close()
                self._refused(name, error)
                longest_s = UNREACHABLE_PAUSE_S if isinstance(error, OSError) else REFUSED_PAUSE_S
                pause_s = min(pause_s, longest_s)
                await asyncio.sleep(pause_s)
                pause_s *= 2
                continue
            self._connections[name] = connection
            lives.begin(self._broker.now())
            break
        self._opening.pop(name, None)
        if not self.usable and not self._closed:
            log.info("the replica fetcher has its own connection to %s", self._listener.upstream)
        self.usable, self.refusal = True, ""
        self._broker.replica_fetcher.pump()

    async def _prepare(self, connection: BrokerConnection) -> None:
        """Send ApiVersions, which every listener answers, then `_sign_in`. Raises Refused if the
        broker closes during that.
        """
        hello = self._build_hello()
        control.scan_api_versions_response(await connection.call(hello, 0), API_VERSIONS_VERSION)
        self._note_answer()
        try:
            await self._sign_in(connection)
        except ConnectionError as error:  # the broker has answered ApiVersions, so it is reachable
            raise sasl_client.AuthenticationRefused(f"{error}") from error

    async def _sign_in(self, connection: BrokerConnection) -> None:
        """Authenticate if credentials are configured, and send one Metadata request to see whether
        Forebay may ask at all. Raises Refused, ConnectionError, BadFrame.
        """
        credentials = self._listener.config.upstream_credentials
        if credentials is not None:
            await sasl_client.authenticate(connection, credentials)
            self._listener.saw_sasl()
        ask = control.build_metadata_request(METADATA_VERSION, 0, CLIENT_ID, topics=[])
        metadata = scan_metadata_response(await connection.call(ask, 0), METADATA_VERSION)
        if metadata.error_code != ErrorCode.NONE:
            raise ConnectionError(f"the broker refuses Metadata with error {metadata.error_code}")

    def _refused(self, name: str, error: Exception) -> None:
        is_away = isinstance(error, OSError)
        if isinstance(error, sasl_client.AuthenticationRefused):
            self._broker.counters.authentications.refuse_own()
        timeout_s = self._broker.config.limits.connect_timeout_s
        reason = f"{error}" or f"it has not answered for {timeout_s:g} s"
        if is_away:
            self._tell_away(reason)
        elif reason != self.refusal:
            log.warning(
                "the replica fetcher has no connection of its own to %s (%s): it uses connections of "
                "waiting clients; where the broker asks for credentials, set upstreamCredentials",
                self._listener.upstream,
                reason,
            )
        self.refusal = reason
        if name == "proof":
            self.usable = False
            self.reachable = self.reachable and not is_away

    def _tell_away(self, reason: str) -> None:
        """Log why the broker does not answer: once, and once more when it was awaited for long enough."""
        is_early = self._is_awaited and self.silent_s(self._broker.now()) < AWAITED_S
        telling = reason, logging.INFO if is_early else logging.WARNING
        if reason != self.refusal or telling != self._told:
            log.log(
                telling[1], "the broker at %s does not answer: %s", self._listener.upstream, reason
            )
        self._told = telling

    def _lost(self, name: str, why: str) -> None:
        if self._connections.pop(name, None) is not None and not self._closed:
            self._lives[name].end(self._broker.now())
            log.info(
                "a connection of the replica fetcher was lost",
                extra={"connection": name, "reason": why},
            )
            if name == "proof":
                self._open(name)

    async def close(self) -> None:
        """End all connections, and stop opening others."""
        self._closed = True
        for task in list(self._opening.values()):
            task.cancel()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        for connection in self._connections.values():
            connection.close()
        self._connections = {}

"""Reload: reads the configuration again and applies it to the running process (SIGHUP, POST /reload).

Owns the order of a reload, the table of live keys with the function that applies each, the configuration under the
switches, and the result of the last reload. Must not know how a room works by its limits: each room has a method that
takes them.
Invariants:
* a configuration that is refused, or a certificate that cannot be loaded, changes nothing.
* files are read beside the event loop; then everything is applied within one step of the loop.
* one reload runs at a time; signals that arrive meanwhile lead to one more.
* switches lie over the configuration that was read (`base`): a reload changes what is under them, and what they
  override stays as they say until they end.
* every key is in APPLY or in `live_keys.RESTART` (a test over all keys).
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from proxy.admin.log import set_level
from proxy.broker import build_session_limits
from proxy.config.live_keys import list_at_start, plan_reload
from proxy.config.yaml_file import ConfigError
from proxy.net.listener import ListenerSettings, load_settings
from proxy.renewal import Renewal
from proxy.switches.overlay import Overlaid, overlay
from proxy.switches.state import EMPTY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from proxy.broker import Broker
    from proxy.config.live_keys import Change
    from proxy.config.load import Loaded
    from proxy.config.model import Config
    from proxy.net.listener import AnyListener
    from proxy.net.pass_through import PassThroughListener
    from proxy.switches.state import SwitchState

log = logging.getLogger("forebay.reload")

BROKEN: Final = "the reload failed by an error that should not happen; see the log"


class Running(Protocol):
    """The parts of the process that a reload changes (`proxy.app.Forebay`)."""

    @property
    def broker(self) -> Broker: ...
    @property
    def listeners(self) -> Sequence[AnyListener]: ...
    @property
    def pass_through(self) -> Sequence[PassThroughListener]: ...


@dataclass(frozen=True, slots=True)
class ReloadReport:
    """The answer to a reload. `errors` not empty: nothing has changed. `certificates`: the listeners whose files were
    read again, for the handshakes that begin from now on. `overridden`: keys of `applied` whose new value is in force
    only once a switch ends.
    """

    applied: tuple[Change, ...] = ()
    needs_restart: tuple[Change, ...] = ()
    certificates: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    overridden: tuple[str, ...] = ()

    def describe(self) -> dict[str, object]:
        """The report as JSON has it."""
        return {
            "success": not self.errors,
            "applied": [{"key": one.key, "old": one.old, "new": one.new} for one in self.applied],
            "needsRestart": [
                {"key": one.key, "old": one.old, "new": one.new, "reason": one.reason}
                for one in self.needs_restart
            ],
            "overridden": list(self.overridden),
            "certificates": list(self.certificates),
            "warnings": list(self.warnings),
            "errors": list(self.errors),
        }


class Reloader:
    """Reloads the configuration of `running`. `read` loads it as at the start; it may block, and raises ConfigError.

    `was_successful`: the last reload was; True before the first. `reloaded_at`: Unix time of the last reload, or of
    the start, in seconds.
    """

    def __init__(
        self,
        running: Running,
        read: Callable[[], Loaded],
        keep: Callable[[Config], object] = lambda _config: None,
        state: Callable[[], SwitchState] = lambda: EMPTY,
    ) -> None:
        """`keep` is given each configuration that was read and is in force: it outlives the process. `state`: that of
        the switches.
        """
        self._running = running
        self._read = read
        self._keep = keep
        self._state = state
        self.base = running.broker.config
        """The configuration as it was read, under the switches."""
        self.at_start = list_at_start(self.base)
        self.overlaid = Overlaid(self.base, None, 0.0, {})
        self._lock = asyncio.Lock()
        self.renewal = Renewal(running, self._lock)
        self._task: asyncio.Task[None] | None = None
        self._is_asked = False
        self.was_successful = True
        self.reloaded_at = time.time()

    def request(self) -> None:
        """Reload soon. A request during a reload leads to one more after it."""
        self._is_asked = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="reload")

    async def _run(self) -> None:
        while self._is_asked:
            self._is_asked = False
            await self.reload()

    def stop(self) -> None:
        """Apply nothing any more that was requested by `request`."""
        self._is_asked = False
        if self._task is not None:
            self._task.cancel()

    async def reload(self) -> ReloadReport:
        """Reload now, or after the reload that is under way. Writes one log line."""
        async with self._lock:
            try:
                report = await self._reload()
            except ConfigError as refusal:
                report = ReloadReport(errors=refusal.problems)
            except Exception:
                log.exception("reloading the configuration failed")
                report = ReloadReport(errors=(BROKEN,))
            self.was_successful, self.reloaded_at = not report.errors, time.time()
            tell(report)
            return report

    async def _reload(self) -> ReloadReport:
        loaded = await asyncio.to_thread(self._read)
        plan = plan_reload(self.base, loaded.config, self.at_start)
        found = await asyncio.to_thread(self.renewal.read_all, plan.config)
        settings = await asyncio.to_thread(load_all_settings, plan.config)
        self.base = plan.config
        in_force = {change.key for change in self.put_in_force()}
        adopt_settings(self._running, settings)
        self.renewal.note_reload(found)
        self._keep(plan.config)
        names = tuple(one.config.name for one in settings if _has_files(one))
        overridden = tuple(one.key for one in plan.applied if one.key not in in_force)
        return ReloadReport(
            plan.applied, plan.pending, names, loaded.warnings, overridden=overridden
        )

    def put_in_force(self) -> tuple[Change, ...]:
        """Put the configuration under the switches in force as they are now. Returns what has changed by it."""
        running, overlaid = self._running, overlay(self.base, self._state(), self.at_start)
        plan = plan_reload(running.broker.config, overlaid.config, self.at_start)
        are_alike = overlaid.trial == self.overlaid.trial and overlaid.share == self.overlaid.share
        self.overlaid = overlaid
        if plan.applied or not are_alike:
            apply(running, overlaid, plan.applied, has_modes=not are_alike)
        return plan.applied


def _has_files(settings: ListenerSettings) -> bool:
    return settings.server_context is not None or settings.dial.ssl_context is not None


def load_all_settings(config: Config) -> list[ListenerSettings]:
    """The settings of all listeners that are read, with the present content of their files. Raises ConfigError with all
    problems.
    """
    settings, problems = [], []
    for index, listener in enumerate(config.listeners):
        if listener.pass_through:
            continue
        try:
            settings.append(load_settings(listener, config.limits))
        except ValueError as error:
            problems.append(f"listeners[{index}].{error}; the files loaded before stay in use")
    if problems:
        raise ConfigError(problems)
    return settings


def apply(running: Running, overlaid: Overlaid, changes: Sequence[Change], has_modes: bool) -> None:
    """Put a configuration in force, and tell each room whose keys have changed. `has_modes`: so have the modes of some
    connections.
    """
    broker, config = running.broker, overlaid.config
    broker.configure(config, overlaid.trial, overlaid.share)
    patterns = {change.pattern for change in changes}
    for listener in running.listeners:
        listener.adopt_modes()
    if has_modes:
        apply_cache_mode(broker, config)
    for part in APPLY:
        is_changed = any(
            key == pattern or key.startswith(f"{pattern}[]")
            for key in part.keys
            for pattern in patterns
        )
        if is_changed and part.run is not None:
            part.run(broker, config)


def adopt_settings(running: Running, settings: Sequence[ListenerSettings]) -> None:
    """Have each listener use its entry of the configuration in force, with the files that were read for it."""
    config = running.broker.config
    for listener, one in zip(running.listeners, settings, strict=True):
        listener.adopt(one, config.limits)
    unread_entries = [entry for entry in config.listeners if entry.pass_through]
    for unread, entry in zip(running.pass_through, unread_entries, strict=True):
        unread.adopt(entry, config.limits)


@dataclass(frozen=True, slots=True)
class Part:
    """Keys, and the function that tells the room which keeps their values. None: all readers read them at each use,
    or `Listener.adopt` takes them, which follows each reload.
    """

    keys: tuple[str, ...]
    run: Callable[[Broker, Config], None] | None


def apply_log_level(_broker: Broker, config: Config) -> None:
    """Write records from `log.level` up."""
    set_level(config.log.level)


def apply_cache_mode(broker: Broker, _config: Config) -> None:
    """Judge the Fetches that wait by the new modes, which their connections have adopted."""
    broker.purgatory.evaluate_all()


def apply_verifier(broker: Broker, config: Config) -> None:
    """Set the share of the answers that are compared."""
    broker.verifier.set_ratio(config.cache.verify_ratio)


def apply_memory(broker: Broker, config: Config) -> None:
    """Set the byte budgets of the process."""
    broker.requests.set_limit(config.limits.request_memory_bytes)
    broker.responses.set_limit(config.limits.response_memory_bytes)


def apply_connections(broker: Broker, config: Config) -> None:
    """Set the limits of handshakes and of addresses; listeners read that of connections at each one."""
    limits = config.limits
    broker.handshakes.set_limit(limits.max_connections)
    broker.host_limits.set_limits(
        limits.connections_per_address, limits.connection_rate_per_address
    )


def apply_fetch_limits(broker: Broker, config: Config) -> None:
    """Set the limits on Fetches that wait, that share reads, on partitions and on fetch sessions."""
    limits = config.limits
    broker.purgatory.set_limit(limits.parked_fetches)
    broker.shared_reads.set_limit(limits.read_joiners)
    broker.partitions.set_limit(2 * limits.watched_partitions)
    broker.principals.set_limit(limits.principals)
    broker.readers.set_limit(limits.readers)
    broker.sessions.set_limits(build_session_limits(limits))


def apply_throttle(broker: Broker, config: Config) -> None:
    """Set the throttle's rules."""
    broker.disk_throttle.set_rules(config.throttle)


def apply_isolation(broker: Broker, config: Config) -> None:
    """Set the rules of the queues toward the broker, and the quotas."""
    broker.scheduler.set_rules(config.isolation)


APPLY: Final[tuple[Part, ...]] = (
    Part(("log.level",), apply_log_level),
    Part(
        (
            "cache.mode",
            "cache.topicModes[].pattern",
            "cache.topicModes[].mode",
            "listeners[].cacheMode",
        ),
        apply_cache_mode,
    ),
    Part(("cache.verifyRatio",), apply_verifier),
    Part(("limits.requestMemory", "limits.responseMemory"), apply_memory),
    Part(
        (
            "limits.maxConnections",
            "limits.connectionsPerAddress",
            "limits.connectionRatePerAddress",
        ),
        apply_connections,
    ),
    Part(
        (
            "limits.parkedFetches",
            "limits.readJoiners",
            "limits.watchedPartitions",
            "limits.principals",
            "limits.readers",
            "limits.fetchSessions",
            "limits.fetchSessionPartitions",
            "limits.requestPartitions",
        ),
        apply_fetch_limits,
    ),
    Part(
        (
            "throttle.enabled",
            "throttle.target",
            "throttle.lagThreshold",
            "throttle.maxDelay",
            "throttle.inFlight",
            "throttle.floor",
            "throttle.ceiling",
            "throttle.sampleEvery",
            "throttle.busyAwait",
            "throttle.busyInFlight",
            "throttle.busyPressure",
            "throttle.waitingRequests",
            "throttle.waitingSize",
            "throttle.weights[].clientId",
            "throttle.weights[].weight",
        ),
        apply_throttle,
    ),
    Part(
        (
            "isolation.enabled",
            "isolation.maxQueueWait",
            "isolation.queueRequests",
            "isolation.queueSize",
            "isolation.releaseAfter",
            "isolation.hangAfter",
            "isolation.dataSlots.floor",
            "isolation.dataSlots.initial",
            "isolation.dataSlots.ceiling",
            "isolation.controlSlots.floor",
            "isolation.controlSlots.initial",
            "isolation.controlSlots.ceiling",
            "isolation.topicQuotas[].pattern",
            "isolation.topicQuotas[].inFlight",
            "isolation.topicQuotas[].fetchRate",
            "isolation.clientQuotas[].pattern",
            "isolation.clientQuotas[].inFlight",
            "isolation.clientQuotas[].fetchRate",
        ),
        apply_isolation,
    ),
    Part(
        (
            "listeners[].advertised",
            "listeners[].allow",
            "listeners[].deny",
            "listeners[].trustedProxies",
            "listeners[].tls.certificateFile",
            "listeners[].tls.keyFile",
            "listeners[].tls.clientCaFile",
            "listeners[].tls.crlFile",
            "listeners[].tls.minVersion",
            "listeners[].tls.ciphers",
            "listeners[].upstreamTls.caFile",
            "listeners[].upstreamTls.serverName",
            "listeners[].upstreamTls.certificateFile",
            "listeners[].upstreamTls.keyFile",
            "listeners[].upstreamTls.insecureSkipVerify",
            "listeners[].upstreamTls.crlFile",
            "listeners[].upstreamTls.minVersion",
            "listeners[].upstreamTls.ciphers",
            "listeners[].upstreamCredentials.mechanism",
            "listeners[].upstreamCredentials.username",
            "listeners[].upstreamCredentials.passwordFile",
            "listeners[].upstreamCredentials.tokenFile",
            "limits.maxRequestFrame",
            "limits.maxResponseFrame",
            "limits.connectionRequestMemory",
            "limits.connectionResponseMemory",
            "limits.pipelinedRequests",
            "limits.idleTimeout",
            "limits.connectTimeout",
        ),
        None,
    ),
    Part(
        (
            "cache.authorizeEvery",
            "cache.holeWait",
            "limits.upstreamTimeout",
            "limits.frameTimeout",
            "shutdown.gracePeriod",
        ),
        None,
    ),
)
"""The live keys, each in one part."""


def tell(report: ReloadReport) -> None:
    """Write the log line of a reload. It names keys, no values; a refusal has the words of the start."""
    if report.errors:
        log.error(
            "the configuration was not reloaded, the running one stays in force: %s",
            "; ".join(report.errors),
        )
        return
    log.info(
        "the configuration was reloaded",
        extra={
            "applied": " ".join(one.key for one in report.applied),
            "needs_restart": " ".join(one.key for one in report.needs_restart),
            "certificates": " ".join(report.certificates),
            "warnings": "; ".join(report.warnings),
        },
    )

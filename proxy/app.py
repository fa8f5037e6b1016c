"""Composition root of a worker: builds, starts and stops all parts. Start reading here.

Owns the process that the supervisor starts: signals, the order of start and stop, and the clock of
timed work. Must not know the clients' requests. Start order: cache, access log, Forebay's own
connections, listeners, admin HTTP. Stop order, on a signal of ENDING, or on SIGUSR2 from the
supervisor once a successor accepts clients:
* `/readyz` says not ready, or the admin port is the successor's; listeners accept nobody.
* delayed Fetches are answered with the records that there are, and in-flight requests are answered.
* everything closes, within `shutdown.gracePeriod`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import gc
import logging
import secrets
import signal
import time
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

from blockcache.arena_file import ArenaError
from metrics.access_log import AccessLog, ListenerAddress
from metrics.collector import Exposition
from proxy.accept_turns import AcceptTurns
from proxy.admin.access import AdminAccess
from proxy.admin.http import (
    AdminServer,
    HttpResponse,
    build_routes,
    json_answer,
)
from proxy.admin.samples import collect
from proxy.admin.switch_routes import SwitchAccess
from proxy.broker import Broker
from proxy.build_info import find_version
from proxy.config.load import Loaded
from proxy.config.share import share_config
from proxy.dispatch import Dispatch
from proxy.group import GroupAnswers, find_gaps
from proxy.identity.sign_in_check import SignInCheck, SignInPlace
from proxy.janitor import Janitor
from proxy.keeper.broker import KeeperBroker
from proxy.keeper.server import KeeperServer, end_torn
from proxy.keeper.worker_broker import WorkerBroker
from proxy.memory_and_log import open_access_log, open_cache, prefault
from proxy.net.listener import Listener
from proxy.net.own_connections import OwnConnections
from proxy.net.pass_through import PassThroughListener
from proxy.readiness import Readiness
from proxy.reload import Reloader
from proxy.sockets import find_address, naming
from proxy.supervisor.figures import Figures
from proxy.supervisor.heartbeat import BEATS, HeartbeatSender
from proxy.supervisor.role import Role
from proxy.supervisor.signals import handle_signals
from proxy.switches.store import SwitchStore
from proxy.switching import Switcher
from proxy.takeover import Takeover

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from blockcache.cache import BlockCache
    from proxy.admin.log_queue import LogQueue
    from proxy.config.model import Config
    from proxy.keeper.keeper_link import KeeperLink
    from proxy.net.listener import AnyListener
    from proxy.sockets import Sockets
    from proxy.supervisor.handover import Handover

log = logging.getLogger("forebay")

LOOK_EVERY_S = 0.02
NODE_WAIT_S = 1.0
"""How long a successor waits for the broker's node id, which the broker may refuse to tell."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt(3)."""
KEPT_BYTES, MAPPED_BYTES = 16 << 20, 2 << 20
"""Bytes of freed memory that are kept, and the smallest block with a mapping of its own: larger than
a frame of a producer with default settings (max.request.size: 1 MiB). glibc's own 128 KiB for both
grow only once a larger block was freed.
"""


read_clock_s = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
"""Returns seconds on the clock for leases. CLOCK_BOOTTIME continues while the machine is suspended.
Each call reads the clock anew, since asyncio's own may stand still for as long as a callback
takes.
"""


class Forebay:
    """All parts of the running process. Raises ArenaError if there is no arena, OSError or
    ValueError if a file that the configuration names cannot be read.
    """

    def __init__(
        self,
        config: Config,
        own_log: LogQueue | None = None,
        has_pipeline: bool = True,
        read: Callable[[], Loaded] | None = None,
        cache: BlockCache | None = None,
        figures: Figures | None = None,
        keep: Callable[[Config], object] = lambda _config: None,
        version: str = "0",
        role: Role = Role.ALONE,
        number: int = 0,
        keeper: socket.socket | bytes | None = None,
        switches: SwitchStore | None = None,
    ) -> None:
        """`has_pipeline` False: no Produce uses the pipeline (proxy/produce/pipeline.py). `role`,
        `number` and `keeper`: those of the handover. `read` loads the configuration for a reload;
        None: `config` again, so that only certificates are reloaded.
        `cache` None: opened here. `figures`: what the supervisor counts; None: there is
        none. `keep` is given the configuration that a reload has put in force. `version`: Forebay's own,
        for metrics and the broker's request logs. `switches`: the supervisor's store; None: one of this process.
        """
        self.own_log = own_log
        self.figures = Figures() if figures is None else figures
        self.boot = secrets.token_hex(8)
        self.group = GroupAnswers(self, f"worker-{number}" if role is Role.WORKER else role.value)
        self.prefaulting: asyncio.Task[None] | None = None
        cache = open_cache(config, None) if cache is None else cache
        self.role = role
        access_log = open_access_log(config, self.boot, role)
        self.broker, self.keeper, self.keeper_link = self._build_broker(
            config, cache, access_log, version, number, keeper
        )
        dispatch = partial(Dispatch, has_pipeline=has_pipeline)
        self.listeners = [
            Listener(self.broker, entry, dispatch)
            for entry in config.listeners
            if not entry.pass_through
        ]
        self.pass_through = [
            PassThroughListener(self.broker, entry)
            for entry in config.listeners
            if entry.pass_through
        ]
        self.turns = AcceptTurns(
            self.figures, number, lambda: self.broker.handshakes.open_connections
        )
        if role is Role.WORKER:
            self.broker.handshakes.turns = self.turns
        self.own_connections = OwnConnections(self.broker, choose_own(self.listeners))
        self.broker.own_connections = self.own_connections
        self.sign_in_check = SignInCheck(self.broker, list_sign_in_places(self.listeners))
        self.readiness = Readiness(
            (*self.listeners, *self.pass_through) if role.has_clients else (),
            self.own_connections,
            self.sign_in_check,
            config.listeners[0].upstream,
            self.boot,
            partial(find_gaps, config, self.figures) if role is Role.KEEPER else list,
        )
        self.takeover = Takeover(self.broker, end_torn)
        self.switches = SwitchStore() if switches is None else switches
        read = read or partial(Loaded, config, {}, (), ())
        self.reloader = Reloader(self, read, keep, self.switches.read)
        self.switcher = Switcher(self, self.switches)
        self.switcher.begin()
        timed = [self.readiness.tell, self.tell_node, self.reloader.renewal.tick]
        each_tick: list[Callable[[float], object]] = []
        if role.has_arena:
            each_tick.append(self.takeover.tick)
        each_tick.append(self.switcher.tick)
        if isinstance(self.broker, KeeperBroker):
            each_tick.append(self.broker.tick)
        if role is Role.WORKER:
            each_tick.append(self.turns.show)
        self.janitor = Janitor(self.broker, self.listeners, timed, each_tick)
        exposition = Exposition(lambda: collect(self))
        routes = build_routes(
            exposition.render,
            self.readiness.check,
            lambda: self.config.model_dump(mode="json", by_alias=True),
            lambda: dataclasses.asdict(cache.statistics()),
            lambda: dataclasses.asdict(self.broker.disk_throttle.statistics()),
            self.broker.scheduler.report,
        ) | self.group.build_routes(self.keeper)
        limits = config.admin
        self.admin_access = AdminAccess(limits)
        switched = SwitchAccess(
            self.switches,
            read_clock_s,
            self.switcher.explain,
            self.switcher.settle,
            self.switcher.refuse_drop,
        )
        self.admin = AdminServer(
            {**routes, **switched.routes},
            actions={"/reload": self._answer_reload, **switched.actions},
            max_connections=limits.max_connections,
            request_timeout_s=limits.request_timeout_s,
            access=self.admin_access.check,
        )

    def _build_broker(
        self,
        config: Config,
        cache: BlockCache,
        access_log: AccessLog | None,
        version: str,
        number: int,
        keeper: socket.socket | bytes | None,
    ) -> tuple[Broker, KeeperServer | None, KeeperLink | None]:
        """The broker of the process's role, and its end of the link between keeper and workers."""
        if isinstance(keeper, bytes):
            seen = WorkerBroker(
                config,
                cache,
                access_log,
                version,
                read_clock_s,
                keeper,
                number,
                self.group.answer_keeper,
            )
            return seen, None, seen.link
        if keeper is not None:
            shown = KeeperBroker(config, cache, access_log, version, read_clock_s)
            return shown, KeeperServer(shown, keeper, self.boot), None
        return Broker(config, cache, access_log, version, read_clock_s), None, None

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self.broker.config

    @property
    def _all_listeners(self) -> list[AnyListener | PassThroughListener]:
        return [*self.listeners, *self.pass_through]

    async def _answer_reload(self, _query: str) -> HttpResponse:
        report = await self.reloader.reload()
        status = HTTPStatus.UNPROCESSABLE_ENTITY if report.errors else HTTPStatus.OK
        return json_answer(report.describe())._replace(status=status)

    async def start(self, sockets: Sockets, is_successor: bool = False) -> None:
        """Start all parts, which own `sockets`, those of the configuration. `is_successor`: accept
        nobody before the broker has answered. Raises OSError if a file of a listener's `tls` cannot
        be loaded.
        """
        self.prefaulting = asyncio.create_task(prefault(self.broker.cache), name="prefault")
        self._begin_access_log(sockets)
        self.own_connections.start()
        self.sign_in_check.start()
        if self.role.has_arena:
            self.takeover.start()
        self.janitor.start()
        self.broker.disk_throttle.start()
        if is_successor:
            await self._wait_for_broker()
        if self.keeper is not None:
            self.keeper.start()
        if self.keeper_link is not None:
            self.keeper_link.start()
        if self.role.has_clients:
            await self._listen(sockets)
        if self.role.has_arena:
            address = await self.admin.start(sockets.admin)
            log.info("admin HTTP at %s", address)

    async def _listen(self, sockets: Sockets) -> None:
        """Accept clients. Raises OSError."""
        by_name = {one.name: one for one in self._all_listeners}
        for index, entry in enumerate(self.config.listeners):
            with naming(f"listener {entry.name}", entry.listen, f"listeners[{index}].listen"):
                await by_name[entry.name].start(sockets.listeners[index])
        self.turns.enter()

    async def _wait_for_broker(self) -> None:
        """Until the broker answers; then a little longer, for its node id: it decides about the arena."""
        while not self.own_connections.reachable:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_EVERY_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(NODE_WAIT_S):
                while self.broker.node.node_id < 0:  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_EVERY_S)

    def _begin_access_log(self, sockets: Sockets) -> None:
        """Put the first line, which has no counts. Nobody was accepted."""
        if self.broker.access_log is not None and self.broker.counter_lines is not None:
            shown = [
                ListenerAddress(one.name, str(find_address(each)), str(one.upstream))
                for one, each in zip(self.config.listeners, sockets.listeners, strict=True)
                if each and not one.pass_through
            ]
            self.broker.access_log.learn_listeners(shown)
            self.broker.counter_lines.put("open")

    def tell_node(self, _now: float) -> None:
        """Timed: show the broker's node id in the access log once it is known."""
        node_id, access_log = self.broker.node.node_id, self.broker.access_log
        if access_log is not None and node_id >= 0:
            access_log.learn_node(node_id)

    async def stop(self, has_successor: bool = False) -> None:
        """Drain for at most `shutdown.gracePeriod`, then close all parts. `has_successor`: another
        process accepts in this one's place, and waits for the arena.
        """
        if has_successor:
            self.admin.leave()
        self.readiness.drain()
        self.reloader.stop()
        if self.prefaulting is not None:
            self.prefaulting.cancel()
        self.turns.leave()
        for listener in self._all_listeners:
            listener.stop()
        with contextlib.suppress(TimeoutError):
            self.broker.handshakes.close()
            async with asyncio.timeout(self.config.shutdown.grace_period_s):
                for listener in self._all_listeners:
                    await listener.drained.wait()
        for listener in self._all_listeners:
            listener.abort()
        if self.keeper is not None:
            await self.keeper.stop()
        if self.keeper_link is not None:
            await self.keeper_link.stop()
        self.janitor.stop()
        await self.reloader.renewal.stop()
        self.broker.disk_throttle.stop()
        self.broker.scheduler.stop()
        self.sign_in_check.stop()
        self.broker.sign_ins.close()
        await self.own_connections.close()
        await self.admin.close()
        if self.broker.stored_runs is not None:
            self.broker.stored_runs.close()
        if self.broker.accounts.lines is not None:
            self.broker.accounts.lines.empty.close()
        if self.broker.counter_lines is not None:
            self.broker.counter_lines.put("close")
        await self.takeover.stop()
        self.broker.cache.close()
        self.figures.close()
        self.switches.close()
        if self.broker.access_log is not None:
            await asyncio.to_thread(self.broker.access_log.close)


async def serve(
    handover: Handover, own_log: LogQueue, read: Callable[[], Loaded] | None = None
) -> int:
    """Run as the supervisor's worker until a signal of ENDING. Returns the exit code: 0, or 1 if
    there is no arena. Raises OSError if a file that the configuration names cannot be read. `read`:
    see `Forebay`.
    """
    stopping = asyncio.Event()
    handle_signals(stopping.set)
    config = handover.config
    if handover.role is Role.WORKER:
        config, read = take_share(config, handover.read_in_force)
    every_s = config.supervisor.heartbeat_timeout_s / BEATS
    heartbeat = HeartbeatSender(handover.heartbeat, every_s, stopping.set)
    heartbeat.start()
    try:
        cache = await asyncio.to_thread(open_cache, config, handover.arena, handover.role)
    except ArenaError as error:
        log.error("cannot start: %s", error)
        return 1

    def keep(config: Config) -> None:
        handover.in_force.write(config)
        if handover.role is Role.KEEPER:
            heartbeat.tell_reloaded()

    forebay = Forebay(
        config,
        own_log,
        read=read,
        cache=cache,
        figures=handover.figures,
        keep=keep,
        version=find_version(),
        role=handover.role,
        number=handover.number,
        keeper=handover.keeper,
        switches=handover.switches,
    )
    loop, has_successor = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, forebay.reloader.request)
    try:
        await forebay.start(handover.sockets, handover.is_successor)
        freeze_what_stands()
        keep_freed_memory()
        loop.add_signal_handler(signal.SIGUSR2, end_for_successor, stopping, has_successor)
        heartbeat.become_ready()
        log.info("started", extra=describe_start(forebay))
        await stopping.wait()
        log.info("stopping: answering what is in flight")
    finally:
        if heartbeat.is_orphaned and handover.arena is not None and not config.cache.keep_arena:
            handover.arena.remove()  # nobody else does
        await forebay.stop(has_successor.is_set())
    log.info("stopped")
    return 0


def take_share(config: Config, read: Callable[[], Loaded]) -> tuple[Config, Callable[[], Loaded]]:
    """The configuration of one of several workers, and what loads it again."""

    def read_share() -> Loaded:
        loaded = read()
        return dataclasses.replace(loaded, config=share_config(loaded.config, config.workers))

    return share_config(config, config.workers), read_share


def end_for_successor(stopping: asyncio.Event, has_successor: asyncio.Event) -> None:
    """SIGUSR2: another worker accepts clients, so that this one ends."""
    has_successor.set()
    stopping.set()


def describe_start(forebay: Forebay) -> dict[str, object]:
    """The fields of the line that says that a worker has started."""
    cache = forebay.config.cache
    return {
        "boot": forebay.boot,
        "version": forebay.broker.version,
        "cacheMode": cache.mode,
        "cacheBytes": cache.size_bytes,
    }


def freeze_what_stands() -> None:
    """Exclude all present objects (modules, configuration, tables) from garbage collection.
    Collecting among them stopped every request for 20 to 50 ms each five seconds
    (docs/decisions/0010).
    """
    gc.collect()
    gc.freeze()


def keep_freed_memory() -> None:
    """Let malloc keep KEPT_BYTES of freed memory at the end of the heap, and take frames from it:
    memory that is given back and asked for again costs a page fault for each 4 KiB
    (docs/performance.md). Without glibc nothing happens.
    """
    with contextlib.suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)


def list_sign_in_places(listeners: Sequence[AnyListener]) -> list[SignInPlace]:
    """Where Forebay signs in to the broker for clients."""
    places = []
    for one in listeners:
        if one.config.signs_in_for_clients:
            places.append(SignInPlace(one.name, one.dial))
        if one.config.use_delegation_tokens and one.catch_up_dial is not None:
            places.append(SignInPlace(one.name, one.catch_up_dial))
    return places


def choose_own(listeners: Sequence[AnyListener]) -> AnyListener:
    """The listener whose broker address Forebay's own connections use: the first with credentials
    for them, else the first.
    """
    return next(
        (one for one in listeners if one.config.upstream_credentials is not None), listeners[0]
    )

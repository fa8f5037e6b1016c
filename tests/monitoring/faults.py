"""Faults: what makes each alert fire, and what makes it resolve.

Owns the causes and their cures. Must not know Prometheus. A fault is a context manager over the stage: entering it
causes, leaving it cures. FAULTS names the Forebay that suffers and the alerts that follow.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import Producer

from tests.e2e.asking import Asking
from tests.e2e.raw_frames import Raw, build_metadata, build_produce
from tests.e2e.sasl_frames import sign_in_plain
from tests.kit.broker.kafka import USERS
from tests.kit.broker.topics import create_topic
from tests.kit.processes import find_keeper, list_workers
from tests.kit.raw_fetch import RawClient, RawReader
from tests.kit.sidecar import SidecarFailed
from tests.monitoring.load import Worker, start_history
from tests.monitoring.stage import Stage, wait_until
from tests.protocol.batches import batch_v2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CROWD = 40


class Case(NamedTuple):
    """`instance`: the Forebay whose alerts are waited for, or `canary`."""

    fault: Callable[[Stage], contextlib.AbstractContextManager[object]]
    instance: str
    alerts: tuple[str, ...]


@contextlib.contextmanager
def stop_forebay(stage: Stage) -> Iterator[None]:
    machine = stage.machines["throttled"]
    machine.stop()
    yield
    machine.start()


@contextlib.contextmanager
def kill_workers(stage: Stage) -> Iterator[None]:
    for _ in range(4):
        stage.kill_worker("throttled")
        time.sleep(1.5)  # a scrape sees each
    yield


@contextlib.contextmanager
def refuse_workers(stage: Stage) -> Iterator[None]:
    """Worker after worker ends at its start, so that clients are piped."""
    machine = stage.machines["throttled"]
    stage.refused.touch()
    try:
        machine.signal_worker(signal.SIGKILL)
        yield
    finally:
        stage.refused.unlink()
    wait_until(machine.is_ready, "a worker runs again")


@contextlib.contextmanager
def kill_keepers(stage: Stage) -> Iterator[None]:
    machine = stage.machines["several"]
    for _ in range(4):
        former = find_keeper(machine)
        assert former is not None
        os.kill(former, signal.SIGKILL)
        wait_until(
            lambda former=former: (
                find_keeper(machine) not in (former, None)  # type: ignore[misc]
                and machine.is_ready()
            ),
            "another keeper is ready",
        )
        time.sleep(2.5)  # a scrape sees each
    yield


@contextlib.contextmanager
def lose_worker(stage: Stage) -> Iterator[None]:
    """One of several ends, and again at each of its starts."""
    machine = stage.machines["several"]
    stage.refused.touch()
    try:
        os.kill(list_workers(machine)[0], signal.SIGKILL)
        yield
    finally:
        stage.refused.unlink()
    wait_until(lambda: len(list_workers(machine)) == 2 and machine.is_ready(), "both run again")


@contextlib.contextmanager
def mislead_clients(stage: Stage) -> Iterator[None]:
    """The broker tells clients what it has told them all along; Forebay is not told any more that this is right."""
    machine, (entry,) = stage.machines["throttled"], stage.entries["throttled"]

    def ask() -> None:
        with Raw(stage.bootstrap("throttled")) as client:
            assert client.call(build_metadata())
        time.sleep(1)

    def is_right() -> bool:
        return not machine.metrics()["forebay_advertised_mismatch", "default", "port"]

    misled = {key: value for key, value in entry.items() if key != "advertised"}
    with Worker(ask):  # an answer in a minute is looked at
        assert not machine.reload({"listeners": [misled]}).get("errors")
        try:
            yield
        finally:
            assert not machine.reload({"listeners": [entry]}).get("errors")
            wait_until(is_right, "an answer is looked at")


@contextlib.contextmanager
def fail_upgrade(stage: Stage) -> Iterator[None]:
    stage.refused.touch()
    try:
        os.kill(stage.machines["throttled"].pid, signal.SIGUSR2)
        stage.machines["throttled"].wait_for_log("the upgrade failed")
    finally:
        stage.refused.unlink()
    yield


@contextlib.contextmanager
def stall_broker(stage: Stage) -> Iterator[None]:
    stage.broker.stall()
    try:
        yield
    finally:
        stage.broker.wake()


@contextlib.contextmanager
def stop_broker(stage: Stage) -> Iterator[None]:
    stage.broker.stop()
    yield
    stage.broker.start()


@contextlib.contextmanager
def open_connections(stage: Stage) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for _ in range(45):
            stack.enter_context(RawClient(stage.bootstrap("plain")))
        yield


@contextlib.contextmanager
def lower_limit(machine_pid: int, limit: int, value: int) -> Iterator[None]:
    """A soft limit of a running process."""
    former = resource.prlimit(machine_pid, limit)
    resource.prlimit(machine_pid, limit, (value, former[1]))
    try:
        yield
    finally:
        resource.prlimit(machine_pid, limit, former)


def take_descriptors(stage: Stage) -> contextlib.AbstractContextManager[None]:
    machine = stage.machines["throttled"]
    return lower_limit(machine.worker_pid, resource.RLIMIT_NOFILE, machine.descriptors + 6)


def fill_disk(stage: Stage) -> contextlib.AbstractContextManager[None]:
    """Writes of the access log fail, as on a full disk."""
    return lower_limit(stage.machines["plain"].worker_pid, resource.RLIMIT_FSIZE, 1)


@contextlib.contextmanager
def hold_up(stage: Stage, name: str, stopped_s: float, running_s: float) -> Iterator[None]:
    """The worker runs only now and then, as one that its CPU limit throttles."""
    machine, over = stage.machines[name], threading.Event()

    def run() -> None:
        while not over.is_set():
            machine.signal_worker(signal.SIGSTOP)
            time.sleep(stopped_s)
            machine.signal_worker(signal.SIGCONT)
            over.wait(running_s)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def delay_loop(stage: Stage) -> contextlib.AbstractContextManager[None]:
    return hold_up(stage, "observing", 0.4, 0.1)


def slow_down(stage: Stage) -> contextlib.AbstractContextManager[None]:
    return hold_up(stage, "plain", 0.12, 0.01)


@contextlib.contextmanager
def break_canary(stage: Stage) -> Iterator[None]:
    """Forebay accepts and answers nothing."""
    worker = stage.machines["plain"].worker_pid
    os.kill(worker, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(worker, signal.SIGCONT)


@contextlib.contextmanager
def break_handler(stage: Stage) -> Iterator[None]:
    stage.broken.touch()

    def ask() -> None:
        with Raw(stage.bootstrap("plain")) as client:
            assert client.call(build_metadata())
        time.sleep(0.2)

    try:
        with Worker(ask):
            yield
    finally:
        stage.broken.unlink()


@contextlib.contextmanager
def guess_passwords(stage: Stage) -> Iterator[None]:
    def guess() -> None:
        with Raw(stage.bootstrap("secured")) as client:
            assert sign_in_plain(client, "admin", "wrong").error_code

    with Worker(guess), Worker(guess):
        yield


@contextlib.contextmanager
def change_password(stage: Stage) -> Iterator[None]:
    """Forebay's own; it signs in anew after the broker has closed its connections, as at a restart."""
    machine = stage.machines["secured"]
    stage.password.write_text("wrong")
    try:
        stage.kill_worker("secured")
        yield
    finally:
        stage.password.write_text(USERS["alice"])
    machine.wait_for_log("has its own connection")


@contextlib.contextmanager
def sign_in_by_tokens(stage: Stage) -> Iterator[None]:
    """A Forebay that is to sign in for clients at a broker without delegation tokens; then it is gone."""
    machine = stage.add_certified()
    try:
        with contextlib.suppress(SidecarFailed):
            machine.start(timeout_s=5)
        yield
    finally:
        machine.stop()
        stage.tell_targets(leaving_out="certified")


@contextlib.contextmanager
def delay_polls(stage: Stage) -> Iterator[None]:
    stage.slow.watch_delay_s = 4.0
    try:
        yield
    finally:
        stage.slow.watch_delay_s = 0.0


@contextlib.contextmanager
def lag_behind(stage: Stage) -> Iterator[None]:
    """Consumers read what has just been evicted."""
    topic = create_topic(stage.broker.direct)
    producer = Producer({"bootstrap.servers": stage.bootstrap("plain"), "linger.ms": 5})
    for _ in range(60):
        producer.produce(topic, b"w" * 500_000)
        producer.poll(0.05)
    assert producer.flush(60) == 0
    workers = start_history(stage.bootstrap("plain"), topic, 2, 0.0)
    try:
        yield
    finally:
        for worker in workers:
            worker.close()


@contextlib.contextmanager
def spoil_memory(stage: Stage) -> Iterator[None]:
    """Records change in the arena's file before they are read from memory."""
    machine, verdict = stage.machines["plain"], ("forebay_verify_samples_total", "mismatch")
    before = machine.metrics()[verdict]

    def spoil() -> None:
        topic = create_topic(stage.broker.direct)
        with (
            RawClient(stage.bootstrap("plain")) as client,
            RawClient(stage.bootstrap("plain")) as writer,
        ):
            reader = RawReader(client, topic).settle()
            for number in range(6):
                mark = b"right-%d-%s" % (number, topic.encode())
                reader.read_to(writer.produce(topic, batch_v2(3, value=mark)) + 3)
                (arena,) = stage.arena.glob("*.arena")
                with arena.open("r+b") as file:
                    at = file.read().find(mark)
                    if at < 0:
                        continue
                    file.seek(at)
                    file.write(b"wrong")
                RawReader(client, topic, offset=reader.offset - 3).poll(200)

    with Worker(spoil):
        wait_until(lambda: machine.metrics()[verdict] > before, "the verifier has found it")
        yield


@contextlib.contextmanager
def hang_topic(stage: Stage) -> Iterator[None]:
    topic = create_topic(stage.broker.direct)
    batch = batch_v2(1)
    stage.slow.hang(topic)
    crowd = [
        Asking(stage.bootstrap("plain"), lambda: build_produce(topic, batch, -1), 0.1)
        for _ in range(3)
    ]
    machine = stage.machines["plain"]
    try:
        yield
    finally:
        stage.slow.heal()
        try:  # a request in time ends the refusals, so that somebody must ask
            wait_until(
                lambda: machine.metrics()["forebay_isolation_topics_hanging",] == 0,
                "the topic is served again",
            )
        finally:
            for one in crowd:
                one.end()


@contextlib.contextmanager
def slow_topic(stage: Stage) -> Iterator[None]:
    topic = create_topic(stage.broker.direct)
    batch = batch_v2(1)
    stage.slow.delay(topic, 1.0)
    crowd = [
        Asking(stage.bootstrap("plain"), lambda: build_produce(topic, batch, -1), 0.1)
        for _ in range(CROWD)
    ]
    try:
        yield
    finally:
        stage.slow.heal()
        for one in crowd:
            one.end()


@contextlib.contextmanager
def lose_disk(stage: Stage) -> Iterator[None]:
    disk = stage.disks.disks.pop("sdx")
    try:
        yield
    finally:
        stage.disks.disks["sdx"] = disk


@contextlib.contextmanager
def crowd_disk(stage: Stage) -> Iterator[None]:
    """The disk is full of others' work, and many read history."""
    stage.disks.disks["sdx"].busy = True
    workers = start_history(stage.bootstrap("throttled"), stage.old, 10, 0.0)
    try:
        yield
    finally:
        for worker in workers:
            worker.close()
        stage.disks.disks["sdx"].busy = False


@contextlib.contextmanager
def read_unknown_places(stage: Stage) -> Iterator[None]:
    workers = start_history(stage.bootstrap("loose"), stage.old, 1)
    try:
        yield
    finally:
        for worker in workers:
            worker.close()


@contextlib.contextmanager
def cut_wire(stage: Stage) -> Iterator[None]:
    stage.wire.refusing = True
    stage.wire.close_all()
    workers = start_history(stage.bootstrap("loose"), stage.old, 8, 0.0)
    try:
        yield
    finally:
        for worker in workers:
            worker.close()
        stage.wire.heal()


@contextlib.contextmanager
def fill_requests(stage: Stage) -> Iterator[None]:
    """Large Produces wait for a topic's log, as many as the bound on their bytes allows."""
    topic = create_topic(stage.broker.direct)
    batch = batch_v2(1, value=b"r" * 150_000)
    stage.slow.delay(topic, 2.0)
    address = stage.bootstrap("plain")
    crowd = [Asking(address, lambda: build_produce(topic, batch, -1), 0.05) for _ in range(20)]
    try:
        yield
    finally:
        stage.slow.heal()
        for one in crowd:
            one.end()


@contextlib.contextmanager
def refuse_reload(stage: Stage) -> Iterator[None]:
    machine = stage.machines["observing"]
    assert machine.reload({"limits": {"maxConnections": 0}})["errors"]
    yield
    assert not machine.reload({"limits": {"maxConnections": 4096}}).get("errors")


@contextlib.contextmanager
def let_certificates_end(stage: Stage) -> Iterator[None]:
    stage.tls.write(days=1, list_hours=2)
    try:
        yield
    finally:
        stage.tls.write()


@contextlib.contextmanager
def garble_key(stage: Stage) -> Iterator[None]:
    stage.tls.spoil_key()
    try:
        yield
    finally:
        stage.tls.write()


@contextlib.contextmanager
def take_rights(_stage: Stage) -> Iterator[None]:
    """Forebay's user has no READ all along; the fault lasts as long as nothing is compared."""
    yield


CASES = (
    Case(open_connections, "plain", ("ForebayConnectionsNearLimit",)),
    Case(break_handler, "plain", ("ForebayInternalErrors",)),
    Case(fill_disk, "plain", ("ForebayAccessLogDrops",)),
    Case(fill_requests, "plain", ("ForebayMemoryBound",)),
    Case(lag_behind, "plain", ("ForebayCacheTooSmall",)),
    Case(spoil_memory, "plain", ("ForebayMemoryDiffers",)),
    Case(hang_topic, "plain", ("ForebayTopicHangs",)),
    Case(slow_topic, "plain", ("ForebayQueueAtFloor", "ForebayQueueRefuses")),
    Case(delay_polls, "plain", ("ForebayLeaseLapses", "ForebayHitRatioLow")),
    Case(slow_down, "canary", ("ForebayCanarySlow",)),
    Case(break_canary, "canary", ("ForebayCanaryFails",)),
    Case(take_descriptors, "throttled", ("ForebayDescriptorsNearLimit",)),
    Case(delay_loop, "observing", ("ForebayEventLoopLags",)),
    Case(refuse_reload, "observing", ("ForebayReloadFailed",)),
    Case(guess_passwords, "secured", ("ForebayAuthenticationFailures",)),
    Case(change_password, "secured", ("ForebayOwnSignInRefused",)),
    Case(sign_in_by_tokens, "certified", ("ForebayTokenFailures",)),
    Case(
        let_certificates_end,
        "secured",
        ("ForebayCertificateEnds", "ForebayCertificateEndsSoon", "ForebayRevocationListEnds"),
    ),
    Case(garble_key, "secured", ("ForebayTlsFilesRefused",)),
    Case(lose_disk, "throttled", ("ForebayDiskNotSampled",)),
    Case(
        crowd_disk,
        "throttled",
        ("ForebayThrottleAtFloor", "ForebayReadsOverdue", "ForebayThrottleRefuses"),
    ),
    Case(read_unknown_places, "loose", ("ForebayHistoryUngated",)),
    Case(cut_wire, "loose", ("ForebayLanesLost",)),
    Case(mislead_clients, "throttled", ("ForebayAdvertisedElsewhere",)),
    Case(lose_worker, "several", ("ForebayProcessesMissing",)),
    Case(kill_keepers, "several", ("ForebayKeeperRestarts",)),
    Case(fail_upgrade, "throttled", ("ForebayUpgradeFailed",)),
    Case(kill_workers, "throttled", ("ForebayWorkerRestarts",)),
    Case(refuse_workers, "throttled", ("ForebayFallback",)),
    Case(stop_forebay, "throttled", ("ForebayDown",)),
    Case(stall_broker, "plain", ("ForebayUpstreamSilent", "ForebayNotReady")),
    Case(stop_broker, "throttled", ("ForebayUpstreamErrors", "ForebayNotReady")),
)
"""Those that end connections of all come last."""

LASTING = ("ForebayVerifierBlind",)
"""Fires all along for the Forebay whose user has no rights."""

NOT_CAUSED = {
    "ForebaySwitched": "a switch in force for four hours: that is a threshold, and only ranges are shortened here",
    "ForebayWorkerStarves": "a worker without a processor for seconds needs a CPU limit of the kernel's",
}
"""Alerts that are not caused here, with the reason; tests/helm/rules_test.yaml plays them."""

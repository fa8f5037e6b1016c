"""The disk throttle on a clock that the test moves: samples, grants, limits, unreadable files."""

import asyncio
import os
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from protocol.fetch import FetchPartition
from proxy.config.throttle import Disk, ThrottleConfig, Weight
from proxy.partitions.readable import PartitionStatus, ReadState
from proxy.partitions.table import Partition
from proxy.partitions.topics import Topic
from proxy.scheduling.disk_throttle import NOT_SOON, DiskThrottle, build_rules
from proxy.scheduling.log_dirs import LOOK_AGAIN_S
from tests.proxy.manual_clock import ManualClock
from throttle.controller import ControllerRule
from throttle.disks import DiskLimit
from throttle.tickets import DelayRefused, DelayTicket

MIB = 1 << 20
LINE = "8 0 sdx {reads} 0 {sectors} {ms} 0 0 0 0 {flying} {ticks} {ms}\n"
PRESSURE = "some avg10={share:.2f} avg60=0.00 avg300=0.00 total={total}\n"
STEP_S = 0.1
CONNECTION: Any = "connection"
"""Whose Fetches they are: it is told apart, and nothing else."""
CACHE_BYTES = 100 * MIB


class Machine:
    """A disk file that moves with the loop's clock, and a pacer that looks at it."""

    def __init__(self, tmp_path, monkeypatch, **settings):
        self.loop = ManualClock()
        self.loop.replace_loop(monkeypatch, "proxy.scheduling.disk_throttle")
        self.path, self.pressure_path = tmp_path / "diskstats", tmp_path / "pressure"
        self.busy = False
        self.admitted_bytes = 0
        self.ticks = self.reads = 0
        self.went, self.failed = [], []
        self.write()
        config = ThrottleConfig(
            disks=settings.pop("disks", (Disk(device="sdx"),)),
            diskstats_file=str(self.path),
            pressure_file=str(self.pressure_path),
            **{
                "sample_every_s": "500ms",
                "floor_bytes": MIB,
                "ceiling_bytes": MIB,
                "start_grace_s": 0,
                **settings,
            },
        )
        broker = SimpleNamespace(
            config=SimpleNamespace(throttle=config, cache=SimpleNamespace(size_bytes=CACHE_BYTES)),
            cache=SimpleNamespace(peek_admitted_bytes=lambda: self.admitted_bytes),
            now=lambda: self.loop.now,
            attempt=self.attempt,
        )
        self.disk_throttle = DiskThrottle(broker)

    def attempt(self, action, doing):
        try:
            action()
        except Exception as error:
            self.failed.append((doing, error))

    def write(self):
        self.path.write_text(
            LINE.format(
                reads=self.reads,
                sectors=8 * self.reads,
                ms=32 * self.ticks,
                flying=32 * self.busy,
                ticks=self.ticks,
            )
        )

    def move(self):
        """One step of the disk."""
        if self.busy:
            self.ticks += round(STEP_S * 1000)
            self.reads += 10
        self.write()

    def run(self, seconds, each=None):
        """Turn the clock; `each`, by default `move`, runs before the timers of every step."""
        for _ in range(round(seconds / STEP_S)):
            self.loop.now += STEP_S
            (each or self.move)()
            self.loop.advance(0.0)

    def saturate(self, plug_bytes=64 * MIB):
        """Busy, and a miss has gone that is paid for only after plug_bytes / rate."""
        self.busy = True
        self.run(2)
        assert self.submit(0, size_bytes=plug_bytes).granted

    def submit(self, offset, client="c", size_bytes=MIB, **other):
        status = missed(offset, **other)
        return self.disk_throttle.submit(
            CONNECTION, client, status, size_bytes, lambda: self.went.append((client, offset))
        )

    @property
    def disk(self):
        return self.disk_throttle.statistics().disks["sdx"]


def missed(offset, reason="cold", limit=1000, high_watermark=1000, name="t"):
    leader_state = SimpleNamespace(high_watermark=high_watermark)
    partition: Any = SimpleNamespace(
        topic=SimpleNamespace(name=name), index=0, leader_state=leader_state, missed_from=NOT_SOON
    )
    return PartitionStatus(
        FetchPartition("t", 0, -1, offset, -1, -1, MIB), partition, ReadState.MISS, reason, limit
    )


@pytest.fixture
def machine(tmp_path, monkeypatch):
    found = Machine(tmp_path, monkeypatch, max_delay_s="20s")
    found.disk_throttle.start()
    return found


def test_rules_from_the_configuration():
    settings: dict[str, Any] = {
        "target": 0.6,
        "floor_bytes": 2 * MIB,
        "ceiling_bytes": 200 * MIB,
        "busy_await_s": "4ms",
        "busy_in_flight": 16,
        "busy_pressure": 0.5,
        "max_delay_s": "7s",
        "waiting_requests": 5,
        "waiting_size_bytes": 50 * MIB,
        "sample_every_s": "800ms",
        "weights": (Weight(client_id="batch-*", weight=0.5), Weight(client_id="*", weight=2.0)),
    }
    rules = build_rules(ThrottleConfig(**settings))
    busy, controller, queue = rules.busy, rules.controller, rules.queue
    assert (busy.await_ms, busy.in_flight, busy.pressure) == (4.0, 16.0, 0.5)
    assert busy.leave < busy.enter < 0.6
    assert (controller.target, controller.floor_bytes_s, controller.ceiling_bytes_s) == (
        0.6,
        2 * MIB,
        200 * MIB,
    )
    assert controller.start_bytes_s == ControllerRule().start_bytes_s
    assert (queue.max_delay_s, queue.waiting_requests, queue.waiting_bytes) == (7.0, 5, 50 * MIB)
    assert queue.fair.weights == (("batch-*", 0.5), ("*", 2.0))
    assert rules.stale_s == 8.0


@pytest.mark.parametrize(
    ("floor_bytes", "ceiling_bytes", "start_bytes"),
    [(512 * MIB, 1024 * MIB, 512 * MIB), (MIB, 2 * MIB, 2 * MIB)],
)
def test_the_start_lies_between_floor_and_ceiling(floor_bytes, ceiling_bytes, start_bytes):
    rules = build_rules(ThrottleConfig(floor_bytes=floor_bytes, ceiling_bytes=ceiling_bytes))
    assert rules.controller.start_bytes_s == start_bytes


@pytest.mark.parametrize("target", [0.05, 0.95])
@pytest.mark.parametrize("busy_await_s", ["0ms", "1s"])
def test_every_configuration_that_is_taken_gives_rules(target, busy_await_s):
    assert build_rules(ThrottleConfig(target=target, busy_await_s=busy_await_s)).busy.enter < target


@pytest.mark.parametrize(
    ("settings", "why"), [({"disks": ()}, "names none"), ({"enabled": False}, "enabled is false")]
)
def test_off_it_says_why_and_delays_nothing(tmp_path, monkeypatch, caplog, settings, why):
    caplog.set_level("INFO")
    machine = Machine(tmp_path, monkeypatch, **settings)
    machine.disk_throttle.start()
    assert why in caplog.text
    assert (machine.disk_throttle.active, machine.loop.timers) == (False, [])
    assert machine.submit(0).granted
    machine.disk_throttle.stop()


def test_share_of_a_named_limit_is_load(tmp_path, monkeypatch):
    """20 requests of 4 KiB in 100 ms, on a device that is never busy."""
    machine = Machine(tmp_path, monkeypatch, disks=(Disk(device="sdx", iops=250),))
    machine.disk_throttle.start()

    def read():
        machine.reads += 20
        machine.write()

    machine.run(2, read)
    assert machine.disk.limit == DiskLimit(0.0, 250.0, "named")
    assert machine.disk.sample.load == pytest.approx(0.8)
    assert machine.disk.queue.busy


def test_idle_disk_grants_and_full_disk_delays(machine):
    machine.run(1)
    assert machine.submit(0).granted
    machine.saturate(plug_bytes=4 * MIB)
    ticket = machine.submit(1, size_bytes=MIB)
    assert machine.submit(1, size_bytes=MIB) is ticket, "asked again it is the same"
    machine.run(3)
    assert not ticket.granted
    machine.run(2)
    assert (ticket.granted, ticket.overdue, machine.went, machine.failed) == (
        True,
        False,
        [("c", 1)],
        [],
    )


@pytest.mark.parametrize(
    ("other", "ungated"),
    [
        ({"reason": "hole"}, 0),
        ({"reason": "transaction"}, 0),
        ({"limit": -1}, 0),
        ({"name": ""}, 1),
    ],
    ids=["hole", "transaction", "not-nameable", "by-id-alone"],
)
def test_only_history_of_known_topics_has_a_disk(machine, other, ungated):
    machine.saturate()
    ticket = machine.submit(5, size_bytes=64 * MIB, **other)
    assert ticket.granted
    assert not machine.submit(6, size_bytes=64 * MIB).granted
    assert machine.disk_throttle.statistics().ungated == ungated, (
        "history whose disk is not known, and no other"
    )
    granted = machine.disk.queue.granted
    machine.disk_throttle.done(ticket, MIB)
    machine.disk_throttle.cancel(ticket)
    assert (machine.disk.queue.granted, machine.disk.queue.done_bytes) == (granted, 0)


def test_history_without_a_disk_is_counted(tmp_path, monkeypatch):
    disks = (Disk(device="sdx", broker_directory="/a"), Disk(device="sdy", broker_directory="/b"))
    machine = Machine(tmp_path, monkeypatch, disks=disks, lag_threshold=100)
    for reason in ("cold", "evicted"):
        assert machine.submit(900, reason=reason).granted
    assert machine.disk_throttle.statistics().ungated == 2
    assert machine.submit(901).granted
    assert machine.disk_throttle.statistics().ungated == 2, "behind by less than the threshold"


def test_history_on_an_unseen_disk_is_counted(machine):
    machine.run(1)
    assert machine.submit(1).granted
    assert machine.disk_throttle.statistics().ungated == 0
    machine.run(1, lambda: machine.path.write_text(""))
    assert machine.submit(2).granted
    assert machine.disk_throttle.statistics().ungated == 1


def test_reader_below_the_lag_threshold_does_not_wait(tmp_path, monkeypatch):
    machine = Machine(tmp_path, monkeypatch, lag_threshold=100)
    machine.disk_throttle.start()
    machine.saturate()
    assert not machine.submit(900, size_bytes=64 * MIB).granted
    assert machine.submit(901, size_bytes=64 * MIB).granted


def test_miss_goes_after_the_longest_delay(machine):
    machine.saturate()
    tickets = [machine.submit(offset, size_bytes=500 * MIB) for offset in range(1, 4)]
    machine.run(19.8)
    assert not tickets[2].granted
    machine.run(0.4)
    assert [ticket.granted for ticket in tickets] == [True] * 3
    assert machine.disk.queue.overdue >= 2


def test_heavier_client_gets_more(tmp_path, monkeypatch):
    weights = (Weight(client_id="heavy", weight=3.0),)
    machine = Machine(
        tmp_path, monkeypatch, floor_bytes=4 * MIB, ceiling_bytes=4 * MIB, weights=weights
    )
    machine.disk_throttle.start()
    machine.saturate(plug_bytes=MIB)
    connections: dict[str, Any] = {client: client for client in ("heavy", "light")}
    tickets = [
        machine.disk_throttle.submit(
            connections[client],
            client,
            missed(offset),
            MIB // 2,
            partial(machine.went.append, (client, 0)),
        )
        for offset in range(1, 100)
        for client in ("heavy", "light")
    ]

    def answer():
        machine.move()
        for ticket in tickets:
            assert isinstance(ticket, DelayTicket)
            machine.disk_throttle.done(ticket, MIB // 2)

    machine.run(15, answer)
    heavy, light = (sum(one == client for one, _ in machine.went) for client in ("heavy", "light"))
    assert light > 5
    assert 2.2 < heavy / light < 4


@pytest.mark.parametrize(
    "settings",
    [{"waiting_requests": 2}, {"waiting_size_bytes": 100 * MIB}],
    ids=["requests", "bytes"],
)
def test_throttle_refuses_at_its_limit(tmp_path, monkeypatch, settings):
    machine = Machine(tmp_path, monkeypatch, max_delay_s="1h", **settings)
    machine.disk_throttle.start()
    machine.saturate()
    sizes = [50 * MIB] * 3
    answers = [machine.submit(offset, size_bytes=size) for offset, size in enumerate(sizes, 1)]
    assert [isinstance(answer, DelayRefused) for answer in answers] == [False, False, True]


def test_cancelled_miss_is_not_granted(machine):
    machine.saturate()
    ticket = machine.submit(1, size_bytes=64 * MIB)
    machine.disk_throttle.cancel(ticket)
    machine.run(30)
    assert (
        machine.went,
        machine.disk_throttle._on_granted,
        machine.disk.queue.waiting_requests,
    ) == (
        [],
        {},
        0,
    )


def test_failed_grant_does_not_hold_the_next(machine):
    machine.saturate(plug_bytes=MIB)
    machine.disk_throttle.submit("link", "c", missed(1), MIB, lambda: 1 / 0)
    machine.submit(2)
    machine.run(5)
    assert [doing for doing, _ in machine.failed] == ["letting a delayed miss go"]
    assert ("c", 2) in machine.went


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"nothing of a disk\n",
        b"\xff\xfe\0",
        b"8 16 sdy 1 0 8 1 0 0 0 0 0 1 1\n",
        b"8 0 sdx -1 x\n",
    ],
    ids=["missing", "empty", "odd", "binary", "another-disk", "odd-line"],
)
def test_unreadable_disk_file_delays_nothing(machine, caplog, content):
    caplog.set_level("INFO")
    machine.saturate()
    waiting = machine.submit(1, size_bytes=500 * MIB)
    assert not waiting.granted

    def spoil():
        machine.path.unlink(missing_ok=True)
        if content is not None:
            machine.path.write_bytes(content)

    machine.run(3, spoil)
    assert waiting.granted, "fails open"
    assert machine.submit(2, size_bytes=500 * MIB).granted
    assert machine.disk.sampled is False
    assert caplog.text.count("the throttle is off for what it cannot see") == 1
    machine.run(3)
    assert machine.disk.sampled is True
    assert caplog.text.count("sees") == 1
    assert machine.failed == []


@pytest.mark.parametrize("content", [None, "odd\n"], ids=["missing", "odd"])
def test_missing_pressure_file_is_logged_once(tmp_path, monkeypatch, caplog, content):
    caplog.set_level("INFO")
    machine = Machine(tmp_path, monkeypatch, busy_pressure=0.3)
    if content is not None:
        machine.pressure_path.write_text(content)
    machine.disk_throttle.start()
    machine.run(3)
    assert machine.disk.sampled is True
    assert [record.levelname for record in caplog.records].count("WARNING") == 1
    assert str(machine.pressure_path) in caplog.text
    machine.pressure_path.write_text(PRESSURE.format(share=0, total=0))
    machine.run(1)
    assert caplog.text.count("sees") == 1


def test_pressure_makes_a_disk_busy_that_answers_fast(tmp_path, monkeypatch):
    machine = Machine(
        tmp_path, monkeypatch, busy_pressure=0.3, busy_await_s="1s", busy_in_flight=65536
    )
    total = 0

    def move():
        nonlocal total
        total += round(STEP_S * 500_000)
        machine.pressure_path.write_text(PRESSURE.format(share=50, total=total))
        machine.move()

    machine.busy = True
    move()
    machine.disk_throttle.start()
    machine.run(3, move)
    assert machine.disk.sample.busy


async def test_a_directory_that_is_made_after_the_start_is_held(tmp_path, monkeypatch, caplog):
    """On a fresh volume the broker makes its log directory once its sidecar runs."""
    caplog.set_level("INFO")
    number = tmp_path.stat().st_dev
    line = LINE.replace("8 0 ", f"{os.major(number)} {os.minor(number)} ")
    monkeypatch.setitem(globals(), "LINE", line)
    directory = tmp_path / "data"
    machine = Machine(tmp_path, monkeypatch, disks=(Disk(directory=str(directory), iops=9999),))
    disk_throttle = machine.disk_throttle

    async def look(seconds):
        machine.run(seconds)
        await asyncio.gather(*disk_throttle.disks._tasks)
        machine.run(1)

    disk_throttle.start()
    for _ in range(3):
        await look(2 * LOOK_AGAIN_S)
    assert (disk_throttle.active, disk_throttle.statistics().disks) == (False, {})
    assert machine.submit(0).granted
    assert caplog.text.count("no device is known") == 1
    directory.mkdir()
    await look(2 * LOOK_AGAIN_S)
    assert disk_throttle.active
    assert caplog.text.count("the throttle holds sdx at") == 1
    machine.saturate()
    assert not machine.submit(1).granted
    assert (machine.disk.limit.requests_s, machine.failed) == (9999, [])
    disk_throttle.stop()


def test_stopped_it_looks_no_more(machine):
    machine.saturate()
    machine.submit(1, size_bytes=500 * MIB)
    machine.disk_throttle.stop()
    assert machine.loop.timers == []


class Restarted:
    """A partition that is read soon after the start, on a busy disk; HW 10,000, and nothing admitted yet."""

    def __init__(self, tmp_path, monkeypatch, grace="60s"):
        self.machine = Machine(tmp_path, monkeypatch, start_grace_s=grace)
        self.machine.disk_throttle.start()
        self.machine.saturate()
        self.partition = Partition(Topic(bytes(16), "t"), 0, 0, 10)
        self.partition.leader_state.high_watermark = 10_000

    def waits(self, offset):
        limit = self.partition.leader_state.high_watermark
        asked = FetchPartition("t", 0, -1, offset, -1, -1, MIB)
        status = PartitionStatus(asked, self.partition, ReadState.MISS, "cold", limit)
        ticket = self.machine.disk_throttle.submit(CONNECTION, "c", status, MIB, lambda: None)
        assert isinstance(ticket, DelayTicket)
        return not ticket.granted

    def go_on(self, records, size_bytes):
        self.partition.leader_state.high_watermark += records
        self.machine.admitted_bytes += size_bytes


def test_recent_records_do_not_wait_after_start(tmp_path, monkeypatch):
    """100 records a second, which are 1 MiB with all other partitions' of that second: memory is 100 s."""
    after = Restarted(tmp_path, monkeypatch)
    assert not after.waits(9_000)
    after.go_on(10, MIB // 10)
    assert not after.waits(9_000)
    assert not after.waits(10_010 - 9_990)
    after.go_on(990, 99 * MIB // 10)
    assert not after.waits(11_000 - 9_990)
    assert after.waits(11_000 - 10_010), "further back than memory is long"
    after.go_on(9_500, 95 * MIB)
    assert after.waits(9_999), "memory would have lost it by now"


def test_followed_partition_is_history_once_missed(tmp_path, monkeypatch):
    after = Restarted(tmp_path, monkeypatch)
    assert not after.waits(9_999)
    after.go_on(100, MIB)
    assert after.waits(10_000)


def test_idle_partition_ages_by_other_traffic(tmp_path, monkeypatch):
    after = Restarted(tmp_path, monkeypatch)
    assert not after.waits(0), "ten thousand records of a KiB would be in memory"
    after.go_on(0, MIB)
    assert not after.waits(9_950)
    assert after.waits(0)


def test_long_after_the_start_history_is_history(tmp_path, monkeypatch):
    assert Restarted(tmp_path, monkeypatch, grace="1s").waits(9_999)

"""A reload of a whole Forebay without a broker: every key has its place, and a refusal changes nothing."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.app import Forebay
from proxy.config.keys import KEYS, path_text
from proxy.config.live_keys import RESTART
from proxy.config.load import Loaded, Setting, load
from proxy.config.memory import Memory
from proxy.net.listener import AnyListener
from proxy.net.tls_handshakes import TlsServer
from proxy.reload import APPLY, BROKEN, ReloadReport
from proxy.sockets import bind_all
from tests.kit.broker.certificates import write_certificates
from tests.kit.broker.settings import HOST

MEMORY = Memory(1 << 34, False, "test")


class File:
    """A configuration file, and what loads it."""

    def __init__(self, path: Path, **sections: Any) -> None:
        self.path = path
        self.tree: dict[str, Any] = {
            "listeners": [{"listen": f"{HOST}:0", "upstream": f"{HOST}:1"}],
            "cache": {"size": "16MiB", "directory": ""},
            "admin": {"listen": f"{HOST}:0"},
            **sections,
        }
        self.write()

    def write(self, **sections: Any) -> None:
        self.tree |= sections
        self.path.write_text(yaml.safe_dump(self.tree))

    def load(self, *flags: Setting) -> Loaded:
        return load(self.path, {}, flags, MEMORY)


def find_context(listener: AnyListener) -> object:
    """The TLS settings of the handshakes that begin now."""
    (server,) = listener._servers
    assert isinstance(server, TlsServer)
    return server._context


@asynccontextmanager
async def running(read: Callable[[], Loaded]) -> AsyncIterator[Forebay]:
    forebay = Forebay(read().config, read=read)
    await forebay.start(bind_all(forebay.config))
    try:
        yield forebay
    finally:
        await forebay.stop()


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path / "forebay.yaml")


def keys_of(changes: Any) -> list[str]:
    return [change.key for change in changes]


def test_every_key_is_live_or_needs_a_restart():
    live = [key for part in APPLY for key in part.keys]
    assert len(live) == len(set(live)), "a key stands in two parts"
    assert set(live).isdisjoint(RESTART)
    assert set(live) | set(RESTART) == {path_text(key.pattern) for key in KEYS}


async def test_bounds_reach_the_rooms_that_keep_them(file: File):
    async with running(file.load) as forebay:
        file.write(
            limits={
                "requestMemory": "64MiB",
                "responseMemory": "96MiB",
                "maxConnections": 80,
                "watchedPartitions": 7,
                "parkedFetches": 3,
            },
            throttle={"target": 0.4, "disks": []},
            isolation={
                "hangAfter": "9s",
                "releaseAfter": "250ms",
                "dataSlots": {"floor": 3, "ceiling": 9},
                "clientQuotas": [{"pattern": "*", "fetchRate": "1MiB"}],
            },
        )
        file.tree["cache"]["verifyRatio"] = 0.5
        file.write()
        report = await forebay.reloader.reload()
        broker = forebay.broker
        assert (report.errors, report.needs_restart) == ((), ())
        assert broker.requests.limit_bytes == 64 << 20
        assert broker.responses.limit_bytes == 96 << 20
        assert broker.handshakes.limit == 10
        assert broker.partitions.limit == 14
        assert broker.verifier.ratio == 0.5
        assert broker.scheduler.hang_after_s == 9.0
        assert broker.scheduler.release_after_s == 0.25
        assert broker.scheduler.quotas.active
        queues, _ = broker.scheduler.statistics()
        assert {state["slots_floor"] for number, state in queues.items() if number >= 0} == {3}
        assert forebay.config.limits.parked_fetches == 3
        assert set(keys_of(report.applied)) >= {"cache.verifyRatio", "throttle.target"}


async def test_what_needs_a_restart_is_named_and_stays(file: File):
    async with running(file.load) as forebay:
        file.tree["cache"] |= {"size": "32MiB", "verifyRatio": 1.0}
        file.write(log={"format": "text"})
        report = await forebay.reloader.reload()
        assert keys_of(report.applied) == ["cache.verifyRatio"]
        assert keys_of(report.needs_restart) == ["cache.size", "log.format"]
        assert all(change.reason for change in report.needs_restart)
        assert forebay.config.cache.size_bytes == 16 << 20
        again = await forebay.reloader.reload()
        assert (keys_of(again.applied), keys_of(again.needs_restart)) == (
            [],
            ["cache.size", "log.format"],
        )


async def test_flags_stay_in_force_over_the_file(file: File):
    flag = Setting(("limits", "maxConnections"), "50", "--flag")
    async with running(partial(file.load, flag)) as forebay:
        file.write(limits={"maxConnections": 70, "readJoiners": 9})
        report = await forebay.reloader.reload()
        assert keys_of(report.applied) == ["limits.readJoiners"]
        assert forebay.config.limits.max_connections == 50


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("listeners: [\n", "is not valid YAML"),
        ("nolisteners: 1\n", "unknown key"),
        ("cache: {size: 1}\n", "must be at least"),
        (None, "cannot be read"),
    ],
    ids=["yaml", "unknown", "bounds", "absent"],
)
async def test_a_refused_file_changes_nothing(file: File, text: str | None, said: str):
    async with running(file.load) as forebay:
        before = forebay.config
        if text is None:
            file.path.unlink()
        else:
            file.path.write_text(text)
        report = await forebay.reloader.reload()
        assert any(said in error for error in report.errors)
        assert forebay.config is before
        assert not forebay.reloader.was_successful
        file.write()
        assert (await forebay.reloader.reload()).errors == ()
        assert forebay.reloader.was_successful


async def test_one_line_tells_of_it_without_values(
    file: File, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(file.load) as forebay:
        level = logging.getLogger().level
        caplog.set_level(logging.INFO, "forebay.reload")
        file.write(log={"level": "error", "format": "text"})
        try:
            await forebay.reloader.reload()
            assert logging.getLogger().level == logging.ERROR
        finally:
            logging.getLogger().setLevel(level)
    (record,) = [one for one in caplog.records if one.name == "forebay.reload"]
    assert (record.__dict__["applied"], record.__dict__["needs_restart"]) == (
        "log.level",
        "log.format",
    )


async def test_an_error_of_ours_is_reported(file: File):
    async with running(file.load) as forebay:

        def fail() -> Loaded:
            raise RuntimeError("hunter2")

        forebay.reloader._read = fail
        assert (await forebay.reloader.reload()).errors == (BROKEN,)
        assert not forebay.reloader.was_successful


async def test_signals_during_a_reload_lead_to_one_more(file: File):
    async with running(file.load) as forebay:
        reloads: list[ReloadReport] = []
        begun, goes_on = asyncio.Event(), asyncio.Event()

        async def reload() -> ReloadReport:
            begun.set()
            await goes_on.wait()
            reloads.append(ReloadReport())
            return reloads[-1]

        forebay.reloader.reload = reload  # type: ignore[method-assign]
        forebay.reloader.request()
        await begun.wait()
        for _ in range(5):
            forebay.reloader.request()
        goes_on.set()
        task = forebay.reloader._task
        assert task is not None
        await task
        assert len(reloads) == 2


async def test_a_broken_certificate_changes_nothing(tmp_path: Path):
    files = write_certificates(tmp_path)
    certificate, key = tmp_path / "listener.crt", tmp_path / "listener.key"
    certificate.write_bytes(files.server.certificate.read_bytes())
    key.write_bytes(files.server.key.read_bytes())
    tls = {"certificateFile": str(certificate), "keyFile": str(key)}
    entry = {"listen": f"{HOST}:0", "upstream": f"{HOST}:1", "tls": tls}
    file = File(tmp_path / "forebay.yaml", listeners=[entry])
    async with running(file.load) as forebay:
        (listener,) = forebay.listeners
        context = find_context(listener)
        certificate.write_text("hunter2")
        file.write(limits={"maxConnections": 9})
        report = await forebay.reloader.reload()
        (error,) = report.errors
        assert error.startswith("listeners[0].tls: a file cannot be loaded")
        assert str(certificate) in error and "hunter2" not in error
        assert find_context(listener) is context
        assert forebay.config.limits.max_connections != 9
        certificate.unlink()
        (error,) = (await forebay.reloader.reload()).errors
        assert "listeners[0].tls.certificateFile" in error
        certificate.write_bytes(files.client.certificate.read_bytes())
        key.write_bytes(files.client.key.read_bytes())
        report = await forebay.reloader.reload()
        assert (report.errors, report.certificates) == ((), ("default",))
        assert find_context(listener) is not context


@pytest.mark.parametrize(
    ("at_start", "wanted", "in_force"),
    [("serve", "observe", "observe"), ("serve", "off", "off"), ("off", "serve", "off")],
)
async def test_cache_mode(file: File, at_start: str, wanted: str, in_force: str):
    file.tree["cache"]["mode"] = at_start
    file.write()
    async with running(file.load) as forebay:
        file.tree["cache"]["mode"] = wanted
        file.write()
        report = await forebay.reloader.reload()
        changed = report.applied if wanted == in_force else report.needs_restart
        assert keys_of(changed) == ["cache.mode"]
        assert forebay.broker.modes.find("default", 1).mode == in_force
        assert forebay.broker.modes.observes is (in_force == "observe")

"""Switches of a whole Forebay without a broker: requests at the admin port, what is put in force, and what ends it."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from proxy.admin.http import HttpResponse
from proxy.app import Forebay
from proxy.sockets import bind_all
from proxy.switches.override import Override
from proxy.switches.state import OVERRIDES_LIMIT
from proxy.switches.store import SwitchStore
from tests.proxy.test_reload import File, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path / "forebay.yaml")


async def post(forebay: Forebay, path: str, query: str = "") -> tuple[int, dict[str, Any]]:
    answer = await forebay.admin._actions[path](query)
    return int(answer.status), json.loads(answer.body)


def get(forebay: Forebay) -> dict[str, Any]:
    answer = forebay.admin._routes["/switches"]()
    assert isinstance(answer, HttpResponse)
    return dict(json.loads(answer.body))


async def test_a_switch_is_put_in_force_listed_and_undone(file: File) -> None:
    async with running(file.load) as forebay:
        before = forebay.config
        assert get(forebay)["overrides"] == []
        status, answer = await post(forebay, "/switches", "switch=cache&value=off&for=30m")
        assert (status, answer["success"]) == (200, True)
        (listed,) = get(forebay)["overrides"]
        assert (listed["switch"], listed["value"], listed["scope"]) == ("cache", "off", "process")
        assert forebay.config.cache.mode == "off"
        assert not forebay.broker.modes.find("default", 1).serves
        for query in (
            "switch=throttle&value=off",
            "switch=verify&value=1",
            "switch=isolation&value=off",
        ):
            assert (await post(forebay, "/switches", query))[0] == 200
        assert not forebay.config.throttle.enabled
        assert forebay.broker.verifier.ratio == 1.0
        assert forebay.broker.scheduler.report()["enabled"] is False
        assert (await post(forebay, "/switches/reset"))[1]["overrides"] == []
        assert forebay.config == before
        assert forebay.broker.scheduler.report()["enabled"] is True


@pytest.mark.parametrize(
    ("path", "query", "said"),
    [
        ("/switches", "switch=cache", "cache takes serve, observe or off"),
        ("/switches", "switch=cache&value=off&listener=x", "there is no listener x"),
        ("/switches", "switch=cache&value=off&value=serve", "named twice"),
        ("/switches", "switch", "malformed"),
        ("/switches", "&".join(f"p{n}=1" for n in range(40)), "malformed"),
        ("/switches/reset", "switch=x", "no such switch"),
        ("/switches/reset", "what=x", "unknown: what"),
        ("/switches/drop", "", "name a topic"),
        ("/switches/drop", "topic=" + "a" * 257, "name a topic"),
    ],
)
async def test_what_is_refused_changes_nothing(
    file: File, path: str, query: str, said: str
) -> None:
    async with running(file.load) as forebay:
        status, answer = await post(forebay, path, query)
        assert (status, answer["success"]) == (422, False)
        assert said in answer["error"]
        assert forebay.switches.version == 0


async def test_the_bound_is_told_and_counted(file: File) -> None:
    async with running(file.load) as forebay:
        for number in range(OVERRIDES_LIMIT):
            query = f"switch=cache&value=off&topic=t{number}"
            assert (await post(forebay, "/switches", query))[0] == 200
        status, answer = await post(forebay, "/switches", "switch=cache&value=off&topic=one-more")
        assert status == 422 and "32 switches are set" in answer["error"]
        assert get(forebay)["limit"] == OVERRIDES_LIMIT


async def test_a_reload_changes_what_is_under_a_switch(file: File) -> None:
    async with running(file.load) as forebay:
        await post(forebay, "/switches", "switch=verify&value=0.5")
        file.tree["cache"]["verifyRatio"] = 0.25
        file.tree["log"] = {"level": "warning"}
        file.write()
        report = await forebay.reloader.reload()
        assert report.overridden == ("cache.verifyRatio",)
        assert {one.key for one in report.applied} == {"cache.verifyRatio", "log.level"}
        assert forebay.broker.verifier.ratio == 0.5
        assert forebay.config.log.level == "warning"
        await post(forebay, "/switches/reset")
        assert forebay.broker.verifier.ratio == 0.25


async def test_a_worker_begins_with_what_is_switched(file: File) -> None:
    store = SwitchStore()
    store.change(lambda state: state.set(Override("cache", "off")).drop("a"))
    async with starting(file, store) as forebay:
        assert forebay.config.cache.mode == "off"
        assert forebay.reloader.base.cache.mode == "serve"
        assert forebay.reloader.at_start.mode == "serve", "it has memory to serve from"
        assert (await post(forebay, "/switches/reset"))[0] == 200
        assert forebay.config.cache.mode == "serve"


@asynccontextmanager
async def starting(file: File, store: SwitchStore) -> AsyncIterator[Forebay]:
    forebay = Forebay(file.load().config, switches=store)
    await forebay.start(bind_all(forebay.config))
    try:
        yield forebay
    finally:
        await forebay.stop()


@pytest.mark.parametrize("kind", ["mismatch", "error"])
async def test_a_trial_ends_by_a_fault_of_ours(file: File, kind: str) -> None:
    async with running(file.load) as forebay:
        forebay.broker.verifier.verdicts["mismatch"] += 1
        forebay.broker.counters.faults.count_error()
        query = "switch=cache&value=off&share=50%25&after=1h"
        assert (await post(forebay, "/switches", query))[0] == 200
        forebay.switcher.tick(0.0)
        assert forebay.broker.modes.share == 0.5, "what was before says nothing of it"
        if kind == "mismatch":
            forebay.broker.verifier.verdicts["mismatch"] += 1
        else:
            forebay.broker.counters.faults.count_error()
        forebay.switcher.tick(0.0)
        assert forebay.broker.modes.share == 0.0
        assert get(forebay)["overrides"] == []
        assert get(forebay)["counts"]["reverted"] == 1
        assert get(forebay)["lastReverted"]


async def test_a_worker_of_a_supervisor_without_switches_has_its_own(file: File) -> None:
    """An older supervisor pipes nobody: the worker relays all clients of a bypassed listener itself."""
    async with running(file.load) as forebay:
        assert (await post(forebay, "/switches", "switch=bypass&value=on"))[0] == 200
        (listener,) = forebay.listeners
        assert (listener.is_bypassed, listener.is_paused) == (True, False)
        await post(forebay, "/switches", "switch=bypass&value=off")
        assert (listener.is_bypassed, listener.is_paused) == (False, False)


async def test_a_piped_listener_is_left_to_the_supervisor_and_taken_back(file: File) -> None:
    store = SwitchStore(is_shared=True)
    store.change(lambda state: state.set(Override("bypass", "on")))
    async with starting(file, store) as forebay:
        (listener,) = forebay.listeners
        assert listener.is_paused and not listener._servers
        assert listener.is_bound, "another process accepts"
        await post(forebay, "/switches/reset")
        assert listener._resuming is not None
        await listener._resuming
        assert listener._servers and listener.is_bound

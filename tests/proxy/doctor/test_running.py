"""What the admin port says, served by the real admin server."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from metrics.collector import Exposition, Sample
from proxy.admin.http import PROMETHEUS_TEXT, AdminServer, HttpResponse
from proxy.admin_client import AdminAnswer
from proxy.config.model import Config
from proxy.config.units import Address
from proxy.doctor.running import PATHS, ask_admin, check_running, judge_metrics
from proxy.sockets import bind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

VERSION = "1.0"
HEALTHY = (
    Sample("forebay_build_info", (VERSION, ""), 1),
    Sample("forebay_fallback", (), 0),
    Sample("forebay_worker_restarts_total", ("exit",), 0),
    Sample("forebay_verify_samples_total", ("equal",), 7),
    Sample("forebay_verify_samples_total", ("mismatch",), 0),
    Sample("forebay_throttle_disk_sampled", ("sda",), 1),
)


def expose(*changed: Sample) -> str:
    samples = {(one.name, one.labels): one for one in (*HEALTHY, *changed)}
    if any(one.name == "forebay_build_info" and one != HEALTHY[0] for one in changed):
        samples.pop(("forebay_build_info", (VERSION, "")))
    return Exposition(samples.values, strict=True).render().decode()


def build_config(port: int, **admin: Any) -> Config:
    listener = {"listen": ":9092", "upstream": "127.0.0.1:1"}
    tree = {"listeners": [listener], "admin": {"listen": f":{port}"} | admin}
    return Config.model_validate(tree, by_alias=True, by_name=False)


@contextlib.asynccontextmanager
async def serving(**bodies: str) -> AsyncIterator[int]:
    routes: dict[str, Any] = {
        f"/{name}": lambda body=body: HttpResponse(body.encode(), PROMETHEUS_TEXT)
        for name, body in bodies.items()
    }
    server = AdminServer(routes)
    address = await server.start(bind(Address("127.0.0.1", 0)))
    try:
        yield address.port
    finally:
        await server.close()


async def test_all_paths_are_asked() -> None:
    bodies = {path[1:]: f"body of {path}" for path in PATHS}
    async with serving(**bodies) as port:
        answers = await asyncio.to_thread(ask_admin, build_config(port), 60.0)
    assert answers == {path: AdminAnswer(200, f"body of {path}") for path in PATHS}


async def test_nobody_there_is_no_fault() -> None:
    async with serving() as port:
        pass
    config = build_config(port)
    answers = await asyncio.to_thread(ask_admin, config, 60.0)
    assert {one.status for one in answers.values()} == {0}
    (line,) = check_running(config, answers, VERSION)
    assert line.status == "skip" and "no Forebay answers" in line.text


async def test_a_token_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    async with serving(readyz="ready") as port:
        config = build_config(port, tokenFile=str(tmp_path / "none"))
        answers = await asyncio.to_thread(ask_admin, config, 60.0)
    assert answers["/readyz"].status == 0 and "No such file" in answers["/readyz"].body


def test_a_healthy_one_and_one_that_refuses_metrics() -> None:
    answers = dict.fromkeys(PATHS, AdminAnswer(200, expose()))
    assert [one.status for one in check_running(build_config(1), answers, VERSION)] == ["ok", "ok"]
    answers["/metrics"] = AdminAnswer(401, "a token is wanted\n")
    lines = list(check_running(build_config(1), answers, VERSION))
    assert [one.status for one in lines] == ["ok", "warn"] and "401" in lines[1].text


def test_not_ready_is_a_failure() -> None:
    answers = dict.fromkeys(PATHS, AdminAnswer(200, expose()))
    answers["/readyz"] = AdminAnswer(503, "not ready: starting\n")
    lines = list(check_running(build_config(1), answers, VERSION))
    assert lines[0].status == "fail" and "not ready: starting" in lines[0].text


@pytest.mark.parametrize(
    ("sample", "status", "text"),
    [
        (HEALTHY[0], "ok", "0 workers"),
        (Sample("forebay_build_info", ("0.9", ""), 1), "warn", "another build"),
        (Sample("forebay_fallback", (), 1), "fail", "no worker can run"),
        (Sample("forebay_worker_restarts_total", ("oom",), 2), "warn", "2 workers"),
        (Sample("forebay_verify_samples_total", ("mismatch",), 1), "fail", "other bytes"),
        (Sample("forebay_throttle_disk_sampled", ("sdb",), 0), "fail", 'disk="sdb"'),
    ],
)
def test_figures_that_mean_harm(sample: Sample, status: str, text: str) -> None:
    lines = list(judge_metrics(expose(sample), VERSION))
    (found,) = [line for line in lines if text in line.text]
    assert found.status == status
    assert [line.status for line in lines if line is not found] in ([], ["ok"])

"""`forebay canary`: arguments, refusals, log lines and routes; no broker is asked."""

from __future__ import annotations

import asyncio
import logging
import shlex
import sys
import tomllib
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement

from proxy import cli
from proxy.canary import command
from proxy.canary.outcome import Latency, Round, StepFailed
from proxy.canary.plan import CanaryPlan, LatencyBar
from proxy.canary.tally import Tally
from proxy.config.load import load
from proxy.config.model import Config
from proxy.config.units import Address
from tests.test_imports import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from proxy.admin.http import HttpResponse

QUICK = Latency(0.001, 0.002)
FILE = "listeners: [{listen: ':9092', upstream: '127.0.0.1:1'}]\ncache: {size: 4096GiB}\n"


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "forebay.yaml"
    path.write_text(FILE)
    return path


def read_plan(path: Path, *flags: str) -> CanaryPlan:
    options = command.build_parser().parse_args([f"{path}", *flags])
    return command.build_plan(load(path, {}, checks=False).config, options)


def test_defaults_and_flags(config_file: Path) -> None:
    """The configuration of a larger machine is read, too."""
    plan = read_plan(config_file)
    assert (plan.every_s, plan.timeout_s, plan.topic) == (5.0, 10.0, "forebay-canary-{node}")
    assert plan.bar == LatencyBar(2.0, 0.01)
    assert plan.through.address == Address("127.0.0.1", 9092)
    flags = ["--every", "500ms", "--timeout", "2s", "--topic", "t", "--factor", "3", "--plus", "1s"]
    plan = read_plan(config_file, *flags, "--through", "f:1")
    assert (plan.every_s, plan.timeout_s, plan.topic) == (0.5, 2.0, "t")
    assert (plan.bar, plan.through.address) == (LatencyBar(3.0, 1.0), Address("f", 1))


@pytest.mark.parametrize(
    "flags",
    [
        ["--every", "5"],
        ["--every", "0"],
        ["--timeout", "2h"],
        ["--rounds", "0"],
        ["--rounds", "10001"],
        ["--factor", "0.5"],
        ["--factor", "nan"],
        ["--metrics", "9191"],
        ["--client-certificate", "one"],
        ["--unknown"],
    ],
)
def test_a_wrong_flag_is_2(
    config_file: Path, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["canary", f"{config_file}", *flags])
    assert caught.value.code == cli.USAGE
    assert flags[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "flags", "reason"),
    [
        (FILE + "cahce: {}\n", [], "cahce: unknown key"),
        (FILE, ["--listener", "x"], "there is no 'x'"),
        (FILE, ["--direct", "x"], "--direct: 'x' is not an address"),
    ],
)
def test_a_wrong_configuration_is_2(
    tmp_path: Path, content: str, flags: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "forebay.yaml"
    path.write_text(content)
    assert cli.main(["canary", f"{path}", *flags]) == cli.USAGE
    captured = capsys.readouterr()
    assert reason in captured.err and captured.out == ""


def test_without_aiokafka_the_command_says_what_to_install(
    config_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert cli.main(["canary", f"{config_file}"]) == cli.USAGE
    words = shlex.split(capsys.readouterr().err.partition("beside Forebay: ")[2])
    assert words[:4] == [sys.executable, "-m", "pip", "install"]
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {Requirement(one).name for one in words[4:]} == {
        Requirement(one).name for one in extra["canary"]
    }


@pytest.mark.parametrize(
    ("round_", "level", "words"),
    [
        (Round(QUICK, QUICK), "INFO", "round 7: through 2.00 ms end to end, direct 2.00 ms"),
        (Round(Latency(0.5, 0.001), QUICK), "WARNING", "end to end; above the bar"),
        (Round(StepFailed("consume", "gone"), QUICK), "WARNING", "through failed (consume: gone)"),
    ],
)
def test_a_round_is_one_line(
    round_: Round,
    level: str,
    words: str,
    config_file: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    command.tell(7, round_, read_plan(config_file))
    (record,) = caplog.records
    assert record.levelname == level and words in record.getMessage()
    assert vars(record)["directReceivedMs"] == 2.0


def test_ready_after_the_first_round() -> None:
    tally = Tally(LatencyBar(2.0, 0.01))
    routes = command.build_routes(tally)
    asked: HttpResponse = routes["/readyz"]()
    assert asked.status == 503 and b"no round" in asked.body
    tally.add(Round(QUICK, QUICK), 1.0)
    assert routes["/readyz"]().status == 200
    assert b"forebay_canary_rounds_total 1.0" in routes["/metrics"]().body


class PlayedCanary:
    """Ends the run after three rounds, or hangs in the first."""

    def __init__(self, stopping: asyncio.Event, hangs: bool = False) -> None:
        self.stopping, self.hangs, self.rounds = stopping, hangs, 0

    async def run_round(self) -> Round:
        self.rounds += 1
        if self.hangs:
            self.stopping.set()
            await asyncio.Event().wait()
        if self.rounds == 3:
            self.stopping.set()
        return Round(QUICK, QUICK)


@pytest.mark.parametrize(("hangs", "counted"), [(False, 3), (True, 0)])
async def test_rounds_go_on_until_the_end_is_asked_for(
    hangs: bool, counted: int, config_file: Path
) -> None:
    """A round that hangs is left."""
    stopping, plan = asyncio.Event(), read_plan(config_file, "--every", "1ms")
    canary, tally = PlayedCanary(stopping, hangs), Tally(plan.bar)
    await command._keep_running(plan, canary, tally, stopping)  # type: ignore[arg-type]
    assert tally.rounds == counted


def test_the_configuration_is_read_without_this_machine(config_file: Path) -> None:
    assert isinstance(load(config_file, {}, checks=False).config, Config)

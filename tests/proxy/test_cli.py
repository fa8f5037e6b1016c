"""The command line: exit codes, what goes where, and how flags become settings."""

import argparse
import gc
import io
import shlex
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

from blockcache.arena_file import open_file
from blockcache.cache import BlockCache
from proxy import __main__, cli
from proxy.config.model import Config
from proxy.config.units import MIB, Address
from tests.kit.cache_batches import TOPIC, build_run, insert
from tests.test_imports import ROOT

SMALL = """\
listeners:
  - {listen: '127.0.0.1:0', upstream: '127.0.0.1:9092'}
cache: {size: 64MiB, directory: ''}
"""


class FakeSupervisor(ModuleType):
    """Stands for proxy.supervisor.run: keeps the configuration it is given and ends as it is told."""

    def __init__(self, ending: int | Exception) -> None:
        super().__init__("proxy.supervisor.run")
        self.ending = ending
        self.seen: list[Config] = []

    async def serve(
        self, config: Config, command: list[str], _version: str, _arguments: list[str]
    ) -> int:
        assert command[-1] == "worker"
        self.seen.append(config)
        if isinstance(self.ending, Exception):
            raise self.ending
        return self.ending


@pytest.fixture(autouse=True)
def clean_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.cli.os.environ", {})
    monkeypatch.setattr("proxy.cli.log.configure", lambda *_: io.BytesIO())


def install(monkeypatch: pytest.MonkeyPatch, ending: int | Exception = 0) -> FakeSupervisor:
    supervisor = FakeSupervisor(ending)
    monkeypatch.setitem(sys.modules, "proxy.supervisor.run", supervisor)
    return supervisor


def test_serve_without_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    supervisor = install(monkeypatch)
    flags = [
        "--upstream",
        "b:9092",
        "--listen",
        ":0",
        "--cache-size",
        "64MiB",
        "--admin",
        "127.0.0.1:0",
    ]
    assert cli.main(["serve", *flags, "--access-log", str(tmp_path)]) == cli.OK
    (config,) = supervisor.seen
    assert config.listeners[0].upstream == Address("b", 9092)
    assert config.listeners[0].listen == Address("", 0)
    assert config.cache.size_bytes == 64 * MIB
    assert config.admin.listen == Address("127.0.0.1", 0)
    assert config.access_log.directory == str(tmp_path)


def test_no_garbage_is_looked_for_until_all_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """From then on it is, but not among what was imported."""
    install(monkeypatch)
    monkeypatch.setattr("sys.argv", ["forebay", "serve", "--upstream", "b:9092", "--listen", ":0"])
    seen: list[bool] = []
    build = cli.build_parser

    def build_parser() -> argparse.ArgumentParser:
        seen.append(gc.isenabled())
        return build()

    monkeypatch.setattr(cli, "build_parser", build_parser)
    try:
        assert __main__.main() == cli.OK
        assert seen == [False]
        assert gc.isenabled() and gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
        gc.enable()


def test_serve_with_a_file_lets_flags_win(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    supervisor = install(monkeypatch)
    path = tmp_path / "forebay.yaml"
    path.write_text(SMALL)
    assert cli.main(["serve", "--config", str(path), "--upstream", "other:1"]) == cli.OK
    assert supervisor.seen[0].listeners[0].upstream == Address("other", 1)
    assert supervisor.seen[0].cache.size_bytes == 64 * MIB


@pytest.mark.parametrize(
    ("ending", "code"),
    [(0, 0), (1, 1), (OSError(98, "Address already in use"), 1), (RuntimeError("unexpected"), 1)],
)
def test_serve_exits_with_the_supervisors_code(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    ending: int | Exception,
    code: int,
) -> None:
    install(monkeypatch, ending)
    assert cli.main(["serve", "--upstream", "b:1", "--listen", "127.0.0.1:0"]) == code
    assert isinstance(ending, int) or str(ending) in caplog.text


def test_serve_refuses_all_at_once_and_starts_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    supervisor = install(monkeypatch)
    assert cli.main(["serve", "--upstream", "nowhere", "--cache-size", "some"]) == cli.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "the configuration has 3 problems:" in captured.err
    assert "'nowhere' is not an address" in captured.err
    assert "(--cache-size)" in captured.err
    assert "listeners[0].listen: is missing" in captured.err
    assert supervisor.seen == []


def test_the_derived_size_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(monkeypatch)
    caplog.set_level("INFO")
    cli.main(["serve", "--upstream", "b:1", "--listen", "127.0.0.1:0"])
    assert "cache.size is" in caplog.text


def test_config_check_prints_what_is_in_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "forebay.yaml"
    path.write_text(SMALL)
    assert cli.main(["config", "check", str(path)]) == cli.OK
    out = capsys.readouterr().out
    assert 'upstream: "127.0.0.1:9092"' in out
    assert "# forebay.yaml:2" in out
    assert "# default" in out


def test_config_check_refuses_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "forebay.yaml"
    path.write_text(SMALL + "cahce: {}\n")
    assert cli.main(["config", "check", str(path)]) == cli.USAGE
    assert "cahce: unknown key; did you mean cache? (forebay.yaml:4)" in capsys.readouterr().err


def test_audit_gets_the_rest_of_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    audit = ModuleType(cli.AUDIT)
    seen: list[list[str]] = []

    def run(arguments: list[str]) -> int:
        seen.append(arguments)
        return 3

    monkeypatch.setattr(audit, "main", run, raising=False)
    monkeypatch.setitem(sys.modules, cli.AUDIT, audit)
    assert cli.main(["audit", "logs", "--out", "report", "--help"]) == 3
    assert seen == [["logs", "--out", "report", "--help"]]


@pytest.mark.parametrize("missing", ["pyspark.sql", "py4j"])
def test_audit_without_its_packages_names_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    def fail(_: str) -> ModuleType:
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    monkeypatch.setattr("proxy.cli.importlib.import_module", fail)
    assert cli.main(["audit", "logs"]) == cli.USAGE
    said = capsys.readouterr().err
    command = shlex.split(said.partition("beside Forebay: ")[2])
    assert command[:4] == [sys.executable, "-m", "pip", "install"]
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = {Requirement(one) for one in extra["audit"]}
    assert {Requirement(one) for one in command[4:]} == wanted, "not Forebay, which is there"


def test_missing_product_module_is_a_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: str) -> ModuleType:
        raise ModuleNotFoundError("No module named 'json'", name="json")

    monkeypatch.setattr("proxy.cli.importlib.import_module", fail)
    with pytest.raises(ModuleNotFoundError):
        cli.main(["audit", "logs"])


@pytest.mark.parametrize(
    "arguments", [[], ["config"], ["serve", "--listen"], ["unknown"], ["config", "check"]]
)
def test_a_wrong_command_line_is_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == cli.USAGE


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--help"], "forebay serve --upstream"),
        (["--help"], "exit codes: 0 done, 1 failed while running, 2 wrong"),
        (["serve", "--help"], "FOREBAY_CACHE_SIZE"),
        (["config", "check", "--help"], "effective"),
        (["--version"], "forebay "),
    ],
)
def test_help_and_version_go_to_standard_output(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == cli.OK
    assert said in " ".join(capsys.readouterr().out.split(" "))


def test_arena_inspect_reads_live_and_dead_arenas(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, left = tmp_path / "a.arena", tmp_path / "left.arena"
    cache = BlockCache(MIB, open_file(path))
    slot = cache.open(TOPIC, 7)
    insert(cache, slot, build_run(3, 4))
    insert(cache, slot, build_run(20, 2))
    left.write_bytes(path.read_bytes())
    assert cli.main(["arena", "inspect", str(path)]) == cli.OK
    live = capsys.readouterr().out
    assert cli.main(["arena", "inspect", str(left), "--top", "1"]) == cli.OK
    dead = capsys.readouterr().out
    assert live.splitlines()[0] == "in use by a running process"
    assert dead.splitlines()[0] == "left behind: no process has it open"
    assert live.splitlines()[1:] == dead.splitlines()[1:]
    assert "AAECAwQFBgcICQoLDA0ODw         7         6" in live
    assert "[3, 7) hole of 13 [20, 22)" in live
    cache.check()
    cache.close()


def test_arena_inspect_refuses_what_is_no_arena(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes").write_text("precious" * 100)
    (tmp_path / "empty").touch()
    for name, words in (
        ("notes", "not an arena"),
        ("empty", "empty file"),
        ("none", "No such file"),
    ):
        assert cli.main(["arena", "inspect", str(tmp_path / name)]) == cli.USAGE
        said = capsys.readouterr()
        assert words in said.err and said.out == ""
    assert (tmp_path / "notes").read_text() == "precious" * 100

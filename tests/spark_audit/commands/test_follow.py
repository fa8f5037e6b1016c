"""A followed report equals a single run over the same lines, also when the process was killed between two steps."""

import gzip
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_audit.commands import report
from tests.spark_audit.traffic import write_log

WAIT_S = 400
NAMES = ("index.html", "summary.json", "topics.json")


def start(logs: Path, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "spark_audit", str(logs), "--out", str(out), "--follow"]
    return subprocess.Popen(
        [*command, "--every", "0.5", "--master", "local[2]", "--cache-size", "1MiB"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def wait_for(happened: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not happened():
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def feed(source: Path, target: Path, part: slice) -> None:
    """Append a part of each log file's lines, as a writer does; with the last part all but the last are compressed."""
    target.mkdir(exist_ok=True)
    paths = sorted(source.glob("*.jsonl*"))
    for path in paths:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        lines = data.splitlines(keepends=True)
        plain = target / path.name.removesuffix(".gz")
        with plain.open("ab") as file:
            file.writelines(lines[len(lines) * part.start // 4 : len(lines) * part.stop // 4])
        if part.stop == 4 and path != paths[-1]:
            packed = target / f"{plain.name}.gz.tmp"
            packed.write_bytes(gzip.compress(data))
            packed.rename(target / f"{plain.name}.gz")
            plain.unlink()


@pytest.mark.e2e
@pytest.mark.long
def test_a_killed_follower_goes_on_and_equals_a_single_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    logs, out = tmp_path / "logs", tmp_path / "out"
    write_log(before, "b1", rounds=1500)
    write_log(after, "b22", rounds=300)
    feed(before, logs, slice(0, 2))
    first = start(logs, out)
    wait_for((out / "index.html").exists, first)
    early = (out / "summary.json").read_bytes()
    feed(before, logs, slice(2, 4))
    finished = out / "follow" / "finished"
    wait_for(lambda: any(finished.rglob("ingest=*")), first)
    os.kill(
        first.pid, signal.SIGKILL
    )  # compressed files are being stored, or stored and not committed
    first.wait()
    feed(after, logs, slice(0, 4))
    second = start(logs, out)
    assert second.stderr is not None
    for line in second.stderr:
        if "next look" in line:
            break
    second.send_signal(signal.SIGTERM)
    assert "the same command goes on from here" in second.stderr.read()
    assert second.wait(WAIT_S) == 0
    monkeypatch.setattr(SparkSession, "stop", lambda self: None)  # the session of all tests goes on
    single = tmp_path / "single"
    assert report.main([str(logs), "--out", str(single), "--cache-size", "1MiB"]) == 0
    for name in NAMES:
        assert (out / name).read_bytes() == (single / name).read_bytes()
    assert (out / "summary.json").read_bytes() != early


def test_urls_cannot_be_followed(tmp_path: Path, capsys) -> None:
    arguments = ["s3a://logs/", "--out", str(tmp_path / "out"), "--follow"]
    assert report.main(arguments) == 2
    assert "--follow reads files of this machine, not s3a://logs/" in capsys.readouterr().err

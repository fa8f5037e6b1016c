"""The demo in short: it hits, it says so, and nothing stays behind, however it ends."""

import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from bench.demo.plan import (
    DIRECT,
    LOADERS,
    ORDER,
    REPLAY,
    THROUGH,
    Sizes,
    plan_periods_s,
    plan_slices,
)
from bench.demo.result import build_result, describe, percentile

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "bench.demo", "--seconds", "4", "--no-audit")


def start(scratch: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        COMMAND,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(scratch)},
        text=True,
        start_new_session=True,
    )


def left_processes(session: int) -> list[str]:
    """Of the demo, wherever they are: those of its session, and those that name its scratch folder."""
    said = subprocess.run(
        ["ps", "-eo", "sid=,stat=,args="], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split(None, 2) for line in said.splitlines()]
    return [row[2] for row in rows if row[0] == str(session) and not row[1].startswith("Z")]


@pytest.mark.e2e
def test_demo_hits_and_leaves_nothing(tmp_path: Path) -> None:
    with start(tmp_path) as demo:
        said, _ = demo.communicate(timeout=100)
    assert demo.returncode == 0, said
    assert "never left the broker" in said
    assert list(tmp_path.iterdir()) == []
    assert left_processes(demo.pid) == []


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("number", "moment"),
    [(signal.SIGINT, "records of"), (signal.SIGTERM, "producing a backlog")],
    ids=["SIGINT at work", "SIGTERM before"],
)
def test_interrupted_demo_leaves_nothing(
    tmp_path: Path, number: signal.Signals, moment: str
) -> None:
    with start(tmp_path) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if moment in line:
                break
        demo.send_signal(number)
        said, _ = demo.communicate(timeout=60)
    assert demo.returncode == 128 + number, said
    assert "interrupted" in said
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []
    assert left_processes(demo.pid) == []


def test_default_load_has_many_partitions_and_a_backlog_of_several_fetches() -> None:
    sizes = Sizes()
    assert sizes.partitions == 48
    assert sizes.backlog_bytes > sizes.cache_bytes
    assert sizes.backlog_bytes >= 4 * sizes.partitions * sizes.replay_bytes


def test_the_loaders_lie_less_and_more_than_the_cache_behind() -> None:
    sizes, slices = Sizes(), plan_slices(24.0)
    rate = sizes.load_rate * sizes.load_record_bytes
    assert slices[-1].label == LOADERS
    near, middle, far = (period_s * rate for period_s in plan_periods_s(slices))
    assert near < middle < sizes.cache_bytes < far
    assert rate * (slices[-1].end_s - slices[-1].start_s) > 2 * sizes.cache_bytes


def test_both_ways_get_the_same_time() -> None:
    slices = plan_slices(32.0)
    assert [part.label for part in slices[2:-2]] == list(ORDER)
    length_s = {
        way: sum(s.end_s - s.start_s for s in slices if s.label == way) for way in (DIRECT, THROUGH)
    }
    assert length_s == {DIRECT: 16.0, THROUGH: 16.0}
    assert all(one.end_s == other.start_s for one, other in pairwise(slices))


def test_ratio_is_of_bytes() -> None:
    lines: list[dict[str, object]] = [
        {"type": "fetch", "result": "hit", "reason": "", "bytes": 980, "clientId": "tail-1"},
        {"type": "fetch", "result": "miss", "reason": "cold", "bytes": 20, "clientId": "tail-1"},
        {
            "type": "fetch",
            "result": "miss",
            "reason": "evicted",
            "bytes": 5000,
            "clientId": "replay",
        },
        {"type": "block"},
        {"type": "empty", "result": "miss", "reason": "evicted", "partitions": 7},
    ]
    latencies_ms: dict[str, list[float]] = {DIRECT: [1.0], THROUGH: [2.0], REPLAY: []}
    result = build_result(lines, ["tail-1"], 5020, latencies_ms)
    assert result.tail_ratio == 0.98
    assert result.decided["miss", "evicted"] == (8, 5000)
    assert "98.00 %" in describe(result)
    assert build_result([], ["tail-1"], 0, latencies_ms).tail_ratio == 0.0


def test_percentile_at_its_bounds() -> None:
    assert percentile([], 99) == 0.0
    assert percentile([3.0, 1.0, 2.0], 0) == 1.0
    assert percentile([3.0, 1.0, 2.0], 100) == 3.0

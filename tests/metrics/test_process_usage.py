"""What a process uses, as the kernel tells."""

import os
import time
from pathlib import Path

from metrics.catalog import CATALOG
from metrics.histogram import Histogram
from metrics.process_usage import read_age_s, read_usage


def test_a_process_sees_its_own_use() -> None:
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    before = time.process_time()
    usage = {one.name: one for one in read_usage("worker-3")}
    assert {one.labels for one in usage.values()} == {("worker-3",)}
    assert all(CATALOG[name].labels == ("process",) for name in usage)
    processor_s = usage["forebay_process_cpu_seconds_total"].value
    assert isinstance(processor_s, float)
    assert abs(processor_s - before) < 0.5
    resident_bytes = usage["forebay_process_resident_memory_bytes"].value
    status = Path("/proc/self/status").read_text()
    told_bytes = int(status.partition("VmRSS:")[2].split()[0]) * 1024
    assert not isinstance(resident_bytes, Histogram) and 0.5 < resident_bytes / told_bytes < 2
    files = usage["forebay_process_open_fds"].value
    assert isinstance(files, int) and files >= 3


def test_the_age_counts_from_the_start() -> None:
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert 0 < read_age_s(now_s) < now_s
    assert read_age_s(now_s + 5) - read_age_s(now_s) == 5


def test_without_proc_there_are_no_samples(tmp_path: Path) -> None:
    assert read_usage("keeper", tmp_path) == []
    (tmp_path / "stat").write_text(f"{os.getpid()} (a) R")
    (tmp_path / "statm").write_text("1 2 3")
    (tmp_path / "fd").mkdir()
    assert read_usage("keeper", tmp_path) == []

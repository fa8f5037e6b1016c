"""Files are rotated, compressed, bounded and never overwritten, whatever happened before."""

import gzip
import os
from pathlib import Path

import pytest

from metrics import log_files
from metrics.log_files import LogFiles

NOW_MS = 1_700_000_000_000


def open_files(directory: Path, boot: str = "b1", **limits: int) -> LogFiles:
    bounds = {"rotate_bytes": 100, "max_files": 1000, "max_total_bytes": 1 << 30} | limits
    return LogFiles(directory, boot, now_ms=lambda: NOW_MS, **bounds)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def write_file(files: LogFiles, data: bytes) -> None:
    files.open()
    files.write(data)
    files.rotate()


def compress_all(files: LogFiles) -> None:
    while files.compress_step():
        pass


def test_rotation_is_wanted_at_the_bound(tmp_path: Path) -> None:
    files = open_files(tmp_path)
    files.open()
    files.write(b"x" * 99)
    assert not files.wants_rotation
    files.write(b"x")
    assert files.wants_rotation


def test_files_are_not_for_all_to_read(tmp_path: Path) -> None:
    """They tell client ids and topics. The audit may run as another user of the group."""
    before = os.umask(0)
    try:
        files = open_files(tmp_path)
        write_file(files, b"x\n")
        files.rotate()
        compress_all(files)
        files.open()
    finally:
        os.umask(before)
    modes = {path.suffix: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {".jsonl": 0o640, ".gz": 0o640}


def test_a_finished_file_is_compressed_whole_and_in_steps(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(log_files, "COMPRESS_STEP_BYTES", 10)
    files = open_files(tmp_path)
    write_file(files, b"0123456789\n" * 9)
    steps = 0
    while files.compress_step():
        steps += 1
    assert steps == 11
    (path,) = tmp_path.iterdir()
    assert path.name == "access-20231114T221320Z-b1-000001.jsonl.gz"
    assert gzip.decompress(path.read_bytes()) == b"0123456789\n" * 9


def test_a_restart_with_the_same_boot_and_time_overwrites_nothing(tmp_path: Path) -> None:
    first = open_files(tmp_path)
    write_file(first, b"first\n")
    compress_all(first)
    write_file(first, b"second\n")
    first.close()
    again = open_files(tmp_path)
    write_file(again, b"third\n")
    compress_all(again)
    contents = [gzip.decompress(path.read_bytes()) for path in sorted(tmp_path.iterdir())]
    assert contents == [b"first\n", b"second\n", b"third\n"]


def test_what_a_crash_left_is_compressed_and_half_done_work_done_again(tmp_path: Path) -> None:
    left = tmp_path / "access-20231114T000000Z-dead-000001.jsonl"
    left.write_bytes(b"whole\ntorn")
    (tmp_path / "access-20231114T000000Z-dead-000001.jsonl.gz.tmp").write_bytes(b"half a gzip")
    both = tmp_path / "access-20231114T000000Z-dead-000000.jsonl"
    both.write_bytes(b"already\n")
    (tmp_path / "access-20231114T000000Z-dead-000000.jsonl.gz").write_bytes(
        gzip.compress(b"already\n")
    )
    compress_all(open_files(tmp_path))
    contents = {path.name[-15:]: gzip.decompress(path.read_bytes()) for path in tmp_path.iterdir()}
    assert contents == {"000000.jsonl.gz": b"already\n", "000001.jsonl.gz": b"whole\ntorn"}


def test_another_process_s_current_file_is_neither_compressed_nor_deleted(tmp_path: Path) -> None:
    other = open_files(tmp_path, "b0")
    other.open()
    other.write(b"theirs\n")
    files = open_files(tmp_path, "b1", max_files=1)
    write_file(files, b"ours\n")
    compress_all(files)
    assert names(tmp_path) == ["access-20231114T221320Z-b0-000001.jsonl"]
    other.write(b"still theirs\n")
    other.close()
    assert next(tmp_path.iterdir()).read_bytes() == b"theirs\nstill theirs\n"


@pytest.mark.parametrize(("written", "kept"), [(3, 3), (4, 3)])
def test_the_oldest_files_go_beyond_the_count(tmp_path: Path, written: int, kept: int) -> None:
    files = open_files(tmp_path, max_files=3)
    for number in range(written):
        write_file(files, b"%d\n" % number)
    assert len(names(tmp_path)) == kept
    compress_all(files)
    contents = [gzip.decompress(path.read_bytes()) for path in sorted(tmp_path.iterdir())]
    assert contents == [b"%d\n" % number for number in range(written - kept, written)]


@pytest.mark.parametrize("boot", ["a0", "b1", "c2"])
def test_the_oldest_files_go_also_where_the_wall_clock_has_gone_back(
    tmp_path: Path, boot: str
) -> None:
    """By a day, within a process or between two."""
    now_ms = [NOW_MS]

    def start(name: str) -> LogFiles:
        bounds = {"rotate_bytes": 100, "max_files": 3, "max_total_bytes": 1 << 30}
        return LogFiles(tmp_path, name, now_ms=lambda: now_ms[0], **bounds)

    files = start("b1")
    for number in range(3):
        write_file(files, b"%d\n" % number)
    now_ms[0] -= 86_400_000
    if boot != "b1":
        files.close()
        files = start(boot)
    for number in (3, 4):
        write_file(files, b"%d\n" % number)
    assert [path.read_bytes() for path in sorted(tmp_path.iterdir())] == [b"2\n", b"3\n", b"4\n"]


@pytest.mark.parametrize(("bound", "kept"), [(300, 3), (299, 2)])
def test_the_oldest_files_go_beyond_the_bytes(tmp_path: Path, bound: int, kept: int) -> None:
    files = open_files(tmp_path, max_total_bytes=bound)
    for _ in range(3):
        write_file(files, b"x" * 99 + b"\n")
    assert len(names(tmp_path)) == kept


def test_a_failed_write_takes_back_its_part_and_ends_the_file(tmp_path: Path) -> None:
    class HalfDisk:
        def __init__(self, file) -> None:
            self.file, self.name, self.calls = file, file.name, 0

        def write(self, data: memoryview) -> int:
            self.calls += 1
            if self.calls > 1:
                raise OSError(28, "No space left on device")
            return self.file.write(data[:3])

        def __getattr__(self, name: str) -> object:
            return getattr(self.file, name)

    files = open_files(tmp_path)
    files.open()
    files.write(b"whole\n")
    files._current = HalfDisk(files._current)  # type: ignore[assignment]
    with pytest.raises(OSError, match="No space"):
        files.write(b"never there\n")
    assert not files.is_open
    assert next(tmp_path.iterdir()).read_bytes() == b"whole\n"


def test_a_file_without_a_line_is_not_left_behind(tmp_path: Path) -> None:
    files = open_files(tmp_path)
    files.open()
    files.close()
    assert names(tmp_path) == []


def test_a_file_that_somebody_deleted_is_no_error(tmp_path: Path) -> None:
    files = open_files(tmp_path)
    write_file(files, b"gone\n")
    next(tmp_path.iterdir()).unlink()
    compress_all(files)
    assert names(tmp_path) == []


@pytest.mark.parametrize("boot", ["", "../x", "a b", "x" * 65])
def test_a_boot_id_unfit_for_a_name_is_refused(tmp_path: Path, boot: str) -> None:
    with pytest.raises(ValueError, match="boot id"):
        open_files(tmp_path, boot)

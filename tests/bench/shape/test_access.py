"""Lines are counted by the time that they state, from logs that are still being written, plain or compressed."""

import gzip
import json
from pathlib import Path

from bench.shape.access import Lines, count_lines


def build_line(at_ms: int, *sizes: int, kind: str = "response") -> bytes:
    """`sizes`: of the partitions of an answer each."""
    answers = [{"partitions": [[0, 9, size, None, None, None, None, None]]} for size in sizes]
    line = {"ts": at_ms, "type": kind, "bytes": 5}
    return json.dumps(line | {"answers": answers} if kind == "response" else line).encode() + b"\n"


def test_lines_of_the_time_are_counted_and_those_with_records_apart(tmp_path: Path) -> None:
    early = build_line(999, 10) + build_line(1000, 10, 0, 20)
    (tmp_path / "access-1.jsonl.gz").write_bytes(gzip.compress(early))
    late = build_line(1500, 0) + build_line(1600, kind="block") + build_line(2000, 10)
    (tmp_path / "access-2.jsonl").write_bytes(late + build_line(1700, 10)[:-9])
    assert count_lines(tmp_path, 1.0, 2.0) == Lines(3, 2)


def test_a_line_a_second_of_each_connection_is_no_lines_of_answers() -> None:
    assert Lines(140, 100).per_answer(connections=4, elapsed_s=5.0) == 1.2
    assert Lines(5, 0).per_answer(connections=4, elapsed_s=1.0) == 1.0

"""One Spark session, one log and one audit of it for all tests: starting Spark is what takes time."""

import gzip
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_audit.job import Findings, Request, run
from spark_audit.reading import find_inputs
from spark_audit.reconcile import ScrapedCounters
from spark_audit.session import NotReady, open_session
from tests.spark_audit.modes import heed_modes
from tests.spark_audit.traffic import Traffic, write_log

CACHE_SIZE_BYTES = 200_000
EMPTY = (
    '{"v":2,"type":"empty","boot":"b","ts":1763700004000,"firstMs":1763700000001,"listener":"main","connection":1,"clientId":null,"topic":"t"'
    ',"topicId":null,"result":"%s","reason":"","responses":2,"partitions":%d,"admittedBytes":0,"counts":[%s]}'
)
"""A line with a result, a number of partitions, and counts."""
BAD_LINES = {
    "corrupt": [
        '{"v":1,"type":"fetch","boot',
        "\0\0\0",
        "",
        "[]",
        '{"v":1,"type":"fetch","ts":"soon"}',
    ],
    "unknown-version": ['{"v":0,"type":"fetch"}', '{"v":6,"ts":"a time of another kind"}'],
    "unknown-type": ['{"v":1,"type":"dream","boot":"b","ts":1}'],
    "incomplete": [
        '{"v":1,"type":"log","boot":"b","ts":1}',
        EMPTY % ("hit", 5, '{"lag":0,"responses":2,"partitions":[1,2]}'),
        EMPTY % ("hit", 4, '{"lag":0,"partitions":[1,2]}'),
        EMPTY % ("hit", 0, '{"lag":0,"responses":2}'),
    ],
    "unknown-result": [EMPTY % ("luck", 4, '{"lag":0,"responses":2,"partitions":[1,2]}')],
}


@dataclass
class Audited:
    """An audit, and what was logged before it."""

    traffic: Traffic
    findings: Findings
    out: Path
    directory: Path
    truncated_lines: int


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Its JVM heeds file modes: the tests may be root's."""
    try:
        session = heed_modes(lambda: open_session("local[2]"))
    except NotReady as error:
        pytest.fail(str(error))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def audited(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Audited:
    """Two boots' logs below an awkward path, of a version each, a file of bad lines and a .gz that was cut in half."""
    directory = tmp_path_factory.mktemp("logs") / "a {b}[1] ü"
    first = write_log(directory, "b1", rounds=800, cache_size_bytes=CACHE_SIZE_BYTES, version=1)
    second = write_log(directory / "second", "bb2", rounds=500, cache_size_bytes=CACHE_SIZE_BYTES)
    bad = [line for lines in BAD_LINES.values() for line in lines]
    (directory / "access-bad.jsonl").write_text("\n".join([*bad[1:], bad[0]]))
    line = '{"v":1,"type":"log","boot":"cut","ts":1763700000000,"event":"open","sequence":%d,'
    line += '"cacheSizeBytes":0,"writtenLines":0,"droppedLines":0}\n'
    packed = gzip.compress("".join(line % (number * 7919) for number in range(20_000)).encode())
    (directory / "access-cut.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    traffic = Traffic(
        first.fetches + second.fetches, second.summed, second.empties, first.blocks + second.blocks
    )
    out = tmp_path_factory.mktemp("out")
    findings = run(
        spark, Request(find_inputs([str(directory)]), out, (count(second),)), lambda text: None
    )
    cut = next(file for file in findings.files if file.path.endswith("access-cut.jsonl.gz"))
    return Audited(traffic, findings, out, directory, cut.lines)


def count(traffic: Traffic) -> ScrapedCounters:
    """The counters of a process that logged this."""
    partitions: Counter[tuple[str, str]] = Counter()
    size_bytes: Counter[tuple[str, str]] = Counter()
    for line in traffic.fetches:
        partitions[line.result, line.reason] += 1
        size_bytes[line.result, line.reason] += line.bytes
    totals = {pair: (partitions[pair], size_bytes[pair]) for pair in partitions}
    return ScrapedCounters(totals, CACHE_SIZE_BYTES, 0, {})

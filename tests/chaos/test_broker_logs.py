"""What lies in a broker's data directory is found, and what was there stays known."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING

import pytest

from protocol import batch
from tests.chaos.broker_logs import BrokerLogs, Log, is_of, parse_lineage
from tests.protocol.batches import batch_v2

if TYPE_CHECKING:
    from pathlib import Path

TOPIC_ID = bytes(range(16))
LOG = Log(TOPIC_ID, 1)


def build(base: int, epoch: int = 0) -> bytes:
    data = bytearray(batch_v2(2))
    batch.stamp_base_offset(data, 0, base)
    batch.stamp_leader_epoch(data, 0, epoch)
    return bytes(data)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A partition's directory, as a broker makes it."""
    path = tmp_path / "topic-1"
    path.mkdir()
    word = urlsafe_b64encode(TOPIC_ID).decode().rstrip("=")
    (path / "partition.metadata").write_text(f"version: 0\ntopic_id: {word}")
    return path


@pytest.fixture
def logs(tmp_path: Path) -> BrokerLogs:
    return BrokerLogs([tmp_path, tmp_path / "absent"], {"topic"})


def kept(logs: BrokerLogs) -> set[bytes]:
    logs.scan()
    return {one.data for one in logs.held.batches.get(LOG, {}).values()}


def test_whole_batches_are_found_as_they_come(logs: BrokerLogs, place: Path) -> None:
    segment = place / f"{0:020}.log"
    first, second, third = build(0), build(2), build(4)
    segment.write_bytes(first + second[:-1])
    assert kept(logs) == {first}
    segment.write_bytes(first + second + third[:20])
    assert kept(logs) == {first, second}
    with segment.open("r+b") as file:
        file.seek(len(first + second))
        file.write(third + bytes(1000))
    assert kept(logs) == {first, second, third}


def test_what_is_truncated_and_written_again_is_known_twice(logs: BrokerLogs, place: Path) -> None:
    segment = place / f"{0:020}.log"
    first, lost, instead = build(0), build(2), build(2, epoch=7)
    segment.write_bytes(first + lost)
    assert kept(logs) == {first, lost}
    with segment.open("r+b") as file:
        file.truncate(len(first))
        file.seek(len(first))
        file.write(instead + build(4, epoch=7))
    assert kept(logs) == {first, lost, instead, build(4, epoch=7)}
    with segment.open("r+b") as file:
        file.truncate(len(first))
    assert kept(logs) == {first, lost, instead, build(4, epoch=7)}


def test_a_deleted_topic_and_a_compacted_segment_stay_known(logs: BrokerLogs, place: Path) -> None:
    (place / f"{0:020}.log.deleted").write_bytes(build(0))
    (place / f"{0:020}.log").write_bytes(build(2))
    place.rename(place.with_name("topic-1.0123456789abcdef0123456789abcdef-delete"))
    assert kept(logs) == {build(0), build(2)}


def test_other_topics_and_files_are_left_alone(logs: BrokerLogs, place: Path) -> None:
    (place / f"{0:020}.index").write_bytes(build(0))
    other = place.with_name("other-1")
    other.mkdir()
    (other / f"{0:020}.log").write_bytes(build(0))
    (place.with_name("topic-2")).mkdir()  # has no metadata yet
    assert kept(logs) == set()


def test_the_lineage_of_each_epoch_is_kept(logs: BrokerLogs, place: Path) -> None:
    path = place / "leader-epoch-checkpoint"
    path.write_text("0\n2\n1 0\n4 10\n")
    logs.scan()
    path.write_text("0\n2\n1 0\n6 8\n")
    logs.scan()
    assert logs.held.lineages[LOG] == {4: ((1, 0), (4, 10)), 6: ((1, 0), (6, 8))}


@pytest.mark.parametrize("text", ["", "0\n", "0\n2\n1 0\n", "0\nx\n"])
def test_a_checkpoint_that_is_being_written_says_nothing(text: str) -> None:
    assert parse_lineage(text) == ()


@pytest.mark.parametrize(
    ("epoch", "offset", "belongs"),
    [
        (1, 9, True),
        (1, 10, False),
        (4, 10, True),
        (4, 1 << 40, True),
        (3, 5, False),
        (5, 20, False),
        (0, 99, True),
    ],
)
def test_which_batches_a_lineage_has(epoch: int, offset: int, belongs: bool) -> None:
    assert is_of(((1, 0), (4, 10)), epoch, offset) is belongs

"""A copy of a formatted log directory is the tool's own but for its ids, and other kinds are not taken for it."""

from pathlib import Path

import pytest

from tests.kit.broker import storage
from tests.kit.broker.jars import KAFKA_4
from tests.kit.broker.kafka import KafkaCluster
from tests.kit.broker.storage import CHECKPOINT, META, Kind, build_id, write_formatted

KIND = Kind(KAFKA_4, (), ())
OTHERS = (Kind("3.9.2", (), ()), Kind(KAFKA_4, (("a", "b"),), ()), Kind(KAFKA_4, (), ("--add",)))


def read_ids(log_dir: Path) -> dict[str, str]:
    lines = (log_dir / META).read_text().splitlines()
    return dict(line.split("=") for line in lines if not line.startswith("#"))


@pytest.mark.parametrize("kind", OTHERS)
def test_a_kind_that_was_never_formatted_is_left_to_the_tool(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_checkpoints", {KIND: b"records"})
    assert not write_formatted(kind, tmp_path / "data", "cluster", 1)
    assert write_formatted(KIND, tmp_path / "data", "cluster", 2)
    assert read_ids(tmp_path / "data")["node.id"] == "2"


def test_ids_begin_with_no_dash() -> None:
    assert not any(build_id().startswith("-") for _ in range(500))


@pytest.mark.e2e
def test_a_copy_is_the_tools_own_but_for_ids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(storage, "_checkpoints", {})
    with KafkaCluster(2) as running:
        own, copy = (running.log_dir(node_id) for node_id in (1, 2))
        assert (own / CHECKPOINT).read_bytes() == (copy / CHECKPOINT).read_bytes()
        known, copied = read_ids(own), read_ids(copy)
        assert known.keys() == copied.keys()
        assert known["cluster.id"] == copied["cluster.id"]
        assert known["version"] == copied["version"] == "1"
        assert known["directory.id"] != copied["directory.id"]

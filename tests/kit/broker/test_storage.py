"""A copy of a formatted log directory is the tool's own but for its ids, and other kinds are not taken for it."""

from pathlib import Path

import pytest

from tests.kit.broker import storage
from tests.kit.broker.jars import KAFKA_4
from tests.kit.broker.process import kafka_tool
from tests.kit.broker.settings import CONTROLLER, DIRECT, Node, build_properties
from tests.kit.broker.storage import (
    CHECKPOINT,
    META,
    Kind,
    build_id,
    build_kind,
    keep_formatted,
    write_formatted,
)

KIND = Kind(KAFKA_4, (), ())
DIRECTORIES = (("log.dirs", "a,b"),)
OTHERS = (Kind("3.9.2", (), ()), Kind(KAFKA_4, DIRECTORIES, ()), Kind(KAFKA_4, (), ("--add",)))
NODE = Node(1, {CONTROLLER: 1, DIRECT: 2})


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for the directory of every version's jars."""
    monkeypatch.setattr(storage, "kafka_jars", lambda _version: tmp_path)
    return tmp_path


def read_ids(log_dir: Path) -> dict[str, str]:
    lines = (log_dir / META).read_text().splitlines()
    return dict(line.split("=") for line in lines if not line.startswith("#"))


@pytest.mark.parametrize("kind", OTHERS)
def test_a_kind_that_was_never_formatted_is_left_to_the_tool(kind: Kind, tmp_path: Path) -> None:
    KIND.path.write_bytes(b"records")
    assert not write_formatted(kind, tmp_path / "data", "cluster", 1)
    assert write_formatted(KIND, tmp_path / "data", "cluster", 2)
    assert read_ids(tmp_path / "data")["node.id"] == "2"
    assert (tmp_path / "data" / CHECKPOINT).read_bytes() == b"records"


def test_settings_that_the_tool_does_not_read_make_no_kind_of_their_own() -> None:
    assert (
        build_kind(KAFKA_4, {"fetch.max.bytes": 5, "group.min.session.timeout.ms": 1}, ()) == KIND
    )
    assert build_kind(KAFKA_4, {"log.dirs": "a,b", "fetch.max.bytes": 5}, ()) == OTHERS[1]


def test_ids_begin_with_no_dash() -> None:
    assert not any(build_id().startswith("-") for _ in range(500))


@pytest.mark.e2e
def test_a_copy_is_the_tools_own_but_for_ids(tmp_path: Path) -> None:
    own, copy, properties = (tmp_path / name for name in ("own", "copy", "server.properties"))
    properties.write_text(build_properties(NODE, [NODE], own, users={}, overrides={}))
    cluster_id = build_id()
    named = (f"--cluster-id={cluster_id}", "-c", str(properties))
    kafka_tool("kafka.tools.StorageTool", "format", *named)
    keep_formatted(KIND, own)
    assert write_formatted(KIND, copy, cluster_id, NODE.node_id)
    assert {path.name for path in copy.iterdir()} == {path.name for path in own.iterdir()}
    assert (own / CHECKPOINT).read_bytes() == (copy / CHECKPOINT).read_bytes()
    known, copied = read_ids(own), read_ids(copy)
    assert known.keys() == copied.keys()
    assert known.pop("directory.id") != copied.pop("directory.id")
    assert known == copied

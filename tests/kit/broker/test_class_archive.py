"""The archive belongs to the jars and to one Java, and brokers map it where it is there."""

from pathlib import Path

import pytest

from tests.kit.broker import class_archive
from tests.kit.broker.class_archive import archive_path, share_classes
from tests.kit.broker.jars import KAFKA_4
from tests.kit.broker.kafka import KafkaCluster


@pytest.fixture
def jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for the directory of every version's jars."""
    monkeypatch.setattr(class_archive, "kafka_jars", lambda _version: tmp_path)
    monkeypatch.setattr(class_archive, "find_java", lambda: "java")
    monkeypatch.setattr(class_archive, "archive_path", archive_path.__wrapped__)
    return tmp_path


def test_each_java_has_an_archive_of_its_own(jars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for build in ("17.0.15+6", "17.0.16+8", "17.0.15+6"):
        monkeypatch.setattr(class_archive, "print_version", lambda _java, said=build: said)
        names.append(archive_path.__wrapped__("x"))
    assert names[0] == names[2] != names[1]
    assert {name.parent for name in names} == {jars}


def test_without_an_archive_there_is_no_flag(jars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_archive, "print_version", lambda _java: "17")
    assert share_classes("x") == []
    path = class_archive.archive_path("x")
    path.touch()
    assert f"-XX:SharedArchiveFile={path}" in share_classes("x")


@pytest.mark.e2e
def test_a_broker_maps_it(broker: KafkaCluster) -> None:
    if not share_classes(KAFKA_4):
        pytest.skip("make tools has not written the archive")
    assert str(archive_path(KAFKA_4)) in Path(f"/proc/{broker.pid()}/maps").read_text()

"""Locks are whole, nothing but the pinned bytes is used, and clones that fetch at once fetch once."""

import hashlib
import multiprocessing
from pathlib import Path

import pytest

from tests.kit.broker import jars
from tests.kit.broker.jars import (
    VERSIONS,
    FetchFailed,
    Jar,
    kafka_jars,
    lock_path,
    scan_lock,
    wrong_jars,
)

CONTENT = b"a jar"
LOCK = f"# a comment\n{hashlib.sha256(CONTENT).hexdigest()} org.example:thing:1.0\n"


def fake_ivy(dependencies: str, staging: Path) -> str:
    """Stands for run_ivy: writes the one jar and notes the call beside the cache."""
    (staging / "jars").mkdir(exist_ok=True)
    (staging / "jars" / "org.example--thing--1.0.jar").write_bytes(CONTENT)
    with (staging.parent / "calls").open("a") as calls:
        calls.write("called\n")
    return dependencies


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache, a lock of one jar and no network; the directory that holds the cached versions."""
    (tmp_path / "x.lock").write_text(LOCK)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(jars, "lock_path", lambda _: tmp_path / "x.lock")
    monkeypatch.setattr(jars, "run_ivy", fake_ivy)
    monkeypatch.setattr(jars, "kafka_jars", kafka_jars.__wrapped__)
    return tmp_path / "cache" / "forebay" / "kafka"


@pytest.mark.parametrize("version", VERSIONS)
def test_locks_pin_broker_tools_and_one_log_backend(version: str) -> None:
    pinned = scan_lock(lock_path(version).read_text())
    assert len({(jar.group, jar.artifact) for jar in pinned}) == len(pinned)
    assert {"kafka_2.13", "kafka-tools", "kafka-clients", "slf4j-simple"} <= {
        jar.artifact for jar in pinned
    }
    assert [jar for jar in pinned if len(jar.sha256) != 64] == []


def test_lock_names_coordinates() -> None:
    assert scan_lock(LOCK) == [
        Jar(hashlib.sha256(CONTENT).hexdigest(), "org.example", "thing", "1.0")
    ]


def test_a_classifier_names_another_jar_of_the_same_module() -> None:
    plain, test = scan_lock("00 org.example:thing:1.0\n11 org.example:thing:1.0:test\n")
    assert (plain.classifier, test.classifier) == ("", "test")
    assert (plain.file_name, test.file_name) == (
        "org.example--thing--1.0.jar",
        "org.example--thing--1.0--test.jar",
    )
    assert "classifier" not in plain.dependency
    assert 'm:classifier="test"' in test.dependency


def test_unpinned_version_is_refused() -> None:
    with pytest.raises(ValueError, match=r"2\.0 is not pinned"):
        lock_path("2.0")


def test_fetched_once_and_again_when_damaged(cache: Path) -> None:
    target = jars.kafka_jars("x")
    assert jars.kafka_jars("x") == target
    assert (cache / "calls").read_text() == "called\n"
    jar = target / "org.example--thing--1.0.jar"
    jar.write_bytes(CONTENT[:-1])
    assert wrong_jars(target, scan_lock(LOCK)) == [jar.name]
    assert jars.kafka_jars("x") == target
    assert jar.read_bytes() == CONTENT
    assert sorted(path.name for path in cache.iterdir()) == sorted([".lock", "calls", target.name])


def test_other_bytes_than_pinned_are_never_used(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(__name__ + ".CONTENT", b"something else")
    with pytest.raises(FetchFailed, match=r"not the pinned bytes: org\.example--thing"):
        jars.kafka_jars("x")
    assert sorted(path.name for path in cache.iterdir()) == [".lock", "calls"]


def test_concurrent_fetches_are_one(cache: Path) -> None:
    fork = multiprocessing.get_context("fork")
    fetchers = [fork.Process(target=jars.kafka_jars, args=("x",)) for _ in range(4)]
    for fetcher in fetchers:
        fetcher.start()
    for fetcher in fetchers:
        fetcher.join(30)
    assert [fetcher.exitcode for fetcher in fetchers] == [0] * 4
    assert (cache / "calls").read_text() == "called\n"

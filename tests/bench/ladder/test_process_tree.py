"""A Forebay is a supervisor and its worker: both are measured."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.ladder.cpu import list_tree, read_cpu_ns, read_rss_bytes
from tests.kit.broker.process import die_with_parent


@pytest.fixture
def parent() -> Iterator[int]:
    command = ["sh", "-c", "sleep 600 & echo started; wait"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, preexec_fn=die_with_parent, process_group=0
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"started\n"
        yield running.pid
        for pid in reversed(list_tree(running.pid)):
            subprocess.run(["kill", "-9", str(pid)], check=True)


def test_children_count(parent: int) -> None:
    tree = list_tree(parent)
    assert tree[0] == parent
    assert len(tree) == 2
    assert set(read_cpu_ns(parent)) == set(tree), "each has one thread"
    anonymous = [Path(f"/proc/{pid}/status").read_text() for pid in tree]
    assert all("RssAnon" in text for text in anonymous)
    assert read_rss_bytes(parent) >= sum(map(read_rss_bytes, tree[1:])) > 0


def test_nobody_costs_nothing() -> None:
    assert read_cpu_ns(0) == {}

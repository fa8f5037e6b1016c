"""A round runs each chosen load once on each of its rungs, shares topics and clients, and says what failed."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from bench.ladder import cells
from bench.ladder.arms import AGAINST, BARE, CACHE, DIRECT, RELAY, STORE, TUNED, Arm
from bench.ladder.cells import Row
from bench.ladder.loads import Wrong
from bench.shape import blocks
from bench.shape.bars import (
    CROWD,
    FETCHES,
    PRODUCES,
    list_tails,
    name_crowd,
    name_fetch,
    name_produce,
    name_tail,
)
from bench.shape.blocks import BLOCKS, LOADS, Block, Round, wait_deleted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from bench.ladder.loads import Figures
    from bench.shape.blocks import Place, Turn

CHOSEN = ("one", "two", "three")


def test_each_load_is_in_one_block() -> None:
    counted = Counter(load for block in BLOCKS for load in block.loads)
    assert set(counted.values()) == {1}
    assert set(LOADS) == set(counted)


def test_forms_of_a_tail_share_clients() -> None:
    for kind, shape in list_tails():
        forms = {name_tail(*shape, is_busy=is_busy, clients=kind) for is_busy in (False, True)}
        (block,) = (block for block in BLOCKS if forms & set(block.loads))
        assert (set(block.loads), block.partitions) == (forms, shape[0])


def test_floors_stand_where_their_bytes_are() -> None:
    produces = {name_produce(*shape) for shape in PRODUCES} | {name_crowd(CROWD)}
    fetches = {name_fetch(*shape) for shape in FETCHES}
    for load, names in LOADS.items():
        assert ({STORE, RELAY} <= set(names)) is (load in produces), load
        assert (BARE in names) is (load in fetches), load


class Stage:
    """Two played blocks, of loads one and two, and three. `opened`: (loads, rung); `run`: (load, rung, scale)."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, broken: frozenset[str] = frozenset()
    ) -> None:
        self.broken = broken
        self.made: list[int] = []
        self.deleted: list[str] = []
        self.opened: list[tuple[frozenset[str], str]] = []
        self.ran: list[tuple[str, str, float]] = []
        self.allowed: list[int] = []
        names = (DIRECT, TUNED)
        played = [
            Block({"one": names, "two": (*names, CACHE)}, 32, True, self.open("one", "two")),
            Block({"three": (TUNED, AGAINST)}, 4000, True, self.open("three")),
        ]
        monkeypatch.setattr(blocks, "BLOCKS", played)
        monkeypatch.setattr(blocks, "create_topic", self.create)
        monkeypatch.setattr(blocks, "write_index", self.write)
        monkeypatch.setattr(blocks, "delete_topic", lambda _, topic: self.deleted.append(topic))
        monkeypatch.setattr(cells, "measure_cell", self.measure)

    def create(self, _: str, *, partitions: int) -> str:
        if f"topic of {partitions}" in self.broken:
            raise TimeoutError("no leaders")
        self.made.append(partitions)
        return f"topic-{partitions}"

    def write(self, _: str, topic: str, partitions: int) -> None:
        assert topic == f"topic-{partitions}"
        if f"writing {topic}" in self.broken:
            raise TimeoutError("no records")

    def open(self, *names: str) -> Callable[[Place], Any]:
        @contextlib.contextmanager
        def opening(place: Place) -> Iterator[Mapping[str, Turn]]:
            self.opened.append((frozenset(names), place.arm.name))
            if f"opening on {place.arm.name}" in self.broken:
                raise Wrong("a group does not come to the tail")
            yield {load: self.turn(load, place.arm.name) for load in names}

        return opening

    def turn(self, load: str, name: str) -> Turn:
        def run(scale: float) -> Figures:
            self.ran.append((load, name, scale))
            if load in self.broken:
                raise Wrong("lost records")
            return {"figure": 1.0}

        return run

    def measure(
        self, number: int, load: str, arm: str, run: Callable[[], Figures], attempts: int
    ) -> Row:
        """Each turn is repeated as often as it may be."""
        self.allowed.append(attempts)
        return Row(number, load, arm, run(), 0.0, attempts)

    def play(self, directory: Path, repeats: int = 0, chosen: tuple[str, ...] = CHOSEN) -> Any:
        broker: Any = SimpleNamespace(direct="", log_dir=lambda: directory)
        there = {name: Arm(name, "") for name in (DIRECT, TUNED)}
        ladder: Any = SimpleNamespace(broker=broker, broker_pid=0, arms=there)
        said: list[str] = []
        one = Round(ladder, 7, 0.5, repeats, said.append)
        rows = {(row.load, row.arm) for row in one.run(chosen)}
        return rows, one.failures


EVERYTHING = {
    ("one", DIRECT),
    ("one", TUNED),
    ("two", DIRECT),
    ("two", TUNED),
    ("three", TUNED),
}


def test_a_round_runs_each_load_once_on_each_rung_that_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stage = Stage(monkeypatch)
    assert stage.play(tmp_path) == (EVERYTHING, [])
    assert {(load, name) for load, name, _ in stage.ran} == EVERYTHING
    assert len(stage.ran) == len(EVERYTHING)
    assert {scale for _, _, scale in stage.ran} == {0.5}
    assert sorted(stage.made) == [32, 4000], "one topic for each block"
    assert sorted(stage.deleted) == ["topic-32", "topic-4000"]
    together = frozenset({"one", "two"})
    assert sorted(name for names, name in stage.opened if names == together) == [DIRECT, TUNED]


def test_what_is_not_chosen_makes_no_topic(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stage = Stage(monkeypatch)
    assert stage.play(tmp_path, chosen=("two",)) == ({("two", DIRECT), ("two", TUNED)}, [])
    assert stage.made == [32]


@pytest.mark.parametrize(
    ("broken", "lost", "says"),
    [
        ("one", {("one", DIRECT), ("one", TUNED)}, "lost records"),
        (f"opening on {DIRECT}", {("one", DIRECT), ("two", DIRECT)}, "does not come"),
        ("topic of 4000", {("three", TUNED)}, "no leaders"),
        ("writing topic-4000", {("three", TUNED)}, "no records"),
    ],
)
def test_what_fails_is_said_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    broken: str,
    lost: set[tuple[str, str]],
    says: str,
) -> None:
    stage = Stage(monkeypatch, frozenset({broken}))
    rows, failures = stage.play(tmp_path)
    assert rows == EVERYTHING - lost
    assert failures
    assert all(one.startswith("failed: round 8, ") and says in one for one in failures)
    assert len(stage.deleted) == len(stage.made)


def test_a_round_repeats_so_many_turns_in_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stage = Stage(monkeypatch)
    stage.play(tmp_path, repeats=3)
    assert stage.allowed == [3, 2, 1, 1, 1]


def test_rungs_and_loads_are_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = (block for block in BLOCKS if name_crowd(CROWD) in block.loads)
    there = {name: Arm(name, "") for name in (DIRECT, TUNED, STORE)}
    drawn = [block.list_cells(list(LOADS), there, random.Random(seed)) for seed in range(20)]
    assert len({str(one) for one in drawn}) > 1
    for one in drawn:
        assert {name: set(names) for name, names in one} == {
            DIRECT: {name_crowd(CROWD)},
            TUNED: set(block.loads),
            STORE: set(block.loads),
        }


def test_folders_of_deleted_partitions_are_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wait_deleted(tmp_path)
    folder = tmp_path / "t-0.0123456789abcdef-delete"
    folder.mkdir()
    monkeypatch.setattr(time, "sleep", lambda _: folder.rmdir())
    wait_deleted(tmp_path)
    folder.mkdir()
    monkeypatch.setattr(blocks, "DELETED_S", 0.0)
    with pytest.raises(TimeoutError, match="does not remove"):
        wait_deleted(tmp_path)

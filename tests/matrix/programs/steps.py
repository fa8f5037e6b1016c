"""The programme in Python, over any library (api.py): `perform(library, run, steps)` prints one JSON line a step.

Owns the order of calls and what of their results is told. Must not know a library. Invariant: what it prints does not
depend on time or chance, so that two runs can be compared.
"""

from __future__ import annotations

import json
import threading
import time
import traceback
from contextlib import closing
from typing import TYPE_CHECKING, Any

from tests.matrix.programs.api import (
    PATIENCE_S,
    START_MS,
    Lacks,
    Library,
    Producing,
    Reading,
    Shown,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TAIL_RECORDS, ROUNDS = 60, 16


def take(reader: Reading, count: int) -> list[Shown]:
    """The next `count` records; more than that are told too."""
    seen: list[Shown] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(seen) < count:
        seen += reader.poll()
        if time.monotonic() > deadline:
            raise TimeoutError(f"read {len(seen)} of {count} records")
    return seen


def wait(check: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not check():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.05)


def share(members: Sequence[Reading]) -> None:
    """Until each has one partition. Each is polled by a thread of its own: joining may keep its caller waiting."""
    ended = threading.Event()
    assigned = [0 for _ in members]

    def keep_polling(number: int) -> None:
        while not ended.is_set():
            members[number].poll()
            assigned[number] = members[number].count_assigned()

    threads = [
        threading.Thread(target=keep_polling, args=(number,), daemon=True)
        for number in range(len(members))
    ]
    for thread in threads:
        thread.start()
    try:
        wait(lambda: set(assigned) == {1}, "the members share the partitions")
    finally:
        ended.set()
        for thread in threads:
            thread.join(PATIENCE_S)


class Programme:
    """One run."""

    def __init__(self, library: Library, run: str) -> None:
        self.library = library
        self.run = run

    def create(self, name: str, partitions: int = 1) -> str:
        """A topic whose leaders answer."""
        topic = f"{self.run}-{name}"
        self.library.create(topic, partitions)
        wait(lambda: self.partitions(topic) == partitions, "metadata name the topic")
        wait(lambda: self.is_readable(topic), "its leader answers")
        return topic

    def is_readable(self, topic: str) -> bool:
        with closing(self.library.read()) as reader:
            try:
                reader.ends(topic)
            except Exception as error:
                if self.library.name_of(error) is None:
                    raise
                return False
        return True

    def partitions(self, topic: str) -> int:
        try:
            return self.library.count_partitions(topic)
        except Exception as error:
            if self.library.name_of(error) is None:
                raise
            return 0

    def read_all(
        self, topic: str, count: int, *, committed: bool = False, offset: int = 0
    ) -> list[Shown]:
        with closing(self.library.read(committed=committed)) as reader:
            reader.assign(topic, offset)
            return take(reader, count)

    def codec(self, codec: str) -> object:
        topic = self.create(f"codec-{codec}")
        told: list[int] = []
        with closing(self.library.produce(codec)) as producer:
            for start in range(0, 30, 10):
                told += producer.send(topic, 0, range(start, start + 10))
        return {"offsets": told, "records": self.read_all(topic, 30)}

    def seeks(self) -> object:
        seen: dict[str, Any] = {}
        with closing(self.library.read(reset=False)) as reader:
            reader.assign(f"{self.run}-codec-none", 7)
            seen["from 7"] = take(reader, 3)[:3]
            reader.seek(2)
            seen["back to 2"] = take(reader, 2)[:2]
            seen["beginning"] = reader.to_beginning()
            seen["first"] = take(reader, 1)[:1]
            seen["end"] = reader.to_end()
            reader.seek(1000)
            try:
                take(reader, 1)
            except Exception as error:
                seen["beyond"] = self.library.name_of(error) or repr(error)
        return seen

    def times(self) -> object:
        topic = f"{self.run}-codec-none"
        with closing(self.library.read()) as reader:
            found = {
                after: reader.find_time(topic, START_MS + after)
                for after in (-1, 0, 12_000, 12_001, 99_000)
            }
            return {"at": found, "ends": reader.ends(topic)}

    def spread(self, topic: str, start: int, stop: int) -> None:
        with closing(self.library.produce()) as producer:
            for number in range(start, stop):
                producer.send(topic, number % 2, [number])

    def read_group(self, topic: str, count: int, group: str, protocol: str) -> list[Shown]:
        with closing(self.library.read(group=group, protocol=protocol)) as reader:
            reader.subscribe(topic)
            seen = take(reader, count)
            reader.commit()
        return sorted(seen, key=lambda one: (one[0], one[1]))

    def group(self, protocol: str) -> object:
        topic, group = self.create(f"group-{protocol}", 2), f"{self.run}-group-{protocol}"
        seen: dict[str, Any] = {}
        self.spread(topic, 0, 10)
        seen["first"] = self.read_group(topic, 10, group, protocol)
        seen["committed"] = self.library.committed(group, topic, 2)
        self.spread(topic, 10, 14)
        seen["second"] = self.read_group(topic, 4, group, protocol)
        seen["committed again"] = self.library.committed(group, topic, 2)
        one, other = (self.library.read(group=group, protocol=protocol) for _ in range(2))
        with closing(one), closing(other):
            for member in (one, other):
                member.subscribe(topic)
            share((one, other))
        seen["shared"] = [1, 1]
        return seen

    def transactions(self) -> object:
        topic, group = self.create("txn"), f"{self.run}-txn-group"
        seen: dict[str, Any] = {}
        with closing(self.library.produce(transactional_id=f"{self.run}-txn")) as producer:
            producer.init()
            for start in (0, 3, 6):
                producer.begin()
                producer.send(topic, 0, range(start, start + 3))
                if start == 6:
                    producer.send_offsets(topic, 7, group)
                if start == 3:
                    producer.abort()
                else:
                    producer.commit()
            seen["committed"] = self.read_all(topic, 6, committed=True)
            seen["uncommitted"] = self.read_all(topic, 9)
            seen["group"] = self.library.committed(group, topic, 1)
            seen["open"] = self.open(producer, topic)
            seen["fenced"] = self.fenced(producer, topic)
        return seen

    def open(self, producer: Producing, topic: str) -> object:
        """What read_committed sees of a transaction while it is open, and afterwards."""
        with closing(self.library.read(committed=True)) as reader:
            reader.assign(topic, 9)
            producer.begin()
            producer.send(topic, 0, [9, 10])
            early = sum(len(reader.poll()) for _ in range(5))
            producer.commit()
            return [early, take(reader, 2)]

    def fenced(self, producer: Producing, topic: str) -> str:
        with closing(self.library.produce(transactional_id=f"{self.run}-txn")) as fencing:
            fencing.init()
            try:
                producer.begin()
                producer.send(topic, 0, [11])
                producer.commit()
            except Exception as error:
                return self.library.name_of(error) or repr(error)
        return "not fenced"

    def tail(self, name: str, *, committed: bool) -> object:
        topic = self.create(name)
        with closing(self.library.produce()) as producer:
            producer.send(topic, 0, range(5))
        count = 5 + (2 * (ROUNDS - ROUNDS // 4) if committed else TAIL_RECORDS)
        seen: list[Any] = []
        reading = threading.Thread(
            target=lambda: seen.extend(self.read_all(topic, count, committed=committed)),
            daemon=True,
        )
        reading.start()
        time.sleep(1.5)
        if committed:
            self.commit_rounds(topic)
        else:
            with closing(self.library.produce()) as producer:
                for number in range(5, 5 + TAIL_RECORDS):
                    producer.send(topic, 0, [number])
                    time.sleep(0.02)
        reading.join(PATIENCE_S)
        if not seen:
            raise TimeoutError("the tailing reader has not seen all")
        return {"records": seen}

    def commit_rounds(self, topic: str) -> None:
        with closing(self.library.produce(transactional_id=f"{self.run}-tail")) as producer:
            producer.init()
            for number in range(ROUNDS):
                producer.begin()
                producer.send(topic, 0, [5 + 2 * number, 6 + 2 * number])
                if number % 4 == 2:
                    producer.abort()
                else:
                    producer.commit()
                time.sleep(0.02)

    def admin(self) -> object:
        topic, library = self.create("admin", 2), self.library
        with closing(library.produce()) as producer:
            producer.send(topic, 0, range(6))
        return {
            "again": self.tried(lambda: library.create(topic, 1)),
            "nodes": self.tried(library.count_nodes),
            "partitions": self.tried(lambda: library.count_partitions(topic)),
            "more partitions": self.tried(lambda: self.grow(topic, 3)),
            "config": self.tried(lambda: self.change_config(topic, "retention.ms", "7200000")),
            "low watermark": self.tried(lambda: library.delete_records(topic, 4)),
            "groups": self.tried(lambda: any(one.startswith(self.run) for one in library.groups())),
            "deleted": self.tried(lambda: self.delete(topic)),
        }

    def tried(self, call: Callable[[], object]) -> object:
        """What a call returned, the broker's error, or that the library has no such call."""
        try:
            return call()
        except Lacks as lacking:
            return f"no: {lacking}"
        except Exception as error:
            name = self.library.name_of(error)
            if name is None:
                raise
            return name

    def grow(self, topic: str, total: int) -> int:
        self.library.add_partitions(topic, total)
        wait(lambda: self.partitions(topic) == total, "the partitions are there")
        return total

    def change_config(self, topic: str, name: str, value: str) -> str | None:
        """The value read back; a broker hears of it from its controller."""
        self.library.alter_config(topic, name, value)
        wait(lambda: self.library.read_config(topic, name) == value, "the changed config is told")
        return self.library.read_config(topic, name)

    def delete(self, topic: str) -> bool:
        self.library.delete_topic(topic)
        wait(lambda: topic not in self.library.topics(), "the topic is gone")
        return True

    def see(self, step: str) -> object:
        kind, _, which = step.partition("-")
        if kind == "codec":
            return self.codec(which)
        if kind == "group":
            return self.group(which)
        if kind == "tail":
            return self.tail(step, committed=which == "committed")
        return {
            "seeks": self.seeks,
            "times": self.times,
            "transactions": self.transactions,
            "admin": self.admin,
        }[step]()


def perform(library: Library, run: str, steps: Sequence[str]) -> None:
    """Runs the steps; an error of one does not end the others."""
    programme = Programme(library, run)
    for step in steps:
        line: dict[str, Any] = {"step": step}
        begun = time.monotonic()
        if step in library.lacks:
            line["no"] = library.lacks[step]
        else:
            try:
                line["seen"] = programme.see(step)
            except Exception as error:
                traceback.print_exc()
                line["error"] = repr(error)
        line["ms"] = round((time.monotonic() - begun) * 1000)
        print(json.dumps(line), flush=True)

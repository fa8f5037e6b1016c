"""The memory file of the switches: several processes write, and each reader sees whole states."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
from typing import TYPE_CHECKING

import pytest

from proxy.switches.override import Override, SwitchRefused
from proxy.switches.state import EMPTY, OVERRIDES_LIMIT
from proxy.switches.store import HEADER_BYTES, SwitchStore

if TYPE_CHECKING:
    from collections.abc import Iterator

WRITERS, CHANGES = 3, 200


@pytest.fixture
def store() -> Iterator[SwitchStore]:
    store = SwitchStore()
    yield store
    store.close()


def test_a_change_is_seen_by_all_that_have_it_mapped(store: SwitchStore) -> None:
    other = SwitchStore(os.dup(store.fd), is_shared=True)
    assert (store.version, other.read()) == (0, EMPTY)
    store.change(lambda state: state.set(Override("cache", "off")))
    assert (other.version, other.read().overrides) == (1, (Override("cache", "off"),))
    other.change(lambda state: state.reset())
    assert (store.version, store.read().overrides) == (2, ())
    other.close()


def test_nothing_is_written_if_nothing_changes_or_it_is_refused(store: SwitchStore) -> None:
    store.change(lambda state: state)

    def refuse(_state: object) -> None:
        raise SwitchRefused("no")

    with pytest.raises(SwitchRefused, match="no"):
        store.change(refuse)  # type: ignore[arg-type]
    assert store.version == 0


def _write(fd: int, name: int) -> None:
    store = SwitchStore(fd)
    done = 0
    while done < CHANGES:
        with contextlib.suppress(SwitchRefused):  # a busy machine: the lock is held for longer
            store.change(lambda state: state.set(Override("cache", "off", topic=f"t{name}")))
            done += 1


def test_no_change_of_several_writers_is_lost_or_half_seen(store: SwitchStore) -> None:
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=_write, args=(store.fd, name)) for name in range(WRITERS)]
    for one in writers:
        one.start()
    seen = 0
    while any(one.is_alive() for one in writers):
        count = store.read().count("set")
        assert count >= seen
        seen = count
    for one in writers:
        one.join()
    assert store.read().count("set") == WRITERS * CHANGES == store.version
    assert {one.topic for one in store.read().overrides} == {"t0", "t1", "t2"}


def _hold(fd: int, held: object, go_on: object) -> None:
    fcntl.lockf(fd, fcntl.LOCK_EX)
    held.set()  # type: ignore[attr-defined]
    go_on.wait()  # type: ignore[attr-defined]
    os._exit(0)  # without unlocking


def test_who_holds_the_lock_holds_nobody_up_for_long(store: SwitchStore) -> None:
    fork = multiprocessing.get_context("fork")
    held, go_on = fork.Event(), fork.Event()
    holder = fork.Process(target=_hold, args=(store.fd, held, go_on))
    holder.start()
    assert held.wait(60)
    with pytest.raises(SwitchRefused, match="another process of Forebay holds the switches"):
        store.change(lambda state: state.drop("a"))
    assert store.read() == EMPTY
    go_on.set()
    holder.join()
    assert store.change(lambda state: state.drop("a")).dropped == 1, "it ends with its process"


def test_a_slot_that_is_no_state_is_read_as_none(store: SwitchStore) -> None:
    store.change(lambda state: state.drop("a"))
    store._map[HEADER_BYTES:] = bytes(len(store._map) - HEADER_BYTES)
    assert store.read() == EMPTY


def test_the_longest_state_has_room(store: SwitchStore) -> None:
    for number in range(OVERRIDES_LIMIT):
        topic = f"{number}" + '"' * 254
        store.change(lambda state, topic=topic: state.set(Override("cache", "off", topic=topic)))  # type: ignore[misc]
    for _ in range(20):
        store.change(lambda state: state.drop("\N{SNOWMAN}" * 256))
    assert len(store.read().overrides) == OVERRIDES_LIMIT

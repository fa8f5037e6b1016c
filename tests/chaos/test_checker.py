"""A history that keeps every promise passes; with one thing broken it does not, and the rule is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from protocol.batch import Batch
from tests.chaos.checker import MOST_SHOWN, check
from tests.chaos.history import Group, History, Kind, Name, Outcome, Place, Read, Sent
from tests.chaos.run import CHANGES, find_unhappened

if TYPE_CHECKING:
    from collections.abc import Callable

PLAIN, TXN, SINK = Place("plain", 0), Place("txn", 0), Place("sink", 0)
TOPICS = ("plain", "txn", "sink")
ABORTED, COMMITTED, OPEN = 0, 1, 2


def read_of(one: Sent, offset: int | None = None) -> Read:
    return Read(one.offset if offset is None else offset, one.name, one.digest)


def build_history() -> History:
    """Two producers to one topic; three transactions, of which one was aborted and one never heard of again."""
    history = History(
        kinds={"p": Kind.PLAIN, "i": Kind.IDEMPOTENT, "t": Kind.TRANSACTIONAL},
        outcomes={("t", ABORTED): Outcome.ABORTED, ("t", COMMITTED): Outcome.COMMITTED},
        pipelines={"sink": "txn"},
        ends={PLAIN: 8, TXN: 9, SINK: 3},
    )
    history.sent += [Sent(Name("p", n), PLAIN, 100 + n, 2 * n) for n in range(4)]
    history.sent += [Sent(Name("i", n), PLAIN, 200 + n, 2 * n + 1) for n in range(4)]
    history.sent += [
        Sent(Name("t", n), TXN, 300 + n, offset, transaction)
        for n, (offset, transaction) in enumerate(
            [(0, ABORTED), (1, ABORTED), (3, COMMITTED), (4, COMMITTED), (6, OPEN)]
        )
    ]
    history.sent.append(Sent(Name("p", 4), PLAIN, 104, -1))
    for committed in (False, True):
        for number in range(2):
            history.groups.append(build_group(history, f"group-{number}", committed))
    return history


def build_group(history: History, name: str, committed: bool) -> Group:
    group = Group(f"{name} committed={committed}", TOPICS, committed, reached=dict(history.ends))
    plain = sorted(read_of(one) for one in history.sent if one.place == PLAIN and one.offset >= 0)
    txn = [one for one in history.sent if one.place == TXN]
    visible = [one for one in txn if not committed or history.outcome_of(one) is Outcome.COMMITTED]
    copied = [one for one in txn if history.outcome_of(one) is Outcome.COMMITTED]
    group.runs += [(PLAIN, plain[:5]), (PLAIN, plain[3:])]
    group.runs += [(TXN, [read_of(one) for one in visible])]
    group.runs += [(SINK, [read_of(one, offset) for offset, one in enumerate(copied)])]
    return group


def of(history: History, place: Place, committed: bool = True) -> list[Read]:
    """The last run of the first such group, to be broken."""
    (group, *_) = (one for one in history.groups if one.committed == committed)
    return [reads for at, reads in group.runs if at == place][-1]


def rules(history: History) -> set[str]:
    return {violation.rule for violation in check(history)}


def test_a_history_that_keeps_every_promise() -> None:
    assert check(build_history()) == []


def test_a_group_whose_member_hangs_is_not_asked_how_far_it_came() -> None:
    """But all others are, and what it has read is looked at."""
    history = build_history()
    group = history.groups[0]
    group.runs = [(place, reads[:1]) for place, reads in group.runs]
    group.reached = dict.fromkeys(group.reached, 0)
    assert rules(history) >= {"behind", "lost", "unequal"}
    group.has_hung = True
    assert rules(history) == set()
    group.runs[0][1][:] = [group.runs[0][1][0]._replace(offset=999)]
    assert rules(history) >= {"unequal"}


def lose(history: History) -> None:
    """By all groups alike, so that only the promise shows it."""
    for group in history.groups:
        for _, reads in group.runs:
            reads[:] = [read for read in reads if read.name != Name("i", 1)]


def lose_for_one(history: History) -> None:
    del of(history, PLAIN)[-1]


def lose_copy(history: History) -> None:
    for group in history.groups:
        for place, reads in group.runs:
            if place == SINK:
                del reads[0]


def alter(history: History) -> None:
    reads = of(history, PLAIN)
    reads[-1] = reads[-1]._replace(digest=1)


def put_in_anothers_place(history: History) -> None:
    reads = of(history, TXN)
    reads[0] = read_of(
        next(one for one in history.sent if one.name == Name("t", 4)), reads[0].offset
    )


def read_two_things_at_one_offset(history: History) -> None:
    (group, *_) = history.groups
    group.runs.append((PLAIN, [Read(0, Name("p", 0), 7)]))


def read_unsent(history: History) -> None:
    of(history, PLAIN).append(Read(20, Name("p", 9), 109))


def duplicate(history: History) -> None:
    of(history, PLAIN).append(
        read_of(next(one for one in history.sent if one.name == Name("i", 3)), 9)
    )


def duplicate_copy(history: History) -> None:
    reads = of(history, SINK)
    reads.append(reads[-1]._replace(offset=2))


def reorder(history: History) -> None:
    """Acknowledged so, and read so by everybody."""
    swapped = {Name("i", 1): 5, Name("i", 2): 3}
    history.sent[:] = [
        one._replace(offset=swapped.get(one.name, one.offset)) for one in history.sent
    ]
    history.groups[:] = [build_group(history, one.name, one.committed) for one in history.groups]


def put_below(history: History) -> None:
    """A plain producer's record lies before one that had been acknowledged when it was sent."""
    history.sent = [
        one._replace(above=6) if one.name == Name("p", 2) else one for one in history.sent
    ]


def show_aborted(history: History) -> None:
    of(history, TXN).insert(
        0, read_of(next(one for one in history.sent if one.name == Name("t", 1)))
    )


def go_backwards(history: History) -> None:
    of(history, PLAIN).reverse()


def let_resume(history: History) -> list[Read]:
    """A run of a group that resumes."""
    for group in history.groups:
        group.resumes = True
    return of(history, PLAIN)


def go_back_to_another_place(history: History) -> None:
    reads = let_resume(history)
    reads += reads[1:]


def go_back_twice(history: History) -> None:
    reads = let_resume(history)
    reads += reads + reads


def go_back_where_nothing_resumes(history: History) -> None:
    reads = of(history, PLAIN)
    reads += reads


def fall_behind(history: History) -> None:
    history.groups[2].reached[TXN] -= 1


def get_stuck(history: History) -> None:
    history.stuck.append("producer p")


BROKEN: list[tuple[Callable[[History], None], set[str]]] = [
    (lose, {"lost"}),
    (lose_for_one, {"lost", "unequal"}),
    (lose_copy, {"lost"}),
    (alter, {"altered"}),
    (put_in_anothers_place, {"altered"}),
    (read_two_things_at_one_offset, {"altered"}),
    (read_unsent, {"altered", "unequal"}),
    (duplicate, {"twice", "unequal"}),
    (duplicate_copy, {"twice", "unequal"}),
    (reorder, {"reordered"}),
    (put_below, {"reordered"}),
    (show_aborted, {"aborted", "unequal"}),
    (go_backwards, {"backwards"}),
    (go_back_to_another_place, {"backwards"}),
    (go_back_twice, {"backwards"}),
    (go_back_where_nothing_resumes, {"backwards"}),
    (fall_behind, {"behind"}),
    (get_stuck, {"stuck"}),
]


def test_a_run_of_a_group_that_resumes_may_begin_anew() -> None:
    history = build_history()
    reads = let_resume(history)
    reads[:] = reads[:2] + reads
    assert check(history) == []


@pytest.mark.parametrize(("harm", "expected"), BROKEN, ids=[harm.__name__ for harm, _ in BROKEN])
def test_what_is_broken_is_found_and_named(
    harm: Callable[[History], None], expected: set[str]
) -> None:
    history = build_history()
    harm(history)
    assert rules(history) >= expected
    if harm is not put_in_anothers_place:
        assert rules(history) == expected


def test_unacknowledged_records_may_be_there() -> None:
    history = build_history()
    for group in history.groups:
        group.runs[1][1].append(Read(8, Name("p", 4), 104))
    assert check(history) == []


def test_a_plain_producers_late_request_is_no_disorder() -> None:
    """It was sent on a connection that died, never acknowledged, and taken after what was sent again."""
    history = build_history()
    history.sent = [
        one._replace(offset=-1) if one.name == Name("p", 0) else one for one in history.sent
    ]
    for group in history.groups:
        for place, reads in group.runs:
            if place == PLAIN:
                reads[:] = [read for read in reads if read.offset != 0]
        group.runs[1][1].append(Read(8, Name("p", 0), 100))
    assert check(history) == []


def test_a_plain_producer_may_reorder_what_is_on_its_way_together() -> None:
    history = build_history()
    swapped = {Name("p", 1): 4, Name("p", 2): 2}
    history.sent = [one._replace(offset=swapped.get(one.name, one.offset)) for one in history.sent]
    history.groups = [build_group(history, one.name, one.committed) for one in history.groups]
    assert check(history) == []


@pytest.mark.parametrize(
    ("epochs", "producers", "found"),
    [((0, 1), (9, 9), set()), ((1, 1), (9, 9), {"twice"}), ((0, 1), (9, 8), {"twice"})],
)
def test_what_a_library_sends_under_another_epoch_is_no_duplicate(
    epochs: tuple[int, int], producers: tuple[int, int], found: set[str]
) -> None:
    """The brokers' logs tell: one producer, and an epoch for each time. Else somebody has stored it twice."""
    history = build_history()
    again = history.ends[PLAIN]
    history.ends[PLAIN] += 1
    last = next(one for one in history.sent if one.name == Name("i", 3))
    for group in history.groups:
        group.runs.append((PLAIN, [read_of(last, again)]))
        group.reached[PLAIN] = again + 1
    history.batches[PLAIN] = [
        Batch(0, 0, offset, offset, 0, 2, 0, 0, 0, producer, epoch, 0, 1)
        for offset, producer, epoch in zip((last.offset, again), producers, epochs, strict=True)
    ]
    assert rules(history) == found
    history.batches.clear()
    assert rules(history) == {"twice"}


def test_of_many_violations_some_are_shown() -> None:
    history = build_history()
    history.sent += [Sent(Name("i", n), PLAIN, 0, n) for n in range(100, 100 + 2 * MOST_SHOWN)]
    found = [one for one in check(history) if one.rule == "lost"]
    assert len(found) == MOST_SHOWN * len(history.groups)


def test_a_run_without_one_of_the_changes_says_so() -> None:
    kinds = dict.fromkeys(
        ("kill_broker", "stall_broker", "cut_front", "cut_back", "vanish", *CHANGES), 1
    )
    assert list(find_unhappened(kinds)) == []
    for kind in CHANGES:
        assert list(find_unhappened({one: 1 for one in kinds if one != kind})) == [
            f"{kind} did not happen"
        ]
    del kinds["vanish"]
    assert len(list(find_unhappened(kinds))) == 1

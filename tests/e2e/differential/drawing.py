"""Draws requests: ordinary ones over the partitions of a stage, and odd fields among them, each by its name.

Owns the choice. Must not know who is asked. Invariants: the same seed and logs draw the same requests; no request waits
longer than LONGEST_WAIT_MS unless there is something to answer it with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tests.e2e.differential.cases import LARGE_BYTES, Case, Place, Step, Wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from tests.e2e.differential.logs import Log

LEFT_OUT: tuple[str, ...] = ()
"""Names of odd fields that are not drawn, or of kinds of differences that are not told, while what shows them is being
mended. "fetch.max.bytes": the broker's own limit is beyond reach.
"""
VERSIONS = range(4, 19)
LONGEST_WAIT_MS = 300
ODD_SHARE = 0.45
COLD = "cold"
"""A topic whose log memory does not hold."""
LEAST, MOST = -(1 << 31), (1 << 31) - 1
LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1


class Draw(NamedTuple):
    """What a draw of an odd field is given."""

    random: Random
    logs: Sequence[Log]
    case: Case


def draw_offset(random: Random, log: Log) -> int:
    """From the log start to the HW, at batches' edges and within them; newer ones more often."""
    edges = (log.start, log.stable, log.end, max(log.start, log.end - 1))
    if not log.batches or random.random() < 0.3:
        return random.choice(edges)
    low = 0 if random.random() < 0.2 else len(log.batches) * 2 // 3
    one = log.batches[random.randrange(low, len(log.batches))]
    return max(log.start, random.randint(one.base_offset, one.last_offset))


def draw_wanted(random: Random, log: Log) -> Wanted:
    """A partition as a consumer asks for it."""
    max_bytes = LARGE_BYTES
    if random.random() < 0.4:
        max_bytes = random.choice(
            (0, 1, random.randint(1, 3000), random.randint(1, 30_000), 1 << 20)
        )
    wanted = Wanted(log.place, draw_offset(random, log), max_bytes)
    if random.random() < 0.3:
        return _right_last_epoch(random, log, wanted)
    return wanted._replace(current_leader_epoch=log.epoch if random.random() < 0.5 else -1)


def draw_case(random: Random, logs: Sequence[Log], version: int, left_out: Sequence[str]) -> Case:
    """A request without a session, of a version unless another is an odd field of it; nearly half have one or more."""
    warm = [log for log in logs if log.place.topic != COLD]
    chosen = random.sample(
        logs if random.random() < 0.3 else warm,
        min(len(warm), random.choice((1, 1, 1, 2, 2, 3, 5, 8))),
    )
    case = Case(
        version,
        tuple(draw_wanted(random, log) for log in chosen),
        max_wait_ms=random.choice((0,) * 12 + (1, 20, 100, LONGEST_WAIT_MS)),
        min_bytes=random.choice(
            (1,) * 8 + (0, 2, random.randint(1, 3000), random.randint(1, 200_000))
        ),
        max_bytes=draw_max_bytes(random),
        isolation_level=random.randrange(2),
    )
    while random.random() < ODD_SHARE:
        name = random.choice(list(ODD))
        if name not in left_out and name not in case.odd:
            case = ODD[name](Draw(random, logs, case))._replace(odd=(*case.odd, name))
    return case if case.max_wait_ms < MOST else case._replace(min_bytes=min(case.min_bytes, 0))


def draw_max_bytes(random: Random) -> int:
    """Of a whole answer."""
    if random.random() < 0.5:
        return LARGE_BYTES
    return random.choice((0, 1, random.randint(1, 3000), random.randint(1, 50_000), 1 << 20, MOST))


def draw_step(random: Random) -> Step:
    """What a request of a conversation in a session is to it; mostly it goes on."""
    if random.random() < 0.75:
        return Step.NEXT
    return random.choice([step for step in Step if step not in (Step.NONE, Step.NEXT)])


# -- odd fields ----------------------------------------------------------------------------------------------


def _in_one(change: Callable[[Random, Log, Wanted], Wanted]) -> Callable[[Draw], Case]:
    """An odd field of one of the request's partitions."""

    def draw(given: Draw) -> Case:
        random, logs, case = given
        if not case.partitions:
            return case
        index = random.randrange(len(case.partitions))
        wanted = case.partitions[index]
        log = next((log for log in logs if log.place == wanted.place), logs[0])
        changed = change(random, log, wanted)
        return case._replace(
            partitions=(*case.partitions[:index], changed, *case.partitions[index + 1 :])
        )

    return draw


def _negative_offset(random: Random, _log: Log, wanted: Wanted) -> Wanted:
    return wanted._replace(offset=random.choice((-1, -2, -3, LOWEST)))


def _far_offset(random: Random, log: Log, wanted: Wanted) -> Wanted:
    return wanted._replace(offset=log.end + random.choice((1, 2, 100, 1 << 40, HIGHEST - log.end)))


def _early_offset(random: Random, log: Log, wanted: Wanted) -> Wanted:
    return wanted._replace(offset=random.choice((0, max(0, log.start - 1), log.start // 2)))


def _negative_part(random: Random, _log: Log, wanted: Wanted) -> Wanted:
    return wanted._replace(max_bytes=random.choice((-1, -1000, LEAST)))


def _log_start(random: Random, log: Log, wanted: Wanted) -> Wanted:
    return wanted._replace(
        log_start_offset=random.choice((0, log.start, log.end + 9, -2, LOWEST, HIGHEST))
    )


def _low_epoch(random: Random, log: Log, wanted: Wanted) -> Wanted:
    return wanted._replace(current_leader_epoch=random.choice((0, log.epoch - 1)))


def _high_epoch(random: Random, log: Log, wanted: Wanted) -> Wanted:
    return wanted._replace(
        current_leader_epoch=random.choice((log.epoch + 1, log.epoch + 50, MOST))
    )


def _negative_epoch(random: Random, _log: Log, wanted: Wanted) -> Wanted:
    return wanted._replace(current_leader_epoch=random.choice((-2, LEAST)))


def _right_last_epoch(random: Random, log: Log, wanted: Wanted) -> Wanted:
    """Of the batch before the offset, as a consumer says it."""
    index = log.find(wanted.offset)
    before = log.batches[index - 1].leader_epoch if index else log.epoch
    return wanted._replace(last_fetched_epoch=before, current_leader_epoch=log.epoch)


def _wrong_last_epoch(random: Random, log: Log, wanted: Wanted) -> Wanted:
    epochs = (0, log.epoch - 1, log.epoch, log.epoch + 1, -2, LEAST, MOST)
    return wanted._replace(last_fetched_epoch=random.choice(epochs))


def _missing_partition(random: Random, _log: Log, wanted: Wanted) -> Wanted:
    return wanted._replace(
        place=wanted.place._replace(partition=random.choice((3, 99, -1, LEAST, MOST)))
    )


def _missing_topic(random: Random, _log: Log, wanted: Wanted) -> Wanted:
    return wanted._replace(place=Place(f"missing-{random.randrange(3)}", random.randbytes(16), 0))


def _nameless_topic(_random: Random, _log: Log, wanted: Wanted) -> Wanted:
    return wanted._replace(place=Place("", bytes(16), wanted.place.partition))


def _twice(given: Draw) -> Case:
    random, logs, case = given
    if not case.partitions:
        return case
    again = random.choice(case.partitions)
    log = next((log for log in logs if log.place == again.place), logs[0])
    at = random.randrange(len(case.partitions) + 1)
    again = again._replace(offset=draw_offset(random, log))
    return case._replace(partitions=(*case.partitions[:at], again, *case.partitions[at:]))


def _field(name: str, *values: int | str) -> Callable[[Draw], Case]:
    """An odd field of the whole request."""

    def draw(given: Draw) -> Case:
        changed: dict[str, Any] = {name: given.random.choice(values)}
        return given.case._replace(**changed)

    return draw


def _above_max(given: Draw) -> Case:
    most = given.random.choice((0, 1, 500, 5000))
    least = most + given.random.choice((1, 100, 100_000))
    return given.case._replace(max_bytes=most, min_bytes=least, max_wait_ms=LONGEST_WAIT_MS)


def _near_max(given: Draw) -> Case:
    """What is waited for is about what one partition may bring."""
    random, _, case = given
    if not case.partitions:
        return case
    most = random.choice((0, 1, random.randint(1, 3000), random.randint(1, 20_000)))
    least = random.choice((1, most // 2, most - 1, most, most + 1, random.randint(1, 3000)))
    wanted = case.partitions[0]._replace(max_bytes=most)
    return case._replace(
        partitions=(wanted, *case.partitions[1:][: random.randrange(2)]),
        min_bytes=least,
        max_wait_ms=LONGEST_WAIT_MS,
    )


def _long_wait(given: Draw) -> Case:
    return given.case._replace(max_wait_ms=MOST, min_bytes=given.random.choice((0, -1)))


ODD: dict[str, Callable[[Draw], Case]] = {
    "negative offset": _in_one(_negative_offset),
    "offset beyond the end": _in_one(_far_offset),
    "offset below the start": _in_one(_early_offset),
    "negative partition max_bytes": _in_one(_negative_part),
    "log start offset": _in_one(_log_start),
    "leader epoch too low": _in_one(_low_epoch),
    "leader epoch too high": _in_one(_high_epoch),
    "negative leader epoch": _in_one(_negative_epoch),
    "odd last fetched epoch": _in_one(_wrong_last_epoch),
    "missing partition": _in_one(_missing_partition),
    "missing topic": _in_one(_missing_topic),
    "topic without a name": _in_one(_nameless_topic),
    "a partition twice": _twice,
    "no partitions": lambda given: given.case._replace(partitions=()),
    "negative max_wait": _field("max_wait_ms", -1, LEAST),
    "extreme max_wait": _long_wait,
    "negative min_bytes": _field("min_bytes", -1, LEAST),
    "extreme min_bytes": _field("min_bytes", MOST),
    "min_bytes above max_bytes": _above_max,
    "min_bytes near max_bytes": _near_max,
    "negative max_bytes": _field("max_bytes", -1, LEAST),
    "unknown isolation level": _field("isolation_level", 2, -1, 127, -128),
    "another version": _field("version", *VERSIONS),
    "rack": _field("rack_id", "r1", "x" * 300),
    "replica id": _field("replica_id", -2, -3, 1, 77, LEAST),
}

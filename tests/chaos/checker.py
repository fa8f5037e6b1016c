"""Was every promise kept? A history in, violations out.

Owns the rules, one function each. Pure; must not know how a history came about. What is promised:
* an acknowledged record is where it was acknowledged, as it was sent, for every group: of a transaction that
  was committed for read_committed, of any for read_uncommitted. What was not acknowledged may be there.
* what a producer sends lies above what was acknowledged to it before. Of an idempotent or transactional one
  all that is there rises; a plain one's library may put in another order what is on its way together.
* nothing is there that was not sent; nothing of an idempotent or transactional producer is twice in a topic,
  copies included, but for what its library has sent under two epochs (`find_resent`); nothing of an aborted
  transaction is seen by read_committed.
* in one assignment offsets rise; all groups of one isolation level see the same; everybody comes to the end.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from tests.chaos.history import Kind, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.chaos.history import Group, History, Name, Place, Read, Sent

    Seen = dict[Place, dict[int, Read]]

MOST_SHOWN = 10


class Violation(NamedTuple):
    """A broken promise: which rule, and what shows it."""

    rule: str
    what: str


def check(history: History) -> list[Violation]:
    """Every violation, at most MOST_SHOWN of a rule and group."""
    found = [Violation("stuck", what) for what in history.stuck]
    found += first(find_below(history))
    sent = {one.name: one for one in history.sent}
    seen = [(group, collect(group)) for group in history.groups]
    for group, records in seen:
        for rule in (find_backwards, find_behind, find_differing_reads):
            found += first(rule(history, group))
        for check_records in (find_lost, find_altered, find_aborted):
            found += first(check_records(history, sent, group, records))
        resent = find_resent(history, records)
        once = {
            place: {at: read for at, read in reads.items() if read.name not in resent}
            for place, reads in records.items()
        }
        for check_records in (find_disorder, find_twice):
            found += first(check_records(history, sent, group, once))
        found += first(find_uncopied(history, group, records))
    found += first(find_differing_groups(seen))
    return found


def find_resent(history: History, seen: Seen) -> set[Name]:
    """Records that an idempotent producer's library has sent under several epochs, as the brokers' logs show: to a
    broker these are others. librdkafka bumps its epoch once a broker says OUT_OF_ORDER_SEQUENCE_NUMBER of what follows
    a failed request (NOT_ENOUGH_REPLICAS before it, of the broker's own), and sends again what it does not know to be
    stored (rdkafka_idempotence.c). Under one epoch a broker stores nothing twice.
    """
    resent = set()
    for place, reads in seen.items():
        if place.topic in history.pipelines:
            continue
        offsets: dict[Name, list[int]] = defaultdict(list)
        for offset, read in reads.items():
            if history.kinds.get(read.name.producer) is Kind.IDEMPOTENT:
                offsets[read.name].append(offset)
        for name, found in offsets.items():
            if len(found) > 1 and are_of_own_epochs(history, place, found):
                resent.add(name)
    return resent


def are_of_own_epochs(history: History, place: Place, offsets: list[int]) -> bool:
    """Whether one producer has sent what lies at these offsets, each under another epoch."""
    senders = [find_sender(history, place, offset) for offset in offsets]
    producers, epochs = map(set, zip(*senders, strict=True))
    return len(producers) == 1 and len(epochs) == len(offsets)


def find_sender(history: History, place: Place, offset: int) -> tuple[int, int]:
    """Producer id and epoch of the batch with an offset; (-1, -1): no broker has it."""
    for one in history.batches.get(place, ()):
        if one.base_offset <= offset <= one.last_offset:
            return one.producer_id, one.producer_epoch
    return -1, -1


def first(found: Iterator[Violation]) -> list[Violation]:
    return [one for one, _ in zip(found, range(MOST_SHOWN), strict=False)]


def collect(group: Group) -> Seen:
    """What a group saw at each offset; of several readings the first."""
    seen: Seen = defaultdict(dict)
    for place, reads in group.runs:
        at = seen[place]
        for read in reads:
            at.setdefault(read.offset, read)
    return seen


def find_below(history: History) -> Iterator[Violation]:
    """Sent after something was acknowledged, and put before it."""
    for one in history.sent:
        if 0 <= one.offset <= one.above:
            yield Violation("reordered", f"{one} was sent when {one.above} was acknowledged")


def find_backwards(_history: History, group: Group) -> Iterator[Violation]:
    """In a group that `resumes` a run may begin anew, once: librdkafka pauses what it keeps while a group rebalances,
    and resumes it where it began if it took a record for not yet consumed (rd_kafka_toppar_pause_resume; issue 4686).
    """
    for place, reads in group.runs:
        anew = [reads[0].offset] if group.resumes and reads else []
        for before, after in pairwise(reads):
            if after.offset <= before.offset:
                if after.offset in anew:
                    anew = []
                    continue
                yield Violation(
                    "backwards", f"{group.name} {place}: {before.offset}, then {after.offset}"
                )


def find_differing_reads(_history: History, group: Group) -> Iterator[Violation]:
    """Somebody who read an offset twice got two records."""
    once: Seen = defaultdict(dict)
    for place, reads in group.runs:
        for read in reads:
            if (former := once[place].setdefault(read.offset, read)) != read:
                yield Violation("altered", f"{group.name} {place}: first {former}, again {read}")


def find_behind(history: History, group: Group) -> Iterator[Violation]:
    if group.has_hung:
        return
    for place, reached in group.reached.items():
        if place.topic in group.topics and reached < history.ends.get(place, 0):
            yield Violation(
                "behind", f"{group.name} {place}: at {reached} of {history.ends[place]}"
            )


def find_lost(
    history: History, _sent: dict[Name, Sent], group: Group, seen: Seen
) -> Iterator[Violation]:
    if group.has_hung:
        return
    for one in history.sent:
        if one.offset < 0 or one.place.topic not in group.topics:
            continue
        if group.committed and history.outcome_of(one) is not Outcome.COMMITTED:
            continue
        if one.offset not in seen.get(one.place, {}):
            yield Violation("lost", f"{group.name} has not read {one}")


def find_altered(
    history: History, sent: dict[Name, Sent], group: Group, seen: Seen
) -> Iterator[Violation]:
    """What is there is what was sent there."""
    acknowledged = {(one.place, one.offset): one for one in history.sent if one.offset >= 0}
    for place, reads in seen.items():
        copied = place.topic in history.pipelines
        for read in reads.values():
            origin, here = sent.get(read.name), acknowledged.get((place, read.offset))
            if (
                origin is None
                or origin.digest != read.digest
                or (not copied and origin.place != place)
            ):
                yield Violation("altered", f"{group.name} {place}: {read}, sent was {origin}")
            elif here is not None and here.name != read.name:
                yield Violation("altered", f"{group.name} {place}: {read} in the place of {here}")


def find_aborted(
    history: History, sent: dict[Name, Sent], group: Group, seen: Seen
) -> Iterator[Violation]:
    if not group.committed:
        return
    for place, reads in seen.items():
        for read in reads.values():
            origin = sent.get(read.name)
            if origin is not None and history.outcome_of(origin) is Outcome.ABORTED:
                yield Violation(
                    "aborted", f"{group.name} {place}: {read} of transaction {origin.transaction}"
                )


def find_disorder(
    history: History, sent: dict[Name, Sent], group: Group, seen: Seen
) -> Iterator[Violation]:
    """A copy is held against the order of its source's partition, which it keeps."""
    for place, reads in seen.items():
        if place.topic in history.pipelines and not group.committed:
            continue  # aborted attempts of the pipeline lie between
        last: dict[str, Read] = {}
        for offset in sorted(reads):
            read = reads[offset]
            origin = sent.get(read.name)
            if origin is None or history.kinds[read.name.producer] is Kind.PLAIN:
                continue
            before = last.get(read.name.producer)
            if before is not None and read.name.sequence < before.name.sequence:
                yield Violation("reordered", f"{group.name} {place}: {before}, then {read}")
            last[read.name.producer] = read


def find_twice(
    history: History, _sent: dict[Name, Sent], group: Group, seen: Seen
) -> Iterator[Violation]:
    places: dict[tuple[str, Name], tuple[Place, int]] = {}
    for place, reads in seen.items():
        if place.topic in history.pipelines and not group.committed:
            continue
        for offset, read in reads.items():
            former = places.setdefault((place.topic, read.name), (place, offset))
            if (
                former != (place, offset)
                and history.kinds.get(read.name.producer) is not Kind.PLAIN
            ):
                yield Violation(
                    "twice", f"{group.name}: {read.name} at {former} and at {place}, {offset}"
                )


def find_uncopied(history: History, group: Group, seen: Seen) -> Iterator[Violation]:
    """A committed record of a pipeline's source is in its sink."""
    for sink, source in history.pipelines.items():
        if not group.committed or sink not in group.topics or group.has_hung:
            continue
        copies = {
            read.name
            for place, reads in seen.items()
            if place.topic == sink
            for read in reads.values()
        }
        for one in history.sent:
            wanted = one.place.topic == source and one.offset >= 0
            if wanted and history.outcome_of(one) is Outcome.COMMITTED and one.name not in copies:
                yield Violation("lost", f"{group.name}: {one} was not copied to {sink}")


def find_differing_groups(seen: list[tuple[Group, Seen]]) -> Iterator[Violation]:
    """Groups of one isolation level have seen the same offsets of what both read."""
    standard: dict[tuple[bool, str], tuple[Group, Seen]] = {}
    for group, records in seen:
        for topic in group.topics:
            other, others = standard.setdefault((group.committed, topic), (group, records))
            for place in {*records, *others}:
                if place.topic == topic and place in group.reached and place in other.reached:
                    ours, theirs = records.get(place, {}).keys(), others.get(place, {}).keys()
                    unlike = ours ^ theirs
                    if group.has_hung:
                        unlike -= theirs
                    if other.has_hung:
                        unlike -= ours
                    if unlike:
                        some = sorted(unlike)[:MOST_SHOWN]
                        yield Violation("unequal", f"{group.name} and {other.name} {place}: {some}")

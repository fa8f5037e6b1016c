"""One control queue and N data queues, each with bounded waiting and with slots toward the broker.

Owns: who is in service, who waits, who is refused; the early release of slots; the state of an item, the caller's own
object. Must not know: what else an item is, sockets, why a limit has its number. Invariants: those who wait in a queue
are admitted in turns of their clients, each client's in the order of their offers: a newcomer waits for one of each
other client, however many that has; items of one `order_key`, their client, are admitted in the order of their offers
whatever their queues, because a newcomer joins the queue in which items of its key wait (a Produce never overtakes an
earlier waiting one of its connection); no data queue can touch another's or the control queue's slots; a
`never_refused` item waits, however full its queue is, and never expires (what bounds it are the bytes in flight of its
connection).

Early release: a request may be with the broker without being served: a long poll, an acks=all wait. After
`release_after_s` it no longer counts as using a slot, up to a bound: polls by number, acks=all waits by a
share of the limit, since from outside they look like appends that block a handler of the broker. A request whose
connection's answers nobody reads is not served either (`release_unread`), and says nothing of the broker.

What most requests never need is not kept for each: who has aged is found among those in service when the oldest may
have (`ages_at_s`; docs/decisions/0025); what is only lifted is noted before those in service are looked at (0025).
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from itertools import islice
from math import inf
from operator import attrgetter
from typing import Generic

from isolation.classify import CONTROL
from isolation.limits import STALLED_LEAST_S, Limit
from isolation.tickets import ACKS, ADMITTED, DONE, POLL, REFUSED, WAITING, State, T, Turn, Waits

LONGEST_WAITS = 5.0
"""Multiples of `max_wait_s` after which a request is refused even if its queue is being answered."""


@dataclass(frozen=True, slots=True)
class QueueRule:
    """Bounds of each queue. `max_wait_s` 0 refuses what finds no slot. A request that has waited so long stays while
    answers come for its queue, also such as nobody reads, each at most `max_wait_s` after the last, up to LONGEST_WAITS
    times as long.
    `lingering_polls` and `lingering_acks_per_slot` (at least one) bound the requests that are unanswered after their
    early release, `unread` those that `release_unread` took the slots of.
    """

    data_queues: int = 16
    max_waiting: int = 1000
    max_waiting_bytes: int = 32 << 20
    max_wait_s: float = 1.0
    release_after_s: float = 0.5
    lingering_polls: int = 10_000
    lingering_acks_per_slot: float = 0.25
    unread: int = 10_000

    def __post_init__(self) -> None:
        if self.data_queues < 1 or self.max_waiting < 0 or self.max_waiting_bytes < 0:
            raise ValueError("at least one data queue and no negative bounds are needed")
        if self.max_wait_s < 0 or self.release_after_s < 0:
            raise ValueError("times must not be negative")


class Queue(Generic[T]):
    """One queue's state; all decisions are in `Queues`."""

    __slots__ = (
        "admitted",
        "ages_at_s",
        "answered_at_s",
        "book",
        "calm_until_s",
        "cancelled",
        "expired",
        "floor",
        "in_use",
        "limit",
        "lingering",
        "polls",
        "refusable",
        "refused",
        "released",
        "serving",
        "turns",
        "unread",
        "waiting",
        "waiting_bytes",
    )

    def __init__(self, limit: Limit, book: Callable[[], None]) -> None:
        self.book = book
        self.limit = limit
        self.floor = limit.floor
        self.in_use = 0
        # measured and unanswered, the oldest first: plain, since few
        self.serving: dict[T, None] = {}
        self.polls: OrderedDict[T, None] = OrderedDict()  # those that hold a slot
        self.calm_until_s = -inf  # until then no two can be stuck
        self.ages_at_s = inf  # before that nobody may be released early
        self.answered_at_s = -inf  # the last answer to a request of the queue
        self.waiting: dict[T, Hashable] = {}  # with their order keys
        self.turns: OrderedDict[Hashable, dict[T, None]] = OrderedDict()  # the same by client
        # those waiting that may expire, with their time to wait, which held when they came
        self.refusable: OrderedDict[T, float] = OrderedDict()
        self.waiting_bytes = 0
        self.lingering = dict.fromkeys(Waits, 0)
        self.unread: dict[T, None] = {}  # admitted, without a slot: nobody reads their answers
        self.admitted = self.refused = self.expired = self.cancelled = self.released = 0

    def slots_at(self, now_s: float) -> int:
        """By the limit, which also looks at how long two of them have been unanswered: one may be of a partition
        of its own, or an accident. Who is the second later has been there for less long.
        """
        if now_s <= self.calm_until_s:
            return self.limit.slots_at(now_s)
        self.book()
        second = next(islice(self.serving, 1, None), None)
        second_s = now_s if second is None else second.since_s
        self.calm_until_s = second_s + STALLED_LEAST_S
        return self.limit.slots_at(now_s, now_s - second_s)

    def set_limit(self, limit: Limit) -> None:
        """Take the slots of another limit. Those in service beyond it keep their slots."""
        self.limit = self.limit.replaced_by(limit)
        self.floor = self.limit.floor
        self.calm_until_s = -inf

    def oldest(self, waits: Waits) -> T | None:
        """Who of those that wait so has held a slot for the longest."""
        if waits is POLL:
            return next(iter(self.polls), None)
        self.book()
        return next((one for one in self.serving if one.holds_slot and one.waits is waits), None)


class Queues(Generic[T]):
    """All queues toward one broker. `book`: asked before those in service are looked at, to `note` what was lifted."""

    def __init__(
        self,
        rule: QueueRule,
        control: Limit,
        new_data_limit: Callable[[], Limit],
        book: Callable[[], None] = lambda: None,
    ) -> None:
        self._adopt(rule)
        self._queues: dict[int, Queue[T]] = {CONTROL: Queue(control, book)}
        self._queues |= {index: Queue(new_data_limit(), book) for index in range(rule.data_queues)}
        self._order_keys: dict[Hashable, tuple[int, int]] = {}  # queue, how many wait there

    def _adopt(self, rule: QueueRule) -> None:
        self.rule = rule
        self._release_after_s = rule.release_after_s
        self.due_after_s = min(rule.max_wait_s, rule.release_after_s)
        """Nothing that is offered or admitted from now on is due before so long has passed."""

    def set_rules(
        self, rule: QueueRule, control: Limit, new_data_limit: Callable[[], Limit]
    ) -> None:
        """Take other bounds and slots; `turn` is to be called next, since they may admit who waits. Who waits keeps
        the place and the time to wait that held when it came. Raises ValueError if `data_queues` differs: a topic's
        requests would be in two queues.
        """
        if rule.data_queues != self.rule.data_queues:
            raise ValueError("the number of data queues cannot change")
        self._adopt(rule)
        for index, line in self._queues.items():
            line.set_limit(control if index == CONTROL else new_data_limit())
            line.ages_at_s = -inf  # found anew by `turn`: the oldest may age earlier now

    def offer(self, item: T, now_s: float, order_key: Hashable = None) -> State:
        """A request arrives for `item.queue`, at `item.since_s` from now on; it is ADMITTED, WAITING or REFUSED,
        as `item.state` says too. `order_key`: whose order it keeps, None for none; `item.queue` becomes that in
        which others of its key wait. One request larger than `max_waiting_bytes` may wait where nothing else does.
        """
        if self._order_keys and order_key in self._order_keys:
            item.queue = self._order_keys[order_key][0]
        line = self._queues[item.queue]
        if not line.waiting and (line.in_use < line.floor or line.in_use < line.slots_at(now_s)):
            self._admit(line, item, now_s)
            return ADMITTED
        item.since_s = now_s
        never_refused = item.never_refused
        if not never_refused and not self._has_room(line, item.size_bytes):
            item.state = REFUSED
            line.refused += 1
            return REFUSED
        item.state = WAITING
        line.waiting[item] = order_key
        line.turns.setdefault(item.link, {})[item] = None
        line.waiting_bytes += item.size_bytes
        if not never_refused:
            line.refusable[item] = self.rule.max_wait_s
        if order_key is not None:
            count = self._order_keys.get(order_key, (0, 0))[1]
            self._order_keys[order_key] = (item.queue, count + 1)
        return WAITING

    def find(self, queue: int) -> Queue[T]:
        """For `lift` and what follows it."""
        return self._queues[queue]

    def lift(self, line: Queue[T], order_key: Hashable, now_s: float) -> bool:
        """`offer`, of one that is only counted until it has landed, or is noted. False: it is not admitted, and nothing
        has changed.
        """
        if line.waiting or (self._order_keys and order_key in self._order_keys):
            return False
        if line.in_use >= line.floor and line.in_use >= line.slots_at(now_s):
            return False
        line.in_use += 1
        line.admitted += 1
        if now_s + self._release_after_s < line.ages_at_s:
            line.ages_at_s = now_s + self._release_after_s
        return True

    def drop(self, line: Queue[T]) -> None:
        """What was just lifted is not sent."""
        line.in_use -= 1
        line.admitted -= 1

    def land(self, line: Queue[T], now_s: float, latency_s: float) -> None:
        """`finished`, of what was lifted and not noted, where nobody ages by now; whom that admits, `admit_waiting`
        says.
        """
        line.limit.sample(now_s, latency_s, line.in_use, True)
        line.in_use -= 1
        line.answered_at_s = now_s

    def note(self, items: Iterable[T]) -> None:
        """These were lifted: they are in service as if they had been offered then."""
        for item in items:
            item.state, item.holds_slot = ADMITTED, True
            line = self._queues[item.queue]
            line.serving[item] = None
            if len(line.serving) > 1:
                line.serving = dict.fromkeys(sorted(line.serving, key=attrgetter("since_s")))

    def _has_room(self, line: Queue[T], size_bytes: int) -> bool:
        if self.rule.max_wait_s == 0 or len(line.waiting) >= self.rule.max_waiting:
            return False
        return not line.waiting or line.waiting_bytes + size_bytes <= self.rule.max_waiting_bytes

    def _leave(self, line: Queue[T], item: T, state: State) -> None:
        """Out of the waiting line."""
        item.state = state
        order_key = line.waiting.pop(item)
        own = line.turns[item.link]
        del own[item]
        if not own:
            del line.turns[item.link]
        line.refusable.pop(item, None)
        line.waiting_bytes -= item.size_bytes
        if order_key is not None:
            queue, count = self._order_keys.pop(order_key)
            if count > 1:
                self._order_keys[order_key] = (queue, count - 1)

    def _admit(self, line: Queue[T], item: T, now_s: float) -> None:
        item.state, item.since_s, item.holds_slot = ADMITTED, now_s, True
        line.in_use += 1
        line.admitted += 1
        if item.waits is POLL:
            line.polls[item] = None
        elif item.is_measured or item.waits is ACKS:
            line.serving[item] = None
        if item.waits is not Waits.NOTHING and now_s + self._release_after_s < line.ages_at_s:
            line.ages_at_s = now_s + self._release_after_s

    def admit_waiting(self, line: Queue[T], now_s: float) -> list[T]:
        """Admit who waits, as far as there are slots; whom that admits."""
        admitted = []
        while line.waiting and (line.in_use < line.floor or line.in_use < line.slots_at(now_s)):
            client, own = next(iter(line.turns.items()))
            item = next(iter(own))
            line.turns.move_to_end(client)
            self._leave(line, item, ADMITTED)
            self._admit(line, item, now_s)
            admitted.append(item)
        return admitted

    def finished(self, item: T, now_s: float, latency_s: float | None, ok: bool = True) -> list[T]:
        """An admitted request was answered or given up; whom that admits. `latency_s`: of its service, or
        None where that is not known or not the broker's; `ok` False is a time-out or a drop of the broker's.
        """
        if item.state is not ADMITTED:
            raise ValueError(f"a request that is {item.state.name.lower()} cannot finish")
        item.state = DONE
        line = self._queues[item.queue]
        if item in line.serving:
            del line.serving[item]
        if not ok and latency_s is None:
            latency_s = now_s - item.since_s
        elif ok and latency_s is not None:
            line.answered_at_s = now_s
        is_served = item.holds_slot or (item.waits is ACKS and item not in line.unread)
        if latency_s is not None and item.is_measured and is_served:
            line.limit.sample(now_s, latency_s, line.in_use, ok)
        if item.holds_slot:
            item.holds_slot = False
            line.in_use -= 1
            if item.waits is POLL:
                del line.polls[item]
        elif item in line.unread:
            del line.unread[item]
        else:
            line.lingering[item.waits] -= 1
        if now_s >= line.ages_at_s:
            self._release_aged(line, now_s)
        return self.admit_waiting(line, now_s) if line.waiting else []

    def release_early(self, item: T, now_s: float) -> list[T]:
        """This request is known to wait, not to be served: its slot is free. Whom that admits; nothing
        changes at the bound, and for one that holds no slot. `finished` is still to be called.
        """
        line = self._queues[item.queue]
        if not item.holds_slot or not self._may_linger(line, item.waits, now_s):
            return []
        self._release(line, item)
        return self.admit_waiting(line, now_s)

    def release_unread(self, item: T, now_s: float) -> list[T]:
        """Nobody reads the answers of this admitted request's connection: its slot is free, and the limit learns
        nothing from it. Whom that admits. Nothing changes at the bound, nor for a request that was released so.
        `finished` is still to be called.
        """
        line = self._queues[item.queue]
        if (
            item.state is not ADMITTED
            or item in line.unread
            or len(line.unread) >= self.rule.unread
        ):
            return []
        if item.holds_slot:
            self._release(line, item)
        line.lingering[item.waits] -= 1
        line.serving.pop(item, None)
        line.unread[item] = None
        line.answered_at_s = now_s  # it is: who waits comes closer
        if now_s >= line.ages_at_s:
            self._release_aged(line, now_s)
        return self.admit_waiting(line, now_s)

    def _may_linger(self, line: Queue[T], waits: Waits, now_s: float) -> bool:
        if waits is POLL:
            return line.lingering[waits] < self.rule.lingering_polls
        bound = max(int(self.rule.lingering_acks_per_slot * line.slots_at(now_s)), 1)
        return waits is ACKS and line.lingering[waits] < bound

    def _release(self, line: Queue[T], item: T) -> None:
        """What it says of the limit it says when it is answered."""
        item.holds_slot = False
        line.in_use -= 1
        if item.waits is POLL:
            del line.polls[item]
        line.lingering[item.waits] += 1
        line.released += 1

    def _release_aged(self, line: Queue[T], now_s: float) -> None:
        """Those who have held their slots for long and may linger; sets when there may be more of them."""
        line.ages_at_s = inf
        for waits in (POLL, ACKS):
            while self._may_linger(line, waits, now_s):
                oldest = line.oldest(waits)
                if oldest is None:
                    break
                ages_at_s = oldest.since_s + self._release_after_s
                if ages_at_s > now_s:
                    line.ages_at_s = min(line.ages_at_s, ages_at_s)
                    break
                self._release(line, oldest)
            else:
                line.ages_at_s = now_s  # at the bound: whenever one is done there may be

    def cancel(self, item: T, now_s: float) -> list[T]:
        """The client went away; whom that admits. An admitted request whose link is closed with it gives its
        slot back without a sample; one that the broker still works on must be finished instead.
        """
        line = self._queues[item.queue]
        if item.state is ADMITTED:
            line.cancelled += 1
            return self.finished(item, now_s, None)
        if item.state is WAITING:
            self._leave(line, item, DONE)
            line.cancelled += 1
            return self.admit_waiting(line, now_s)
        item.state = DONE
        return []

    def refuse_waiting(self, queue: int, is_refused: Callable[[T], bool], now_s: float) -> Turn[T]:
        """Refuse those waiting in a queue of which `is_refused` says so (their topic hangs), but for
        `never_refused` ones. Turn.expired has them, in the order of their offers, in the state REFUSED.
        """
        line = self._queues[queue]
        refused = [item for item in line.refusable if is_refused(item)]
        for item in refused:
            self._leave(line, item, REFUSED)
            line.refused += 1
        return Turn(self.admit_waiting(line, now_s), refused)

    def turn(self, now_s: float) -> Turn[T]:
        """Release slots early, refuse who waited for too long, admit. To be called at `next_due_s`."""
        admitted: list[T] = []
        expired: list[T] = []
        for line in self._queues.values():
            self._release_aged(line, now_s)
            admitted += self.admit_waiting(line, now_s)
            while line.refusable:
                oldest = next(iter(line.refusable))
                if self._expires_at_s(line, oldest) > now_s:
                    break
                self._leave(line, oldest, State.EXPIRED)
                line.expired += 1
                expired.append(oldest)
        return Turn(admitted, expired)

    def _expires_at_s(self, line: Queue[T], item: T) -> float:
        """When a waiting request is refused: its topic is not, while requests of the queue are being answered."""
        wait_s = line.refusable[item]
        answered_s = line.answered_at_s if line.answered_at_s > item.since_s else item.since_s
        return min(answered_s + wait_s, item.since_s + LONGEST_WAITS * wait_s)

    def next_due_s(self, now_s: float, queue: int | None = None) -> float | None:
        """When `turn` will next have something to do, as a time; None if nothing waits. `queue`: in that one
        alone, for who has the others' time already.
        """
        due = []
        for line in self._queues.values() if queue is None else (self._queues[queue],):
            if line.refusable:
                due.append(self._expires_at_s(line, next(iter(line.refusable))))
            for waits in (POLL, ACKS):
                oldest = line.oldest(waits)
                if oldest is not None and self._may_linger(line, waits, now_s):
                    due.append(oldest.since_s + self._release_after_s)
        return min(due) if due else None

    def order_key_waits(self, order_key: Hashable) -> bool:
        """Whether something of an order key waits: what order demands of a newcomer is then not known yet, but when
        it is admitted.
        """
        return order_key in self._order_keys

    @property
    def has_waiting(self) -> bool:
        """Whether any request waits for a slot."""
        return any(line.waiting for line in self._queues.values())

    def load_of(self, queue: int) -> float:
        """Requests in service and waiting; for `classify`."""
        line = self._queues[queue]
        return line.in_use + len(line.waiting)

    def statistics(self, now_s: float) -> dict[int, dict[str, float]]:
        """Per queue (CONTROL is -1): present numbers and totals since start."""
        return {
            index: {
                "slots": line.slots_at(now_s),
                "slots_floor": line.limit.floor,
                "in_use": line.in_use,
                "waiting": len(line.waiting),
                "waiting_bytes": line.waiting_bytes,
                "lingering_polls": line.lingering[Waits.POLL],
                "lingering_acks": line.lingering[Waits.ACKS],
                "unread": len(line.unread),
                "admitted": line.admitted,
                "refused": line.refused,
                "expired": line.expired,
                "cancelled": line.cancelled,
                "released": line.released,
            }
            for index, line in self._queues.items()
        }

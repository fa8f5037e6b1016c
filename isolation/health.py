"""Which topics hang: requests answered never, or after minutes, while others are served.

Owns: the unanswered requests of each key and the verdict. A key is what can hang by itself: a topic, or its
partitions on one disk; the caller chooses, and gives the same key always. Must not know: answers' content,
queues, links. Invariants: a key hangs once its oldest unanswered request is older than `hang_after_s`, no answer of
that key came late within as long (that is slow, and does not hang), and no later one was answered in time (so a
healthy topic that shares a request with a hanging one is not condemned while its others are answered); a hanging
key's requests are refused at once but for single probes, with back-off; only an answer in time to a request sent after
the verdict clears it; a key with nothing unanswered that does not hang takes no memory; at `max_keys` newcomers are not
watched, they pass.

Long polls are not reported here. A request's age counts from when the broker could work on it: `started`,
once those before it on its link are answered, since a broker works on one request of a connection.

Most requests are answered before anybody need know of them: the caller tells of those that are not at its next look
(`look`, at most `look_every_s` apart), and of the others only what an answer says for its keys (`last_timely`).
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import Enum
from math import inf

LOOK_EVERY_S = 0.5


class Verdict(Enum):
    """Whether a request of a key may go to the broker."""

    PASS = "pass"
    PROBE = "probe"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class HealthRule:
    """When a key hangs; the back-off of its probes, doubling from first to last; how long after a due probe
    a key that nobody asks for is forgotten.
    """

    hang_after_s: float = 5.0
    probe_first_s: float = 1.0
    probe_last_s: float = 30.0
    forget_after_s: float = 300.0
    max_keys: int = 10_000

    def __post_init__(self) -> None:
        if (
            self.hang_after_s <= 0
            or not 0 < self.probe_first_s <= self.probe_last_s
            or self.max_keys < 1
        ):
            raise ValueError(
                "hang_after_s > 0, 0 < probe_first_s <= probe_last_s, max_keys >= 1 are needed"
            )


class Sent:
    """One request on its way; opaque."""

    __slots__ = ("keys", "started_s")

    def __init__(self, keys: tuple[Hashable, ...], now_s: float) -> None:
        self.keys = keys
        self.started_s = now_s

    def begin(self, now_s: float) -> None:
        """Note that the broker begins with it at `now_s`."""
        self.started_s = now_s


class _Key:
    __slots__ = ("backoff_s", "hung_s", "late_s", "probe_at_s", "suspects")

    def __init__(self) -> None:
        self.late_s = -inf  # the last answer that was late
        self.suspects: dict[Sent, None] = {}  # unanswered, the oldest first: plain, since few
        self.hung_s: float | None = None
        self.probe_at_s = 0.0
        self.backoff_s = 0.0

    def hang(self, now_s: float, backoff_s: float) -> None:
        """Note that the key hangs from `now_s` on; the first probe is due after `backoff_s`."""
        self.hung_s = now_s
        self._postpone(now_s, backoff_s)

    def probed(self, now_s: float, longest_s: float) -> None:
        """Note a probe at `now_s`: the next one is due after twice the back-off, at most `longest_s`."""
        self._postpone(now_s, min(longest_s, 2 * self.backoff_s))

    def _postpone(self, now_s: float, backoff_s: float) -> None:
        self.backoff_s = backoff_s
        self.probe_at_s = now_s + backoff_s

    def answered_late(self, now_s: float) -> None:
        """Note a late answer: a sign of life, after which a hanging key is asked at once."""
        self.late_s = now_s
        if self.hung_s is not None:
            self.probe_at_s = min(self.probe_at_s, now_s)

    def recover(self) -> None:
        """Note that the key hangs no more."""
        self.hung_s = None


class Health:
    """All keys of one broker."""

    def __init__(self, rule: HealthRule | None = None) -> None:
        self.set_rule(rule or HealthRule())
        self.keys: dict[Hashable, _Key] = {}
        """Those with something unanswered, and those that hang: `plan` is PASS for any other."""
        self.hung: set[Hashable] = set()
        """Those that hang: what is sent of them must be told at once (`sent`)."""
        self.last_timely: dict[Hashable, float] = {}
        """Since the last look: when the latest request of each that was answered in time began to be worked on."""
        self._news: list[Hashable] = []  # at most one entry a hanging key: see _clear
        self.hangs = self.recoveries = self.probes = self.unwatched = 0

    def set_rule(self, rule: HealthRule) -> None:
        """Judge by another rule from now on. What hangs stays so until an answer clears it."""
        self.rule = rule
        self.look_every_s = min(LOOK_EVERY_S, rule.hang_after_s)
        """As long as a look is never further back, `plan` knows all that matters."""

    def plan(self, key: Hashable, now_s: float) -> Verdict:
        """Whether a request may be sent now. PROBE: it may, as the one probe: report it by `sent`, by itself
        where the request can be cut. Looks at the oldest request, so it needs no timer to be right.
        """
        found = self.keys.get(key)
        if found is None or not self._hangs(key, found, now_s):
            return Verdict.PASS
        return Verdict.PROBE if now_s >= found.probe_at_s else Verdict.REFUSE

    def _hangs(self, key: Hashable, found: _Key, now_s: float) -> bool:
        if found.hung_s is None and found.suspects:
            since_s = max(next(iter(found.suspects)).started_s, found.late_s)
            if since_s + self.rule.hang_after_s <= now_s:
                found.hang(now_s, self.rule.probe_first_s)
                self.hung.add(key)
                self._news.append(key)
                self.hangs += 1
        return found.hung_s is not None

    def sent(self, keys: Iterable[Hashable], now_s: float, *, is_first: bool = True) -> Sent:
        """A request was sent to the broker; a hanging key's is its probe, and the next one has to wait.
        `is_first`: nothing sent before it on its link is unanswered; else `started` is to follow.
        """
        sent = Sent(tuple(dict.fromkeys(keys)), now_s)
        for key in sent.keys:
            found = self.keys.get(key)
            if found is not None and found.hung_s is not None:
                self.probes += 1
                found.probed(now_s, self.rule.probe_last_s)
        if is_first:
            self.started(sent, now_s)
        return sent

    def look(self, begun: Iterable[tuple[Iterable[Hashable], float]]) -> list[Sent]:
        """All that is unanswered and was not told yet: of each the keys, none of which hung when it was sent, and when
        the broker could begin with it, the oldest first.
        """
        told = []
        for keys, started_s in begun:
            sent = Sent(tuple(dict.fromkeys(keys)), started_s)
            for key in sent.keys:
                if self.last_timely.get(key, -inf) < started_s:
                    self._suspect(key, sent)
            told.append(sent)
        self.last_timely.clear()
        return told

    def started(self, sent: Sent, now_s: float) -> None:
        """Everything before it on its link is answered: from now on the broker may be late with it."""
        sent.begin(now_s)
        for key in sent.keys:
            self._suspect(key, sent)

    def _suspect(self, key: Hashable, sent: Sent) -> None:
        found = self.keys.get(key)
        if found is None:
            if len(self.keys) >= self.rule.max_keys:
                self.unwatched += 1
                return
            found = self.keys[key] = _Key()
        found.suspects.pop(sent, None)
        found.suspects[sent] = None

    def answered(self, sent: Sent, now_s: float) -> list[Hashable]:
        """The broker answered, whatever it said; the keys that no longer hang by it."""
        in_time = now_s - sent.started_s < self.rule.hang_after_s
        recovered = []
        for key in sent.keys:
            if in_time and self.last_timely.get(key, -inf) < sent.started_s:
                self.last_timely[key] = sent.started_s
            found = self.keys.get(key)
            if found is None:
                continue
            if not in_time:
                found.answered_late(now_s)
            elif found.hung_s is not None and sent.started_s >= found.hung_s:
                self._clear(key, found)
                self.recoveries += 1
                recovered.append(key)
            suspects = found.suspects
            if in_time:  # what was sent before does not speak against the key
                while suspects and (oldest := next(iter(suspects))).started_s <= sent.started_s:
                    del suspects[oldest]
            suspects.pop(sent, None)
            if not suspects and found.hung_s is None:
                del self.keys[key]
        return recovered

    def forgotten(self, sent: Sent) -> None:
        """There will be no answer: the link was closed. That neither condemns nor clears."""
        for key in sent.keys:
            if (found := self.keys.get(key)) is not None:
                found.suspects.pop(sent, None)
                if not found.suspects and found.hung_s is None:
                    del self.keys[key]

    def _clear(self, key: Hashable, found: _Key) -> None:
        found.recover()
        self.hung.discard(key)
        if key in self._news:
            self._news.remove(key)

    def turn(self, now_s: float) -> list[Hashable]:
        """The keys found hanging since the last turn; their waiting requests may be refused now. To be called
        about twice a second. A hanging key that nobody asks for any more is forgotten in time.
        """
        unasked = []
        for key, found in self.keys.items():
            idle_s = now_s - found.probe_at_s
            if (
                self._hangs(key, found, now_s)
                and not found.suspects
                and idle_s > self.rule.forget_after_s
            ):
                unasked.append(key)
        for key in unasked:
            self._clear(key, self.keys.pop(key))
        news, self._news = self._news, []
        return news

    def forgive(self) -> None:
        """Let no key hang any more, whatever is unanswered: nobody is to be refused for it."""
        for key in list(self.hung):
            found = self.keys[key]
            self._clear(key, found)
            if not found.suspects:
                del self.keys[key]

    def hanging(self) -> list[Hashable]:
        """The keys that hang now."""
        return list(self.hung)

    def statistics(self) -> dict[str, int]:
        """Keys watched and hanging now, and totals since start."""
        return {
            "watched": len(self.keys),
            "hanging": len(self.hung),
            "hangs": self.hangs,
            "recoveries": self.recoveries,
            "probes": self.probes,
            "unwatched": self.unwatched,
        }

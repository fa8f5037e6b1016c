"""A run: draws requests, asks the broker and Forebay, holds the answers against each other.

Owns connections, sessions, what is asked again (records under way, an answer that came late), and the reduction of a
request that shows a difference. Must not know what may differ (`judge`).
"""

from __future__ import annotations

import time
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from protocol.fetch import SESSIONS_FROM, TOPIC_IDS_FROM
from tests.e2e.differential import drawing
from tests.e2e.differential.cases import CONSUMER, LARGE_BYTES, Case, Step, Wanted
from tests.e2e.differential.conversations import Conversation
from tests.e2e.differential.judge import judge, must_answer
from tests.e2e.differential.reduce import simpler, unusual
from tests.e2e.differential.stage import BROKER_MAX_BYTES, LARGE, LIMITED, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.e2e.differential.answers import Answer, Key
    from tests.e2e.differential.logs import Log
    from tests.kit.sidecar import Pair

PATIENCE_S = 60.0
CONFIRM_WAIT_MS = 4000
LEAST_HITS = 0.2
"""Share of record bytes that must come from memory: a run that compares the broker with itself fails."""


class Difference(NamedTuple):
    """What differs, in which request, and both answers."""

    kind: str
    text: str
    case: Case
    direct: str
    through: str

    def __str__(self) -> str:
        asked = f"{self.kind}: {self.text}\n  {self.case}\n    odd: {self.case.odd}"
        return f"{asked}\n  directly: {self.direct}\n  through:  {self.through}"


class Run:
    """Rounds of requests; `found` takes differences, each kind of each set of unusual fields once."""

    def __init__(
        self,
        stage: Stage,
        seed: int,
        found: list[Difference],
        left_out: Sequence[str] = drawing.LEFT_OUT,
    ) -> None:
        self.stage = stage
        self.random = Random(seed)
        self.left_out = left_out
        self.found = found
        self.seen: set[tuple[str, ...]] = set()
        self.most_bytes = LARGE_BYTES if "fetch.max.bytes" in left_out else BROKER_MAX_BYTES
        self.asked = self.again = 0
        pair = stage.pair
        self.plain = [
            Conversation(pair, f"plain-{number}", self.draw_version()) for number in range(4)
        ]
        self.sessions = [
            Conversation(pair, f"session-{number}", self.draw_version()) for number in range(3)
        ]

    def draw_version(self, first: int = drawing.VERSIONS[0]) -> int:
        """A version that a connection is to speak."""
        return self.random.randint(first, drawing.VERSIONS[-1])

    def round(self, requests: int) -> None:
        """Ask so many requests."""
        for _ in range(requests):
            if self.random.random() < 0.6:
                self.ask_plain(self.random.choice(self.plain))
            else:
                self.ask_in_session(self.random.choice(self.sessions))
        if "throttled" not in self.left_out:
            self.ask_throttled()

    def ask_plain(self, conversation: Conversation) -> None:
        """A request without a session; often the last one of its connection at another offset."""
        last = conversation.last
        if (
            last is not None
            and len(last.partitions) == 1
            and not last.odd
            and self.random.random() < 0.7
        ):
            (wanted,) = last.partitions
            log = next(log for log in self.stage.logs if log.place == wanted.place)
            case = last._replace(
                partitions=(wanted._replace(offset=drawing.draw_offset(self.random, log)),)
            )
        else:
            if self.random.random() < 0.1:
                conversation.reopen()
                conversation.version = self.draw_version()
            case = drawing.draw_case(
                self.random, self.stage.logs, conversation.version, self.left_out
            )
        conversation.last = case
        self.compare(conversation, case)

    def ask_in_session(self, conversation: Conversation) -> None:
        """A request within a session, or a new one."""
        version = self.draw_version(SESSIONS_FROM)
        case = drawing.draw_case(self.random, self.stage.logs, version, self.left_out)
        step = drawing.draw_step(self.random)
        if step.value in self.left_out:
            return
        if step is Step.NEXT and not conversation.in_session:
            step = Step.NEW
        forgotten: tuple[Wanted, ...] = ()
        if step is Step.NEXT:
            version = conversation.version
            if self.random.random() < 0.02:  # names in a session of ids, or ids in one of names
                version = 7 if version >= TOPIC_IDS_FROM else 18
            case = case._replace(partitions=case.partitions[: self.random.choice((0, 0, 1, 1, 2))])
            if case.max_bytes < 0:
                # The broker refuses the first partition that reads; which is first depends on what was brought before.
                case = case._replace(max_bytes=LARGE_BYTES)
            if conversation.told and self.random.random() < 0.2:
                forgotten = (self.random.choice(list(conversation.told.values())),)
        case = case._replace(
            replica_id=CONSUMER,
            version=version,
            step=step,
            forgotten=tuple(one.place for one in forgotten),
        )
        self.compare(conversation, case)

    def ask_throttled(self) -> None:
        """A quota lets through what carries nothing, and no large batch (ClientQuotaManager)."""
        conversation = Conversation(self.stage.pair, LIMITED)
        (log,) = (log for log in self.stage.logs if log.place[::2] == LARGE[::2])
        at_end, at_start = Wanted(log.place, log.end), Wanted(log.place, log.start)
        version = self.random.choice(range(8, 19))
        for step, wanted in (
            (Step.NEW, at_end),
            (Step.NEXT, at_start),
            (Step.NEXT, at_end),
            (Step.NONE, at_start),
        ):
            self.compare(conversation, Case(version, (wanted,), step, odd=("throttled",)))
            conversation.reopen()
        conversation.close()

    # -- comparing -----------------------------------------------------------------------------------------

    def compare(self, conversation: Conversation, case: Case) -> None:
        """Ask both sides; note what differs, reduced where that can be done."""
        self.asked += 1
        found = [one for one in self.look(conversation, case) if one.kind not in self.left_out]
        for one in found:
            key = one.kind, *sorted(case.odd), case.step.value
            if key not in self.seen:
                self.seen.add(key)
                least = one if case.has_session or one.kind == "pending" else self.reduce(one)
                key = one.kind, *unusual(least.case)
                self.found += [] if key in self.seen else [least]
                self.seen.add(key)
        if found and case.has_session:
            conversation.reopen()
            conversation.forget()

    def look(self, conversation: Conversation, case: Case) -> list[Difference]:
        """Ask both sides, and judge."""
        (direct, direct_s), (through, through_s) = conversation.ask(case)
        if direct is None or through is None:
            if direct is through:
                return []
            return [
                self.difference(
                    "closed",
                    "one side closed the connection, or does not answer",
                    case,
                    direct,
                    through,
                )
            ]
        asked = conversation.asked(case)
        logs = self.logs(case.version)
        views = conversation.views if case.step is Step.NEXT else None
        verdict = judge(case, asked, direct, through, logs, views, self.most_bytes)
        found = [
            self.difference(kind, text, case, direct, through) for kind, text in verdict.differences
        ]
        if not found and case.step is Step.NONE:
            if verdict.pending and not self.arrives(conversation, case, verdict.pending):
                found = [
                    self.difference(
                        "pending", f"{verdict.pending} do not come", case, direct, through
                    )
                ]
            if ("late", *sorted(case.odd), case.step.value) not in self.seen:
                is_due = must_answer(case, direct, self.most_bytes)
                text = self.judge_time(conversation, case, direct_s, through_s, is_due)
                found += (
                    [self.difference(text.split(":")[0], text, case, direct, through)]
                    if text
                    else []
                )
        conversation.note(case, direct, through)
        return found

    def logs(self, version: int) -> dict[Key, Log]:
        return {log.place.key(version): log for log in self.stage.logs}

    def difference(
        self, kind: str, text: str, case: Case, direct: Answer | None, through: Answer | None
    ) -> Difference:
        return Difference(kind, text, case, str(direct or "closed"), str(through or "closed"))

    def arrives(self, conversation: Conversation, case: Case, pending: Sequence[Key]) -> bool:
        """Whether records that were under way come when they are asked for again."""
        deadline = time.monotonic() + PATIENCE_S
        missing = set(pending)
        while missing and time.monotonic() < deadline:
            self.again += 1
            answer, _ = conversation.sides[1].ask(case)
            missing -= (
                {key for key, part in answer.parts.items() if part.records} if answer else set()
            )
        return not missing

    def judge_time(
        self,
        conversation: Conversation,
        case: Case,
        direct_s: float,
        through_s: float,
        is_due: bool,
    ) -> str:
        """Whether one side waits for max_wait and the other does not, in this and in a second try; "" if not."""
        wait_s = case.max_wait_ms / 1000
        if wait_s < 0.1 or case.max_wait_ms == drawing.MOST:
            return ""
        if is_due and direct_s < wait_s / 2 and through_s >= wait_s:
            (_, direct_s), (_, through_s) = conversation.ask(
                case._replace(max_wait_ms=CONFIRM_WAIT_MS)
            )
            if direct_s < CONFIRM_WAIT_MS / 2000 and through_s >= CONFIRM_WAIT_MS / 1000:
                return f"late: {direct_s:.2f} s directly, {through_s:.2f} s through, max_wait {CONFIRM_WAIT_MS} ms"
        elif direct_s >= wait_s and through_s < wait_s * 0.8:
            (_, direct_s), (_, through_s) = conversation.ask(case)
            if direct_s >= wait_s and through_s < wait_s * 0.8:
                return f"early: {direct_s:.2f} s directly, {through_s:.2f} s through"
        return ""

    # -- reducing ------------------------------------------------------------------------------------------

    def reduce(self, found: Difference) -> Difference:
        """The same difference in a smaller request."""
        conversation = self.plain[0]
        while True:
            for case in simpler(found.case):
                again = [one for one in self.look(conversation, case) if one.kind == found.kind]
                if again:
                    found = again[0]
                    break
            else:
                return found

    def close(self) -> None:
        for one in (*self.plain, *self.sessions):
            one.close()


def run(
    pair: Pair,
    seed: int,
    rounds: int,
    requests: int,
    found: list[Difference],
    say: Callable[[str], None],
    left_out: Sequence[str] = drawing.LEFT_OUT,
) -> float:
    """A whole run on a stage of its own; `found` takes its findings, also where the stage breaks. The share of record
    bytes that came from memory while requests were compared.
    """
    with Stage(pair, Random(seed)) as stage:
        say("the stage is set")
        before = Counter(pair.sidecar.fetch_counts())
        one = Run(stage, seed, found, left_out)
        try:
            for number in range(rounds):
                if number:
                    stage.grow()
                one.round(requests)
                say(
                    f"round {number + 1}: {one.asked} requests, {len(found)} differences, {one.again} asked again"
                )
        finally:
            one.close()
        after = Counter(pair.sidecar.fetch_counts())
        after.subtract(before)
        say(f"bytes by result: {dict(after)}")
        return after["hit", ""] / max(after.total(), 1)

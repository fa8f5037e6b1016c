"""Principals: the rights that all connections of one principal have together.

Owns what the broker has granted to each principal, until when, and which questions about that are open. Must
not know a connection's requests, nor how a principal is recognised (protocol/sasl.py). Invariants:
* rights have one principal as the broker sees it: a listener and what was accepted there. What is not certain
  has rights of its own, which nobody shares.
* a grant counts only if it was asked for after the last refusal of that topic was known.
* rights are forgotten with the last connection that has them.
* every wait for another connection's question ends: by its answer, its loss, or after WAIT_S.
"""

from __future__ import annotations

import secrets
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from proxy.partitions.table import Partition

    Topics = Mapping[str | bytes, Partition]

WAIT_S = 0.25
"""How long a connection relies on the question of another. A broker answers within milliseconds; but the
other connection's client may not read, and then its broker is not read either.
"""
WAITS_LIMIT = 10_000
"""Fetches that wait for questions of other connections. Further ones ask themselves."""
TOPICS_LIMIT = 20_000
"""Topics for which one principal's rights are remembered; further ones go to the broker."""
DROP_EVERY_S = 1.0
"""Pause between two walks over all rights of a principal that has TOPICS_LIMIT of them."""
REFUSED_LIMIT = 256
"""Refused topics of which one principal's rights remember the time, before one time stands for all."""


class PrincipalKey(NamedTuple):
    """`identity` None: the listener of the broker knows nobody by name. The broker then sees Forebay alone."""

    listener: str
    identity: object


class Question:
    """A Fetch that asks the broker about topics, and the Fetches of other connections that wait for it."""

    __slots__ = ("asked_at", "is_prompt", "topics", "waits")

    def __init__(self, topics: frozenset[str | bytes], asked_at: float, is_prompt: bool) -> None:
        """`asked_at`: when it was sent, in seconds. `is_prompt`: no request was before it on its connection."""
        self.topics = topics
        self.asked_at = asked_at
        self.is_prompt = is_prompt
        self.waits: dict[Wait, None] = {}


class Wait:
    """A Fetch that waits for `question`, which is over when `run` is called, once: with whether it was
    answered. False: it will not be, so that the connection has to ask itself.
    """

    __slots__ = ("question", "run")

    def __init__(self, question: Question, run: Callable[[Wait, bool], None]) -> None:
        self.question = question
        self.run = run


class PrincipalRights:
    """What one principal may read. `until`: end of each right in seconds, by topic as clients name it.
    `version` is another one, in the whole process, after a right was taken away.
    """

    __slots__ = (
        "_dropped_at",
        "_floor",
        "_refused",
        "_versions",
        "key",
        "members",
        "questions",
        "until",
        "version",
    )

    def __init__(self, key: PrincipalKey | None, versions: Iterator[int]) -> None:
        """`key` None: one connection's own."""
        self.key = key
        self.members = 0
        self.until: dict[str | bytes, float] = {}
        self.questions: dict[str | bytes, Question] = {}
        self._refused: dict[str | bytes, float] = {}
        self._floor = self._dropped_at = float("-inf")
        self._versions = versions
        self.version = next(versions)

    def grant(self, topic: str | bytes, asked_at: float, until: float) -> None:
        """Note a grant that was asked for at `asked_at`, in seconds. No effect if a refusal was known by then:
        the broker may have decided before it.
        """
        if asked_at < self._refused.get(topic, self._floor):
            return
        if topic not in self.until and len(self.until) >= TOPICS_LIMIT:
            self._drop_ended(asked_at)
            if len(self.until) >= TOPICS_LIMIT:
                return
        self.until[topic] = max(self.until.get(topic, 0.0), until)

    def _drop_ended(self, now: float) -> None:
        """Drop rights that have ended, at most once in DROP_EVERY_S."""
        if now - self._dropped_at >= DROP_EVERY_S:
            self._dropped_at = now
            self.until = {topic: end for topic, end in self.until.items() if end > now}

    def refuse(self, topic: str | bytes, now: float) -> bool:
        """Note that the broker refuses `topic`, as is known at `now`. Return True if a right ends by it."""
        if topic not in self._refused and len(self._refused) >= REFUSED_LIMIT:
            self._refused.clear()
            self._floor = now
        self._refused[topic] = now
        if self.until.pop(topic, None) is None:
            return False
        self.version = next(self._versions)
        return True

    def find_question(self, topics: Topics, now: float) -> Question | None:
        """Return the open question that names all `topics`, was sent in the last WAIT_S and stands behind no
        other request; None: there is none.
        """
        question = self.questions.get(next(iter(topics)))
        if question is None or not question.is_prompt or now - question.asked_at >= WAIT_S:
            return None
        return question if question.topics.issuperset(topics) else None

    def is_asked(self, topic: str | bytes, now: float) -> bool:
        """Return True if a question that was sent in the last WAIT_S names `topic`."""
        question = self.questions.get(topic)
        return question is not None and now - question.asked_at < WAIT_S

    def ask(self, topics: Topics, now: float, is_prompt: bool) -> Question:
        """Note a question that is sent now. Call `Principals.end` with it in any case."""
        question = Question(frozenset(topics), now, is_prompt)
        for topic in topics:
            self.questions[topic] = question
        return question

    def end(self, question: Question) -> None:
        """Nobody can join `question` any more."""
        for topic in question.topics:
            if self.questions.get(topic) is question:
                del self.questions[topic]


class Principals:
    """The rights of all principals that are connected, at most `limit` shared ones. `secret`: the key of the
    digests by which principals are told apart, of this process alone. `len`: the shared ones.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.secret = secrets.token_bytes(32)
        self.waiting = 0
        """Number of Fetches that wait for another connection's question."""
        self._by_key: dict[PrincipalKey, PrincipalRights] = {}
        self._versions = count(1)
        self._joined: dict[Question, None] = {}
        """Questions that somebody waits for."""

    def __len__(self) -> int:
        return len(self._by_key)

    def set_limit(self, limit: int) -> None:
        """Take another `limits.principals`. PrincipalRights that are shared already stay so."""
        self.limit = limit

    def join(self, key: PrincipalKey | None) -> PrincipalRights:
        """Return the rights of a principal for one more connection. None, or at the limit: rights of its own."""
        found = self._by_key.get(key) if key is not None else None
        if found is None:
            is_shared = key is not None and len(self._by_key) < self.limit
            found = PrincipalRights(key if is_shared else None, self._versions)
            if key is not None and is_shared:
                self._by_key[key] = found
        found.members += 1
        return found

    def leave(self, rights: PrincipalRights) -> None:
        """Undo `join`: the connection is closed, or has another principal."""
        rights.members -= 1
        if not rights.members and rights.key is not None:
            del self._by_key[rights.key]

    def wait(self, question: Question, run: Callable[[Wait, bool], None]) -> Wait | None:
        """Wait for another connection's question, see `Wait`. None: too many wait already."""
        if self.waiting >= WAITS_LIMIT:
            return None
        wait = Wait(question, run)
        question.waits[wait] = None
        self._joined[question] = None
        self.waiting += 1
        return wait

    def forget(self, wait: Wait) -> None:
        """Undo `wait`, which is over: `run` is not called from here on."""
        if wait in wait.question.waits:
            del wait.question.waits[wait]
            self.waiting -= 1

    def end(self, rights: PrincipalRights, question: Question, answered: bool) -> None:
        """End `question`, and run all that wait for it. `answered` False: it will not be answered in time."""
        rights.end(question)
        self._release(question, answered)

    def _release(self, question: Question, answered: bool) -> None:
        """Run what waits, one after the other: each may end connections, whose waits go by `forget`."""
        self._joined.pop(question, None)
        while question.waits:
            wait = next(iter(question.waits))
            self.forget(wait)
            wait.run(wait, answered)

    def tick(self, now: float) -> None:
        """Timed: Fetches that wait for a question of more than WAIT_S ago ask themselves."""
        for question in list(self._joined):
            if now - question.asked_at >= WAIT_S:
                self._release(question, False)

"""A client that asks the broker and Forebay the same, each over a connection and in a session of its own.

Owns the connections, and what each side's session is asked for and has shown. Must not know what may differ. Invariant:
both sessions are at the same epoch and have the same partitions.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from protocol.fetch import SESSIONS_FROM
from tests.e2e.differential.answers import Answer, read_answer
from tests.e2e.differential.cases import Case, Step, Wanted
from tests.e2e.differential.judge import View
from tests.kit.raw_fetch import RawClient

if TYPE_CHECKING:
    from tests.e2e.differential.answers import Key
    from tests.kit.sidecar import Pair

UNKNOWN_ID = 987_654_321
FIRST = (0, -1)


class Side:
    """One connection, to the broker or to Forebay, and its session."""

    def __init__(self, address: str, client_id: str) -> None:
        self._address = address
        self._client_id = client_id
        self._client = RawClient(address, client_id)
        self._number = 0
        self.session = (0, 0)

    def ask(self, case: Case) -> tuple[Answer | None, float]:
        """The answer, None where the connection ended or stayed silent, and how long it took in seconds."""
        self._number += 1
        frame = case.build(self._session(case.step), self._client_id, self._number)
        began = time.monotonic()
        try:
            answer = read_answer(self._client.call(frame), case.version)
        except (ConnectionError, TimeoutError):
            self.reopen()
            return None, time.monotonic() - began
        return answer, time.monotonic() - began

    def _session(self, step: Step) -> tuple[int, int]:
        session_id, epoch = self.session
        return {
            Step.NONE: FIRST,
            Step.NEW: (0, 0),
            Step.NEXT: (session_id, epoch),
            Step.RENEWED: (session_id, 0),
            Step.CLOSED: (session_id, -1),
            Step.WRONG_EPOCH: (session_id, epoch + 5),
            Step.UNKNOWN: (UNKNOWN_ID, 1),
            Step.UNKNOWN_FULL: (UNKNOWN_ID, 0),
            Step.NEGATIVE: (-5, 1),
            Step.NEGATIVE_FULL: (-5, 0),
            Step.NO_ID: (0, 3),
        }[step]

    def reopen(self) -> None:
        """Another connection."""
        self.close()
        self._client = RawClient(self._address, self._client_id)

    def close(self) -> None:
        self._client.close()


class Conversation:
    """A client that asks both sides the same. `version` is its connections'; of a session, the session's."""

    def __init__(self, pair: Pair, client_id: str, version: int = SESSIONS_FROM) -> None:
        host, port = pair.broker.address("CLIENT")
        self.sides = Side(f"{host}:{port}", client_id), Side(pair.through, client_id)
        self.told: dict[Key, Wanted] = {}
        self.views: tuple[View, View] | None = None
        self.last: Case | None = None
        self.version = version

    @property
    def in_session(self) -> bool:
        return self.sides[0].session[0] != 0

    def ask(self, case: Case) -> tuple[tuple[Answer | None, float], tuple[Answer | None, float]]:
        return self.sides[0].ask(case), self.sides[1].ask(case)

    def asked(self, case: Case) -> dict[Key, Wanted]:
        """All that a request asks for."""
        named = {wanted.place.key(case.version): wanted for wanted in case.partitions}
        if case.step is not Step.NEXT:
            return named
        forgotten = [place.key(case.version) for place in case.forgotten]
        return {key: wanted for key, wanted in (self.told | named).items() if key not in forgotten}

    def note(self, case: Case, direct: Answer, through: Answer) -> None:
        """Go on from these answers, as a client does (FetchSessionHandler.handleResponse)."""
        if case.step is Step.NEXT:
            if not direct.error and direct.session_id:
                self.told = self.asked(case)
                for side in self.sides:
                    side.session = side.session[0], side.session[1] + 1
            else:
                self.forget()
        elif case.step in (Step.NEW, Step.RENEWED, Step.UNKNOWN_FULL, Step.NEGATIVE_FULL):
            self.forget()
            if direct.session_id and through.session_id:
                self.told, self.version = self.asked(case), case.version
                self.sides[0].session, self.sides[1].session = (
                    (direct.session_id, 1),
                    (through.session_id, 1),
                )
                self.views = View(), View()
                for view, answer in zip(self.views, (direct, through), strict=True):
                    view.update(answer)
        elif case.step is Step.CLOSED:
            self.forget()

    def forget(self) -> None:
        """No session."""
        self.told, self.views = {}, None
        for side in self.sides:
            side.session = (0, 0)

    def reopen(self) -> None:
        for side in self.sides:
            side.reopen()

    def close(self) -> None:
        for side in self.sides:
            side.close()

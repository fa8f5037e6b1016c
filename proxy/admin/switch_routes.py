"""Switches over HTTP: `GET /switches`, `POST /switches`, `POST /switches/reset` and `POST /switches/drop`.

Owns the requests and their answers, for supervisor and worker alike. Must not know what a switch does. Invariants: a
request that is refused changes nothing, and says why; each that is done is one log line.
"""

from __future__ import annotations

import logging
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from proxy.admin.http import HttpResponse, json_answer
from proxy.switches.override import (
    KINDS,
    LONGEST_TEXT,
    SwitchRefused,
    parse_override,
)
from proxy.switches.state import HAPPENINGS, OVERRIDES_LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from proxy.admin.http import Action, Handler
    from proxy.switches.override import Override
    from proxy.switches.state import SwitchState
    from proxy.switches.store import SwitchStore

log = logging.getLogger("forebay.switches")

SWITCHES: Final = "/switches"
PARAMETERS_LIMIT: Final = 16


class SwitchAccess:
    """The requests of one process."""

    def __init__(
        self,
        store: SwitchStore,
        now: Callable[[], float],
        explain: Callable[[Override], str],
        settle: Callable[[], object],
        refuse_drop: Callable[[], str] = lambda: (
            "no worker is ready: nothing is served from memory"
        ),
    ) -> None:
        """`now`: seconds of CLOCK_BOOTTIME. `explain`: why this process cannot have an override, "" if it can.
        `settle`: acts on what has changed. `refuse_drop`: why no topic can be dropped now, "" if one can.
        """
        self._store, self._now = store, now
        self._explain, self._settle, self._refuse_drop = explain, settle, refuse_drop

    @property
    def routes(self) -> dict[str, Handler]:
        """What GET answers."""
        return {SWITCHES: lambda: json_answer(self.describe())}

    @property
    def actions(self) -> dict[str, Action]:
        """What POST does."""
        return {
            SWITCHES: self._set,
            f"{SWITCHES}/reset": self._reset,
            f"{SWITCHES}/drop": self._drop,
        }

    def describe(self) -> dict[str, object]:
        """All overrides in force, and what there is to switch."""
        state, now = self._store.read(), self._now()
        listed = []
        for one in state.overrides:
            listed.append(one.describe(now))
            if problem := self._explain(one):
                listed[-1]["problem"] = problem
        return {
            "overrides": listed,
            "ofAnotherBuild": list(state.foreign),
            "limit": OVERRIDES_LIMIT,
            "lastReverted": state.reverted,
            "counts": dict(zip(HAPPENINGS, state.counts, strict=True)),
            "switches": {
                name: {
                    "takes": kind.takes,
                    "key": kind.key,
                    "scopes": ["process", *kind.scopes],
                    "share": kind.shares,
                }
                for name, kind in KINDS.items()
            },
        }

    async def _set(self, query: str) -> HttpResponse:
        def follow(state: SwitchState) -> SwitchState:
            override = parse_override(_parse_query(query), self._now(), time.time())
            if problem := self._explain(override):
                raise SwitchRefused(problem)
            return state.set(override)

        return self._do("set", query, follow)

    async def _reset(self, query: str) -> HttpResponse:
        def follow(state: SwitchState) -> SwitchState:
            given = _parse_query(query)
            if unknown := sorted(set(given) - {"switch", "listener", "topic"}):
                raise SwitchRefused(f"unknown: {', '.join(unknown)}")
            if given.get("switch", "cache") not in KINDS:
                raise SwitchRefused(f"there is no such switch; there are {', '.join(KINDS)}")
            return state.reset(**given)

        return self._do("reset", query, follow)

    async def _drop(self, query: str) -> HttpResponse:
        def follow(state: SwitchState) -> SwitchState:
            pattern = _parse_query(query).get("topic", "")
            if not 0 < len(pattern) <= LONGEST_TEXT:
                raise SwitchRefused("name a topic, or a pattern with `*` and `?`: topic=NAME")
            if problem := self._refuse_drop():
                raise SwitchRefused(problem)
            return state.drop(pattern)

        return self._do("drop", query, follow)

    def _do(
        self, doing: str, query: str, follow: Callable[[SwitchState], SwitchState]
    ) -> HttpResponse:
        try:
            self._store.change(follow)
        except SwitchRefused as refusal:
            answer = json_answer({"success": False, "error": f"{refusal}"})
            return answer._replace(status=HTTPStatus.UNPROCESSABLE_ENTITY)
        log.warning("a switch was thrown: %s", doing, extra={"switch": query[:LONGEST_TEXT]})
        self._settle()
        return json_answer({"success": True, **self.describe()})


def _parse_query(query: str) -> Mapping[str, str]:
    """The parameters of a request. Raises SwitchRefused if one is named twice, or the query is malformed."""
    try:
        pairs = parse_qsl(
            query,
            keep_blank_values=True,
            strict_parsing=bool(query),
            errors="strict",
            max_num_fields=PARAMETERS_LIMIT,
        )
    except ValueError as error:
        raise SwitchRefused(f"the query is malformed: {error}") from None
    found = dict(pairs)
    if len(found) < len(pairs):
        raise SwitchRefused("a parameter is named twice")
    return found

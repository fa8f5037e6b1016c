"""Paths of the admin port that several processes answer as one: each worker says its part, the keeper adds them up.

Owns who says what. Must not know how parts are added (metrics/merge.py, admin/group_view.py), nor how workers are asked
(keeper/server.py). Invariant: no answer waits for a worker that is gone, nor for long for another (ANSWER_S).
"""

from __future__ import annotations

import dataclasses
import time
from functools import partial
from typing import TYPE_CHECKING

from metrics.collector import Exposition
from metrics.merge import Group, pack_samples
from metrics.process_usage import read_usage
from proxy.admin.access import METRICS, TOP
from proxy.admin.group_view import merge_reports, merge_states, pack_state
from proxy.admin.http import ISOLATION, PROMETHEUS_TEXT, HttpResponse, json_answer
from proxy.admin.live_state import read_state
from proxy.admin.live_view import build_view
from proxy.admin.samples import collect
from proxy.supervisor.figures import FALLBACK, WORKERS
from proxy.switches.bypass import list_unpiped

if TYPE_CHECKING:
    from metrics.collector import Sample
    from proxy.admin.http import Handler
    from proxy.admin.live_state import LiveState
    from proxy.admin.samples import Process
    from proxy.config.model import Config
    from proxy.keeper.server import KeeperServer
    from proxy.supervisor.figures import Figures

READY = "forebay_ready"


def find_gaps(config: Config, figures: Figures) -> list[str]:
    """Why clients should not connect although a keeper is well: no worker accepts, nor does the supervisor for it."""
    if figures[WORKERS,]:
        return []
    return list_unpiped(config) if figures[FALLBACK,] else ["no worker is ready yet"]


class GroupAnswers:
    """The answers of a process. `name`: of it among several, for its usage."""

    def __init__(self, process: Process, name: str) -> None:
        self._process, self._name = process, name
        self._began = time.monotonic()
        self._group = Group()

    def answer_keeper(self, path: str) -> bytes:
        """What this worker adds to a path; b"": nothing."""
        is_draining = (
            self._process.readiness.is_draining
        )  # another worker has its place: that one says
        if path == METRICS:
            samples = [one for one in self._collect() if not (is_draining and one.name == READY)]
            return pack_samples(samples, time.monotonic() - self._began)
        if path == TOP:
            state = read_state(self._process)
            if is_draining:
                state = dataclasses.replace(state, is_ready=True, reasons=[])
            return pack_state(state)
        if path == ISOLATION:
            return json_answer(self._process.broker.scheduler.report()).body
        return b""

    def build_routes(self, keeper: KeeperServer | None) -> dict[str, Handler]:
        """The paths; `keeper` None: this process is the only one."""
        if keeper is None:
            return build_view(self._read_view)
        return {
            **build_view(partial(self._read_views, keeper)),
            METRICS: partial(self._answer_metrics, keeper),
            ISOLATION: partial(self._answer_isolation, keeper),
        }

    def _collect(self) -> list[Sample]:
        """The samples of this process of several."""
        return [*collect(self._process), *read_usage(self._name)]

    async def _answer_metrics(self, keeper: KeeperServer) -> HttpResponse:
        packed = await keeper.ask_workers(METRICS)
        age_s = time.monotonic() - self._began
        exposition = Exposition(lambda: self._group.merge(self._collect(), age_s, packed))
        return HttpResponse(exposition.render(), PROMETHEUS_TEXT)

    async def _answer_isolation(self, keeper: KeeperServer) -> HttpResponse:
        packed = await keeper.ask_workers(ISOLATION)
        return json_answer(merge_reports(self._process.broker.scheduler.report(), packed))

    async def _read_view(self) -> LiveState:
        return read_state(self._process)

    async def _read_views(self, keeper: KeeperServer) -> LiveState:
        packed, broker = await keeper.ask_workers(TOP), self._process.broker

        def find_retention(name: str) -> int | None:
            topic = broker.topics.find(name)
            return None if topic is None else topic.retention_ms

        return merge_states(
            read_state(self._process), packed, broker.config.workers, find_retention
        )

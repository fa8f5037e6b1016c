"""Checks of a Forebay that runs by the configuration, by what its admin port says.

Owns the paths that are asked and the figures that mean harm. Must not ask for anything that changes. Invariants: GET
only; each answer has a limit in time and bytes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from proxy.admin_client import ask
from proxy.broker_client import find_local
from proxy.doctor.checklist import CheckLine, failed, passed, skipped, warned

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from proxy.admin_client import AdminAnswer
    from proxy.config.model import Config

PATHS = ("/readyz", "/metrics", "/throttle", "/isolation", "/cache", "/config")
SUBJECT = "running"
_SAMPLE = re.compile(r"(?P<name>\w+)(?:\{(?P<labels>[^}]*)\})? (?P<value>[0-9.eE+-]+)")


def ask_admin(config: Config, timeout_s: float) -> dict[str, AdminAnswer]:
    """The answers to PATHS; blocks for at most `timeout_s` for each. Where the first is not answered, no other is
    asked.
    """
    first, *others = PATHS
    answers = {first: ask(config.admin, first, timeout_s)}
    for path in others:
        is_there = answers[first].status != 0
        answers[path] = ask(config.admin, path, timeout_s) if is_there else answers[first]
    return answers


def check_running(
    config: Config, answers: Mapping[str, AdminAnswer], version: str
) -> Iterator[CheckLine]:
    """What the admin port's answers mean. `version`: of this command."""
    ready, metrics = answers["/readyz"], answers["/metrics"]
    if ready.status == 0:
        place = find_local(config.admin.listen)
        yield skipped(SUBJECT, f"no Forebay answers at {place}: {ready.body}")
        return
    if ready.status == 200:
        yield passed(SUBJECT, "/readyz: ready")
    else:
        text = f"/readyz: {ready.body.strip()}"
        yield failed(SUBJECT, text, "docs/operations.md, Symptoms and Alerts")
    if metrics.status != 200:
        text = f"/metrics answers {metrics.status}"
        yield warned(SUBJECT, text, "compare admin.tokenFile and admin.tls.clientCaFile of both")
        return
    yield from judge_metrics(metrics.body, version)


def judge_metrics(text: str, version: str) -> Iterator[CheckLine]:
    """Figures of a scrape that mean harm."""
    samples = [match for match in map(_SAMPLE.fullmatch, text.splitlines()) if match]

    def total(name: str, label: str = "") -> float:
        found = (one for one in samples if one["name"] == name and label in (one["labels"] or ""))
        return sum(float(one["value"]) for one in found)

    build = next((one["labels"] for one in samples if one["name"] == "forebay_build_info"), "")
    if build and f'version="{version}"' not in build:
        text = f"it is another build ({build}) than this command ({version})"
        yield warned(SUBJECT, text, "restart it, or upgrade it in place (SIGUSR2)")
    if total("forebay_fallback"):
        text = "no worker can run: clients are piped"
        yield failed(SUBJECT, text, "docs/operations.md#forebayfallback")
    if total("forebay_verify_samples_total", 'verdict="mismatch"'):
        text = "memory has held other bytes than the broker"
        yield failed(SUBJECT, text, "docs/operations.md#forebaymemorydiffers")
    sampled = [one for one in samples if one["name"] == "forebay_throttle_disk_sampled"]
    lost = [one["labels"] for one in sampled if not float(one["value"])]
    if lost:
        text = f"disks without counters: {', '.join(lost)}"
        yield failed(SUBJECT, text, "docs/operations.md#forebaydisknotsampled")
    restarts = total("forebay_worker_restarts_total")
    text = f"{restarts:g} workers were replaced since its start"
    if restarts:
        yield warned(SUBJECT, text, "docs/operations.md#forebayworkerrestarts")
    else:
        yield passed(SUBJECT, text)

"""Keys that a running process can change, and keys that need a restart.

Owns the reasons for a restart, and the plan of a reload: the running configuration with the new values
of live keys. Must not know how a value is applied (proxy/reload.py). Invariants:
* every key is live or stands in RESTART, never both (a test over all keys).
* the configuration of a plan has the running values of all keys that need a restart.
* keys of one section of a listener belong together: if one needs a restart, none of them changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from proxy.config.keys import (
    EVERY,
    KEYS,
    KeyPath,
    SettingKey,
    iterate_keys,
    path_text,
    section_of,
)
from proxy.config.model import Config, ListenerConfig
from proxy.config.section import Section, key_of

_SOCKET = "the listening sockets are bound at the start"
_BROKER = "open connections lead to the broker of the start"
_IDENTITY = "open connections were judged by who the broker sees"
_ARENA = "the arena is mapped at the start"
_QUEUES = "the process was started without queues"
_DISKS = "the broker's disks are identified at the start"
_ADMIN = "the admin server is configured at the start"
_ACCESS_LOG = "the access log is opened at the start"
_LOG = "the log is opened at the start"
_SUPERVISOR = "the supervisor has the value of its start"
_LISTENERS = "listeners are opened at the start"
_TOKENS = "tokens that exist were made by the values of the start"

RESTART: Final[dict[str, str]] = {
    "workers": "the supervisor has started so many",
    "listeners[].name": _LISTENERS,
    "listeners[].listen": _SOCKET,
    "listeners[].upstream": _BROKER,
    "listeners[].catchUpUpstream": _BROKER,
    "listeners[].passThrough": _LISTENERS,
    "listeners[].proxyProtocol": "open connections began with a header, or without one",
    "listeners[].allowSharedIdentity": _IDENTITY,
    "listeners[].tls.clientAuth": _IDENTITY,
    "listeners[].tls.principalFrom": _IDENTITY,
    "listeners[].tls.principalMappingRules": _IDENTITY,
    "listeners[].useDelegationTokens": _IDENTITY,
    "listeners[].upstreamTls.enabled": _BROKER,
    "cache.size": _ARENA,
    "cache.directory": _ARENA,
    "cache.keepArena": _ARENA,
    "cache.confirmEvery": "polls and leases under way have the time of the start",
    "cache.transactionsPerPartition": "partitions that are followed have the bound of the start",
    "throttle.startGrace": "it counts from the start",
    "throttle.diskstatsFile": _DISKS,
    "throttle.pressureFile": _DISKS,
    "throttle.disks[].device": _DISKS,
    "throttle.disks[].directory": _DISKS,
    "throttle.disks[].brokerDirectory": _DISKS,
    "throttle.disks[].throughput": _DISKS,
    "throttle.disks[].iops": _DISKS,
    "isolation.dataQueues": "a topic's requests would be in two queues",
    "delegationTokens.limit": _TOKENS,
    "delegationTokens.mechanism": _TOKENS,
    "delegationTokens.lifetime": _TOKENS,
    "delegationTokens.keep": _TOKENS,
    "delegationTokens.checkPrincipal": _TOKENS,
    "admin.listen": _ADMIN,
    "admin.maxConnections": _ADMIN,
    "admin.tokenFile": _ADMIN,
    "admin.openMetrics": _ADMIN,
    "admin.tls.certificateFile": _ADMIN,
    "admin.tls.keyFile": _ADMIN,
    "admin.tls.clientCaFile": _ADMIN,
    "admin.tls.crlFile": _ADMIN,
    "admin.tls.minVersion": _ADMIN,
    "admin.tls.ciphers": _ADMIN,
    "admin.requestTimeout": _ADMIN,
    "accessLog.directory": _ACCESS_LOG,
    "accessLog.rotateSize": _ACCESS_LOG,
    "accessLog.keepSize": _ACCESS_LOG,
    "accessLog.keepFiles": _ACCESS_LOG,
    "accessLog.queueLines": _ACCESS_LOG,
    "supervisor.heartbeatTimeout": _SUPERVISOR,
    "supervisor.startTimeout": _SUPERVISOR,
    "supervisor.crashLimit": _SUPERVISOR,
    "supervisor.crashWindow": _SUPERVISOR,
    "supervisor.pipeMaxAge": _SUPERVISOR,
    "log.format": _LOG,
    "log.queueLines": _LOG,
}
"""The reason for each key that needs a restart, by its path with `[]` for indexes."""
CACHE_MODE: Final = "cache.mode"
ISOLATION: Final = "isolation.enabled"
_SHOWS_IDENTITY = ("listeners[].upstreamTls.certificateFile", "listeners[].upstreamTls.keyFile")


class Change(NamedTuple):
    """A changed value, as JSON has it. `pattern`: the key with `[]` for indexes; the path of a whole list or section
    where that changes as one. `reason`: why it needs a restart, "" if it does not.
    """

    key: str
    pattern: str
    old: object
    new: object
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ReloadPlan:
    """`config`: in force after the reload. `applied`: changed live keys. `pending`: those that need a restart."""

    config: Config
    applied: tuple[Change, ...]
    pending: tuple[Change, ...]


def is_live(key: SettingKey) -> bool:
    """Whether a reload changes the key. `cache.mode` and `isolation.enabled`: some transitions, see `explain_mode`
    and `explain_queues`.
    """
    return path_text(key.pattern) not in RESTART


def list_live() -> list[str]:
    """The paths of all live keys, with `[]` for indexes."""
    return [path_text(key.pattern) for key in KEYS if is_live(key)]


class AtStart(NamedTuple):
    """Values of the start that decide what the process can become: `cache.mode`, and whether requests have queues."""

    mode: str
    has_queues: bool = True


def list_at_start(config: Config) -> AtStart:
    """Those of the configuration that a process is started with."""
    return AtStart(config.cache.mode, config.isolation.enabled)


def explain_queues(at_start: AtStart, wanted: bool) -> str:
    """Why a process needs a restart for another `isolation.enabled`; "" if it needs none."""
    return _QUEUES if wanted and not at_start.has_queues else ""


def explain_mode(at_start: str, wanted: str) -> str:
    """Why a process that was started in one `cache.mode` needs a restart for another; "" if it needs none."""
    if at_start == wanted:
        return ""
    if at_start == "off":
        return "the process was started with `off` and has no cache"
    if at_start == "observe" and wanted == "serve":
        return "the process was started with `observe`, and its cache holds no records"
    return ""


def plan_reload(running: Config, wanted: Config, at_start: AtStart) -> ReloadPlan:
    """Compare two valid configurations of a process that was started with `at_start`."""
    config, changes = _merge(running, wanted, (), at_start)
    assert isinstance(config, Config)
    return ReloadPlan(
        config,
        tuple(change for change in changes if not change.reason),
        tuple(change for change in changes if change.reason),
    )


def _merge(
    old: Section, new: Section, path: KeyPath, at_start: AtStart
) -> tuple[Section, list[Change]]:
    """The section `old` at `path` with the live values of `new`, and all changes."""
    updates: dict[str, object] = {}
    changes: list[Change] = []
    for attribute, field in type(old).model_fields.items():
        before, after = getattr(old, attribute), getattr(new, attribute)
        if before == after:
            continue
        here = (*path, key_of(attribute))
        inner, is_list = section_of(field.annotation)
        if here == ("listeners",) and _are_alike(before, after):
            merged = [
                _merge(one, other, (*here, index), at_start)
                for index, (one, other) in enumerate(zip(before, after, strict=True))
            ]
            updates[attribute] = tuple(section for section, _ in merged)
            changes += [change for _, found in merged for change in found]
        elif inner is not None and not is_list and before is not None and after is not None:
            updates[attribute], found = _merge_section(before, after, here, at_start)
            changes += found
        else:
            reason = _find_reason(here, before, after, inner, at_start)
            changes.append(_build_change(here, attribute, old, new, reason))
            if not reason:
                updates[attribute] = after
    return old.model_copy(update=updates), changes


def _merge_section(
    old: Section, new: Section, path: KeyPath, at_start: AtStart
) -> tuple[Section, list[Change]]:
    """As `_merge`; in a section of a listener all changed keys wait for the restart that one of them needs."""
    merged, changes = _merge(old, new, path, at_start)
    reasons = [change.reason for change in changes if change.reason]
    if path[0] != "listeners" or not reasons:
        return merged, changes
    return old, [change._replace(reason=change.reason or reasons[0]) for change in changes]


def _are_alike(old: Sequence[ListenerConfig], new: Sequence[ListenerConfig]) -> bool:
    """Whether the listeners are the same ones, in the same order."""
    return [one.name for one in old] == [one.name for one in new]


def _find_reason(
    path: KeyPath, old: object, new: object, inner: type[Section] | None, at_start: AtStart
) -> str:
    """Why a change needs a restart; "" if it does not. `inner`: the section that the value holds, if any."""
    pattern = _pattern_of(path)
    if pattern == CACHE_MODE:
        return explain_mode(at_start.mode, str(new))
    if pattern == ISOLATION:
        return explain_queues(at_start, bool(new))
    if pattern in _SHOWS_IDENTITY and (old is None) != (new is None):
        return _IDENTITY
    if inner is None:
        return RESTART.get(pattern, "")
    if path[0] == "listeners":
        return _LISTENERS
    within = [path_text(key.pattern) for key in iterate_keys(inner, (pattern, EVERY))]
    return next((RESTART[key] for key in within if key in RESTART), "")


def _build_change(path: KeyPath, attribute: str, old: Section, new: Section, reason: str) -> Change:
    before, after = (_as_json(section, attribute) for section in (old, new))
    return Change(path_text(path), _pattern_of(path), before, after, reason)


def _as_json(section: Section, attribute: str) -> object:
    dumped = section.model_dump(mode="json", by_alias=True, include={attribute})
    return next(iter(dumped.values()))


def _pattern_of(path: KeyPath) -> str:
    return path_text(tuple(EVERY if isinstance(part, int) else part for part in path))

"""Override: one switch that somebody has thrown, over the configured value of a live key. Pure.

Owns the table of switches, the values and scopes that each takes, and how one is written. Must not know who has
thrown it, where it is kept, or a key's effect. Invariants:
* every switch has a bound on its values; a text that is none is refused with the values that there are.
* an override has one place: its switch with its scope. Another one of the same place replaces it.
* times of day are Unix seconds; times to wait are seconds of CLOCK_BOOTTIME, which all processes share.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from proxy.config.units import format_duration, parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

ON, OFF = "on", "off"
PROCESS, LISTENER, TOPIC = "process", "listener", "topic"
LONGEST_S: Final = 30 * 86400.0
LONGEST_TEXT: Final = 256


class SwitchRefused(ValueError):
    """A request for a switch that cannot be done; its text says why, for the person who asked."""


class SwitchKind(NamedTuple):
    """A switch. `key`: the live key that it overrides, "" for none; `takes`: its values, for people; `check`: raises
    ValueError for others; `scopes`: beside the process; `shares`: whether a share of the connections can have it.
    """

    key: str
    takes: str
    check: Callable[[str], object]
    scopes: tuple[str, ...] = ()
    shares: bool = False


def _one_of(*values: str) -> Callable[[str], object]:
    return values.index


def _check_ratio(text: str) -> object:
    if not 0.0 <= float(text) <= 1.0:
        raise ValueError(text)
    return text


_ON_OFF = _one_of(ON, OFF)
KINDS: Final[dict[str, SwitchKind]] = {
    "cache": SwitchKind(
        "cache.mode",
        "serve, observe or off",
        _one_of("serve", "observe", "off"),
        (LISTENER, TOPIC),
        shares=True,
    ),
    "throttle": SwitchKind("throttle.enabled", "on or off", _ON_OFF),
    "isolation": SwitchKind("isolation.enabled", "on or off", _ON_OFF),
    "verify": SwitchKind("cache.verifyRatio", "a number from 0 to 1", _check_ratio),
    "log": SwitchKind(
        "log.level",
        "debug, info, warning or error",
        _one_of("debug", "info", "warning", "error"),
    ),
    "bypass": SwitchKind("", "on or off", _ON_OFF, (LISTENER,)),
}
"""All switches by name."""
PARAMETERS: Final = ("value", LISTENER, TOPIC, "share", "after", "for")
"""The parameters of a request beside `switch`."""


@dataclass(frozen=True, slots=True)
class Override:
    """`listener`, `topic`: its scope, "" each for the process; a topic is a pattern. `share`: of the connections that
    have it, above 0 to 1; the others have the configured value. `set_at`: Unix time. `widen_at`: when all connections
    get it, `ends_at`: when it ends (CLOCK_BOOTTIME; None: not by itself).
    """

    switch: str
    value: str
    listener: str = ""
    topic: str = ""
    share: float = 1.0
    set_at: float = 0.0
    widen_at: float | None = None
    ends_at: float | None = None

    @property
    def place(self) -> tuple[str, str, str]:
        """What it overrides: there is one override of a place."""
        return self.switch, self.listener, self.topic

    @property
    def is_trial(self) -> bool:
        """Whether some connections have the configured value still."""
        return self.share < 1.0

    @property
    def scope(self) -> str:
        """Its scope in words."""
        if self.listener:
            return f"{LISTENER} {self.listener}"
        return f"{TOPIC} {self.topic}" if self.topic else PROCESS

    def describe(self, now: float) -> dict[str, object]:
        """The override as JSON has it; `now` in seconds of CLOCK_BOOTTIME."""
        return {
            "switch": self.switch,
            "value": self.value,
            "scope": self.scope,
            "share": self.share,
            "setAt": round(self.set_at, 3),
            "allAfter": _left(self.widen_at, now),
            "endsAfter": _left(self.ends_at, now),
        }


def _left(at: float | None, now: float) -> str | None:
    return None if at is None else format_duration(max(0.0, round(at - now, 1)))


def parse_override(given: Mapping[str, str], now: float, unix: float) -> Override:
    """The override that a request asks for: `switch`, and PARAMETERS as texts. `now`: seconds of CLOCK_BOOTTIME,
    `unix`: Unix time. Raises SwitchRefused.
    """
    name = given.get("switch", "")
    kind = KINDS.get(name)
    if kind is None:
        raise SwitchRefused(f"there is no switch {name!r}; there are {', '.join(KINDS)}")
    if unknown := sorted(set(given) - {"switch", *PARAMETERS}):
        raise SwitchRefused(f"unknown: {', '.join(unknown)}; known: {', '.join(PARAMETERS)}")
    value = given.get("value", "")
    try:
        kind.check(value)
    except ValueError:
        raise SwitchRefused(f"{name} takes {kind.takes}, not {value[:LONGEST_TEXT]!r}") from None
    for scope in (LISTENER, TOPIC):
        if given.get(scope) and scope not in kind.scopes:
            raise SwitchRefused(f"{name} is for the whole process, not for a {scope}")
        if len(given.get(scope, "")) > LONGEST_TEXT:
            raise SwitchRefused(f"the {scope} has more than {LONGEST_TEXT} characters")
    if given.get(LISTENER) and given.get(TOPIC):
        raise SwitchRefused("a switch is for a listener or for a topic, not for both")
    share = _parse_share(kind, name, given.get("share", ""))
    widen_s, ends_s = (_parse_time(name, given.get(name, "")) for name in ("after", "for"))
    if widen_s is not None and share == 1.0:
        raise SwitchRefused("`after` needs a share: the time after which all connections follow")
    if widen_s is not None and ends_s is not None and ends_s <= widen_s:
        raise SwitchRefused("`for` ends it before all connections would follow (`after`)")
    return Override(
        name,
        value,
        given.get(LISTENER, ""),
        given.get(TOPIC, ""),
        share,
        unix,
        None if widen_s is None else now + widen_s,
        None if ends_s is None else now + ends_s,
    )


def _parse_share(kind: SwitchKind, name: str, text: str) -> float:
    if not text:
        return 1.0
    if not kind.shares:
        raise SwitchRefused(f"{name} is for all connections: it takes no share")
    number = text.removesuffix("%")
    try:
        share = float(number) / (100 if number != text else 1)
    except ValueError:
        share = 0.0
    if not 0.0 < share <= 1.0:
        raise SwitchRefused(f"a share is above 0 % and at most 100 %, not {text[:LONGEST_TEXT]!r}")
    return share


def _parse_time(name: str, text: str) -> float | None:
    if not text:
        return None
    try:
        time_s = parse_duration(text)
    except ValueError as refusal:
        raise SwitchRefused(f"`{name}`: {text[:LONGEST_TEXT]!r} {refusal}") from None
    if not 1.0 <= time_s <= LONGEST_S:
        raise SwitchRefused(f"`{name}` is from 1s to 720h, not {text[:LONGEST_TEXT]!r}")
    return time_s


_NAMES: Final[Collection[str]] = frozenset(one.name for one in fields(Override))


def dump_override(override: Override) -> dict[str, Any]:
    """The override as JSON values, for `load_override` of any build."""
    return asdict(override)


def load_override(values: Mapping[str, Any]) -> Override | None:
    """What `dump_override` returned; None for one of another build that has switches or values unknown here."""
    known = {name: value for name, value in values.items() if name in _NAMES}
    kind = KINDS.get(known.get("switch", ""))
    if kind is None:
        return None
    try:
        kind.check(known["value"])
        return Override(**known)
    except (KeyError, TypeError, ValueError):
        return None

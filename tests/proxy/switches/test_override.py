"""What a switch takes: every value, scope, share and time that is none is refused with what there is."""

from __future__ import annotations

import pytest

from proxy.switches.override import (
    KINDS,
    Override,
    SwitchRefused,
    dump_override,
    load_override,
    parse_override,
)

NOW, UNIX = 1_000.0, 1_800_000_000.0
GOOD = {
    "cache": ("serve", "observe", "off"),
    "throttle": ("on", "off"),
    "isolation": ("on", "off"),
    "verify": ("0", "0.25", "1"),
    "log": ("debug", "info", "warning", "error"),
    "bypass": ("on", "off"),
}


def parse(**given: str) -> Override:
    return parse_override(given, NOW, UNIX)


@pytest.mark.parametrize("switch", KINDS)
def test_each_switch_takes_its_values_and_no_other(switch: str) -> None:
    for value in GOOD[switch]:
        assert parse(switch=switch, value=value) == Override(switch, value, set_at=UNIX)
    for value in ("", "On", "2", "-0.1", "nan", "inf", "x" * 1000):
        with pytest.raises(SwitchRefused, match=f"{switch} takes {KINDS[switch].takes[:5]}"):
            parse(switch=switch, value=value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"switch": "cash", "value": "off"}, "there is no switch 'cash'; there are cache, "),
        ({"switch": "cache", "value": "off", "to": "x"}, "unknown: to; known: value"),
        (
            {"switch": "log", "value": "info", "topic": "a"},
            "for the whole process, not for a topic",
        ),
        ({"switch": "bypass", "value": "on", "topic": "a"}, "not for a topic"),
        ({"switch": "cache", "value": "off", "topic": "a" * 257}, "more than 256 characters"),
        ({"switch": "cache", "value": "off", "topic": "a", "listener": "b"}, "not for both"),
        ({"switch": "verify", "value": "1", "share": "5%"}, "takes no share"),
        ({"switch": "cache", "value": "off", "share": "0"}, "above 0 %"),
        ({"switch": "cache", "value": "off", "share": "101%"}, "at most 100 %"),
        ({"switch": "cache", "value": "off", "share": "nan%"}, "above 0 %"),
        ({"switch": "cache", "value": "off", "after": "1m"}, "`after` needs a share"),
        ({"switch": "cache", "value": "off", "for": "1"}, "`for`: '1' "),
        ({"switch": "cache", "value": "off", "for": "0s"}, "`for` is from 1s to 720h"),
        ({"switch": "cache", "value": "off", "for": "721h"}, "`for` is from 1s to 720h"),
        (
            {"switch": "cache", "value": "off", "share": "5%", "after": "10m", "for": "10m"},
            "before all connections would follow",
        ),
    ],
)
def test_what_does_not_fit_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(SwitchRefused, match=said.replace("(", r"\(")):
        parse(**given)


def test_shares_and_times_are_read() -> None:
    one = parse(switch="cache", value="off", share="5%", after="10m", **{"for": "1h"})
    assert (one.share, one.widen_at, one.ends_at) == (0.05, NOW + 600, NOW + 3600)
    assert one.is_trial
    assert parse(switch="cache", value="off", share="0.5").share == 0.5
    assert not parse(switch="cache", value="off", share="100%").is_trial
    assert one.describe(NOW + 60)["allAfter"] == "9m"


def test_another_build_finds_what_it_knows() -> None:
    one = parse(switch="cache", value="off", topic="orders.*", share="5%", after="10m")
    assert load_override(dump_override(one)) == one
    assert load_override({**dump_override(one), "later": 1}) == one
    assert load_override({**dump_override(one), "switch": "later"}) is None
    assert load_override({**dump_override(one), "value": "later"}) is None
    assert load_override({"switch": "cache"}) is None

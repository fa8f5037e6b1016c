"""The configuration under overrides: which key each switch changes, and what it leaves as it was read."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.config.live_keys import AtStart, list_at_start, plan_reload
from proxy.config.model import Config
from proxy.switches.bypass import list_bypassed, list_piped
from proxy.switches.overlay import explain_override, overlay
from proxy.switches.override import KINDS, Override
from proxy.switches.state import EMPTY, SwitchState

TLS = {"certificateFile": "a.pem", "keyFile": "a.key"}
LISTENERS: list[dict[str, Any]] = [
    {"name": "plain", "listen": "127.0.0.1:9092", "upstream": "127.0.0.1:19092"},
    {"name": "tls", "listen": "127.0.0.1:9093", "upstream": "127.0.0.1:19092", "tls": TLS},
    {"name": "raw", "listen": ":9094", "upstream": "127.0.0.1:19092", "passThrough": True},
]
CONFIG = Config.model_validate(
    {"listeners": LISTENERS, "cache": {"size": "64MiB"}}, by_alias=True, by_name=False
)
STARTED = list_at_start(CONFIG)


def build(*overrides: Override) -> SwitchState:
    state = EMPTY
    for one in overrides:
        state = state.set(one)
    return state


CHANGES = {
    "cache": ("off", "cache.mode", "off"),
    "throttle": ("off", "throttle.enabled", False),
    "isolation": ("off", "isolation.enabled", False),
    "verify": ("1", "cache.verifyRatio", 1.0),
    "log": ("debug", "log.level", "debug"),
}


@pytest.mark.parametrize("switch", CHANGES)
def test_a_switch_changes_its_key_alone(switch: str) -> None:
    value, key, new = CHANGES[switch]
    assert KINDS[switch].key == key
    overlaid = overlay(CONFIG, build(Override(switch, value)), STARTED)
    (change,) = plan_reload(CONFIG, overlaid.config, STARTED).applied
    assert (change.key, change.new) == (key, new)
    assert overlay(CONFIG, EMPTY, STARTED).config == CONFIG


def test_a_listener_and_topics_have_keys_of_their_own() -> None:
    state = build(
        Override("cache", "off", listener="tls"),
        Override("cache", "off", topic="a*"),
        Override("cache", "serve", topic="ab"),
    )
    config = overlay(CONFIG, state, STARTED).config
    assert [one.cache_mode for one in config.listeners] == [None, "off", None]
    assert [one.pattern for one in config.cache.topic_modes] == ["ab", "a*"], "the newest first"


def test_a_share_has_a_configuration_of_its_own() -> None:
    overlaid = overlay(
        CONFIG, build(Override("log", "debug"), Override("cache", "off", share=0.1)), STARTED
    )
    assert (overlaid.config.cache.mode, overlaid.config.log.level) == ("serve", "debug")
    assert overlaid.trial is not None
    assert (overlaid.trial.cache.mode, overlaid.trial.log.level) == ("off", "debug")
    assert overlaid.share == 0.1


@pytest.mark.parametrize(
    ("override", "at_start", "said"),
    [
        (Override("cache", "serve"), AtStart("off"), "has no cache"),
        (Override("cache", "serve"), AtStart("observe"), "holds no records"),
        (Override("cache", "off"), AtStart("observe"), ""),
        (Override("isolation", "on"), AtStart("serve", has_queues=False), "without queues"),
        (Override("isolation", "off"), AtStart("serve", has_queues=False), ""),
        (
            Override("cache", "off", listener="x"),
            STARTED,
            "no listener x; there are plain, tls, raw",
        ),
        (Override("bypass", "on", listener="raw"), STARTED, "passes all bytes unread already"),
    ],
)
def test_what_needs_a_restart_is_left_out(override: Override, at_start: AtStart, said: str) -> None:
    assert said in explain_override(CONFIG, override, at_start)
    overlaid = overlay(CONFIG, build(override), at_start)
    assert (override.place in overlaid.problems) is bool(said)
    assert not said or overlaid.config == CONFIG


def test_a_listener_is_piped_or_relayed() -> None:
    state = build(Override("bypass", "on"))
    assert list_bypassed(CONFIG, state) == {"plain", "tls"}
    assert list_piped(CONFIG, state) == {"plain"}
    state = build(Override("bypass", "on", listener="tls"))
    assert (list_bypassed(CONFIG, state), list_piped(CONFIG, state)) == ({"tls"}, set())

"""Which keys a reload changes, and the configuration that is in force after it."""

from pathlib import Path
from typing import Any

import pytest

from proxy.config.keys import KEYS, path_text
from proxy.config.live_keys import RESTART, AtStart, Change, explain_mode, list_live, plan_reload
from proxy.config.model import Config

LISTENER = {"listen": "127.0.0.1:9092", "upstream": "127.0.0.1:19092"}
SERVE = AtStart("serve")
TLS = {"certificateFile": "a.pem", "keyFile": "a.key"}


def build(listener: dict[str, Any] | None = None, **sections: Any) -> Config:
    tree = {"listeners": [LISTENER | (listener or {})], "cache": {"size": "64MiB"}, **sections}
    return Config.model_validate(tree, by_alias=True, by_name=False)


def keys_of(changes: tuple[Change, ...]) -> list[str]:
    return [change.key for change in changes]


def test_every_restart_key_is_a_key():
    assert set(RESTART) <= {path_text(key.pattern) for key in KEYS}
    assert set(RESTART).isdisjoint(list_live())


def test_live_values_are_taken_and_others_stay():
    old = build(limits={"maxConnections": 10}, log={"format": "json"})
    new = build(limits={"maxConnections": 20}, log={"format": "text", "level": "debug"})
    plan = plan_reload(old, new, SERVE)
    assert plan.applied == (
        Change("limits.maxConnections", "limits.maxConnections", 10, 20),
        Change("log.level", "log.level", "info", "debug"),
    )
    assert keys_of(plan.pending) == ["log.format"]
    assert plan.pending[0].reason == RESTART["log.format"]
    assert plan.config == build(
        limits={"maxConnections": 20}, log={"format": "json", "level": "debug"}
    )


def test_an_equal_configuration_changes_nothing():
    plan = plan_reload(build(), build(), SERVE)
    assert (plan.config, plan.applied, plan.pending) == (build(), (), ())


def test_values_are_shown_as_the_file_has_them():
    old, new = build(), build(limits={"requestMemory": "64MiB", "idleTimeout": "5m"})
    shown = [(one.old, one.new) for one in plan_reload(old, new, SERVE).applied]
    assert shown == [("128MiB", "64MiB"), ("10m", "5m")]


def test_lists_change_whole():
    quotas = [{"pattern": "a*", "fetchRate": "1MiB"}]
    plan = plan_reload(build(), build(isolation={"topicQuotas": quotas}), SERVE)
    assert keys_of(plan.applied) == ["isolation.topicQuotas"]
    assert plan.config.isolation.topic_quotas[0].fetch_rate_bytes == 1 << 20
    plan = plan_reload(build(), build(throttle={"disks": [{"device": "sda"}]}), SERVE)
    assert (keys_of(plan.pending), plan.config) == (["throttle.disks"], build())


def test_certificates_of_a_listener_are_live():
    plan = plan_reload(
        build({"tls": TLS}), build({"tls": TLS | {"certificateFile": "b.pem"}}), SERVE
    )
    assert plan.applied == (
        Change(
            "listeners[0].tls.certificateFile", "listeners[].tls.certificateFile", "a.pem", "b.pem"
        ),
    )


@pytest.mark.parametrize(
    ("old", "new", "pending"),
    [
        ({}, {"tls": TLS}, ["listeners[0].tls"]),
        (
            {"tls": TLS},
            {"tls": TLS | {"clientAuth": "required", "clientCaFile": "ca.pem"}},
            ["listeners[0].tls.clientAuth", "listeners[0].tls.clientCaFile"],
        ),
        (
            {"upstreamTls": {"enabled": True}},
            {"upstreamTls": {"enabled": True, **TLS}},
            ["listeners[0].upstreamTls.certificateFile", "listeners[0].upstreamTls.keyFile"],
        ),
        ({}, {"listen": "127.0.0.1:9093"}, ["listeners[0].listen"]),
        ({}, {"name": "other"}, ["listeners"]),
    ],
    ids=["tls-begins", "client-auth", "shown-identity", "address", "another-listener"],
)
def test_what_open_connections_depend_on_stays(old, new, pending):
    plan = plan_reload(build(old), build(new), SERVE)
    assert (keys_of(plan.pending), plan.applied) == (pending, ())
    assert plan.config == build(old)


@pytest.mark.parametrize(
    ("at_start", "live"),
    [
        ("serve", {"serve", "observe", "off"}),
        ("observe", {"observe", "off"}),
        ("off", {"off"}),
    ],
)
def test_cache_mode_follows_what_the_arena_holds(at_start, live):
    modes = ("serve", "observe", "off")
    assert {mode for mode in modes if not explain_mode(at_start, mode)} == live


def test_a_mode_that_needs_a_restart_stays():
    running = build(cache={"size": "64MiB", "mode": "off"})
    plan = plan_reload(running, build(), AtStart("observe"))
    assert (keys_of(plan.pending), plan.config.cache.mode) == (["cache.mode"], "off")


def test_a_file_is_never_read(tmp_path: Path):
    """Secrets cannot be in the plan: it has the names of files."""
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    credentials = {"mechanism": "PLAIN", "username": "u", "passwordFile": str(secret)}
    other = credentials | {"passwordFile": f"{secret}2"}
    plan = plan_reload(
        build({"upstreamCredentials": credentials}), build({"upstreamCredentials": other}), SERVE
    )
    assert keys_of(plan.applied) == ["listeners[0].upstreamCredentials.passwordFile"]
    assert "hunter2" not in repr(plan)

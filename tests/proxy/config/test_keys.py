"""Paths, environment variables and the nearest known key."""

import pytest

from proxy.config.keys import (
    EVERY,
    KEYS,
    KeyPath,
    SettingKey,
    environment_name,
    find_key,
    find_variable,
    is_service_link,
    nearest_key,
    nearest_variable,
    path_text,
)


def path_of(key: SettingKey, index: int) -> KeyPath:
    return tuple(index if part == EVERY else part for part in key.pattern)


@pytest.mark.parametrize("key", KEYS, ids=lambda key: path_text(key.pattern))
def test_every_key_has_a_reversible_variable(key: SettingKey) -> None:
    path = path_of(key, 12)
    assert find_variable(environment_name(path)) == path
    assert find_key(path) is key
    assert not is_service_link(environment_name(path))


def test_no_two_keys_share_a_variable() -> None:
    assert len({environment_name(key.pattern) for key in KEYS}) == len(KEYS)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (("cache", "size"), "FOREBAY_CACHE_SIZE"),
        (("cache", "confirmEvery"), "FOREBAY_CACHE_CONFIRM_EVERY"),
        (("listeners", 0, "upstream"), "FOREBAY_LISTENERS_0_UPSTREAM"),
        (("listeners", 7, "upstreamTls", "caFile"), "FOREBAY_LISTENERS_7_UPSTREAM_TLS_CA_FILE"),
    ],
)
def test_variables_are_named_in_upper_snake(path: KeyPath, name: str) -> None:
    assert environment_name(path) == name


@pytest.mark.parametrize(
    "name",
    [
        "FOREBAY_CACHE",
        "FOREBAY_LISTENERS_UPSTREAM",
        "FOREBAY_LISTENERS_0",
        "FOREBAY_CACHE_0_SIZE",
        "FOREBAY_LISTENERS_12345_UPSTREAM",
        "FOREBAY_CACHE_CONFIRMEVERY",
        "CACHE_SIZE",
    ],
)
def test_unknown_key_has_no_path(name: str) -> None:
    assert find_variable(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "FOREBAY_PORT",
        "FOREBAY_SERVICE_HOST",
        "FOREBAY_SERVICE_PORT_ADMIN_HTTP",
        "FOREBAY_ADMIN_PORT_9190_TCP_ADDR",
    ],
)
def test_variables_of_kubernetes_services_are_ignored(name: str) -> None:
    assert is_service_link(name)


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        (("listeners", 0, "upstrem"), "upstream"),
        (("cache", "confirm_every"), "confirmEvery"),
        (("cache", "confirmEvery_s"), "confirmEvery"),
        (("listeners", 0, "upstreamCredentials", "password"), "passwordFile"),
        (("chache",), "cache"),
        (("upstream",), "listeners[].upstream"),
        (("holeWait",), "cache.holeWait"),
        (("nothing",), None),
        (("nothing", "size"), "cache.size"),
    ],
)
def test_nearest_key_is_suggested(path: KeyPath, meant: str | None) -> None:
    assert nearest_key(path) == meant


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("FOREBAY_CACHE_SIZ", "FOREBAY_CACHE_SIZE"),
        ("FOREBAY_LISTENERS_3_UPSTREM", "FOREBAY_LISTENERS_3_UPSTREAM"),
        ("FOREBAY_LISTENER_0_LISTEN", "FOREBAY_LISTENERS_0_LISTEN"),
        ("FOREBAY_HOME_SWEET_HOME", None),
    ],
)
def test_the_nearest_variable_keeps_the_index(name: str, meant: str | None) -> None:
    assert nearest_variable(name) == meant

"""The arms' memory: equal for all but one, the arena taken from the broker's share."""

from bench.pollution.arms import (
    ARMS,
    FOREBAY,
    TWICE,
    Sizes,
    broker_memory,
    build_listener,
    build_settings,
)
from proxy.config.model import Config

SIZES = Sizes()


def test_memory_is_equal_but_for_twice() -> None:
    for arm in ARMS.values():
        arena = SIZES.arena_bytes if arm.cache else 0
        assert broker_memory(arm, SIZES) + arena == SIZES.memory_bytes * (
            2 if arm.name == TWICE else 1
        )


def test_backlog_outlasts_an_arm_and_the_page_cache() -> None:
    seconds = SIZES.polluted_s + SIZES.paused_s + SIZES.recover_s
    assert SIZES.backlog_bytes > SIZES.read_limit * seconds
    assert SIZES._replace(polluted_s=1, paused_s=0, recover_s=0).backlog_bytes >= 4 * 450 * 10**6


def test_forebay_accepts_every_arms_settings() -> None:
    for arm in ARMS.values():
        if arm.forebay:
            entry = build_listener(arm, "127.0.0.1:9092", "127.0.0.1:9093", "127.0.0.1:9094")
            settings = build_settings(arm, SIZES, "loop0")
            config = Config.model_validate({"listeners": [entry], **settings})
            assert (config.cache.mode == "serve") is arm.cache
            assert config.throttle.enabled is arm.throttle
            assert (config.listeners[0].catch_up_upstream is not None) is arm.lane


def test_limit_is_named_where_it_is_wanted() -> None:
    for named in (False, True):
        sizes = SIZES._replace(limited=True, limit_named=named)
        disks = build_settings(ARMS[FOREBAY], sizes, "loop0")["throttle"]["disks"]
        assert disks == [{"device": "loop0", **({"throughput": 60_000_000} if named else {})}]

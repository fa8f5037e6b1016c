"""One worker's share of the bounds of all."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.config.share import SHARED_LIMITS, SHARED_QUEUES, SHARED_SLOTS, share_config
from tests.proxy.supervisor.configured import build_config


@pytest.mark.parametrize("workers", [2, 3, 31])
def test_all_shares_together_are_within_the_bound(workers: int) -> None:
    config = build_config()
    share = share_config(config, workers)
    pairs: list[tuple[Any, Any, tuple[str, ...]]] = [(config.limits, share.limits, SHARED_LIMITS)]
    pairs.append((config.isolation, share.isolation, SHARED_QUEUES))
    for name in ("data_slots", "control_slots"):
        pairs.append(
            (getattr(config.isolation, name), getattr(share.isolation, name), SHARED_SLOTS)
        )
    for whole, part, names in pairs:
        for name in names:
            bound, mine = getattr(whole, name), getattr(part, name)
            assert mine * workers <= bound or mine == 1, name
            assert (mine == 0) == (bound == 0), name


@pytest.mark.parametrize("workers", [2, 31])
def test_each_begins_with_as_many_slots_as_one_process_as_far_as_its_share_allows(
    workers: int,
) -> None:
    config = build_config()
    for name in ("data_slots", "control_slots"):
        whole = getattr(config.isolation, name)
        part = getattr(share_config(config, workers).isolation, name)
        assert part.initial == min(whole.initial, part.ceiling)
        assert 1 <= part.floor <= part.initial <= part.ceiling


def test_a_connection_s_bounds_are_within_the_share() -> None:
    share = share_config(build_config(), 31).limits
    assert share.connection_request_memory_bytes <= share.request_memory_bytes
    assert share.connection_response_memory_bytes <= share.response_memory_bytes


def test_what_is_counted_together_is_not_shared_out() -> None:
    config = build_config()
    share = share_config(config, 4)
    assert share.throttle == config.throttle
    assert share.isolation.client_quotas == config.isolation.client_quotas
    assert share.limits.request_partitions == config.limits.request_partitions

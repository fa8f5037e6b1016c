"""Requests are counted by API key; all unknown keys share one counter."""

from protocol.api import APIS, FETCH
from proxy.accounting.counters import UNKNOWN_KEY, Counters


def test_unknown_api_keys_share_one_counter():
    counters = Counters()
    for api_key in range(-(1 << 15), 1 << 15):
        counters.traffic.requests_in[api_key].frames += 1
    hops = counters.traffic.requests_in
    assert hops.keys() == {*APIS, UNKNOWN_KEY}
    assert hops[UNKNOWN_KEY].frames == (1 << 16) - len(APIS)
    assert hops[FETCH].frames == 1

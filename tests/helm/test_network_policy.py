"""The policy closes the admin port alone, of exactly the pods that carry a sidecar."""

import pytest

from tests.helm.chart import Object, render_demo, render_scenario

LAST_PORT = 65535
PEERS = [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]


def allowed(rule: Object, protocol: str = "TCP") -> set[int]:
    """The ports that a rule lets in."""
    ranges = [
        (port["port"], port.get("endPort", port["port"]))
        for port in rule["ports"]
        if port["protocol"] == protocol
    ]
    return {number for first, last in ranges for number in range(first, last + 1)}


@pytest.mark.parametrize("port", [1, 9190, LAST_PORT])
def test_all_but_the_admin_port_stays_open_to_all(port: int) -> None:
    values = {
        "config": {"admin": {"listen": f":{port}"}},
        "networkPolicy": {"enabled": True, "adminFrom": PEERS},
    }
    rendered = render_demo(values)
    spec = rendered.one("NetworkPolicy")["spec"]
    everyone, prometheus = spec["ingress"]
    assert "from" not in everyone
    assert allowed(everyone) == set(range(1, LAST_PORT + 1)) - {port}
    assert allowed(everyone, "UDP") == allowed(everyone, "SCTP") == set(range(1, LAST_PORT + 1))
    assert (allowed(prometheus), prometheus["from"]) == ({port}, PEERS)
    labels = rendered.one("StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert spec["podSelector"]["matchLabels"].items() <= labels.items()
    assert spec["policyTypes"] == ["Ingress"]


def test_without_peers_nobody_but_the_node_reaches_the_admin_port() -> None:
    (rule,) = render_demo({"networkPolicy": {"enabled": True}}).one("NetworkPolicy")["spec"][
        "ingress"
    ]
    assert 9190 not in allowed(rule)


def test_there_is_none_unless_asked_for() -> None:
    assert render_scenario("default").of_kind("NetworkPolicy") == []

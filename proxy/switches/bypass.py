"""Bypass: whose clients are to go past all of Forebay's code, and who carries them. Pure.

Owns which listeners are bypassed, and which of them the supervisor can pipe. Must not know sockets. Invariants: a
listener is piped by the supervisor or relayed unread by the worker, never both; both processes find the same answer in
the same state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proxy.config.model import Config, ListenerConfig
    from proxy.switches.state import SwitchState


def find_obstacle(listener: ListenerConfig) -> str:
    """Why a listener's clients cannot be piped to the broker; "" if they can."""
    if listener.proxy_protocol != "none":
        return "its clients begin with a header that the broker does not read"
    if listener.tls is not None:
        return "TLS of its clients ends at Forebay"
    return "TLS to the broker begins at Forebay" if listener.upstream_tls.enabled else ""


def list_unpiped(config: Config) -> list[str]:
    """Of which listeners clients are closed while the supervisor pipes all others, and why: a sentence each."""
    return [
        f"listener {one.name} closes its clients: {obstacle}"
        for one in config.listeners
        if (obstacle := find_obstacle(one))
    ]


def list_bypassed(config: Config, state: SwitchState) -> frozenset[str]:
    """The names of the listeners that are bypassed. Those with `passThrough` pass all bytes unread as they are."""
    return frozenset(
        one.name
        for one in config.listeners
        if not one.pass_through and state.is_on("bypass", one.name)
    )


def list_piped(config: Config, state: SwitchState) -> frozenset[str]:
    """The names of the bypassed listeners whose clients the supervisor pipes; a worker relays those of the others."""
    bypassed = list_bypassed(config, state)
    return frozenset(
        one.name for one in config.listeners if one.name in bypassed and not find_obstacle(one)
    )

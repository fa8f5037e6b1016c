"""Consumer groups of connections, for the access log and the live view.

Owns the groups that clients have named. Must not know requests. A client asks its group's coordinator on another
connection than the leader whose records it reads (ConsumerNetworkClient: the coordinator's id is Integer.MAX_VALUE
less its node id). So a group that one connection has named holds for all connections of the same host and client
id. Invariants:
* a connection's group is the one that it has named; else the one that connections of its host and client id have
  named: open ones, or the last that was; None where open ones have named several.
* the table holds a bounded number of names: those of open connections, and `limit` more.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Protocol

from metrics.access_log import MAX_TEXT_CHARS, cut_text

if TYPE_CHECKING:
    from collections.abc import Hashable


class GroupMember(Protocol):
    """A connection. `host`: the client's address; `client_id`: as its requests name it."""

    @property
    def host(self) -> str: ...
    @property
    def client_id(self) -> str | None: ...
    def note_group(self, group: str | None) -> None:
        """Show this group from now on."""


class _NamedClient:
    """A host and client id: its open connections, each with the group that it has named or None, how many have named
    each group, and the group that was named last.
    """

    __slots__ = ("connections", "groups", "last_group")

    def __init__(self) -> None:
        self.connections: dict[GroupMember, str | None] = {}
        self.groups: Counter[str] = Counter()
        self.last_group: str | None = None

    @property
    def group(self) -> str | None:
        """The group of connections that have named none."""
        if self.groups:
            return next(iter(self.groups)) if len(self.groups) == 1 else None
        return self.last_group

    def name(self, link: GroupMember, group: str) -> None:
        """Note the group that a connection has named; tell the others if theirs changes by it."""
        before = self.group
        self._forget(self.connections[link])
        self.connections[link] = self.last_group = group
        self.groups[group] += 1
        self._show(before)

    def close(self, link: GroupMember) -> None:
        """Note the end of a connection; tell the others if their group changes by it."""
        before = self.group
        self._forget(self.connections.pop(link))
        self._show(before)

    def _forget(self, group: str | None) -> None:
        if group is not None:
            self.groups[group] -= 1
            if not self.groups[group]:
                del self.groups[group]

    def _show(self, before: str | None) -> None:
        if (group := self.group) != before:
            for link, named in self.connections.items():
                if named is None:
                    link.note_group(group)


class ClientGroups:
    """The clients of one process. `len`: clients whose group is remembered without an open connection, at most `limit`;
    the one that left first is forgotten first.
    """

    __slots__ = ("_clients", "_keys", "_left", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._clients: dict[Hashable, _NamedClient] = {}
        self._keys: dict[GroupMember, Hashable] = {}
        self._left: dict[Hashable, None] = {}  # without connections, the first that left first

    def __len__(self) -> int:
        return len(self._left)

    def name(self, link: GroupMember, client_id: str | None) -> None:
        """Note the client id of a connection, perhaps another than before."""
        self.close(link)
        link.note_group(None)
        if client_id is None:
            return  # says nothing about who it is
        key = link.host, cut_text(client_id)
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = _NamedClient()
        self._left.pop(key, None)
        self._keys[link] = key
        client.connections[link] = None
        link.note_group(client.group)

    def learn(self, link: GroupMember, group: str) -> None:
        """Note that a request of the connection has named its group, which is not empty."""
        group = group[:MAX_TEXT_CHARS]
        key = self._keys.get(link)
        if key is None:
            link.note_group(group)
            return
        client = self._clients[key]
        if client.connections[link] != group:
            link.note_group(group)
            client.name(link, group)

    def close(self, link: GroupMember) -> None:
        """Note the end of a connection."""
        key = self._keys.pop(link, None)
        if key is None:
            return
        client = self._clients[key]
        client.close(link)
        if client.connections:
            return
        if client.last_group is None:
            del self._clients[key]
            return
        self._left[key] = None
        if len(self._left) > self.limit:
            oldest = next(iter(self._left))
            del self._left[oldest], self._clients[oldest]

"""Topic names and topic ids, as the broker's Metadata joins them (KIP-516). Pure.

Owns the table. It must not know links: `proxy.replica_fetcher.topic_metadata` asks. Invariants:
a name stands for at most one id, and for none from when the broker does not know that id any more until Metadata
names the next; when it comes to stand for another (the topic was re-created), the old topic is handed back to be
forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from proxy.partitions.recompression import Recompression

if TYPE_CHECKING:
    from collections.abc import Mapping

NO_TOPIC_ID = bytes(16)
"""Uuid.ZERO_UUID: names no topic, and who asks about it is not expected."""


class Leader(NamedTuple):
    """Of one partition, as Metadata last named it."""

    node_id: int
    epoch: int


NO_LEADER = Leader(-1, -1)
"""Not known, or not any more."""


class Topic:
    """One incarnation of a topic, named by Metadata. `leaders` has each partition that Metadata has shown, by index.
    `may_be_compacted` until the broker has said that it is not. `settings`: what decides how the broker stores what is
    produced, as last described; None before.
    """

    __slots__ = ("fidelity", "id", "leaders", "may_be_compacted", "name", "settings")

    def __init__(self, topic_id: bytes, name: str) -> None:
        self.id = topic_id
        self.name = name
        self.fidelity = Recompression()
        self.leaders: dict[int, Leader] = {}
        self.may_be_compacted = True
        self.settings: tuple[str | None, ...] | None = None


class Topics:
    """The table."""

    __slots__ = ("_by_id", "_by_name")

    def __init__(self) -> None:
        self._by_id: dict[bytes, Topic] = {}
        self._by_name: dict[str, Topic] = {}

    def find(self, key: str | bytes) -> Topic | None:
        """The topic that has this name or id, as far as is known."""
        return self._by_name.get(key) if isinstance(key, str) else self._by_id.get(key)

    def learn(self, name: str, topic_id: bytes, leaders: Mapping[int, Leader]) -> Topic | None:
        """Metadata says that `name` is `topic_id`, with these partitions. Returns the topic that this one replaces, if
        any.
        """
        topic = self._by_id.get(topic_id)
        if topic is None:
            topic = self._by_id[topic_id] = Topic(topic_id, name)
        topic.leaders.update(leaders)
        replaced = self._by_name.get(name)
        self._by_name[name] = topic
        if replaced is None or replaced is topic:
            return None
        self._by_id.pop(replaced.id, None)
        return replaced

    def forget(self, topic: Topic) -> None:
        """The broker does not know this id any more."""
        self._by_id.pop(topic.id, None)
        if self._by_name.get(topic.name) is topic:
            del self._by_name[topic.name]

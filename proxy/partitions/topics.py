"""Topic names and topic ids, as the broker's Metadata pairs them (KIP-516). Pure.

Owns the table. Must not know connections: `proxy.replica_fetcher.topic_metadata` asks the broker.
Invariants:
* a name has at most one id. The name has none from the time when the broker no longer knows that id
  until Metadata names the next.
* if a name gets another id (the topic was re-created), the old topic is returned to the caller, to
  be forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from proxy.partitions.recompression import Recompression

if TYPE_CHECKING:
    from collections.abc import Mapping

NO_TOPIC_ID = bytes(16)
"""Uuid.ZERO_UUID: the id of no topic; a broker does not expect a request about it."""


class Leader(NamedTuple):
    """Leader of one partition, as Metadata last named it."""

    node_id: int
    epoch: int


NO_LEADER = Leader(-1, -1)
"""The leader is not known, or not any more."""


class Topic:
    """Incarnation of a topic, named by Metadata.

    `leaders` has each partition that Metadata has shown, by index. It may be compacted until the broker has
    said otherwise. `settings`: the last described values of the settings by which
    the broker stores produced batches; None before the first description. `retention_ms`: how long the broker keeps
    records; -1: for ever, None: not known.
    """

    __slots__ = ("fidelity", "id", "leaders", "name", "retention_ms", "settings")

    def __init__(self, topic_id: bytes, name: str) -> None:
        self.id = topic_id
        self.name = name
        self.fidelity = Recompression()
        self.leaders: dict[int, Leader] = {}
        self.settings: tuple[str | None, ...] | None = None
        self.retention_ms: int | None = None

    @property
    def may_be_compacted(self) -> bool:
        """Whether the log cleaner may have removed records from it."""
        may_be: bool = self.fidelity.native.may_be_compacted
        return may_be

    def learn_policy(self, may_be_compacted: bool) -> None:
        """Note the cleanup policy that the broker has described, or True if it has not."""
        self.fidelity.native.may_be_compacted = may_be_compacted

    def learn_retention(self, retention_ms: int | None) -> None:
        """Note how long the broker keeps records."""
        self.retention_ms = retention_ms

    def learn_settings(self, settings: tuple[str | None, ...]) -> None:
        """Note the settings by which the broker stores batches."""
        self.settings = settings


class Topics:
    """The table of topics, by name and by id."""

    __slots__ = ("_by_id", "_by_name")

    def __init__(self) -> None:
        self._by_id: dict[bytes, Topic] = {}
        self._by_name: dict[str, Topic] = {}

    def find(self, key: str | bytes) -> Topic | None:
        """Return the topic with this name (str) or id (bytes); None if it is unknown."""
        return self._by_name.get(key) if isinstance(key, str) else self._by_id.get(key)

    def list_all(self) -> list[Topic]:
        """Return all topics that are known."""
        return list(self._by_id.values())

    def learn(self, name: str, topic_id: bytes, leaders: Mapping[int, Leader]) -> Topic | None:
        """Note that Metadata pairs `name` with `topic_id` and shows these partitions. Return the
        topic that this one replaces under the name, or None.
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
        """Remove the topic: the broker no longer knows this id."""
        self._by_id.pop(topic.id, None)
        if self._by_name.get(topic.name) is topic:
            del self._by_name[topic.name]

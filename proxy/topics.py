"""Topic names and topic ids, as the broker's Metadata joins them (KIP-516). Pure.

Owns the table and the list of what is not known yet. It must not know links: `proxy.watch` asks. Invariants:
a name stands for at most one id; when it comes to stand for another (the topic was re-created), the old topic
is handed back to be forgotten.
"""

from __future__ import annotations

from proxy.fidelity import Fidelity

NAMES_WANTED_LIMIT = 10_000


class Topic:
    """One incarnation of a topic. `name` is "" until Metadata has named the id. `may_be_compacted` until the
    broker has said that it is not.
    """

    __slots__ = ("fidelity", "id", "may_be_compacted", "name")

    def __init__(self, topic_id: bytes, name: str) -> None:
        self.id = topic_id
        self.name = name
        self.fidelity = Fidelity()
        self.may_be_compacted = True


class Topics:
    """The table."""

    __slots__ = ("_by_id", "_by_name", "wanted")

    def __init__(self) -> None:
        self._by_id: dict[bytes, Topic] = {}
        self._by_name: dict[str, Topic] = {}
        self.wanted: dict[str | bytes, None] = {}

    def find(self, key: str | bytes) -> Topic | None:
        """The topic that a request names, by name or by id. What is not known is put on the list to ask."""
        topic = self._by_name.get(key) if isinstance(key, str) else self._by_id.get(key)
        if (topic is None or not topic.name) and len(self.wanted) < NAMES_WANTED_LIMIT:
            self.wanted[key] = None
        return topic

    def confirm(self, topic_id: bytes) -> Topic:
        """The broker has answered about this id without an error: it exists."""
        topic = self._by_id.get(topic_id)
        if topic is None:
            topic = self._by_id[topic_id] = Topic(topic_id, "")
        return topic

    def learn(self, name: str, topic_id: bytes) -> Topic | None:
        """Metadata says that `name` is `topic_id`. Returns the topic that this one replaces, if any."""
        self.wanted.pop(name, None)
        self.wanted.pop(topic_id, None)
        topic = self._by_id.get(topic_id)
        if topic is None:
            topic = self._by_id[topic_id] = Topic(topic_id, name)
        topic.name = name
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

"""Asks the broker for its node id, and for the setting that limits its Fetch responses.

Owns the questions, on Forebay's own connection. Metadata gives the cluster's node ids; then
DescribeConfigs asks for one node after the other, since a broker describes only itself
(ConfigHelper.describeConfigs). Must not know the use of the answers. Invariants:
* one question is in flight.
* once the node id is known, only that node is asked.
* if the broker refuses a value, the default stays, and one log line names the missing right.
"""

from __future__ import annotations

import logging
import re
from functools import partial
from typing import TYPE_CHECKING

from protocol import control, metadata
from protocol.errors import BadFrame, ErrorCode
from proxy.advertised import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocol.primitives import Frame
    from proxy.replica_fetcher.services import FetcherServices

log = logging.getLogger("forebay.broker_settings")

METADATA_VERSION = 12
VERSION = 4
CLIENT_ID = "forebay-node"
FETCH_MAX_BYTES = "fetch.max.bytes"
FETCH_MAX_BYTES_DEFAULT = 57_671_680
"""ServerConfigs.FETCH_MAX_BYTES_DEFAULT"""
EVERY_S = 60.0
"""Seconds between questions: the setting of a running broker may change."""
RETRY_S = 1.0
"""Seconds between questions while the broker has not told which node it is."""
EXPECTED = re.compile(r"expected (\d+)")
"""A hint in the broker's refusal to describe another node. The hint saves questions; correctness
does not depend on it.
"""


class Node:
    """What the broker says of itself; asks periodically.

    `node_id`: -1 until the broker has told it. `cluster_id`: "" until then. `fetch_max_bytes`: its
    `fetch.max.bytes`, or Kafka's default until it has told that.
    """

    __slots__ = (
        "_broker",
        "_candidates",
        "_due_at",
        "_in_flight",
        "_is_refused",
        "cluster_id",
        "fetch_max_bytes",
        "node_id",
    )

    def __init__(self, broker: FetcherServices) -> None:
        self._broker = broker
        self._in_flight = False
        self._due_at = float("-inf")
        self._candidates: list[int] = []
        self._is_refused = False
        self.node_id = -1
        self.cluster_id = ""
        self.fetch_max_bytes = FETCH_MAX_BYTES_DEFAULT

    def is_this(self, node_id: int) -> bool:
        """Return True if that node is the broker behind this process; False while either is not
        known (-1).
        """
        return node_id == self.node_id >= 0

    def tick(self, now: float) -> None:
        """Ask, if a question is due and Forebay has its own connection. Called periodically."""
        if self._in_flight or now < self._due_at or not self._broker.own_connections.usable:
            return
        known = self.node_id
        self._candidates = [known] if known >= 0 else []
        if self._candidates:
            self._ask_next()
        else:
            self._send(
                control.build_metadata_request(METADATA_VERSION, 0, CLIENT_ID, topics=[]),
                self._learn_nodes,
            )

    def _send(self, frame: bytes, learn: Callable[[Frame], None]) -> None:
        link = self._broker.own_connections.link("proof")
        if link is not None:
            self._in_flight = True
            link.send(frame, 0, partial(self._answered, learn))

    def _answered(self, learn: Callable[[Frame], None], answer: Frame | None) -> None:
        self._in_flight = False
        self._due_at = self._broker.now() + (EVERY_S if answer is not None else RETRY_S)
        if answer is None:
            return
        try:
            learn(answer)
        except (BadFrame, ValueError) as error:
            log.error("what the broker says of itself cannot be read: %s", error)

    def _learn_nodes(self, answer: Frame) -> None:
        described = metadata.scan_metadata_response(answer, METADATA_VERSION)
        self.cluster_id = described.cluster_id or ""
        self._candidates = [node.node_id for node in described.brokers]
        own = self._broker.own_connections
        self._broker.advertised.note(own.listener, described.brokers)
        self._ask_next()

    def _ask_next(self) -> None:
        if self._candidates:
            node_id = self._candidates.pop(0)
            frame = control.build_describe_configs_request(
                VERSION, 0, CLIENT_ID, brokers=[node_id], settings=[FETCH_MAX_BYTES, *SETTINGS]
            )
            self._send(frame, partial(self._learn_settings, node_id))
        elif self.node_id < 0:  # Metadata does not list a broker that its controller has fenced
            self._due_at = self._broker.now() + RETRY_S

    def _learn_settings(self, node_id: int, answer: Frame) -> None:
        (described,) = control.scan_describe_configs_response(answer, VERSION)
        if described.error_code == ErrorCode.NONE:
            value = described.values.get(FETCH_MAX_BYTES)
            if value is not None:
                self.fetch_max_bytes = int(value)
            if self.node_id != node_id:
                self.node_id = node_id
                log.info("the broker is node %d", node_id)
                self._broker.replica_fetcher.learn_node()
            self._broker.advertised.learn_settings(described.values)
        elif described.error_code == ErrorCode.INVALID_REQUEST:
            if node_id == self.node_id:  # another broker now has its address
                self.node_id = -1
            hint = EXPECTED.search(described.error_message or "")
            if hint is not None and int(hint[1]) in self._candidates:
                self._candidates = [int(hint[1])]
            self._ask_next()
        elif not self._is_refused:
            self._is_refused = True
            log.warning(
                "the broker does not tell Forebay which node it is and what its %s is (error %d): clients older "
                "than Fetch 11 are not served from memory, and %d bytes are taken for that setting; allow "
                "Forebay's principal DescribeConfigs on the cluster",
                FETCH_MAX_BYTES,
                described.error_code,
                self.fetch_max_bytes,
            )

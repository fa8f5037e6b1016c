"""What the broker owes a client that is gone is no leak; all else that Forebay holds is."""

from __future__ import annotations

import contextlib
import datetime
import socket
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from kio.schema.errors import ErrorCode
from kio.schema.join_group.v5.request import JoinGroupRequest, JoinGroupRequestProtocol
from kio.schema.types import GroupId
from kio.static.primitive import i32Timedelta

from tests.chaos.leaks import find_owed
from tests.chaos.wire import Wire
from tests.kit.raw_fetch import RawClient
from tests.protocol import oracle

if TYPE_CHECKING:
    from tests.kit.broker.kafka import KafkaCluster

GROUP = "owed"
JOIN_GROUP, VERSION = 11, 5
WAIT = i32Timedelta.parse(datetime.timedelta(seconds=60))
SILENT_S, PATIENCE_S = 2.0, 20.0


@pytest.mark.parametrize(
    ("asked", "handed_on", "owed"),
    [
        ([], [b"other"], []),
        ([b"join"], [], []),
        ([b"join"], [b"fetch"], []),
        ([b"join"], [b"fetch", b"join"], [4]),
        ([b"heartbeat,join"], [b"join"], [4]),
        ([b"join", b"join"], [b"join"], [4]),
    ],
)
def test_only_what_the_broker_has_is_owed(
    asked: list[bytes], handed_on: list[bytes], owed: list[int]
) -> None:
    assert find_owed(asked, handed_on) == owed


def build_join(member_id: str) -> bytes:
    protocol = JoinGroupRequestProtocol(name="range", metadata=b"")
    body = JoinGroupRequest(
        group_id=GroupId(GROUP),
        session_timeout=WAIT,
        rebalance_timeout=WAIT,
        member_id=member_id,
        protocol_type="consumer",
        protocols=(protocol,),
    )
    return oracle.request_frame(body)


def join(client: RawClient, member_id: str = "") -> tuple[ErrorCode, str]:
    """The error and the member id that the coordinator gives."""
    said = oracle.read_response(JOIN_GROUP, VERSION, client.call(build_join(member_id)))[1]
    return said.error_code, said.member_id


def find_coordinator(bootstrap: str) -> None:
    """Have the broker make the groups' topic, if this is the first group it hears of."""
    asking = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    with contextlib.suppress(KafkaException):  # the coordinator begins
        asking.committed([TopicPartition("any", 0)], PATIENCE_S)
    asking.close()


@pytest.mark.e2e
def test_the_broker_owes_a_join_for_ever_whose_member_joined_again(broker: KafkaCluster) -> None:
    """No Forebay is here: this is why `find_leaks` looks for what the broker owes."""
    host, port = broker.direct.split(":")
    with contextlib.ExitStack() as stack:
        wire = stack.enter_context(Wire(0, (host, int(port))))
        first, again, other = (stack.enter_context(RawClient(broker.direct)) for _ in range(3))
        find_coordinator(broker.direct)
        deadline = time.monotonic() + PATIENCE_S
        while (joined := join(other))[
            0
        ] is not ErrorCode.member_id_required and time.monotonic() < deadline:
            time.sleep(0.1)
        assert joined[0] is ErrorCode.member_id_required
        assert join(other, joined[1])[0] is ErrorCode.none
        member_id = join(first)[1]

        lost = socket.create_connection((host, int(wire.address.split(":")[1])), PATIENCE_S)
        stack.callback(lost.close)
        lost.sendall(build_join(member_id))
        lost.settimeout(SILENT_S)
        with pytest.raises(TimeoutError):
            lost.recv(1)  # `other` has to come back first
        lost.shutdown(socket.SHUT_WR)
        again.send(build_join(member_id))
        time.sleep(SILENT_S)
        assert join(other, joined[1])[0] is ErrorCode.none
        assert oracle.read_response(JOIN_GROUP, VERSION, again.receive())[1].member_id == member_id

        with pytest.raises(TimeoutError):
            lost.recv(1)
        assert wire.unanswered(near_closed=True) == [build_join(member_id)]

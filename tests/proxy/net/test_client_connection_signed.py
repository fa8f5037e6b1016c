"""A client whom Forebay has signed in: its SASL is refused, its sessions and frames are an authenticated client's.

Owns one connection of a principal, on a played transport. Must not know where tokens come from.
"""

import pytest

from protocol import control
from proxy.net.client_connection import UNSIGNED_FRAME_BYTES, ClientConnection
from tests.proxy.cached_partition import World
from tests.proxy.followed_partition import stand_in
from tests.proxy.net.test_framed_transport import PlayedTransport

PRINCIPAL = "CN=app"
ILLEGAL_SASL_STATE = 34


@pytest.fixture
async def signed():
    """A world, a connection of PRINCIPAL, and its transport."""
    world, transport = World(), stand_in(PlayedTransport())
    link = ClientConnection(world.listener, 9, PRINCIPAL)
    transport.protocol = link.framed
    link.framed.connection_made(transport)
    yield world, link, transport
    link.close("client_closed")


@pytest.mark.parametrize("version", [0, 1])
async def test_a_handshake_is_refused_and_reaches_no_broker(signed, version):
    _, link, transport = signed
    frame = control.build_sasl_handshake_request(version, 77, "c", mechanism="PLAIN")
    transport.protocol.data_received(frame)
    answer = control.scan_sasl_handshake_response(b"".join(map(bytes, transport.pieces)), version)
    assert (answer.error_code, answer.mechanisms) == (ILLEGAL_SASL_STATE, [])
    assert link.upstream.unanswered == 0
    assert link.request_bytes == 0


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_a_token_is_refused_and_reaches_no_broker(signed, version):
    _, link, transport = signed
    frame = control.build_sasl_authenticate_request(version, 78, "c", auth_bytes=b"\0admin\0x")
    transport.protocol.data_received(frame)
    said = b"".join(map(bytes, transport.pieces))
    answer = control.scan_sasl_authenticate_response(said, version)
    assert answer.error_code == ILLEGAL_SASL_STATE
    assert link.upstream.unanswered == 0


async def test_its_fetch_sessions_are_its_own(signed):
    world, link, _ = signed
    assert link.session_owner is link
    assert world.link.session_owner is world.listener


async def test_its_frames_are_an_authenticated_clients(signed):
    world, link, _ = signed
    world.listener.saw_sasl()
    link.limit_unsigned()
    world.link.limit_unsigned()
    assert link.framed.framer.max_frame_bytes > UNSIGNED_FRAME_BYTES
    assert world.link.framed.framer.max_frame_bytes == UNSIGNED_FRAME_BYTES


async def test_rights_end_with_the_session_that_forebay_has_begun(signed):
    world, link, _ = signed
    rights = link.handlers.authorization
    rights.learn("orders", 0, world.clock_s)
    link.handlers.begin_session(world.clock_s, 5.0)
    assert rights.allows("orders", world.clock_s + 4.9)
    assert not rights.allows("orders", world.clock_s + 5.1)

"""Id and epoch of a fetch session at the broker, as the broker expects them (FetchManager.newContext)."""

import pytest

from protocol.errors import ErrorCode
from proxy.replica_fetcher.upstream_session import LAST_EPOCH, UpstreamSession


def opened(session_id: int = 77) -> UpstreamSession:
    session = UpstreamSession()
    session.advance(session_id)
    return session


def test_first_request_is_full_later_ones_incremental() -> None:
    session = UpstreamSession()
    assert (session.id, session.epoch, session.is_open) == (0, 0, False)
    for epoch in (1, 2, 3):
        session.advance(77)
        assert (session.id, session.epoch, session.is_open) == (77, epoch, True)


def test_a_broker_that_grants_none_is_asked_again() -> None:
    session = opened(0)
    assert (session.id, session.epoch, session.is_open) == (0, 0, False)


def test_the_epoch_wraps_to_one() -> None:
    session = opened()
    session.epoch = LAST_EPOCH
    session.advance(77)
    assert session.epoch == 1


def test_an_incremental_response_has_the_sessions_id() -> None:
    session = opened()
    assert session.accepts(77)
    assert not session.accepts(78)
    assert not session.accepts(0)
    assert UpstreamSession().accepts(78)


@pytest.mark.parametrize(
    ("error_code", "session_id"),
    [
        (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0),
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 77),
        (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, 77),
        (ErrorCode.NONE, 77),
    ],
)
def test_next_full_request_ends_a_failed_session(error_code: int, session_id: int) -> None:
    session = opened()
    session.end(error_code)
    assert (session.id, session.epoch) == (session_id, 0)
    session.advance(99)
    assert (session.id, session.epoch) == (99, 1)

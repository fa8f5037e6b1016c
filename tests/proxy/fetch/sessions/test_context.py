"""The rules of fetch sessions, case by case as in Kafka's FetchSessionTest."""

from random import Random

import pytest

from protocol.errors import ErrorCode
from proxy.fetch.sessions.cache import SessionCache, SessionLimits
from proxy.fetch.sessions.context import Kind, open_fetch
from tests.proxy.session_messages import IDS, NAMES, answer, asked, fetch, keys

INITIAL, LEGACY = (0, 0), (0, -1)
A, B, C = bytes(15) + b"a", bytes(15) + b"b", bytes(15) + b"c"


@pytest.fixture
def table():
    return SessionCache(SessionLimits(10, 1000, 100), Random(7))


def opened(table, session, *partitions, forget=(), version=IDS, owner="me", now_s=0):
    return open_fetch(table, fetch(session, *partitions, forget=forget), version, owner, now_s)


def begun(table, *answers, version=IDS, owner="me"):
    """The id of a session that has been shown these answers."""
    context = opened(
        table,
        INITIAL,
        *(asked(one.topic, one.partition) for one in answers),
        version=version,
        owner=owner,
    )
    assert context.kind is Kind.FULL
    planned = context.plan_response(answers, 0)
    assert planned.error_code == 0
    assert planned.answers == list(answers)
    return planned.session_id


def named(context, *answers, must_name=()):
    planned = context.plan_response(answers, 0, must_name)
    assert planned.error_code == 0
    return keys(planned.answers)


def test_sessionless_requests_get_no_session(table):
    context = opened(table, LEGACY, asked(A, 0))

    planned = context.plan_response([answer(A, 0)], 0)

    assert (context.kind, planned.session_id, keys(planned.answers)) == (
        Kind.SESSIONLESS,
        0,
        [(A, 0)],
    )
    assert table.statistics().created == 0


def test_a_full_request_gets_a_session(table):
    """FetchSessionTest.testFetchRequests."""
    context = opened(table, INITIAL, asked(A, 0, 0), asked(A, 1, 10))
    assert context.kind is Kind.FULL
    assert [one.fetch_offset for one in context.partitions] == [0, 10]

    planned = context.plan_response([answer(A, 0, 100), answer(A, 1, 10)], 0)

    assert planned.error_code == 0
    assert planned.session_id > 0
    assert keys(planned.answers) == [(A, 0), (A, 1)]
    again = opened(table, (planned.session_id, 1))
    assert again.kind is Kind.INCREMENTAL
    assert again.changed == []
    assert [one.fetch_offset for one in again.partitions] == [0, 10]
    assert again.plan_response([], 0) == (0, planned.session_id, [])


@pytest.mark.parametrize(
    ("session", "version", "owner", "error"),
    [
        ("unknown", IDS, "me", ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        ((0, 5), IDS, "me", ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        ((-7, 1), IDS, "me", ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (2, IDS, "me", ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (-2, IDS, "me", ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (1, NAMES, "me", ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
        (2, NAMES, "me", ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (1, IDS, "another", ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
    ],
)
def test_requests_that_fit_no_session_are_refused(table, session, version, owner, error):
    """FetchSessionTest.testFetchRequests; each refusal leaves the session as it is."""
    session_id = begun(table, answer(A, 0))
    if session == "unknown":
        session = (session_id + 1, 1)
    elif isinstance(session, int):
        session = (session_id, session)

    context = opened(table, session, version=version, owner=owner)

    assert context.kind is Kind.ERROR
    assert context.partitions == []
    assert context.plan_response([], 0) == (error, 0, [])
    assert opened(table, (session_id, 1)).kind is Kind.INCREMENTAL


def test_a_session_of_names_refuses_ids(table):
    """FetchSessionTest.testIncrementalFetchSessionWithIdsWhenSessionDoesNotUseIds."""
    session_id = begun(table, answer("foo", 0), version=NAMES)

    context = opened(table, (session_id, 1), asked(A, 0), version=IDS)

    assert context.plan_response([], 0).error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


@pytest.mark.parametrize(("epoch", "kind"), [(-1, Kind.SESSIONLESS), (0, Kind.FULL)])
def test_full_requests_close_the_session_they_name(table, epoch, kind):
    """FetchSessionTest.testFetchRequests: request 5 and on."""
    session_id = begun(table, answer(A, 0))

    context = opened(table, (session_id, epoch), asked(A, 1))

    assert context.kind is kind
    planned = context.plan_response([answer(A, 1)], 0)
    assert keys(planned.answers) == [(A, 1)]
    assert planned.session_id != session_id
    assert (planned.session_id > 0) is (kind is Kind.FULL)
    assert opened(table, (session_id, 1)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_client_cannot_close_another_clients_session(table):
    session_id = begun(table, answer(A, 0), owner="me")

    opened(table, (session_id, -1), owner="another")

    assert opened(table, (session_id, 1)).kind is Kind.INCREMENTAL


@pytest.mark.parametrize("version", [NAMES, IDS])
def test_partitions_come_and_go(table, version):
    """FetchSessionTest.testIncrementalFetchSession."""
    foo, bar = (A, B) if version == IDS else ("foo", "bar")
    session_id = begun(table, answer(foo, 0, 100), answer(foo, 1, 10), version=version)

    context = opened(table, (session_id, 1), asked(bar, 0), forget=[(foo, 0)], version=version)

    assert keys(context.partitions) == [(foo, 1), (bar, 0)]
    assert keys(context.changed) == [(bar, 0)]
    assert named(context, answer(foo, 1, 10), answer(bar, 0, 10)) == [(bar, 0)]


def test_topics_are_counted_as_partitions_come_and_go(table):
    assert list(opened(table, (0, -1), asked(B, 0), asked(A, 0), asked(B, 1)).topics) == [B, A]
    session_id = begun(table, answer(A, 0), answer(A, 1), answer(B, 0))
    assert list(opened(table, (session_id, 1), asked(A, 0, 7)).topics) == [A, B]
    assert list(opened(table, (session_id, 2), forget=[(A, 0), (B, 0), (B, 9)]).topics) == [A]
    assert list(opened(table, (session_id, 3), asked(B, 3), forget=[(A, 1)]).topics) == [B]


def test_a_topic_made_again_is_another_topic(table):
    """FetchSessionTest.testFetchSessionUpdateTopicIdsBrokerSide, testToForgetPartitions: ids are compared."""
    session_id = begun(table, answer(A, 0), answer(A, 1))

    context = opened(table, (session_id, 1), asked(B, 0), forget=[(A, 0)])

    assert keys(context.partitions) == [(A, 1), (B, 0)]


def test_requests_change_what_is_asked(table):
    """FetchSessionTest.testCachedLeaderEpoch, testLastFetchedEpoch."""
    session_id = begun(table, answer(A, 0), answer(A, 1))
    moved = asked(A, 0, 7, epoch=6, last_epoch=5, max_bytes=9)

    first = opened(table, (session_id, 1), moved)
    second = opened(table, (session_id, 2))

    assert first.partitions == [moved, asked(A, 1)]
    assert second.partitions is first.partitions
    assert (first.changed, second.changed) == ([moved], [])


@pytest.mark.parametrize(
    ("now", "is_named"),
    [
        (answer(A, 0, 10), False),
        (answer(A, 0, 11), True),
        (answer(A, 0, 10, log_start=1), True),
        (answer(A, 0, 10, records=b"x"), True),
        (answer(A, 0, 10, error=6), True),
        (answer(A, 0, 10, stable=3), False),
    ],
)
def test_incremental_response_names_changes(table, now, is_named):
    """CachedPartition.maybeUpdateResponseData; FetchSessionTest.testUpdateAndGenerateResponseData."""
    session_id = begun(table, answer(A, 0, 10, stable=10))
    context = opened(table, (session_id, 1))

    assert named(context, now) == ([(A, 0)] if is_named else [])


def test_diverging_epochs_and_preferred_replicas_are_named(table):
    """FetchSessionTest.testDivergingEpoch: again and again, without forgetting the HW."""
    session_id = begun(table, answer(A, 0), answer(A, 1))
    for epoch in (1, 2):
        context = opened(table, (session_id, epoch))
        assert named(context, answer(A, 0), answer(A, 1), must_name={(A, 1)}) == [(A, 1)]
    assert named(opened(table, (session_id, 3)), answer(A, 0), answer(A, 1)) == []


def test_an_error_that_went_away_is_told(table):
    """The remembered HW is set to -1, so that a recovered partition is named though its HW is the old one."""
    session_id = begun(table, answer(A, 0, 10))
    assert named(opened(table, (session_id, 1)), answer(A, 0, 10, error=6)) == [(A, 0)]
    assert named(opened(table, (session_id, 2)), answer(A, 0, 10)) == [(A, 0)]
    assert named(opened(table, (session_id, 3)), answer(A, 0, 10)) == []


def test_error_that_went_away_is_told(table):
    """FetchSessionTest.testResolveUnknownPartitions: a topic id that was unknown at first."""
    session_id = begun(table, answer(A, 0, -1, log_start=-1, error=100))

    assert named(opened(table, (session_id, 1)), answer(A, 0, -1, log_start=-1, error=100)) == [
        (A, 0)
    ]
    assert named(opened(table, (session_id, 2)), answer(A, 0, 0)) == [(A, 0)]


def test_partitions_with_records_go_last(table):
    """FetchSessionTest.testDeprioritizesPartitionsWithRecordsOnly."""
    session_id = begun(table, answer(A, 1, 50), answer(B, 2, 50), answer(C, 3, 50))
    context = opened(table, (session_id, 1))
    assert keys(context.partitions) == [(A, 1), (B, 2), (C, 3)]

    told = named(context, answer(A, 1, 60), answer(B, 2, 60, records=b"x"), answer(C, 3, 50))

    assert told == [(A, 1), (B, 2)]
    assert keys(opened(table, (session_id, 2)).partitions) == [(A, 1), (C, 3), (B, 2)]


def test_session_starts_in_its_first_responses_order(table):
    """FullFetchContext.createNewSession walks the answers, of which those with errors come last."""
    context = opened(table, INITIAL, asked(A, 0), asked(A, 1))
    session_id = context.plan_response(
        [answer(A, 1, records=b"x"), answer(A, 0, error=3)], 0
    ).session_id

    assert keys(opened(table, (session_id, 1)).partitions) == [(A, 1), (A, 0)]


def test_a_session_without_partitions_is_closed(table):
    """FetchSessionTest.testZeroSizeFetchSession."""
    session_id = begun(table, answer(A, 0), answer(A, 1))

    context = opened(table, (session_id, 1), forget=[(A, 0), (A, 1), (A, 2)])

    assert context.kind is Kind.SESSIONLESS
    assert context.plan_response([], 0) == (0, 0, [])
    assert table.statistics()[:2] == (0, 0)


def test_empty_full_request_gets_a_growing_session(table):
    session_id = begun(table)

    context = opened(table, (session_id, 1), asked(A, 0))

    assert keys(context.partitions) == [(A, 0)]
    assert named(context, answer(A, 0)) == [(A, 0)]


def test_full_table_answers_without_a_session():
    table = SessionCache(SessionLimits(1, 1000, 100), Random(7))
    begun(table, answer(A, 0))

    assert begun(table, answer(A, 0)) == 0


def test_session_larger_than_the_table_is_removed():
    table = SessionCache(SessionLimits(1, 2, 100), Random(7))
    session_id = begun(table, answer(A, 0))
    assert opened(table, (session_id, 1), asked(A, 1)).kind is Kind.INCREMENTAL

    context = opened(table, (session_id, 2), asked(A, 2))

    assert context.plan_response([], 0) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0, [])


def test_stale_session_gives_way_to_another():
    """FetchSessionTest.testFetchSessionExpiration."""
    table = SessionCache(SessionLimits(2, 1000, 1), Random(7))
    first, second = (
        opened(table, INITIAL, asked(A, 0), now_s=now_s)
        .plan_response([answer(A, 0)], now_s)
        .session_id
        for now_s in (0, 0.5)
    )
    opened(table, (first, 1), now_s=1.0)

    third = (
        opened(table, INITIAL, asked(A, 0), now_s=1.501)
        .plan_response([answer(A, 0)], 1.501)
        .session_id
    )

    assert third > 0
    assert opened(table, (first, 2)).kind is Kind.INCREMENTAL
    assert opened(table, (second, 1)).kind is Kind.ERROR


def test_duplicate_request_voids_the_first_response(table):
    """IncrementalFetchContext.updateAndGenerateResponseData looks at the epoch again."""
    session_id = begun(table, answer(A, 0))
    first = opened(table, (session_id, 1))
    second = opened(table, (session_id, 2))

    assert first.plan_response([answer(A, 0, 99)], 0) == (
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        session_id,
        [],
    )
    assert first.plan_throttled().error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert named(second, answer(A, 0, 99)) == [(A, 0)]


def test_a_session_evicted_meanwhile_still_answers(table):
    session_id = begun(table, answer(A, 0))
    context = opened(table, (session_id, 1))
    table.remove_owned("me")

    assert context.plan_response([answer(A, 0, 11, records=b"x")], 0).session_id == session_id
    assert opened(table, (session_id, 2)).kind is Kind.ERROR


def test_epochs_wrap_past_zero(table):
    session_id = begun(table, answer(A, 0))
    opened(table, (session_id, 1)).session.epoch = 2**31 - 1

    assert opened(table, (session_id, 2**31 - 1)).plan_response([], 0).error_code == 0
    assert opened(table, (session_id, 1)).kind is Kind.INCREMENTAL


def test_throttled_answers_grant_and_teach_nothing(table):
    """FetchContext.getThrottledResponse."""
    assert opened(table, INITIAL, asked(A, 0)).plan_throttled() == (0, 0, [])
    assert opened(table, LEGACY, asked(A, 0)).plan_throttled() == (0, 0, [])
    session_id = begun(table, answer(A, 0))
    assert opened(table, (session_id, 1)).plan_throttled() == (0, session_id, [])
    assert named(opened(table, (session_id, 2)), answer(A, 0, 11)) == [(A, 0)]


def test_a_partition_named_twice_counts_once(table):
    """FetchRequest.fetchData is a LinkedHashMap: the last value in the first place."""
    context = opened(table, INITIAL, asked(A, 0, 1), asked(A, 1), asked(A, 0, 2))

    assert context.partitions == [asked(A, 0, 2), asked(A, 1)]


def test_a_partition_named_and_forgotten_is_forgotten(table):
    session_id = begun(table, answer(A, 0), answer(A, 1))

    context = opened(table, (session_id, 1), asked(A, 0, 5), forget=[(A, 0)])

    assert (keys(context.partitions), context.changed) == ([(A, 1)], [])


def test_session_keeps_its_idle_partitions(table):
    context = opened(table, INITIAL, asked(A, 0))
    session_id = context.plan_response([answer(A, 0)], 0).session_id
    context.session.partitions.tracker = "parked"

    assert opened(table, (session_id, 1)).session.partitions.tracker == "parked"

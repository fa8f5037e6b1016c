"""A consumer with sessions by FetchSessionHandler's rules sees the same as with full fetches.

The log is offsets alone: HW, log start, error and a counter of records of each partition. After each answer the
client's view of each partition it fetches must be the broker's, as the first answer after a change has it.
"""

from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from protocol.errors import ErrorCode
from proxy.fetch.sessions.cache import SessionCache, SessionLimits
from proxy.fetch.sessions.context import Kind, open_fetch
from tests.proxy.session_messages import IDS, answer, asked, fetch, key

TOPIC = bytes(16)
UNKNOWN_TOPIC_ID = 100
PARTITIONS = range(3)
POLLS = st.lists(st.booleans(), max_size=2)
READ_AT_ONCE = 2  # partitions that one answer may return records of, as a small max_bytes would


class Follower:
    """FetchSessionHandler: what the next request says, and what an answer makes of it."""

    def __init__(self):
        self.session = (0, 0)
        self.in_session = {}

    def request(self, wanted):
        wanted = {one: asked(TOPIC, one, offset) for one, offset in wanted.items()}
        before, self.in_session = self.in_session, wanted
        if self.session[1] in (0, -1):
            return fetch(self.session, *wanted.values())
        send = [one for partition, one in wanted.items() if before.get(partition) != one]
        forget = [(TOPIC, partition) for partition in before if partition not in wanted]
        return fetch(self.session, *send, forget=forget)

    def handle(self, planned):
        """Whether the answer can be used."""
        if planned.error_code:
            lost = planned.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            self.session = (0, 0) if lost else (self.session[0], 0)
            return False
        told = {one.partition for one in planned.answers}
        if self.session[1] == 0:
            assert told == set(self.in_session)
            self.session = (planned.session_id, 1) if planned.session_id else (0, 0)
        else:
            assert told <= set(self.in_session)
            self.session = (
                (planned.session_id, self.session[1] + 1) if planned.session_id else (0, 0)
            )
        return True


class Sessions(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.table = SessionCache(SessionLimits(2, 12, 10), Random(1))
        self.client = Follower()
        self.now_s = 0
        self.log = {one: {"start": 0, "end": 0, "error": 0} for one in PARTITIONS}
        self.wanted = {0: 0}
        self.view = {}

    @rule(partition=st.sampled_from(PARTITIONS), count=st.integers(1, 3), polls=POLLS)
    def produce(self, partition, count, polls):
        self.log[partition]["end"] += count
        self.poll_often(polls)

    @rule(partition=st.sampled_from(PARTITIONS), polls=POLLS)
    def delete_records(self, partition, polls):
        log = self.log[partition]
        log["start"] = min(log["start"] + 1, log["end"], self.wanted.get(partition, log["end"]))
        self.poll_often(polls)

    @rule(
        partition=st.sampled_from(PARTITIONS),
        error=st.sampled_from((6, UNKNOWN_TOPIC_ID)),
        polls=POLLS,
    )
    def fail(self, partition, error, polls):
        self.log[partition]["error"] = 0 if self.log[partition]["error"] else error
        self.poll_often(polls)

    @rule(partition=st.sampled_from(PARTITIONS))
    def want(self, partition):
        self.wanted.setdefault(partition, self.log[partition]["start"])

    @precondition(lambda self: len(self.wanted) > 1)
    @rule()
    def unwant(self):
        del self.wanted[next(iter(self.wanted))]

    @rule(count=st.integers(1, 2), size=st.integers(0, 6))
    def others_come(self, count, size):
        for _ in range(count):
            asked_for = [asked(TOPIC, one) for one in range(size)]
            context = open_fetch(self.table, fetch((0, 0), *asked_for), IDS, "others", self.now_s)
            context.plan_response([answer(TOPIC, one) for one in range(size)], self.now_s)

    @rule(seconds=st.integers(1, 12))
    def time_passes(self, seconds):
        self.now_s += seconds

    @rule()
    def connection_is_lost(self):
        """FetchSessionHandler.handleError: close the old one, attempt a new one."""
        self.client.session = (self.client.session[0], 0)

    @rule()
    def duplicate_request(self):
        session = self.client.session
        if session[1] > 0:
            open_fetch(self.table, fetch(session), IDS, "me", self.now_s)

    def poll_often(self, polls):
        for everything in polls:
            self.poll(everything)

    @rule(everything=st.booleans())
    def poll(self, everything):
        """One fetch; the broker answers for all, or as a caller may, only for what must be answered."""
        request = self.client.request(self.wanted)
        self.view = {
            partition: seen for partition, seen in self.view.items() if partition in self.wanted
        }
        context = open_fetch(self.table, request, IDS, "me", self.now_s)
        if context.kind is not Kind.ERROR:
            assert {one.partition: one.fetch_offset for one in context.partitions} == self.wanted
        answers, with_records = [], 0
        for one in context.partitions:
            found = self.read(one, with_records < READ_AT_ONCE)
            with_records += bool(found.records_bytes)
            news = found.records_bytes or found.error_code
            if (
                everything
                or context.kind is not Kind.INCREMENTAL
                or news
                or self.moved(context, found)
            ):
                answers.append(found)
        planned = context.plan_response(answers, self.now_s)
        if self.client.handle(planned):
            for told in planned.answers:
                self.see(told)
            self.check_view()

    def read(self, one, may_read):
        log = self.log[one.partition]
        if log["error"]:
            high_watermark, log_start = self.shown_with_error(log)
            return answer(
                TOPIC, one.partition, high_watermark, log_start=log_start, error=log["error"]
            )
        records = b"x" * (log["end"] - one.fetch_offset) if may_read else b""
        return answer(TOPIC, one.partition, log["end"], log_start=log["start"], records=records)

    def shown_with_error(self, log):
        """Kafka shows -1 with most errors; what is remembered may not depend on it."""
        return (-1, -1) if log["error"] == UNKNOWN_TOPIC_ID else (log["end"], log["start"])

    def moved(self, context, found):
        kept = context.session.partitions.by_key[key(found)]
        return (kept.high_watermark, kept.log_start_offset) != (
            found.high_watermark,
            found.log_start_offset,
        )

    def see(self, told):
        self.view[told.partition] = (told.error_code, told.high_watermark, told.log_start_offset)
        self.wanted[told.partition] += told.records_bytes

    def check_view(self):
        for partition in self.wanted:
            log = self.log[partition]
            whole = self.shown_with_error(log) if log["error"] else (log["end"], log["start"])
            assert self.view[partition] == (log["error"], *whole)

    @invariant()
    def bounds_hold(self):
        statistics = self.table.statistics()
        assert statistics.sessions <= 2
        assert statistics.partitions <= 12


Sessions.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSessions = Sessions.TestCase

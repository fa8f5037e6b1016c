"""Responses leave in the order of their requests."""

import gc
import weakref

import pytest

from proxy.net.response_order import ResponseOrder
from proxy.net.send_buffer import SendBuffer
from tests.proxy.followed_partition import known


class Delivered:
    """Replies whose buffers end here."""

    def __init__(self):
        self.left = []
        self.sent = []
        self.progress = 0
        self.replies = ResponseOrder(self.deliver, self.on_progress)

    def deliver(self, buffers, on_sent):
        self.left.append(b"".join(buffers))
        return SendBuffer(buffers, on_sent)

    def on_progress(self):
        self.progress += 1

    def note(self, name):
        return lambda whole: self.sent.append((name, whole))


def test_a_reply_waits_for_those_before_it():
    line = Delivered()
    first, second, third = (line.replies.reserve() for _ in range(3))
    third.complete([b"3"])
    second.complete([b"2", b"two"])
    assert line.left == []
    assert line.progress == 0
    assert len(line.replies) == 3
    assert line.replies.oldest is first
    first.complete([b"1"])
    assert line.left == [b"1", b"2two", b"3"]
    assert line.progress == 1
    assert len(line.replies) == 0
    assert line.replies.oldest is None


def test_the_line_stops_at_the_first_open_place():
    line = Delivered()
    first, second, third = (line.replies.reserve() for _ in range(3))
    first.complete([b"1"])
    third.complete([b"3"])
    assert line.left == [b"1"]
    assert line.replies.oldest is second
    second.complete([b"2"])
    assert line.left == [b"1", b"2", b"3"]
    assert line.progress == 2


def test_an_empty_reply_counts_as_completed():
    line = Delivered()
    first, second = line.replies.reserve(), line.replies.reserve()
    second.complete([b"2"])
    first.complete([])
    assert line.left == [b"", b"2"]


@pytest.mark.parametrize("leaves_at_once", [True, False])
def test_completing_twice_is_a_bug(leaves_at_once):
    line = Delivered()
    if not leaves_at_once:
        line.replies.reserve()
    reply = line.replies.reserve()
    reply.complete([b"1"])
    with pytest.raises(AssertionError, match="once"):
        reply.complete([b"1"])
    assert line.left == ([b"1"] if leaves_at_once else [])


def test_on_sent_goes_with_the_buffers():
    line = Delivered()
    reply = line.replies.reserve()
    reply.complete([b"1"], line.note("a"))
    assert line.sent == []
    known(known(reply.outgoing).on_sent)(True)
    assert line.sent == [("a", True)]


def test_abandoned_responses_are_told_and_dropped():
    line = Delivered()
    open_place, completed, silent = (line.replies.reserve() for _ in range(3))
    completed.complete([b"2"], line.note("completed"))
    silent.complete([b"3"])
    line.replies.abandon()
    assert line.sent == [("completed", False)]
    assert len(line.replies) == 0
    open_place.complete([b"1"], line.note("late"))
    assert line.left == []
    line.replies.abandon()
    assert line.sent == [("completed", False)]


def test_copy_out_of_a_waiting_response():
    line = Delivered()
    first, second = line.replies.reserve(), line.replies.reserve()
    assert second.copy_out()  # nothing there yet
    memory = bytearray(b"arena")
    second.complete([memoryview(memory)])
    assert second.copy_out()
    memory[:] = b"other"
    first.complete([b""])
    assert line.left == [b"", b"arena"]


def test_copy_out_of_a_leaving_response():
    line = Delivered()
    reply = line.replies.reserve()
    memory = bytearray(b"arena")
    reply.complete([memoryview(memory)])
    known(reply.outgoing).in_transport = True
    assert not reply.copy_out()
    known(reply.outgoing).in_transport = False
    assert reply.copy_out()
    memory[:] = b"other"
    assert list(known(reply.outgoing).buffers) == [b"arena"]


class Asked:
    """Holds its place among the replies, as a request in hand does, and hears when its answer has left."""

    def __init__(self, line):
        self.reply = line.replies.reserve()
        self.reply.complete([b"x" * 100], self.sent)

    def sent(self, delivered):
        self.delivered = delivered


@pytest.mark.parametrize("leaves", [True, False])
def test_answered_request_is_not_referenced(leaves):
    line = Delivered()
    asked = Asked(line)
    outgoing = asked.reply.outgoing
    outgoing.end(leaves)
    assert asked.delivered is leaves
    sent_count = weakref.ref(asked)
    gc.disable()
    try:
        del asked
        assert sent_count() is None, "freed without the collector"
    finally:
        gc.enable()

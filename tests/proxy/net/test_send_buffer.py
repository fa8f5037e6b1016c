"""The rest of buffers after some of their bytes have left."""

import pytest

from proxy.net.send_buffer import cut_buffers

BUFFERS = (b"head", b"", memoryview(b"records"), b"end")


@pytest.mark.parametrize("sent_bytes", range(15))
def test_rest_follows_the_sent_bytes(sent_bytes):
    whole = b"".join(BUFFERS)
    left = cut_buffers(BUFFERS, sent_bytes)
    assert b"".join(left) == whole[sent_bytes:]
    assert all(len(one) for one in left), "nothing empty is sent"


def test_unsent_buffers_are_left_whole():
    left = cut_buffers((b"head", b"records"), 4)
    assert left[0] is cut_buffers(left, 0)[0]

"""What Kafka's tools print is read; what they do not print is an error, not a zero."""

import pytest

from bench.ladder.java_tools import scan_read, scan_sent
from bench.ladder.loads import Wrong

SENT = """\
9001 records sent, 1800.2 records/sec (1.72 MB/sec), 12.3 ms avg latency, 300.0 ms max latency.
40000 records sent, 35842.3 records/sec (34.18 MB/sec), 410.02 ms avg latency, 772.00 ms max latency, 423 ms 50th, \
701 ms 95th, 760 ms 99th, 771 ms 99.9th.
"""
READ = """\
start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, \
fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec
2026-11-01 10:00:00:000, 2026-11-01 10:00:04:000, 38.1470, 9.5, 40001, 10000.0, 3300, 700, 54.5, 57142.9
"""


def test_the_last_summary_counts():
    assert scan_sent(SENT) == (40000, 35842.3, 423.0, 760.0)


def test_the_rate_is_the_fetching_alone():
    assert scan_read(READ) == (40001, 57142.9)


@pytest.mark.parametrize("printed", ["", "9001 records sent, 1800.2 records/sec", "no such topic"])
def test_without_a_summary_there_is_no_figure(printed):
    with pytest.raises(Wrong, match="no summary"):
        scan_sent(printed)
    with pytest.raises(Wrong, match="no table"):
        scan_read(printed)

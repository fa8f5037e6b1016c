"""The rule on figures of the kernel, and the figures of real processes."""

import os
import subprocess
import sys

import pytest

from proxy.supervisor.starvation import Usage, count_own_s, read_usage

RUNS, WAITS = True, False


@pytest.mark.parametrize(
    ("before", "after", "own_s"),
    [
        (Usage(1.0, RUNS), Usage(1.5, RUNS), 0.5),  # it had all of a processor
        (Usage(1.0, RUNS), Usage(2.5, RUNS), 0.5),  # of three
        (Usage(1.0, RUNS), Usage(1.02, RUNS), 0.02),  # a throttled container
        (Usage(1.0, WAITS), Usage(1.0, RUNS), 0.0),  # it waits and got nothing
        (Usage(1.0, RUNS), Usage(1.0, WAITS), 0.5),  # stopped, or it waits for something else
        (Usage(1.0, WAITS), Usage(1.3, WAITS), 0.5),
        (None, Usage(1.0, RUNS), 0.5),  # its first tick, or a kernel that does not tell
        (Usage(1.0, RUNS), None, 0.5),
        (Usage(1.0, RUNS), Usage(0.9, RUNS), 0.0),
    ],
)
def test_of_a_tick_counts_what_the_worker_could_use(
    before: Usage | None, after: Usage | None, own_s: float
) -> None:
    assert count_own_s(before, after, 0.5) == pytest.approx(own_s)


THREAD = """
import sys, threading
def spin():
    while True:
        pass
if sys.argv[1] == "spin":
    threading.Thread(target=spin, daemon=True).start()
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("does", ["spin", "wait"])
def test_any_thread_that_wants_a_processor_counts(does: str) -> None:
    """The main thread waits for its input."""
    with subprocess.Popen(
        [sys.executable, "-c", THREAD, does], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        usage = read_usage(process.pid)
        while usage is not None and usage.is_runnable != (does == "spin"):
            usage = read_usage(process.pid)
        assert usage is not None
        process.kill()
    assert read_usage(process.pid) is None


def test_processor_time_grows() -> None:
    before = read_usage(os.getpid())
    after = before
    while before == after:
        after = read_usage(os.getpid())
    assert before is not None and after is not None
    assert after.processor_s > before.processor_s and after.is_runnable

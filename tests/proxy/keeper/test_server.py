"""The keeper's end where workers still send what an earlier one left."""

import signal
import subprocess
import sys

ENDING = """
from proxy.admin.log import configure
from proxy.keeper.server import end_torn

configure("info", "text", 100)
end_torn("broker", "it belongs to another")
"""


def test_the_reason_of_the_end_is_logged():
    ended = subprocess.run([sys.executable, "-c", ENDING], stderr=subprocess.PIPE, check=False)
    assert ended.returncode == -signal.SIGABRT
    (line,) = ended.stderr.decode().splitlines()
    assert "the next keeper begins empty" in line
    assert "reason=broker" in line

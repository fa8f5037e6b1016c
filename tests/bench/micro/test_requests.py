"""The micro benchmark of a Produce runs without what only tests and brokers need."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
ABSENT = ("hypothesis", "confluent_kafka", "aiokafka", "cryptography", "pytest", "matplotlib")
SCRIPT = f"""
import sys
sys.modules.update(dict.fromkeys({ABSENT}))
from bench.micro.requests import main
sys.argv[1:] = ["--times", "20", "--runs", "1"]
main()
"""


def test_it_measures_without_clients_and_test_tools() -> None:
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("us a request") == 3

"""Random Fetches, each asked of a broker and of the Forebay before it; the two answers are compared.

`python -m tests.e2e.differential --seed N --rounds M` is the long form, tests/e2e/test_differential.py the short one.
`stage` prepares topics, `drawing` draws requests, `run` asks both sides, `judge` compares. The log of a partition, read
from the broker, is what record bytes are held against (`logs`).
"""

"""`python -m bench.audit.scan LOGS`: the audit's own reading of lines, without Spark.

Owns nothing but the loop. What `ingest` costs above it is Spark's: its start, the hand-over of rows, and Parquet.
"""

from __future__ import annotations

import sys
from pathlib import Path

from spark_audit.log_file import read_file


def main(logs: str) -> int:
    """Read all files of a directory; prints how many rows they have."""
    rows = 0
    for number, path in enumerate(sorted(Path(logs).iterdir())):
        for batch in read_file(number, str(path), path.read_bytes(), "scan"):
            rows += batch.num_rows
    print(f"rows {rows}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

"""`python -m bench.audit.floor LOGS`: DuckDB's main sums over the same lines, as a floor for the audit.

Owns the sums. Must not know the audit. They are less than the audit makes: no judgement of lines, no ledger, no ages
and no curve; what is left is the least that anybody pays who reads these lines and sums them.
"""

from __future__ import annotations

import sys

COLUMNS = (
    "type: 'VARCHAR', boot: 'VARCHAR', ts: 'BIGINT', topic: 'VARCHAR', partition: 'BIGINT', clientId: 'VARCHAR',"
    " \"group\": 'VARCHAR', result: 'VARCHAR', reason: 'VARCHAR', bytes: 'BIGINT', ageBytes: 'BIGINT',"
    " totalMs: 'DOUBLE', source: 'VARCHAR',"
    " answers: 'STRUCT(topic VARCHAR, result VARCHAR, reason VARCHAR, partitions BIGINT[][])[]'"
)
ROWS = """
CREATE TABLE lines AS SELECT * EXCLUDE answers FROM read WHERE type != 'response' UNION ALL BY NAME
SELECT 'fetch' AS type, boot, ts, clientId, "group", totalMs, one.topic AS topic, one.result AS result,
one.reason AS reason, said[1] AS partition, said[3] AS bytes, said[5] AS ageBytes FROM
(SELECT *, unnest(one.partitions) AS said FROM
(SELECT *, unnest(answers) AS one FROM read WHERE type = 'response'))
"""
SUMS = (
    ("topic", "result", "reason"),
    ("topic", "partition", "result"),
    ("clientId", "result"),
    ('"group"', "result"),
    ("ts // 60000", "result"),
    ("boot", "result", "reason"),
)


def main(logs: str) -> int:
    """Sum what the lines of a directory say; prints lines and bytes. ModuleNotFoundError: DuckDB is not installed."""
    import duckdb  # the other runs need none

    files = f"{logs}/*.jsonl*"
    database = duckdb.connect()
    database.execute(
        "CREATE TABLE read AS SELECT * FROM"
        f" read_json('{files}', format='newline_delimited', columns={{{COLUMNS}}})"
    )
    database.execute(ROWS)
    for keys in SUMS:
        named = ", ".join(keys)
        database.execute(
            f"SELECT {named}, count(*), sum(bytes) FROM lines WHERE type = 'fetch' GROUP BY {named}"
        ).fetchall()
    database.execute(
        "SELECT result, quantile_cont(totalMs, [0.5, 0.99]) FROM lines WHERE bytes > 0 GROUP BY 1"
    ).fetchall()
    database.execute(
        "SELECT floor(log2(greatest(ageBytes, 1)) * 256), sum(bytes) FROM lines GROUP BY 1"
    ).fetchall()
    ((count, size_bytes),) = database.execute(
        "SELECT count(*), sum(bytes) FILTER (type = 'fetch') FROM lines"
    ).fetchall()
    print(f"lines {count} bytes {size_bytes}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
